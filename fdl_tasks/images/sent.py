"""What became of a transfer, read from the lines of its script, and what is to be tried next (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from ..hosts.output import reason
from ..sizes import human_size
from .answer import json_object
from .judge import Fault, loaded, relayed
from .logins import dropped, unforwarded
from .plan import Step

if TYPE_CHECKING:
    from .addresses import Way

Retry = Literal["no", "full", "late", "drop", "way", "archive"]
DROPS = 6  # tries at one address whose sshd drops logins at random (MaxStartups)
STARTED, LOADED = "__FDL_LOAD__", "__FDL_LOADED__"  # templates/images/load.sh
CUT = "the script on the source ended before it told what became of this node"
STALE = "an earlier load that was cut off may hold its place there; restarting its Docker ends that"


@dataclass(frozen=True)
class Sent:
    """One target after its transfer: bytes that its connection took, seconds, the address that was used.

    ``said`` are the last lines of its load. ``error`` None: the load says that the image is in. ``retry`` is
    what may cure the error: all of it, instead of a delta or once more (``full``), a pass of its own because the
    others waited for it (``late``), the same once more because the login was dropped before it began (``drop``), the
    next address or, behind the last one, a pass of its own (``way``), the archive instead of a relay (``archive``),
    nothing (``no``). ``final``: no other source could do better.
    """

    target: str
    bytes: int
    seconds: float
    address: str
    said: tuple[str, ...] = ()
    error: str | None = None
    retry: Retry = "no"
    mode: str = "full"
    notes: tuple[str, ...] = ()
    transport: str = "archive"
    final: bool = False

    @property
    def whole_archive(self) -> bool:
        """Whether no other try could have brought more."""
        return self.mode == "full" and self.transport == "archive"


@dataclass(frozen=True)
class Turn:
    """One try at one target: what it gets, by the first of ``ways``; ``alone``: no other target beside it.

    ``drops`` is how often that way's sshd has dropped the login before it began; ``last``: a load that fails now is
    not repeated.
    """

    step: Step
    ways: tuple[Way, ...]
    alone: bool = False
    notes: tuple[str, ...] = ()
    drops: int = 0
    last: bool = False

    @property
    def target(self) -> str:
        return self.step.target

    @property
    def kind(self) -> tuple[str, str]:
        """What it has in common with those that go in the same pass."""
        return self.step.transport, self.step.platform


@dataclass(frozen=True)
class End:
    """The last line about a target. ``code`` is its child's; ``error`` is the sender's own reason to end it."""

    bytes: int
    seconds: float
    code: int | None
    said: tuple[str, ...]
    error: str | None
    late: bool


@dataclass
class Answer:
    """What the script has said so far. ``whole``: it came to its end; ``lost``: its host did before.

    ``totals`` are the bytes that a target will get, once that is known.
    ``lock``: ``none``, ``waiting``, ``waited``; empty when it was free (templates/images/lock.sh).
    """

    ends: dict[str, End] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)
    totals: dict[str, int] = field(default_factory=dict)
    error: str | None = None
    whole: bool = False
    lost: bool = False
    lock: str = ""

    def take(self, line: str) -> tuple[str, int] | None:
        """Read a line; a target and its bytes so far when it says that. Other programs' lines are passed over."""
        found = json_object(line) or {}
        name = found.get("target")
        if found.get("end"):
            self.whole, self.error = True, found.get("error")
        elif "lock" in found:
            self.lock = found["lock"]
        elif "note" in found:
            self.notes |= dict.fromkeys(found["targets"], found["note"])
        elif isinstance(name, str) and "total" in found:
            self.totals[name] = int(found["total"])
        elif isinstance(name, str) and "said" in found:
            self.ends[name] = _end(found)
        return (name, int(found["bytes"])) if isinstance(name, str) and "bytes" in found else None


def judged(turn: Turn, answer: Answer, failure: str = "") -> Sent:
    """What became of one target; ``failure`` is why the script itself came to no good end."""
    step, notes = turn.step, (*turn.notes, *filter(None, [answer.notes.get(turn.target)]))
    known = Sent(turn.target, 0, 0.0, turn.ways[0].address, mode=step.mode, notes=notes, transport=step.transport)
    by_relay, end = step.transport == "relay", answer.ends.get(turn.target)
    if end is None:
        why = f"the source failed: {answer.error}" if answer.error else failure or CUT
        return replace(known, error=why, retry="archive" if by_relay and not answer.lost else "no")
    code, said = _load(end.said)
    known = replace(known, bytes=end.bytes, seconds=end.seconds, said=said)
    if code is not None:
        return _after_load(known, code, end)
    if end.error:
        stalled = STARTED in end.said and not end.late and "the source" not in end.error
        error = f"{end.error} ({STALE})" if stalled else end.error
        other_way = by_relay and (answer.error is not None or not _begun(end))
        return replace(known, error=error, retry="late" if end.late else "archive" if other_way else "no")
    error = f"ssh ended with {end.code}: {reason(said) or 'without a word'}"
    return replace(known, error=error, retry=_after_ssh(end, "\n".join(said), by_relay))


def _begun(end: End) -> bool:
    return STARTED in end.said or end.bytes > 0


def _after_ssh(end: End, said: str, by_relay: bool) -> Retry:
    """The load or the pull came to no end of its own."""
    if by_relay and (end.code != 255 or (not _begun(end) and unforwarded(said))):
        return "archive"
    if end.code != 255:
        return "no"
    return "drop" if STARTED not in end.said and dropped(said) else "way"


def _after_load(known: Sent, code: int, end: End) -> Sent:
    """It came to its own end: another address would not help, another way or a whole archive may."""
    by_relay = known.transport == "relay"
    verdict = (relayed if by_relay else loaded)(code, "\n".join(known.said))
    known = replace(known, notes=(*known.notes, *verdict.notes))
    if verdict.fault is None:
        return replace(known, error=end.error)
    full = verdict.fault is Fault.DISK
    repeats = known.mode == "delta" or verdict.fault is Fault.COLLECTED  # the second load finds nothing to collect
    cure: Retry = "no" if full else "archive" if by_relay else "full" if repeats else "no"
    return replace(known, error=verdict.error, retry=cure, final=full)


def again(turn: Turn, sent: Sent, size: int) -> Turn | None:
    """The next try, None when there is none to make; ``size`` is about the whole archive's."""
    if sent.retry == "archive":
        note = f"the relay did not bring it ({sent.error}), so it was sent by the archive"
        step = turn.step.instead
        return None if step is None or step.error else Turn(step, turn.ways, notes=(*turn.notes, note))
    if sent.retry == "full" and not turn.last:
        what, how = ("delta", "") if turn.step.mode == "delta" else ("load", " again")
        note = f"the {what} failed ({sent.error}), so all of it was sent{how}"
        return replace(whole(turn, size, note), last=True)
    if sent.retry == "late":
        note = f"{sent.error}, so it got a pass of its own after them"
        return replace(turn, alone=True, notes=(*turn.notes, note))
    if sent.retry == "drop" and turn.drops + 1 < DROPS:
        note = f"{turn.ways[0].address} dropped logins before they began (MaxStartups of its sshd?): tried again"
        return replace(turn, drops=turn.drops + 1, notes=tuple(dict.fromkeys((*turn.notes, note))))
    if sent.retry in ("way", "drop") and len(turn.ways) > 1:
        way, *others = turn.ways
        note = f"{way.kind} {way.address} failed ({sent.error}), so {others[0].kind} {others[0].address} was taken"
        return replace(turn, ways=tuple(others), notes=(*turn.notes, note), drops=0)
    if sent.retry == "way" and not turn.alone:
        note = f"its connection failed ({sent.error}), so it got a pass of its own after the others"
        return replace(turn, alone=True, notes=(*turn.notes, note))
    return None


def whole(turn: Turn, size: int, why: str) -> Turn:
    """The same target, and nothing left out."""
    step = replace(turn.step, mode="full", omit=frozenset(), base=None, bytes=size)
    return replace(turn, step=step, notes=(*turn.notes, why))


class Meter:
    """How far each target is: a sentence every ten percent, or every ten gibibytes where no total is known."""

    def __init__(self, turns: Mapping[str, Turn], totals: Mapping[str, int] = MappingProxyType({})):
        self._turns, self._totals, self._said = turns, totals, dict[str, int]()

    def sentence(self, target: str, count: int, seconds: float) -> str:
        """``120.0 MiB of ~400.0 MiB, 95.3 MiB/s, by the fabric address 10.0.0.2``; no ``~`` where it is known."""
        turn, known = self._turns[target], self._totals.get(target)
        about = f" of ~{human_size(turn.step.bytes)}" if turn.step.bytes else ""
        total = about if known is None else f" of {human_size(known)}"
        rate = f", {human_size(int(count / seconds))}/s" if seconds > 0 else ""
        return f"{human_size(count)}{total}{rate}, by the {turn.ways[0].kind} {turn.ways[0].address}"

    def due(self, target: str, count: int) -> bool:
        """Whether another tenth has come since the last time."""
        tenth = count * 10 // (self._totals.get(target) or self._turns[target].step.bytes or 100 << 30)
        if tenth <= self._said.get(target, 0):
            return False
        self._said[target] = tenth
        return True


def _end(found: Mapping[str, Any]) -> End:
    said, error = tuple(map(str, found["said"])), found.get("error")
    seconds = min(1e6, max(0.0, float(found["seconds"])))  # in this order: no NaN, which is no JSON
    return End(int(found["bytes"]), seconds, found.get("code"), said, error and str(error), bool(found.get("late")))


def _load(said: tuple[str, ...]) -> tuple[int | None, tuple[str, ...]]:
    """The load's exit code, None when it came to no end, and its lines without the login's and ours."""
    at = max((n + 1 for n, line in enumerate(said) if line == STARTED), default=0)
    lines, code = said[at:], None
    for n, line in enumerate(lines):
        mark, _, number = line.partition(" ")
        if mark == LOADED and number.isdecimal():
            code, lines = int(number), lines[:n]
            break
    return code, lines
