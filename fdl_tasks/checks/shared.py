"""The controller's side of the shared-mount check: fresh files that every worker must see.

There are as many files as a worker may look: caches keep a failed look-up, so each look takes a new
name. The files are removed afterwards; ``target/cluster`` itself stays, since builds go there next,
and since a worker that has just learnt of it would have to learn of it again.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections.abc import Iterator
from pathlib import Path

from ..errors import PreflightError
from .probe import Fresh

LOOKS = 11  # with PAUSE between them: 5 s
PAUSE = "0.5"  # seconds


@contextlib.contextmanager
def fresh_files(root: Path, count: int = LOOKS) -> Iterator[Fresh]:
    """Fresh files under ``<root>/target/cluster``, synced to the disk, removed at the end.

    Raises:
        PreflightError: they can't be written there.
    """
    folder, nonce, token = root / "target/cluster", secrets.token_hex(6), secrets.token_hex(16)
    names = [f".fdl-probe-{nonce}-{number}" for number in range(count)]
    try:
        try:
            fresh = Fresh(token, _write(folder, names, token))
        except OSError as error:
            raise _not_writable(folder, error) from error
        yield fresh
    finally:
        for name in names:
            with contextlib.suppress(OSError):
                (folder / name).unlink()


def _write(folder: Path, names: list[str], token: str) -> dict[str, tuple[float, float]]:
    for part in (folder.parent, folder):  # not the root itself: where that is not there, the path is wrong
        part.mkdir(exist_ok=True)
    written = {name: _write_one(folder / name, token) for name in names}
    _sync_folder(folder)
    return written


def _write_one(path: Path, token: str) -> tuple[float, float]:
    began = time.time()
    with path.open("x", encoding="ascii") as file:
        file.write(f"{token}\n")
        file.flush()
        os.fsync(file.fileno())
    return began, time.time()


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # some network file systems can't sync a directory
            os.fsync(fd)
    finally:
        os.close(fd)


def _not_writable(folder: Path, error: OSError) -> PreflightError:
    hint = "builds go there, so it must be writable"
    if isinstance(error, FileNotFoundError):
        hint = "mend controller.path in cluster.yml"
    elif isinstance(error, PermissionError):
        hint = f"a build in Docker may have made it as root: sudo chown -R \"$USER\" '{folder.parent}'"
    return PreflightError(f"can't write there: {error.strerror or error}", where=str(folder), hint=hint)
