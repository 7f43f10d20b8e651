"""The libtorch variants of a box, for people and for programs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from .table import Mask, plural, render

if TYPE_CHECKING:
    from ..boxes.torch.library import Installed, Libtorch

COLUMNS = ("variant", "status", "release", "archs")


def installed_table(
    found: Sequence[Installed], here: Libtorch | None, root: Path, mask: Mask, stream: TextIO | None
) -> str:
    """One row a variant of ``root``, then what is active for the directory that was asked about."""
    rows = [tuple(map(mask, (one.variant, status(one), one.release or "unknown", one.archs or ""))) for one in found]
    table = [render(COLUMNS, rows, stream), ""] if rows else []
    active = f"active here: {here.variant} ({here.dir})" if here else "active here: none"
    return "\n".join([*table, mask(f"{plural(len(found), 'variant')} in {root / 'libtorch'}"), mask(active)])


def status(one: Installed) -> str:
    """``active`` for the box, ``installed``, or ``broken``: without a ``lib/``."""
    return "broken" if not one.usable else "active" if one.active else "installed"


def installed_json(found: Sequence[Installed], here: Libtorch | None) -> dict[str, Any]:
    """The same for ``--json``."""
    variants = [
        {
            "variant": one.variant,
            "dir": str(one.dir),
            "status": status(one),
            "release": one.release,
            "archs": one.archs.split() if one.archs else None,
        }
        for one in found
    ]
    return {"variants": variants, "active": libtorch_json(here) if here else None}


def libtorch_json(found: Libtorch, notes: Sequence[str] | None = None) -> dict[str, Any]:
    """One variant; with ``notes``, as the result of a command."""
    told = {"dir": str(found.dir), "variant": found.variant}
    return told if notes is None else {"ok": True, **told, "notes": list(notes)}
