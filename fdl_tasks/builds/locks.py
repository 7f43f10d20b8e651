"""One run at a time in a target directory: a second one waits, and says for what."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from filelock import FileLock, Timeout

from ..outcome import Event, Kind, Progress
from .plan import Job

LOCK = ".fdl-lock"
HOLDER = ".fdl-lock-holder"  # a file of its own: whoever waits opens the lock, and may empty it
NAP = 0.1  # seconds between two tries


@contextlib.contextmanager
def held(jobs: Mapping[str, Job], progress: Progress) -> Iterator[None]:
    """Hold the target directories of all these jobs; wait for other runs, as long as it takes.

    Always taken in the order of their paths, so that two runs never wait for one another. They are ``flock``'s:
    the end of a process frees them, however it ended.
    """
    with contextlib.ExitStack() as stack:
        for job in sorted(jobs.values(), key=lambda job: job.target.resolve()):
            stack.enter_context(_held(job, progress))
        yield


@contextlib.contextmanager
def _held(job: Job, progress: Progress) -> Iterator[None]:
    lock, holder = FileLock(job.target / LOCK, thread_local=False), job.target / HOLDER
    try:
        _acquire(lock, job, progress)
        if lock.is_locked:
            with contextlib.suppress(OSError):
                holder.write_text(f"process {os.getpid()} on {socket.gethostname()}", encoding="utf-8")
        yield
    finally:
        if lock.is_locked:
            with contextlib.suppress(OSError):
                holder.unlink()
            lock.release()


def _acquire(lock: FileLock, job: Job, progress: Progress) -> None:
    """Wait for the lock; without it where it can't be had, since a build there may well be possible."""
    told = False
    while not _taken(lock, job, progress):
        if not told:
            told = True
            progress(Event(job.host, Kind.STATE, "waiting for another run"))
            progress(Event(job.host, Kind.NOTE, f"waiting for {_holder(job.target)}, which builds in {job.target}"))
        time.sleep(NAP)


def _taken(lock: FileLock, job: Job, progress: Progress) -> bool:
    """Whether the waiting is over."""
    try:
        job.target.mkdir(parents=True, exist_ok=True)
    except OSError:
        return True  # nobody can build there: the build itself says why
    try:
        lock.acquire(timeout=0)
    except Timeout:
        return False
    except (OSError, NotImplementedError) as error:
        text = f"{job.target} can't be locked ({error}): see to it that no other run builds there"
        progress(Event(job.host, Kind.NOTE, text))
    return True


def _holder(target: Path) -> str:
    try:
        return (target / HOLDER).read_text(encoding="utf-8", errors="replace") or "another run"
    except OSError:
        return "another run"
