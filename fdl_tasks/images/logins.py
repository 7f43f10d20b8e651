"""What became of each login from the source to a target, and which ways that leaves (pure)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from ..errors import FdlError
from . import answer
from .addresses import Candidates, Way

LOGIN_LIMIT = 25  # seconds for a whole login: a key exchange that stalls has no limit in ssh
_FINGERPRINT = re.compile(r"SHA256:[A-Za-z0-9+/]{43}")
_DROPPED = re.compile(r"_exchange_identification: |\b(closed|reset) by (remote host|peer|\S+ port \d)")


class Reach(StrEnum):
    """How a login went. Only after ``TRANSPORT`` and ``IMPOSTOR`` another address is of use."""

    OK = "ok"
    TRANSPORT = "transport failure"
    IMPOSTOR = "another host key"
    DROPPED = "dropped before it began"
    OTHER = "refused by the target"


@dataclass(frozen=True)
class Tried:
    """A way, how the login on it went, and ssh's words."""

    way: Way
    reach: Reach
    said: str = ""


@dataclass(frozen=True)
class Route:
    """How one target is reached: the ways that answered, best first, or the ``error``; notes are warnings."""

    target: str
    ways: tuple[Way, ...] = ()
    notes: tuple[str, ...] = ()
    error: str | None = None


def parse(text: str, ways: Sequence[Way], source: str, err: str = "") -> list[Tried]:
    """How each login went, from the script's answer (pure).

    Raises:
        FdlError: the source has no ssh, or its answer was cut off.
    """
    answer.whole(text, source, err)
    said = answer.said(text)
    if "NOSSH" in said:
        raise FdlError("there is no ssh on its PATH", where=source, hint="install OpenSSH's client there")
    found = {number: (code, words) for number, code, words in (one.split(" ", 2) for one in said["WAY"])}
    return [_tried(way, *found.get(str(number), ("-", ""))) for number, way in enumerate(ways)]


def _tried(way: Way, code: str, said: str) -> Tried:
    if code == "-":
        return Tried(way, Reach.TRANSPORT, f"the login had not ended after {LOGIN_LIMIT} s")
    if code == "0":
        return Tried(way, Reach.OK)
    if code != "255":
        return Tried(way, Reach.OTHER, f"`true` ended with {code}: {answer.words(said)}")
    if "Host key verification failed" in said or "IDENTIFICATION HAS CHANGED" in said:
        shown = _FINGERPRINT.search(said)
        return Tried(way, Reach.IMPOSTOR, f"it shows the host key {shown[0]}" if shown else answer.words(said))
    reach = Reach.DROPPED if dropped(said) else Reach.TRANSPORT
    return Tried(way, reach, answer.words(said) or "ssh said nothing")


def dropped(said: str) -> bool:
    """Whether these words of ssh's mean that the other side ended the connection, and gave no reason.

    So does an sshd that has too many logins under way (MaxStartups): the next try may well get in.
    """
    return _DROPPED.search(said) is not None


def unforwarded(said: str) -> bool:
    """Whether these words of ssh's mean that a forwarding was refused, its own or one of the login's configuration."""
    return "forwarding" in said


def route(asked: Candidates, results: Mapping[Way, Tried]) -> Route:
    """The ways of one target that answered, best first; a warning for each that did not (pure)."""
    ways, notes = list[Way](), [f"no way there: {reason}" for reason in asked.refused]
    for way in asked.ways:
        tried = results[way]
        if tried.reach is Reach.OK:
            ways.append(way)
            continue
        notes.append(_complaint(tried))
        if tried.reach is Reach.OTHER and not ways:
            return Route(asked.target, error=f"the {_complaint(tried)}; another address would not help")
    if not ways:
        return Route(asked.target, error=f"the source can't reach it: {'; '.join(notes) or 'it has no address'}")
    return Route(asked.target, tuple(ways), tuple(notes))


def _complaint(tried: Tried) -> str:
    way = tried.way
    where = f"{way.kind} {way.address} port {way.port}"
    if tried.reach is Reach.IMPOSTOR:
        return f"{where} is answered by ANOTHER machine: {tried.said}, not the pinned one; nothing was sent there"
    return f"{where} failed ({tried.said})"
