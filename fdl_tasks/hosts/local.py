"""This machine as a host: the same bootstrap as over ssh, in a session of its own."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import time
from collections.abc import Collection, Iterable, Mapping
from functools import cache
from types import TracebackType

from ..scripts import Script, folders
from .base import Completed, OnLine
from .fanout import Cancel
from .follow import follow, packed

TERM_WAIT = 0.6  # seconds between SIGTERM and SIGKILL for a script that is ended early


@cache
def bootstrap() -> str:
    """The constant command's text, as one line (tcsh takes no newline in quotes)."""
    text = (folders(None)[0] / "hosts/bootstrap.sh").read_text("utf-8")
    return " ".join(line for line in text.splitlines() if not line.startswith("#"))


class Local:
    """Scripts on this machine. ``env`` is laid over this process's environment.

    ``fds`` are file descriptors that its scripts inherit, under the same numbers; no other child does.
    """

    def __init__(self, label: str, cancel: Cancel, env: Mapping[str, str] | None = None, fds: Collection[int] = ()):
        self.label, self._cancel, self._env, self._fds = label, cancel, env or {}, fds

    def run(self, script: Script, *, limit: float, on_line: OnLine | None = None) -> Completed:
        """See ``Host.run``."""
        self._cancel.check()
        process = subprocess.Popen(
            ["sh", "-c", bootstrap()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            env=os.environ | dict(self._env),
            pass_fds=self._fds,
        )
        try:
            return follow(
                _Pipes(process, script),
                self.label,
                limit=limit,
                cancel=self._cancel,
                on_line=on_line,
            )
        finally:
            _end(process)

    def close(self) -> None:
        """Nothing is held open between scripts."""

    def __enter__(self) -> Local:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


class _Pipes:
    """A running local script, as a ``follow.Source``."""

    def __init__(self, process: subprocess.Popen[bytes], script: Script):
        assert process.stdin and process.stdout and process.stderr
        self._process = process
        self._open = {process.stdout.fileno(): "out", process.stderr.fileno(): "err"}
        for fd in self._open:
            os.set_blocking(fd, False)
        with contextlib.suppress(BrokenPipeError):  # a shell that is gone shows in its exit code
            process.stdin.write(packed(script))
            process.stdin.flush()

    def fds(self) -> Iterable[int]:
        return self._open

    def read(self) -> Iterable[tuple[str, bytes]]:
        for fd, name in list(self._open.items()):
            with contextlib.suppress(BlockingIOError):
                if data := os.read(fd, 65536):
                    yield name, data
                else:
                    del self._open[fd]

    def ended(self) -> bool:
        return self._process.poll() is not None

    def drained(self) -> bool:
        return not self._open

    def code(self) -> int:
        code = self._process.wait()
        return code if code >= 0 else 128 - code  # nothing was lost: somebody killed the script with its shell


def _end(process: subprocess.Popen[bytes]) -> None:
    """Close the lifeline; end the script's process group when it is still there."""
    if process.poll() is None:
        _signal_group(process, signal.SIGTERM)
        _wait_for_silence(process, TERM_WAIT)
        _signal_group(process, signal.SIGKILL)
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe:
            with contextlib.suppress(BrokenPipeError):
                pipe.close()
    process.wait()


def _wait_for_silence(process: subprocess.Popen[bytes], seconds: float) -> None:
    """Until nothing holds the script's output any more: its shell is gone at once, its traps may still run."""
    assert process.stdout and process.stderr
    end, pipes = time.monotonic() + seconds, [process.stdout.fileno(), process.stderr.fileno()]
    while pipes and time.monotonic() < end:
        poll = select.poll()
        for fd in pipes:
            poll.register(fd, select.POLLIN)
        for fd, _ in poll.poll(max(1, int((end - time.monotonic()) * 1000))):
            with contextlib.suppress(BlockingIOError):
                if not os.read(fd, 65536):
                    pipes.remove(fd)


def _signal_group(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)
