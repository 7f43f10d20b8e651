"""The scripts of an image sync, shown and not run: ``<source>`` and ``<target>`` stand for what nobody knows yet."""

from __future__ import annotations

from collections.abc import Sequence

from ..cluster.model import Cluster
from ..scripts import Script, Scripts
from . import archive, judge, probe, relaying, transports, verify, ways
from .addresses import Way
from .facts import PYTHON, ImageFacts, NodeFacts
from .nodes import members
from .plan import Step
from .sent import Turn
from .source import named
from .wanted import wanted

SOURCE, TARGET = "<source>", "<target>"
_IMAGE = ImageFacts("<id>", (), "", "", "", "{}", "", (), (), 0)


def dry_run(
    cluster: Cluster,
    *,
    image: str | None = None,
    recipe: str | None = None,
    hosts: Sequence[str] = (),
    source: str | None = None,
    transport: str = "auto",
    scripts: Scripts | None = None,
) -> list[tuple[str, Script]]:
    """What ``sync_image`` would run, as (label, script); runs none and contacts nobody.

    With the transport ``auto`` that of both: which one a target gets is not known before its store is.

    Raises:
        UsageError, ConfigError: as ``sync_image``.
    """
    scripts, (reference, command) = scripts or Scripts(), wanted(cluster, image, recipe)
    by = transports.transport(transport)
    workers, origin = members(cluster, hosts), source or SOURCE
    if source:
        named(source, [worker.host for worker in workers])
    known = NodeFacts(origin, image=_IMAGE, python=PYTHON, tools=frozenset({"zstd"}))
    target = NodeFacts(TARGET, server=str(archive.ZSTD_LOAD))
    way = Way(TARGET, TARGET, 22, "<user>", "<alias>", None, fabric=True)
    sending = archive.Sending(
        known, str(reference), {TARGET: target}, "<known_hosts>\n", cluster.images.compress, judge.name_for(reference),
        run="0" * 16,
    )  # fmt: skip
    turns = [Turn(Step(TARGET, "full"), (way,))]
    both = {  # each one's second script travels in its first
        "relay": [
            (origin, relaying.render(scripts, sending, turns)),
            (TARGET, relaying.pull(scripts, sending, TARGET)),
        ],
        "archive": [
            (origin, archive.render(scripts, sending, turns)),
            (TARGET, archive.load(scripts, sending, TARGET)),
        ],
    }
    return [
        *((w.host, probe.render(scripts, reference, w.docker_host)) for w in workers),
        (origin, ways.render(scripts, [way], "<known_hosts>\n")),
        *(script for way, pair in both.items() if by in ("auto", way) for script in pair),
        (TARGET, verify.look(scripts, target.docker, str(reference), command, "0" * 16)),
    ]
