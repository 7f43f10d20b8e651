"""Sends the image from the source to its targets by one streamed ``docker save``; spec/sync-image.md, 5.

``sender.py`` does it where the source has python3 3.8 or later, else ``templates/images/send-file.sh``: in full, by a
file. ``transfer`` runs what is rendered here.
"""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ..scripts import Script, Scripts
from .facts import NodeFacts
from .sent import Turn
from .ways import ssh_argv

ZSTD_LOAD = 23  # since this release `docker load` reads zstd
EVAL = 'eval "$(printf %s "$1" | base64 -d)"'
# where a containerd store has its blobs, below Docker's own folder, or below that of the system's containerd
CONTENT = ("containerd/daemon/io.containerd.content.v1.content", "io.containerd.content.v1.content")
ZSTD = ("zstd", "-q", "-1", "-T0", "-c")


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

    ``tag`` is the name that a target gives to what it pulled. ``run`` is in the names of what a transfer makes on
    the source for its time: ``transfer.clean`` finds it by that. ``yields``: whether to give up, by ``Waited``,
    after waiting for another run. ``relays``: whether anything of a relay may be left there.
    """

    source: NodeFacts
    image: str
    nodes: Mapping[str, NodeFacts]
    known_hosts: str
    compress: str = "none"
    tag: str = ""
    limits: Limits = LIMITS
    run: str = field(default_factory=lambda: secrets.token_hex(8))
    yields: bool = True
    relays: bool = False

    @property
    def streams(self) -> bool:
        """Whether the source can run ``sender.py`` and ``relay.py``."""
        return self.source.programs

    @property
    def size(self) -> int:
        """About the bytes of the whole archive."""
        return self.source.image.size if self.source.image else 0

    @property
    def directory(self) -> str:
        """How the names of its temporary directories on the source begin."""
        return f"fdl-send-{self.run}"

    @property
    def lock(self) -> str:
        """The name of the file on the source that one transfer of that image at a time holds, however it is written."""
        return f"image-{hashlib.sha256((self.tag or self.image).encode()).hexdigest()[:16]}.lock"


def render(scripts: Scripts, sending: Sending, turns: Sequence[Turn]) -> Script:
    """The script of one pass: all of ``turns`` at once, from one ``docker save``."""
    commands = {turn.target: command(scripts, sending, turn) for turn in turns}
    if sending.streams:
        return program(scripts, sending, "sender.py", job(sending, turns, commands))
    words = list[str | int]()
    for target, argv in commands.items():
        words += [target, len(argv), *argv]
    return scripts.render(
        "images/send-file.sh",
        **_common(sending),
        needed=max([sending.size, *(turn.step.bytes for turn in turns)]),
        stall=sending.limits.stall,
        load_stall=sending.limits.load_stall,
        saving=len(_save(sending, turns)),
        words=[*_save(sending, turns), *words],
    )


def program(scripts: Scripts, sending: Sending, name: str, job: Mapping[str, Any]) -> Script:
    """The script that runs one of the programs beside this file on the source."""
    text = Path(__file__).with_name(name).read_text("utf-8")
    return scripts.render("images/send.sh", **_common(sending), program=text, job=json.dumps(job))


def _common(sending: Sending) -> dict[str, str | int]:
    return {
        "name": sending.directory,
        "known_hosts": sending.known_hosts,
        "lock": sending.lock,
        "yields": int(sending.yields),
    }


def command(scripts: Scripts, sending: Sending, turn: Turn) -> tuple[str, ...]:
    """The argv on the source that loads its stdin on a target."""
    return (*ssh_argv(turn.ways[0], "."), remote(load(scripts, sending, turn.target)))


def load(scripts: Scripts, sending: Sending, target: str) -> Script:
    """The script on a target."""
    return scripts.render("images/load.sh", docker=list(sending.nodes[target].docker))


def remote(script: Script) -> str:
    """The remote command that runs a script; the login shell may be any: base64 is plain words."""
    encoded = base64.b64encode(script.text.encode()).decode()
    return shlex.join(["exec", "sh", "-c", EVAL, "fdl", encoded])


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
