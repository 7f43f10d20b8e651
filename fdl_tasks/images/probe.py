"""Look at every node's Docker at once: one script each, one parser, one answer a node."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..cluster.image import ImageRef
from ..cluster.model import Cluster, Worker
from ..errors import FdlError
from ..hosts.base import Host
from ..hosts.connect import Connect, connect
from ..hosts.fanout import WIDTH, Cancel
from ..outcome import Attempt, Event, Kind, Progress, silent
from ..scripts import Script, Scripts
from .facts import CUT, NodeFacts, failed, parse
from .identity import same
from .nodes import Nodes, members
from .wanted import wanted

LIMIT = 120.0  # seconds; a busy engine takes its time
MOST = 100  # other images that are looked at, the newest first
JSON = "{{json .}}"
INFO = '{"Driver":{{json .Driver}},"DriverStatus":{{json .DriverStatus}},"DockerRootDir":{{json .DockerRootDir}}}'
SIZE = "{{.Size}}"


def render(scripts: Scripts, image: ImageRef, docker_host: str | None, *, brief: bool = False) -> Script:
    """The probe of one node; ``brief``: whether it may end where the image is there."""
    return scripts.render(
        "images/probe.sh",
        image=str(image),
        sudo="",  # the script finds out
        docker_host=docker_host or "",
        brief=int(brief),
        most=MOST,
        json=JSON,
        info=INFO,
        size=SIZE,
    )


def probe(
    nodes: Nodes,
    image: ImageRef,
    labels: Iterable[str] | None = None,
    *,
    brief: bool = False,
    full: str | None = None,
    scripts: Scripts | None = None,
    progress: Progress = silent,
) -> list[NodeFacts]:
    """The facts of every node, or of those of ``labels``. A node that can't be asked has its ``error`` set.

    ``brief``: of a node that has the image no more than what tells whether it is the others' (``alike``), but all
    of ``full``.

    Raises:
        KeyboardInterrupt: the user ended it.
    """
    scripts = scripts or Scripts()

    def deed(node: Worker, host: Host, cancel: Cancel) -> NodeFacts:
        progress(Event(node.host, Kind.STATE, "probing"))
        short = brief and node.host != full
        done = host.run(render(scripts, image, node.docker_host, brief=short), limit=LIMIT)
        return _explained(parse(done.out, node.host, node.docker_host, brief=short), done.err)

    return [_facts(attempt) for attempt in nodes.each(deed, labels).values()]


def look(
    cluster: Cluster,
    *,
    image: str | None = None,
    recipe: str | None = None,
    hosts: Sequence[str] = (),
    width: int = WIDTH,
    scripts: Scripts | None = None,
    connect: Connect = connect,
    progress: Progress = silent,
) -> tuple[NodeFacts, ...]:
    """What every node has of an image; a node that can't be asked says why in its ``error``.

    Raises:
        UsageError, ConfigError: as ``sync_image``.
    """
    reference, _ = wanted(cluster, image, recipe)
    with Nodes(members(cluster, hosts), connect=connect, progress=progress, width=width) as nodes:
        return tuple(probe(nodes, reference, scripts=scripts, progress=progress))


def alike(nodes: Iterable[NodeFacts]) -> bool:
    """Whether all that could be asked have one and the same image, so that nothing is to be sent."""
    images = [node.image for node in nodes if not node.error]
    return all(image and images[0] and same(image, images[0]) for image in images)


def _explained(node: NodeFacts, err: str) -> NodeFacts:
    """With what the node's shell said of an answer that did not come through."""
    said = err.strip().splitlines()[-3:]
    return failed(node.label, f"{CUT} ({' / '.join(said)})") if node.error == CUT and said else node


def _facts(attempt: Attempt[NodeFacts]) -> NodeFacts:
    if attempt.value is not None:
        return attempt.value
    error = attempt.error
    return failed(attempt.host, str(error) if isinstance(error, FdlError) else f"{type(error).__name__}: {error}")
