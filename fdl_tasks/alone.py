"""One run at a time where two would spoil each other's work: a second one waits, and says for what."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from .files import read, write
from .hosts.fanout import Cancel

HOLDER = "-holder"  # behind a lock's name: a file of its own, since whoever waits opens the lock, and may empty it
NAP = 0.1  # seconds between two tries


@contextlib.contextmanager
def alone(
    file: Path,
    doing: str,
    note: Callable[[str], None],
    cancel: Cancel | None = None,
    waits: Callable[[], object] = lambda: None,
) -> Iterator[bool]:
    """Hold the lock ``file``, waiting as long as it takes; False where the file system has no locks.

    It is flock's: the end of a process frees it, however it ended.

    Args:
        doing: what its holder does, as ``installs a libtorch``.
        note: is told once for whom this run waits, or why there is no lock.
        waits: is called once, when this run begins to wait.
    """
    lock, holder = FileLock(file, thread_local=False), file.with_name(file.name + HOLDER)
    told, cancel = False, cancel or Cancel()
    try:
        while not _taken(lock, doing, note):
            if not told:
                told = True
                waits()
                note(f"waiting for {read(holder)[:80] or 'another run'}, which {doing} ({file})")
            cancel.pause(NAP)
        if lock.is_locked:
            with contextlib.suppress(OSError):
                write(holder, f"process {os.getpid()} on {socket.gethostname()}")
        yield lock.is_locked
    finally:
        if lock.is_locked:
            with contextlib.suppress(OSError):
                holder.unlink()
            lock.release()


def _taken(lock: FileLock, doing: str, note: Callable[[str], None]) -> bool:
    """Whether the waiting is over."""
    try:
        lock.acquire(timeout=0)
    except Timeout:
        return False
    except (OSError, NotImplementedError) as error:
        note(f"{lock.lock_file} can't be locked ({error}): see to it that no other run {doing}")
    return True
