"""A full disk, told the same way by every step: where, how much is needed, how much is free."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

from ..errors import PermanentError
from ..sizes import human_size

FULL = ("No space left on device", "os error 28", "Disk quota exceeded")  # errno's words in the C locale; Rust's


def is_full(error: OSError | str) -> bool:
    """Whether an error, or what a program said, means that there was no room."""
    if isinstance(error, OSError):
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
    return any(words in error for words in FULL)


def full(path: Path, what: str, needed: int | None = None) -> PermanentError:
    """The error of a disk that is full: waiting frees nothing. ``needed`` bytes, where they are known."""
    needs = human_size(needed) if needed is not None else "more"
    return PermanentError(
        f"{what}: no room: {needs} needed, {human_size(free(path))} free",
        where=str(path),
        hint=f"free space there, or give the box a larger disk (df -h {path})",
    )


def free(path: Path) -> int:
    """Bytes that this user can still write on the file system of ``path``, or of its nearest parent that exists."""
    there = next(folder for folder in (path, *path.parents) if folder.exists())
    return shutil.disk_usage(there).free
