"""Brings an image from one node to its targets: finds the ways, and sends over them; spec/sync-image.md, 4 and 5."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..cluster.image import ImageRef
from ..errors import FdlError
from ..hosts.base import Host
from ..hosts.connect import Connect
from ..hosts.fanout import Cancel
from ..outcome import Event, Kind, Progress
from ..scripts import Scripts
from . import archive, judge, transfer, ways
from .addresses import Peer
from .facts import NodeFacts
from .nodes import Nodes
from .plan import Step
from .sent import Sent

Facts = Mapping[str, NodeFacts]
Routes = dict[str, ways.Route]


@dataclass(frozen=True)
class Courier:
    """What a run brings an image with, whoever sends."""

    nodes: Nodes
    image: ImageRef
    compress: str
    require_fabric: bool
    limits: archive.Limits
    scripts: Scripts
    progress: Progress
    live: Progress
    connect: Connect

    def routes(self, origin: str, targets: Sequence[str], facts: Facts) -> Routes:
        """How each target is reached from ``origin``; nothing is sent."""
        if not targets:
            return {}
        found = self.nodes.each(lambda node, host, cancel: self._find(host, targets, facts, cancel), [origin])[origin]
        failed = {
            label: ways.Route(label, error=f"the source {origin}: {why(found.error, origin)}") for label in targets
        }
        return found.value or failed

    def bring(
        self,
        host: Host,
        steps: Sequence[Step],
        facts: Facts,
        cancel: Cancel,
        *,
        known: Routes,
        yields: bool,
        alone: bool,
    ) -> tuple[Routes, dict[str, Sent]]:
        """The routes from ``host`` to the targets, and what became of those that have one.

        Args:
            known: routes that were found a moment ago.
            alone: as ``transfer.send`` takes it.

        Raises:
            FdlError: the ways could not be tried.
            Waited: ``yields``, and another run was sending the image from there meanwhile.
        """
        targets = [step.target for step in steps]
        unknown = [label for label in targets if label not in known]
        routes = {**known, **(self._find(host, unknown, facts, cancel) if unknown else {})}
        steps = [step for step in steps if not routes[step.target].error]
        if not steps:
            return routes, {}
        pinned = ways.known_hosts(self._peers(targets, facts))
        sending = archive.Sending(
            facts[host.label], str(self.image), facts, pinned, self.compress, judge.name_for(self.image),
            limits=self.limits, yields=yields,
        )  # fmt: skip
        sent = transfer.send(
            host, sending, steps, {step.target: routes[step.target].ways for step in steps},
            scripts=self.scripts, progress=self.progress, live=self.live,
            anew=lambda: self.connect(self.nodes.workers[host.label], Cancel(), lambda text: None), alone=alone,
        )  # fmt: skip
        return routes, sent

    def _find(self, host: Host, targets: Sequence[str], facts: Facts, cancel: Cancel) -> Routes:
        origin, *peers = self._peers([host.label, *targets], facts)
        asked = [ways.candidates(origin, peer, require_fabric=self.require_fabric) for peer in peers]
        self.progress(Event(host.label, Kind.STATE, "trying the ways"))
        return ways.find_routes(host, asked, ways.known_hosts(peers), cancel, self.scripts)

    def _peers(self, labels: Sequence[str], facts: Facts) -> list[Peer]:
        workers, hosts = self.nodes.workers, self.nodes.hosts
        return [ways.peer(workers[label], hosts[label], aes="aes" in facts[label].tools) for label in labels]


def why(error: Exception | None, label: str = "") -> str:
    """The reason, without the node that it begins with where that is ``label``."""
    text = str(error) if isinstance(error, FdlError) else f"{type(error).__name__}: {error}"
    return text.removeprefix(f"{label}: ") if label else text
