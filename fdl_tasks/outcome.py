"""What happened, as values: verdicts of checks, the status of one host, events on the way."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, TypeVar

T = TypeVar("T")


class Level(StrEnum):
    """How bad a verdict is. Unknown is a warning: never an ok, never a false error."""

    OK = "ok"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True)
class Verdict:
    """What one rule says of one host; ``rule`` is a short stable name such as ``data-path``."""

    rule: str
    level: Level
    message: str


def worst(verdicts: Iterable[Verdict]) -> Level:
    """The worst level among them; ``OK`` when there are none."""
    order = list(Level)
    return max((v.level for v in verdicts), key=order.index, default=Level.OK)


class Status(StrEnum):
    """What became of a worker. Only ``OK`` was read back from the worker itself."""

    OK = "ok"
    UNVERIFIED = "unverified"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True)
class Attempt(Generic[T]):
    """What one host's job gave: a value, or the error that ended it; ``seconds`` of wall time."""

    host: str
    value: T | None
    error: Exception | None
    seconds: float


class Kind(StrEnum):
    """What an event tells: a new state, a line of output, a note, or that the host is done."""

    STATE = "state"
    LINE = "line"
    NOTE = "note"
    DONE = "done"


@dataclass(frozen=True)
class Event:
    """Something worth showing while the work runs; passed up through a ``Progress`` callable."""

    host: str
    kind: Kind
    text: str


Progress = Callable[[Event], None]


def silent(event: Event) -> None:
    """The progress of whoever wants none."""
