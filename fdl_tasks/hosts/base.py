"""Where a script runs: the protocol that this machine and an ssh host both keep."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol

from ..scripts import Script

OnLine = Callable[[str, str], None]  # (stream, line): stream is "out" or "err"


@dataclass(frozen=True)
class Completed:
    """A script that ran to its end. ``code`` is its own exit code, 128+n when signal n ended it.

    ``out`` and ``err`` are decoded UTF-8, undecodable bytes as U+FFFD; each is kept up to
    ``hosts.output.KEEP`` bytes (of ``out`` the beginning, of ``err`` the end).
    """

    code: int
    out: str
    err: str
    seconds: float


class Host(Protocol):
    """A machine that runs scripts. A context manager: leaving it ends what it holds open."""

    label: str

    def run(self, script: Script, *, limit: float, on_line: OnLine | None = None) -> Completed:
        """Run a script to its end, within ``limit`` seconds; connecting before that has limits of its own.

        Raises:
            TransportError: the host could not be spoken to, or the limit passed.
            ScriptError: the script did not arrive whole.
            Cancelled: the run was ended by the user.
        """
        ...

    def close(self) -> None: ...

    def __enter__(self) -> Host: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None: ...
