"""What a box that is ready has, and why another one is not."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any, TextIO

from ..errors import FdlError, PermanentError, PrepareError, TransientError
from .table import Mask, render

if TYPE_CHECKING:
    from ..boxes.pipeline import Prepared

NONE = "-"


def prepared_table(found: Prepared, mask: Mask, stream: TextIO | None) -> str:
    """One row a thing that the box has; the last line is its state."""
    gpus = ", ".join(f"{gpu.index}: {gpu.name} ({gpu.arch})" for gpu in found.gpus)
    rows = [
        ("gpus", gpus),
        ("data", str(found.data_path or NONE)),
        ("libtorch", f"{found.libtorch.variant} in {found.libtorch.dir}" if found.libtorch else NONE),
        ("binary", str(found.bin.path) if found.bin else NONE),
        ("start in", str(found.bin.cwd) if found.bin else NONE),
        ("arguments", NONE if found.args is None else shlex.join(found.args)),
        ("run", found.run_id or NONE),
    ]
    return f"{render(('what', 'is'), [(what, mask(text)) for what, text in rows], stream)}\n\nready"


def failure_json(error: FdlError) -> dict[str, Any]:
    """A box that is not ready, for ``--json`` (spec/prepare.md); what is wrong in the configuration stays so."""
    known = error if isinstance(error, PrepareError) else PermanentError if error.exit_code == 2 else TransientError
    notes = list(error.notes) if isinstance(error, PrepareError) else []
    return {"ok": False, "class": known.kind, "error": str(error), "notes": notes}
