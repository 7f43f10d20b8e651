"""One run at a time where two would spoil each other's work: a second one waits, and says for what."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from filelock import FileLock, Timeout

from ..hosts.fanout import Cancel
from .files import read, write
from .tools import Note

LOCK = ".prepare.lock"  # of a box, in its global root
HOLDER = "-holder"  # behind a lock's name: a file of its own, since whoever waits opens the lock, and may empty it
NAP = 0.1  # seconds between two tries


def alone_on_box(root: Path | None, cancel: Cancel, note: Note) -> AbstractContextManager[bool]:
    """One ``prepare`` at a time on a box; where its root can't be made, the step that proves directories says why."""
    try:
        if root:
            root.mkdir(parents=True, exist_ok=True)
    except OSError:
        root = None
    return alone(root / LOCK, "prepares this box", note, cancel) if root else nullcontext(False)


@contextlib.contextmanager
def alone(file: Path, doing: str, note: Note, cancel: Cancel | None = None) -> Iterator[bool]:
    """Hold the lock ``file``, waiting as long as it takes; False where the file system has no locks.

    It is flock's: the end of a process frees it, however it ended.

    Args:
        doing: what its holder does, as ``installs a libtorch``.
    """
    lock, holder = FileLock(file, thread_local=False), file.with_name(file.name + HOLDER)
    told, cancel = False, cancel or Cancel()
    try:
        while not _taken(lock, doing, note):
            if not told:
                note(f"waiting for {read(holder)[:80] or 'another run'}, which {doing} ({file})")
                told = True
            cancel.pause(NAP)
        if lock.is_locked:
            with contextlib.suppress(OSError):
                write(holder, f"process {os.getpid()}")
        yield lock.is_locked
    finally:
        if lock.is_locked:
            with contextlib.suppress(OSError):
                holder.unlink()
            lock.release()


def _taken(lock: FileLock, doing: str, note: Note) -> bool:
    """Whether the waiting is over."""
    try:
        lock.acquire(timeout=0)
    except Timeout:
        return False
    except (OSError, NotImplementedError) as error:
        note(f"{lock.lock_file} can't be locked ({error}): see to it that no other run {doing}")
    return True
