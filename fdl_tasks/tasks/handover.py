"""What a build hands on: the envelope in the environment of this process, or in a file."""

from __future__ import annotations

import json
import os
import secrets
import stat
from pathlib import Path

from ..errors import UsageError


def check_file(name: str | Path) -> Path:
    """The file that ``--envelope`` names, symbolic links followed; refused while nothing is built yet.

    Raises:
        UsageError: its directory is not there, or what is there is no envelope and would be lost.
    """
    path = Path(os.path.realpath(Path(name).expanduser()))
    if not path.parent.is_dir():
        raise UsageError("--envelope: there is no such directory", where=str(path.parent), hint="make it first")
    if not os.access(path.parent, os.W_OK):
        raise UsageError("--envelope: can't be written there", where=str(path.parent), hint="name another place")
    if path.exists() and not _is_envelope(path):
        hint = "name another file, or remove this one"
        raise UsageError("--envelope: is there already and is no envelope", where=str(path), hint=hint)
    return path


def _is_envelope(path: Path) -> bool:
    if not stat.S_ISREG(path.stat().st_mode):
        return False
    try:
        found = json.loads(path.read_bytes() or b"{}")
    except ValueError:
        return False
    return isinstance(found, dict) and all(isinstance(entry, dict) and "bin" in entry for entry in found.values())


def write_file(path: Path, text: str) -> None:
    """Write the whole of ``text`` or nothing: readers see the old file or the new one. Raises OSError."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644), "wb") as file:
            file.write(text.encode())
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
