"""The family of errors: each says what happened, where, and what to do next.

Code decides on the class and the fields (``TransportError.stage``), never on the wording.
The task edge turns one of these into a printed message and ``exit_code``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class FdlError(Exception):
    """Something this library was asked to do could not be done.

    Args:
        what: the sentence a person reads first.
        where: host, file and line, or path it happened at; empty when ``what`` says it.
        hint: the next thing to do; empty when there is none to give.
        tail: the last lines of output that was not shown while the work ran.
    """

    exit_code = 1

    def __init__(self, what: str, *, where: str = "", hint: str = "", tail: Sequence[str] = ()):
        super().__init__(what)
        self.what, self.where, self.hint, self.tail = what, where, hint, tuple(tail)

    def __str__(self) -> str:
        head = f"{self.where}: {self.what}" if self.where else self.what
        lines = [head, *(f"  | {line}" for line in self.tail)]
        return "\n".join([*lines, f"  next: {self.hint}"] if self.hint else lines)


class UsageError(FdlError):
    """The command line, or the arguments of a call, ask for something impossible."""

    exit_code = 2


@dataclass(frozen=True)
class Fault:
    """One thing wrong in a configuration file. ``line`` is 1-based; 0 when it has none."""

    file: str
    line: int
    path: str
    message: str

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.line else self.file
        return f"{place}: {self.path}: {self.message}" if self.path else f"{place}: {self.message}"


class ConfigError(FdlError):
    """cluster.yml, a recipe or a setting is wrong; carries every fault found in one reading."""

    exit_code = 2

    def __init__(self, what: str, *, faults: Sequence[Fault] = (), where: str = "", hint: str = ""):
        super().__init__(what, where=where, hint=hint)
        self.faults = tuple(faults)

    def __str__(self) -> str:
        return "\n".join([super().__str__(), *(f"  {fault}" for fault in self.faults)])


class TemplateError(FdlError):
    """A script template breaks the quoting rules, or was rendered with a value it can't take."""

    exit_code = 2


class Stage(StrEnum):
    """How far a connection got before it failed; the value is how it is printed."""

    SETTINGS = "ssh settings"
    CONNECT = "connect"
    BANNER = "banner"
    HANDSHAKE = "handshake"
    KEY_UNKNOWN = "host key unknown"
    KEY_CHANGED = "host key changed"
    AUTH = "authentication"
    CHANNEL = "channel"
    LOST = "connection lost"
    DEADLINE = "time limit"


class TransportError(FdlError):
    """A host could not be spoken to. Never used for a script that ran and failed."""

    def __init__(self, stage: Stage, what: str, *, where: str = "", hint: str = ""):
        super().__init__(f"{stage}: {what}", where=where, hint=hint)
        self.stage = stage


class ScriptError(FdlError):
    """A script did not arrive whole on its host, or ended without its answer."""


class Cancelled(FdlError):
    """The run was ended by the user before this host was done."""

    exit_code = 130


class PreflightError(FdlError):
    """Preflight found errors: nothing was built."""


class BuildError(FdlError):
    """A worker's binary could not be built, or is not the one that was asked for."""


class PrepareError(FdlError):
    """This box is not ready. ``notes`` is what the steps before had to tell."""

    notes: tuple[str, ...] = ()
    kind = "transient"


class TransientError(PrepareError):
    """Not ready now; the next try may well work: the far side is down, nothing is published yet."""


class PermanentError(PrepareError):
    """Never ready as it is: waiting can't help, so whatever owns the box can stop it."""

    exit_code = 2
    kind = "permanent"
