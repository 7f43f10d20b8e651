"""Look at every node's Docker at once: one script each, one parser, one answer a node."""

from __future__ import annotations

import secrets

from ..cluster.image import ImageRef
from ..cluster.model import Worker
from ..errors import FdlError
from ..hosts.base import Host
from ..hosts.fanout import Cancel
from ..outcome import Attempt, Event, Kind, Progress, silent
from ..scripts import Script, Scripts
from .facts import CUT, NodeFacts, failed, parse
from .nodes import Nodes

LIMIT = 120.0  # seconds; a container is made, and a busy engine takes its time
MOST = 100  # other images that are looked at, the newest first
JSON = "{{json .}}"
INFO = '{"Driver":{{json .Driver}},"DriverStatus":{{json .DriverStatus}},"DockerRootDir":{{json .DockerRootDir}}}'
SIZE = "{{.Size}}"


def render(
    scripts: Scripts, image: ImageRef, docker_host: str | None, *, prove: bool, nonce: str | None = None
) -> Script:
    """The probe of one node; ``prove``: whether a container may be made of the image, and removed again."""
    return scripts.render(
        "images/probe.sh",
        image=str(image),
        sudo="",  # the script finds out
        docker_host=docker_host or "",
        prove=int(prove),
        container=f"fdl-probe-{nonce or secrets.token_hex(8)}",
        most=MOST,
        json=JSON,
        info=INFO,
        size=SIZE,
    )


def probe(
    nodes: Nodes,
    image: ImageRef,
    *,
    prove: bool = True,
    scripts: Scripts | None = None,
    progress: Progress = silent,
) -> list[NodeFacts]:
    """The facts of every node, in their order. A node that can't be asked has its ``error`` set.

    Raises:
        KeyboardInterrupt: the user ended it.
    """
    scripts = scripts or Scripts()

    def look(node: Worker, host: Host, cancel: Cancel) -> NodeFacts:
        progress(Event(node.host, Kind.STATE, "probing"))
        done = host.run(render(scripts, image, node.docker_host, prove=prove), limit=LIMIT)
        return _explained(parse(done.out, node.host, node.docker_host), done.err)

    return [_facts(attempt) for attempt in nodes.each(look).values()]


def _explained(node: NodeFacts, err: str) -> NodeFacts:
    """With what the node's shell said of an answer that did not come through."""
    said = err.strip().splitlines()[-3:]
    return failed(node.label, f"{CUT} ({' / '.join(said)})") if node.error == CUT and said else node


def _facts(attempt: Attempt[NodeFacts]) -> NodeFacts:
    if attempt.value is not None:
        return attempt.value
    error = attempt.error
    return failed(attempt.host, str(error) if isinstance(error, FdlError) else f"{type(error).__name__}: {error}")
