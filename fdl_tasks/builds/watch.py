"""Takes a build's output line by line, while it runs: to its log, to the progress, and what counts of it."""

from __future__ import annotations

import contextlib
from collections import deque
from types import TracebackType

from ..outcome import Event, Kind, Progress
from . import cargo
from .plan import Job

TAIL = 20  # lines of a failed build that its error carries


class Watch:
    """A build's ``OnLine``, and what it saw. A context manager: leaving it closes the log.

    Raises:
        OSError: the log can't be written to when it is made; later, the log ends early and a note says why.
    """

    def __init__(self, job: Job, progress: Progress):
        self.executables: set[tuple[str, str]] = set()  # path and package
        self.tail: deque[str] = deque(maxlen=TAIL)
        self.troubles: set[cargo.Trouble] = set()
        self._log_ends = False
        self._job, self._progress = job, progress
        self._log = open(  # noqa: SIM115 - closed by __exit__
            job.log, "w", encoding="utf-8", errors="replace", buffering=1
        )
        self._log.write(f"# {job.command.name} for {job.host}, linked against {job.arch}\n")
        self.began_ns = job.log.stat().st_mtime_ns  # by the clock that the artifact's time is of

    def __call__(self, stream: str, line: str) -> None:
        """One line of the stream ``out`` or ``err``; cargo's JSON messages are read and not shown."""
        if stream == "out" and not self._job.command.build and (found := cargo.message(line)):
            if named := cargo.executable(found, self._job.command.name):
                self.executables.add(named)
            return
        self.tail.append(line)
        self._write(line)
        if trouble := cargo.trouble(line):
            self.troubles.add(trouble)
        if state := cargo.state(line):
            self._progress(Event(self._job.host, Kind.STATE, state))
        self._progress(Event(self._job.host, Kind.LINE, line))

    def note(self, text: str) -> None:
        """Something worth telling beside the build's own output."""
        self._write(f"# {text}")
        self._progress(Event(self._job.host, Kind.NOTE, text))

    def _write(self, line: str) -> None:
        try:
            if not self._log_ends:
                self._log.write(f"{line}\n")
        except OSError as error:
            self._log_ends = True
            self._progress(Event(self._job.host, Kind.NOTE, f"the build's log ends early: {error}"))

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        with contextlib.suppress(OSError):  # a full disk again; the file is closed all the same
            self._log.close()
