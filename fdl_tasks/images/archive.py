"""Sends the image from the source to its targets by one streamed ``docker save``; spec/sync-image.md, 5.

``sender.py`` does it where the source has python3 3.8 or later, else ``templates/images/send-file.sh``: in full, by a
file. Each target is tried again by itself as ``sent.again`` says: in full after a delta, late, by its next address.
"""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
import shlex
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from ..errors import Cancelled, FdlError, ScriptError, TransportError
from ..hosts.base import Host
from ..outcome import Event, Kind, Progress, silent
from ..scripts import Script, Scripts
from .addresses import Way
from .facts import NodeFacts
from .plan import Step
from .sent import Answer, Meter, Sent, Turn, again, judged, whole
from .ways import ssh_argv

PYTHON = (3, 8)  # the oldest that runs sender.py
ZSTD_LOAD = 23  # since this release `docker load` reads zstd
LIMIT = 86400.0  # seconds; what stands still is ended long before
CLEAN_LIMIT = 30.0
CLEAN_SOON = 1.2  # seconds of the 1.6 that a job has after Ctrl-C
EVAL = 'eval "$(printf %s "$1" | base64 -d)"'
# where a containerd store has its blobs, below Docker's own folder, or below that of the system's containerd
CONTENT = ("containerd/daemon/io.containerd.content.v1.content", "io.containerd.content.v1.content")
ZSTD = ("zstd", "-q", "-1", "-T0", "-c")
LOCKS = {
    "waiting": "another run is sending this image from here: waiting for it",
    "waited": "the other run is done: looking again",
    "none": "no lock can be had in ~/.cache/fdl-tasks: see to it that no other run sends this image from here",
}


class Waited(FdlError):
    """Another run was sending the image from the same source: nothing was sent, and the nodes may have it by now."""


@dataclass(frozen=True)
class Limits:
    """Seconds without a byte, without progress of a load that has all, and of the others' waiting for one target."""

    stall: int = 120
    load_stall: int = 900
    lag: int = 60


LIMITS = Limits()


@dataclass(frozen=True)
class Sending:
    """What holds for every target. ``image`` is what ``docker save`` is asked for; ``known_hosts`` the pins' text.

    ``run`` is in the names of the temporary directories on the source: ``clean`` finds them by it. ``yields``:
    whether to give up, by ``Waited``, after waiting for another run.
    """

    source: NodeFacts
    image: str
    nodes: Mapping[str, NodeFacts]
    known_hosts: str
    compress: str = "none"
    limits: Limits = LIMITS
    run: str = field(default_factory=lambda: secrets.token_hex(8))
    yields: bool = True

    @property
    def streams(self) -> bool:
        """Whether the source can run ``sender.py``."""
        return (self.source.python or (0, 0)) >= PYTHON

    @property
    def size(self) -> int:
        """About the bytes of the whole archive."""
        return self.source.image.size if self.source.image else 0


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
) -> dict[str, Sent]:
    """Bring the image to the target of every step, from ``host``, the source; every target has an outcome.

    Args:
        steps: of the modes ``delta`` and ``full``.
        ways: of each target, the best first; at least one.
        progress: gets a sentence every tenth of the way, and notes.
        live: gets a sentence every second, for a terminal.
        anew: another connection to the source, to clean up there after Ctrl-C.

    Raises:
        Cancelled: the user ended the run.
        Waited: another run was sending the image meanwhile.
    """
    scripts, turns = scripts or Scripts(), [Turn(step, tuple(ways[step.target])) for step in steps]
    try:
        return _send(host, sending, turns, scripts, progress, live)
    except Cancelled:
        if anew and (left := clean_soon(anew, host.label, sending.run, scripts)):
            progress(Event(host.label, Kind.NOTE, left))
        raise


def _send(
    host: Host, sending: Sending, turns: Sequence[Turn], scripts: Scripts, progress: Progress, live: Progress
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
            if following := again(turn, found[turn.target], sending.size):
                progress(Event(turn.target, Kind.NOTE, following.notes[-1]))
                turns.append(following)
    return sent


def _batch(turns: Sequence[Turn]) -> list[Turn]:
    """What goes together: one ``docker save``. Who was too slow for the others goes alone."""
    first = turns[0]
    if first.alone:
        return [first]
    return [turn for turn in turns if not turn.alone and turn.step.platform == first.step.platform]


def _pass(
    host: Host, sending: Sending, turns: Sequence[Turn], scripts: Scripts, progress: Progress, live: Progress
) -> dict[str, Sent]:
    answer, meter, began, failure = Answer(), Meter({turn.target: turn for turn in turns}), time.monotonic(), ""

    def on_line(stream: str, line: str) -> None:
        before, moved = answer.lock, answer.take(line) if stream == "out" else None
        if answer.lock != before:
            progress(Event(sending.source.label, Kind.NOTE, LOCKS[answer.lock]))
        if moved:
            sentence = meter.sentence(*moved, time.monotonic() - began)
            live(Event(moved[0], Kind.LINE, sentence))
            if meter.due(*moved):
                progress(Event(moved[0], Kind.STATE, sentence))

    try:
        done = host.run(render(scripts, sending, turns), limit=LIMIT, on_line=on_line)
        if not answer.whole:
            failure = "; ".join([f"the script on the source ended with {done.code}", *done.err.splitlines()[-3:]])
    except (TransportError, ScriptError) as error:
        failure = f"the source was lost: {error}"
    if failure:  # its own clean-up may have been cut short
        failure = "; ".join(filter(None, [failure, clean(host, sending.run, scripts)]))
    if answer.lock == "waited" and sending.yields:
        raise Waited(LOCKS["waited"], where=sending.source.label)
    return {turn.target: judged(turn, answer, failure) for turn in turns}


def render(scripts: Scripts, sending: Sending, turns: Sequence[Turn]) -> Script:
    """The script of one pass: all of ``turns`` at once, from one ``docker save``."""
    commands = {turn.target: command(scripts, sending, turn) for turn in turns}
    limits, lock = sending.limits, dict[str, str | int](lock=_lock(sending.image), yields=int(sending.yields))
    if sending.streams:
        return scripts.render(
            "images/send.sh",
            name=_name(sending.run),
            known_hosts=sending.known_hosts,
            **lock,
            program=Path(__file__).with_name("sender.py").read_text("utf-8"),
            job=json.dumps(job(sending, turns, commands)),
        )
    words = list[str | int]()
    for target, argv in commands.items():
        words += [target, len(argv), *argv]
    return scripts.render(
        "images/send-file.sh",
        name=_name(sending.run),
        known_hosts=sending.known_hosts,
        **lock,
        needed=max([sending.size, *(turn.step.bytes for turn in turns)]),
        stall=limits.stall,
        load_stall=limits.load_stall,
        saving=len(_save(sending, turns)),
        words=[*_save(sending, turns), *words],
    )


def command(scripts: Scripts, sending: Sending, turn: Turn) -> tuple[str, ...]:
    """The argv on the source that loads its stdin on a target; its login shell may be any: base64 is plain words."""
    script = scripts.render("images/load.sh", docker=list(sending.nodes[turn.target].docker))
    encoded = base64.b64encode(script.text.encode()).decode()
    return (*ssh_argv(turn.ways[0], "."), shlex.join(["exec", "sh", "-c", EVAL, "fdl", encoded]))


def job(sending: Sending, turns: Sequence[Turn], commands: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """What ``sender.py`` is to do (pure); the form is in its docstring."""
    groups: dict[tuple[frozenset[str], str | None], list[str]] = {}
    for turn in turns:
        step = turn.step
        groups.setdefault((step.omit, None if step.omit else step.base), []).append(turn.target)
    docker = sending.source.docker
    return {
        "save": _save(sending, turns),
        "groups": [
            {"targets": targets, "omit": sorted(omit), "base": [*docker, "save", base] if base else None}
            for (omit, base), targets in groups.items()
        ],
        "targets": {turn.target: [*_packing(sending, turn.target), list(commands[turn.target])] for turn in turns},
        "content": [f"{place}/{folder}" for place in sending.source.free for folder in CONTENT],
        "read": [word for word in docker[:-1] if docker[0] == "sudo"],
        **asdict(sending.limits),
    }


def _save(sending: Sending, turns: Sequence[Turn]) -> list[str]:
    platform = turns[0].step.platform
    return [*sending.source.docker, "save", *(["--platform", platform] if platform else []), sending.image]


def _packing(sending: Sending, target: str) -> list[list[str]]:
    """``compress: zstd``, where the source has the program and the target's Docker reads it."""
    release = sending.nodes[target].server.partition(".")[0]
    reads = release.isdecimal() and int(release) >= ZSTD_LOAD
    return [list(ZSTD)] if sending.compress == "zstd" and "zstd" in sending.source.tools and reads else []


def clean(host: Host, run: str, scripts: Scripts | None = None) -> str | None:
    """Remove what a transfer left on the source; where that fails: what may be left there, why, and the remedy.

    Raises:
        Cancelled: the user ended the run.
    """
    try:
        done = host.run((scripts or Scripts()).render("images/clean.sh", name=_name(run)), limit=CLEAN_LIMIT)
        return _left(host.label, run, f"rm ended with {done.code}: {done.err.strip()}") if done.code else None
    except (TransportError, ScriptError) as error:
        return _left(host.label, run, str(error))


def clean_soon(connect: Callable[[], Host], label: str, run: str, scripts: Scripts | None = None) -> str | None:
    """As ``clean``, over a connection of its own and in ``CLEAN_SOON`` seconds: the user ended the run and waits."""
    found: list[str | None] = [_left(label, run, f"it did not answer in {CLEAN_SOON:g} s")]

    def deed() -> None:
        with connect() as host:
            found[0] = clean(host, run, scripts)

    thread = threading.Thread(target=deed, daemon=True, name="fdl-clean")
    thread.start()
    thread.join(CLEAN_SOON)
    return found[0]


def _left(label: str, run: str, why: str) -> str:
    name = _name(run)
    remedy = f'rm -rf "${{TMPDIR:-/tmp}}"/{name}.* /var/tmp/{name}.* ~/{name}.*'
    return f"a directory {name}.* may be left on {label}, which could not be cleaned ({why}); there: {remedy}"


def _lock(image: str) -> str:
    """The name of the file on the source that one transfer of that image at a time holds."""
    return f"image-{hashlib.sha256(image.encode()).hexdigest()[:16]}.lock"


def _name(run: str) -> str:
    return f"fdl-send-{run}"
