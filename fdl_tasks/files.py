"""Small files of our own below the global root: read whatever they are, written whole or not at all."""

from __future__ import annotations

import tempfile
from pathlib import Path


def read(file: Path) -> str:
    """A small file as text; empty when it can't be read."""
    try:
        return file.read_text("utf-8", "replace")
    except OSError:
        return ""


def write(file: Path, text: str, mode: int = 0o644) -> None:
    """``text`` as the whole file at once, unless it is that already; a link in its place is replaced, not followed."""
    if not file.is_symlink() and read(file) == text:
        return
    handle, name = tempfile.mkstemp(prefix=".fdl-", dir=file.parent)
    try:
        with open(handle, "w", encoding="utf-8") as out:
            out.write(text)
        Path(name).chmod(mode)
        Path(name).rename(file)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def is_file(file: Path) -> bool:
    """Whether it is there and can be looked at."""
    try:
        return file.is_file()
    except OSError:
        return False
