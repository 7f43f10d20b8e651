"""Runs a transfer on the source: pass after pass, until every target has the image or nothing is left to try.

``archive`` and ``relaying`` say what runs there; spec/sync-image.md, 5. Each target is tried again by itself as
``sent.again`` says: the other way, in full after a delta, late, by its next address.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from ..errors import Cancelled, FdlError, ScriptError, TransportError
from ..hosts.base import Host
from ..outcome import Event, Kind, Progress, silent
from ..scripts import Scripts
from . import archive, relaying
from .addresses import Way
from .archive import Sending
from .plan import Step
from .sent import Answer, Meter, Sent, Turn, again, judged, whole

LIMIT = 86400.0  # seconds; what stands still is ended long before
CLEAN_LIMIT = 30.0
CLEAN_SOON = 1.2  # seconds of the 1.6 that a job has after Ctrl-C
LOCKS = {
    "waiting": "another run is sending this image from here: waiting for it",
    "waited": "the other run is done: going on",
    "none": "no lock can be had in ~/.cache/fdl-tasks: see to it that no other run sends this image from here",
}


class Waited(FdlError):
    """Another run was sending the image from the same source: nothing was sent, and the nodes may have it by now."""


def send(
    host: Host,
    sending: Sending,
    steps: Sequence[Step],
    ways: Mapping[str, Sequence[Way]],
    *,
    scripts: Scripts | None = None,
    progress: Progress = silent,
    live: Progress = silent,
    anew: Callable[[], Host] | None = None,
    alone: bool = True,
) -> dict[str, Sent]:
    """Bring the image to the target of every step, from ``host``, the source; every target has an outcome.

    Args:
        steps: of the modes ``delta`` and ``full``.
        ways: of each target, the best first; at least one.
        progress: gets a sentence every tenth of the way, and notes.
        live: gets a sentence every second, for a terminal.
        anew: another connection to the source, to clean up there after Ctrl-C.
        alone: whether a target that was too slow for the others gets a pass of its own here, after them.

    Raises:
        Cancelled: the user ended the run.
        Waited: another run was sending the image meanwhile.
    """
    scripts, turns = scripts or Scripts(), [Turn(step, tuple(ways[step.target])) for step in steps]
    sending = replace(sending, relays=any(step.transport == "relay" for step in steps))
    try:
        return _send(host, sending, turns, scripts, progress, live, alone)
    except Cancelled:
        if anew and (left := clean_soon(anew, host.label, sending, scripts)):
            progress(Event(host.label, Kind.NOTE, left))
        raise


def _send(
    host: Host,
    sending: Sending,
    turns: Sequence[Turn],
    scripts: Scripts,
    progress: Progress,
    live: Progress,
    alone: bool,
) -> dict[str, Sent]:
    sent = dict[str, Sent]()
    if not sending.streams:
        why = "the source has no python3 3.8, so all of it was sent, by a file there"
        turns = [whole(turn, sending.size, why) for turn in turns]
    while turns:
        batch = _batch(turns)
        found = _pass(host, sending, batch, scripts, progress, live)
        sent |= found
        sending = replace(sending, yields=False)
        turns = [turn for turn in turns if turn not in batch]
        for turn in batch:
            following = again(turn, found[turn.target], sending.size)
            if following and (alone or not following.alone):
                progress(Event(turn.target, Kind.NOTE, following.notes[-1]))
                turns.append(following)
    return sent


def _batch(turns: Sequence[Turn]) -> list[Turn]:
    """What goes together: one ``docker save``, or one relay. Who was too slow for the others goes alone."""
    first = turns[0]
    if first.alone:
        return [first]
    return [turn for turn in turns if not turn.alone and turn.kind == first.kind]


def _pass(
    host: Host, sending: Sending, turns: Sequence[Turn], scripts: Scripts, progress: Progress, live: Progress
) -> dict[str, Sent]:
    answer, began, failure = Answer(), time.monotonic(), ""
    meter = Meter({turn.target: turn for turn in turns}, answer.totals)

    def on_line(stream: str, line: str) -> None:
        before, moved = answer.lock, answer.take(line) if stream == "out" else None
        if answer.lock != before:
            progress(Event(sending.source.label, Kind.NOTE, LOCKS[answer.lock]))
        if moved:
            sentence = meter.sentence(*moved, time.monotonic() - began)
            live(Event(moved[0], Kind.STATE, sentence))
            if meter.due(*moved):
                progress(Event(moved[0], Kind.STATE, sentence))

    try:
        way = relaying if turns[0].step.transport == "relay" else archive
        done = host.run(way.render(scripts, sending, turns), limit=LIMIT, on_line=on_line)
        if not answer.whole:
            failure = "; ".join([f"the script on the source ended with {done.code}", *done.err.splitlines()[-3:]])
    except (TransportError, ScriptError) as error:
        failure, answer.lost = f"the source was lost: {error}", True
    if failure:  # its own clean-up may have been cut short
        failure = "; ".join(filter(None, [failure, clean(host, sending, scripts)]))
    if answer.lock == "waited" and sending.yields:
        raise Waited(LOCKS["waited"], where=sending.source.label)
    return {turn.target: judged(turn, answer, failure) for turn in turns}


def clean(host: Host, sending: Sending, scripts: Scripts | None = None) -> str | None:
    """Remove what a transfer left on the source; where that fails: what may be left there, why, and the remedy.

    Raises:
        Cancelled: the user ended the run.
    """
    script = (scripts or Scripts()).render(
        "images/clean.sh",
        name=sending.directory,
        relayed=f"*/{relaying.path(sending)}" if sending.relays else "",
        format=relaying.NAMED,
        docker=list(sending.source.docker),
    )
    try:
        done = host.run(script, limit=CLEAN_LIMIT)
        return _left(host.label, sending, f"rm ended with {done.code}: {done.err.strip()}") if done.code else None
    except (TransportError, ScriptError) as error:
        return _left(host.label, sending, str(error))


def clean_soon(connect: Callable[[], Host], label: str, sending: Sending, scripts: Scripts | None = None) -> str | None:
    """As ``clean``, over a connection of its own and in ``CLEAN_SOON`` seconds: the user ended the run and waits."""
    found: list[str | None] = [_left(label, sending, f"it did not answer in {CLEAN_SOON:g} s")]

    def deed() -> None:
        with connect() as host:
            found[0] = clean(host, sending, scripts)

    thread = threading.Thread(target=deed, daemon=True, name="fdl-clean")
    thread.start()
    thread.join(CLEAN_SOON)
    return found[0]


def _left(label: str, sending: Sending, why: str) -> str:
    name = sending.directory
    tag = f", and the image name */{relaying.path(sending)}," if sending.relays else ""
    remedy = f'rm -rf "${{TMPDIR:-/tmp}}"/{name}.* /var/tmp/{name}.* ~/{name}.*'
    return f"a directory {name}.*{tag} may be left on {label}, which could not be cleaned ({why}); there: {remedy}"
