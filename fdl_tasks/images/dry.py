"""The scripts of an image sync, shown and not run: ``<source>`` and ``<target>`` stand for what nobody knows yet."""

from __future__ import annotations

from collections.abc import Sequence

from ..cluster.model import Cluster
from ..scripts import Script, Scripts
from . import archive, probe, verify, ways
from .addresses import Way
from .facts import ImageFacts, NodeFacts
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
    scripts: Scripts | None = None,
) -> list[tuple[str, Script]]:
    """What ``sync_image`` would run, as (label, script); runs none and contacts nobody.

    Raises:
        UsageError, ConfigError: as ``sync_image``.
    """
    scripts, (reference, command) = scripts or Scripts(), wanted(cluster, image, recipe)
    workers, origin = members(cluster, hosts), source or SOURCE
    if source:
        named(source, [worker.host for worker in workers])
    known, target = NodeFacts(origin, image=_IMAGE, python=archive.PYTHON), NodeFacts(TARGET)
    way = Way(TARGET, TARGET, 22, "<user>", "<alias>", None, fabric=True)
    sending = archive.Sending(known, str(reference), {TARGET: target}, "<known_hosts>\n", run="0" * 16)
    turns = [Turn(Step(TARGET, "full"), (way,))]
    name = f"fdl-probe-{'0' * 16}"
    entrypoint, *arguments = command
    at = {"image": str(reference), "container": name}
    return [
        *((w.host, probe.render(scripts, reference, w.docker_host, prove=True, nonce="0" * 16)) for w in workers),
        (origin, ways.render(scripts, [way], "<known_hosts>\n")),
        (origin, archive.render(scripts, sending, turns)),
        (TARGET, scripts.render("images/load.sh", docker=list(target.docker))),  # it travels in the one before
        (TARGET, verify.render(scripts, "verify", target.docker, json=verify.JSON, **at)),
        (TARGET, verify.render(scripts, "exec", target.docker, entrypoint=entrypoint, arguments=arguments, **at)),
    ]
