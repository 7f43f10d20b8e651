"""Step 3 of ``prepare``: the directories of this box that a run writes to, proven by writing (spec/prepare.md, 3).

Permissions, a read-only mount, a quota and a full disk all look different, and are all the same to a write.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Mapping
from pathlib import Path

from ...errors import PermanentError
from ...sizes import human_size
from ..room import free, full, is_full
from ..tools import Note
from .mounts import mounted_over, mounts

CACHE = ".flodl/data"  # below HOME, wherever FLODL_HOME is (facts/upstream.md, section 0)
LOW = 1 << 30  # bytes: less than this is smaller than any real corpus
RAM = {"tmpfs", "ramfs"}
PROBE = bytes(4096)  # bytes: an empty file may fit where nothing can be written
FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def global_root(env: Mapping[str, str]) -> Path | None:
    """``FLODL_HOME``, else ``~/.flodl``; None when neither it nor HOME is set. Raises PermanentError when relative."""
    if root := _directory(env, "FLODL_HOME"):
        return root
    home = _directory(env, "HOME")
    return home / ".flodl" if home else None


def need_root(env: Mapping[str, str], what: str) -> Path:
    """The global root, for ``what`` is to go below it. Raises PermanentError when there is none."""
    if root := global_root(env):
        return root
    raise PermanentError(
        f"there is no place for {what}: HOME and FLODL_HOME are not set",
        where="environment",
        hint="set HOME, or FLODL_HOME to a directory on a local disk",
    )


def prove(env: Mapping[str, str], note: Note) -> Path | None:
    """Prove the dataset cache and the temp directory writable; the global root, as ``global_root`` says.

    Only the cache is created. Nothing stays of the proof.

    Raises:
        PermanentError: a directory that can't be made, is missing or can't be written; a disk that is full.
    """
    if home := _directory(env, "HOME"):
        _prove_cache(home / CACHE, note)
    else:
        note("HOME is not set: datasets are cached below the temp directory; set it to a directory on a local disk")
    temp = _directory(env, "TMPDIR") or Path("/tmp")  # noqa: S108
    _prove(temp, "the temp directory", "make it, or set TMPDIR to a directory on a local disk", note)
    return global_root(env)


def _directory(env: Mapping[str, str], name: str) -> Path | None:
    """The directory that a variable names; empty is the same as not set, as shells and tempfile take it."""
    value = env.get(name)
    if value and not value.startswith("/"):
        raise PermanentError(
            f"{name} is {value!r}, which is another place in every directory",
            where="environment",
            hint=f"set {name} to an absolute path",
        )
    return Path(value) if value else None


def _prove_cache(cache: Path, note: Note) -> None:
    what, hint = "the dataset cache", "set HOME to a directory that this user may write to"
    try:
        cache.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _failed(cache, f"{what} can't be made", hint, error) from error
    _prove(cache, what, hint, note)


def _prove(folder: Path, what: str, hint: str, note: Note) -> None:
    try:
        _write_and_delete(folder / f".fdl-prepare-{secrets.token_hex(16)}")
    except OSError as error:
        raise _failed(folder, f"{what} can't be written to", hint, error) from error
    mount = mounted_over(folder.resolve(), mounts())
    if mount and mount.kind in RAM:
        note(f"{what} {folder} is on {mount.kind}: what is put there takes memory, not disk")
    if (left := free(folder)) < LOW:
        note(f"{what} {folder} has {human_size(left)} free: less than any real dataset takes")


def _failed(folder: Path, what: str, hint: str, error: OSError) -> PermanentError:
    if is_full(error):
        return full(folder, what, len(PROBE))
    return PermanentError(f"{what}: {error.strerror}", where=str(folder), hint=hint)


def _write_and_delete(probe: Path) -> None:
    try:
        with os.fdopen(os.open(probe, FLAGS, 0o600), "wb") as stream:
            stream.write(PROBE)
            stream.flush()
            os.fsync(stream.fileno())  # a network file system tells only now that it is full
        probe.unlink()
    except BaseException:  # Ctrl-C too
        with contextlib.suppress(OSError):
            probe.unlink()
        raise
