"""Many hosts at once: bounded width, one outcome a label, and an end within two seconds of Ctrl-C."""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable, Mapping
from typing import TypeVar

from ..errors import Cancelled, FdlError
from ..outcome import Attempt

T = TypeVar("T")
Job = Callable[["Cancel"], T]
WIDTH = 16
LEAVE = 1.6  # seconds that running jobs have to end what they started, after Ctrl-C


class Cancel:
    """Set once; whoever waits on ``fd`` beside its own files wakes up then."""

    def __init__(self) -> None:
        self.fd, self._writer = os.pipe()
        self._set = threading.Event()

    def set(self) -> None:
        if not self._set.is_set():
            self._set.set()
            os.close(self._writer)  # every reader sees the end of the pipe

    def pause(self, seconds: float) -> None:
        """Sleep, unless it is set meanwhile. Raises Cancelled then."""
        self._set.wait(seconds)
        self.check()

    def check(self) -> None:
        """Raises Cancelled once it is set."""
        if self._set.is_set():
            raise Cancelled("ended by the user")

    def __del__(self) -> None:
        self.set()
        os.close(self.fd)


def fan_out(jobs: Mapping[str, Job[T]], *, width: int = WIDTH, cancel: Cancel | None = None) -> list[Attempt[T]]:
    """Run every job, at most ``width`` at once; the outcomes in the order of ``jobs``.

    An error of one host is its outcome and stops nobody else. ``cancel`` is what a run of several rounds has in
    common, such as hosts that stay connected.

    Raises:
        KeyboardInterrupt: after every job was told to end and had ``LEAVE`` seconds to do so.
    """
    cancel, todo, done = cancel or Cancel(), queue.SimpleQueue[str](), queue.SimpleQueue[Attempt[T]]()
    for label in jobs:
        todo.put(label)
    threads = [
        threading.Thread(target=_work, args=(jobs, todo, done, cancel), daemon=True, name=f"fdl-{n}")
        for n in range(min(max(1, width), len(jobs)))
    ]
    try:
        for thread in threads:
            thread.start()
        found = {(attempt := done.get()).host: attempt for _ in jobs}
    except BaseException:
        _leave(cancel, threads)
        raise
    return [found[label] for label in jobs]


def _leave(cancel: Cancel, threads: list[threading.Thread]) -> None:
    cancel.set()
    deadline = time.monotonic() + LEAVE
    for thread in filter(threading.Thread.is_alive, threads):
        thread.join(max(0.0, deadline - time.monotonic()))


def _work(
    jobs: Mapping[str, Job[T]],
    todo: queue.SimpleQueue[str],
    done: queue.SimpleQueue[Attempt[T]],
    cancel: Cancel,
) -> None:
    while True:
        try:
            label = todo.get_nowait()
        except queue.Empty:
            return
        done.put(_attempt(label, jobs[label], cancel))


def _attempt(label: str, job: Job[T], cancel: Cancel) -> Attempt[T]:
    began = time.monotonic()
    try:
        cancel.check()
        return Attempt(label, job(cancel), None, time.monotonic() - began)
    except BaseException as error:  # noqa: BLE001 - the one place: a host's failure is its outcome
        found = error if isinstance(error, Exception) else FdlError(f"the job ended itself: {error!r}", where=label)
        return Attempt(label, None, found, time.monotonic() - began)
