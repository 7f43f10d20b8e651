"""GPUs of a box, for people and for programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TextIO

from .table import Mask, plural, render
from .wrap import wrapped

if TYPE_CHECKING:
    from ..boxes.gpu.gpus import Gpu, Survey

COLUMNS = ("vendor", "device", "status", "arch", "memory", "name", "uuid")


def gpu_table(seen: Survey, visible: Survey, offered: Sequence[Gpu], mask: Mask, stream: TextIO | None) -> str:
    """One row a device, then what else was found, then how many are usable.

    Args:
        seen: every device of the box.
        visible: what the masks leave of them, with every finding.
        offered: what ``--devices`` leaves of that.
    """
    rows = [tuple(map(mask, _row(gpu, status(gpu, visible, offered)))) for gpu in seen.gpus]
    table = [render(COLUMNS, rows, stream), ""] if rows else []
    found = [mask(f"{one.vendor.name if one.vendor else 'note'}: {one.message}") for one in visible.findings]
    return "\n".join(
        [
            *table,
            *(wrapped(line, stream) for line in found),
            f"{len(offered)} of {plural(len(seen.gpus), 'GPU')} usable",
        ]
    )


def _row(gpu: Gpu, state: str) -> tuple[str, ...]:
    memory = "unknown" if gpu.memory is None else f"{gpu.memory} MiB"
    return (gpu.vendor.name, str(gpu.index), state, gpu.arch, memory, gpu.name, gpu.uuid or "")


def status(gpu: Gpu, visible: Survey, offered: Sequence[Gpu]) -> str:
    """``ok``; ``masked`` by a variable; ``left out`` by ``--devices``."""
    return "ok" if gpu in offered else "left out" if gpu in visible.gpus else "masked"


def gpu_json(seen: Survey, visible: Survey, offered: Sequence[Gpu]) -> dict[str, object]:
    """The same for ``--json``; memory in MiB, null where the driver can't tell."""
    return {
        "ok": bool(offered),
        "gpus": [
            {
                "vendor": gpu.vendor.name.lower(),
                "index": gpu.index,
                "name": gpu.name,
                "arch": gpu.arch,
                "memory_mib": gpu.memory,
                "uuid": gpu.uuid,
                "status": status(gpu, visible, offered),
            }
            for gpu in seen.gpus
        ],
        "findings": [
            {
                "vendor": one.vendor.name.lower() if one.vendor else None,
                "kind": one.kind,
                "message": one.message,
            }
            for one in visible.findings
        ],
    }
