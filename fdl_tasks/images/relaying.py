"""Sends the image from the source to its targets through a relay; spec/sync-image.md, 5; facts/relay.md.

``relay.py`` stands on the source between one ``docker push`` and the targets' ``docker pull``, each through an ssh of
its own. ``transfer`` runs what is rendered here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from ..scripts import Script, Scripts
from . import archive
from .archive import Sending
from .sent import Turn
from .ways import ssh_argv

FORWARD = "127.0.0.1:@THERE@:127.0.0.1:@PORT@"  # relay.py puts the ports in: on the target, on the source
HOST = "{{.Endpoints.docker.Host}}"
NAMED = "{{.Repository}}:{{.Tag}}"


def render(scripts: Scripts, sending: Sending, turns: Sequence[Turn]) -> Script:
    """The script of one pass: all of ``turns`` at once, by one relay."""
    commands = {turn.target: command(scripts, sending, turn) for turn in turns}
    return archive.program(scripts, sending, "relay.py", job(sending, commands))


def command(scripts: Scripts, sending: Sending, turn: Turn) -> tuple[str, ...]:
    """The argv on the source that lets a target pull; the password and what to pull come on its stdin."""
    return (*ssh_argv(turn.ways[0], ".", forward=FORWARD), archive.remote(pull(scripts, sending, turn.target)))


def pull(scripts: Scripts, sending: Sending, target: str) -> Script:
    """The script on a target."""
    docker = list(sending.nodes[target].docker)
    return scripts.render("images/pull-relay.sh", name=sending.tag, format=HOST, docker=docker)


def job(sending: Sending, commands: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """What ``relay.py`` is to do (pure); the form is in its docstring."""
    image = sending.source.image
    return {
        "docker": list(sending.source.docker),
        "image": image.id if image else sending.image,
        "name": path(sending),
        "vouched": [image.id] if image else [],
        "targets": {target: list(words) for target, words in commands.items()},
        **asdict(sending.limits),
    }


def path(sending: Sending) -> str:
    """What the image is called at the relay, for one run."""
    return f"fdl-{sending.run}/app"
