"""One image on every node: look, choose the source, plan, try the ways, send, and look again.

Contract: spec/sync-image.md; origin: seeds/004, whose "synced" meant that a program had ended with 0.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from ..cluster.image import ImageRef
from ..cluster.model import Cluster, Worker
from ..errors import FdlError
from ..hosts.base import Host
from ..hosts.connect import Connect, connect
from ..hosts.fanout import WIDTH, Cancel
from ..outcome import Event, Kind, Progress, silent
from ..scripts import Scripts
from . import archive, judge, plan, result, source, transfer, transports, tree, verify
from .courier import Courier, Routes, why
from .facts import ImageFacts, NodeFacts
from .nodes import Nodes, members
from .plan import Plan, Step
from .probe import alike, probe
from .result import Fate, NodeOutcome, Round, SyncReport
from .spread import spread
from .verify import Checked, Wish
from .wanted import wanted


def sync_image(
    cluster: Cluster,
    *,
    image: str | None = None,
    recipe: str | None = None,
    hosts: Sequence[str] = (),
    source: str | None = None,
    require_fabric: bool = False,
    plan_only: bool = False,
    transport: str = "auto",
    limits: archive.Limits = archive.LIMITS,
    width: int = WIDTH,
    scripts: Scripts | None = None,
    connect: Connect = connect,
    progress: Progress = silent,
    live: Progress = silent,
) -> SyncReport:
    """Bring an image to every node and prove that a container of it starts there.

    Args:
        image: the reference; or ``recipe``, the name of a recipe that names it.
        hosts: labels or groups; none for all workers.
        source: the node that has the right image; None: the one with the newest.
        require_fabric: send by fabric addresses only.
        plan_only: look, plan and try the ways; change nothing.
        transport: ``relay`` or ``archive`` for that one only, ``auto`` for the better one of each target.
        limits: what a transfer may take without moving.
        live: takes a sentence a second and node while bytes move, for a terminal.

    Raises:
        UsageError, ConfigError: neither or both of image and recipe, an unknown recipe, host, source or transport.
        SourceError: no node has the image, or it does not tell which one is the newest.
        KeyboardInterrupt: the user ended it; nothing is left on any node.
    """
    (reference, exec_probe), by = wanted(cluster, image, recipe), transports.transport(transport)
    with Nodes(members(cluster, hosts), connect=connect, progress=progress, width=width) as nodes:
        scripts = scripts or Scripts()
        compress = cluster.images.compress
        courier = Courier(nodes, reference, compress, require_fabric, limits, scripts, progress, live, connect)
        run = _Run(nodes, reference, exec_probe, by, courier, scripts, progress)
        while not plan_only:
            with contextlib.suppress(transfer.Waited):
                return run.sync(source)
        return run.plan(source)


def ensure_image(
    cluster: Cluster,
    image: str,
    *,
    hosts: Sequence[str] = (),
    source: str | None = None,
    require_fabric: bool = False,
    width: int = WIDTH,
    scripts: Scripts | None = None,
    connect: Connect = connect,
    progress: Progress = silent,
) -> SyncReport:
    """``sync_image`` for a task that is about to start containers: it returns only when every node has the image.

    Raises:
        FdlError: some node does not have it, or none has: a missing image must never become a silent pull.
    """
    report = sync_image(
        cluster, image=image, hosts=hosts, source=source, require_fabric=require_fabric,
        width=width, scripts=scripts, connect=connect, progress=progress,
    )  # fmt: skip
    if report.failed:
        lines = [f"{node.node}: {node.error}" for node in report.failed]
        raise FdlError("\n  ".join([f"{image} is not on every node:", *lines]), hint="mend that, then run it again")
    return report


@dataclass
class _Run:
    """One sync: the nodes, and what is wanted of them."""

    nodes: Nodes
    image: ImageRef
    exec_probe: tuple[str, ...]
    transport: transports.Transport
    courier: Courier
    scripts: Scripts
    progress: Progress

    def plan(self, wanted: str | None) -> SyncReport:
        """What would be done, without doing it."""
        facts = self._probe()
        chosen = source.choose(list(facts.values()), wanted)
        found = self._planned(chosen.labels[0], facts)
        targets = [target for group in found.groups for target in group.targets]
        routes = self.courier.routes(found.source, targets, facts)
        steps = [result.by(step, routes.get(step.target)) for step in found.steps]
        found = replace(found, steps=tuple(tree.later(steps, found.source)))
        errors = {label: node.error for label, node in facts.items() if node.error}
        errors |= {step.target: step.error for step in found.steps if step.error}
        failed = {label: NodeOutcome(label, Fate.FAILED, error=why) for label, why in errors.items()}
        return SyncReport(str(self.image), chosen.labels[0], chosen.reason, failed, found)

    def sync(self, wanted: str | None) -> SyncReport:
        """Try the candidates for the source one after another; the first whose copy proves whole is taken."""
        facts = self._probe(brief=True, full=wanted)  # of a source that was named, all may well be needed
        chosen = source.choose(list(facts.values()), wanted)
        if not alike(facts.values()):
            self._learn(facts)
            chosen = source.choose(list(facts.values()), wanted)
        for label in chosen.labels:
            seen, routes = self._tried(label, facts)
            if facts[label].image and not facts[label].broken:
                return self._from(self._planned(label, facts), seen, routes, facts, chosen)
        raise source.none_starts([facts[label] for label in chosen.labels])

    def _tried(self, label: str, facts: dict[str, NodeFacts]) -> tuple[dict[str, Checked], Routes]:
        """What a candidate and those in sync with it showed, and its ways to those that come first.

        What is wrong with a copy is in ``facts`` then too.
        """
        if facts[label].error:
            return {}, {}
        found, wish = self._planned(label, facts), Wish(self.image, _image(facts[label]), self.exec_probe)
        others = [other for other in facts if other in found.in_sync and tree.sends(facts[other])]
        first = [step.target for step in tree.first(found.steps, label, others)]
        seen, routes = self.nodes.both(
            lambda: self._verify(found.in_sync | {label}, facts, wish),
            lambda: self.courier.routes(label, first, facts),
        )
        if any(checked.error for checked in seen.values()):
            self._learn(facts)
            facts |= verify.flawed(facts, seen, label)
        return seen, routes

    def _from(
        self,
        found: Plan,
        seen: Mapping[str, Checked],
        routes: Routes,
        facts: Mapping[str, NodeFacts],
        chosen: source.Choice,
    ) -> SyncReport:
        """``seen`` are the source and those in sync: whose probe did not end well is judged again, by the source's."""
        proven = seen[found.source]
        wish = Wish(self.image, _image(facts[found.source]), self.exec_probe, proven.ran)
        done = Round(errors={step.target: step.error for step in found.steps if step.error})
        self._tag(found, facts, done)
        had = [step.target for step in found.steps if step.target in found.in_sync and step.target in seen]
        done.checked = {label: seen[label] for label in had if seen[label].settled}
        self._send([step for step in found.todo if step.mode != "tag"], found.source, facts, wish, done, routes)
        due = [step.target for step in found.steps if step.target not in done.errors]
        done.checked |= self._verify([label for label in due if label not in done.checked], facts, wish)
        self._again(found, facts, wish, done)
        outcomes = self._outcomes(found, facts, proven, done)
        return SyncReport(str(self.image), found.source, chosen.reason, outcomes, found)

    def _planned(self, origin: str, facts: Mapping[str, NodeFacts]) -> Plan:
        found = plan.plan(self.image, facts[origin], list(facts.values()))
        return transports.choose(found, self.image, facts, self.transport)

    def _probe(
        self, labels: Iterable[str] | None = None, *, brief: bool = False, full: str | None = None
    ) -> dict[str, NodeFacts]:
        facts = probe(
            self.nodes, self.image, labels, brief=brief, full=full, scripts=self.scripts, progress=self.progress
        )
        return {node.label: node for node in facts}

    def _learn(self, facts: dict[str, NodeFacts]) -> None:
        """Look once more, at all of it, where the look was brief: something is to be sent."""
        facts |= self._probe([label for label, node in facts.items() if not (node.error or node.store)])

    def _tag(self, found: Plan, facts: Mapping[str, NodeFacts], done: Round) -> None:
        bases = {step.target: step.base or "" for step in found.todo if step.mode == "tag"}

        def deed(node: Worker, host: Host, cancel: Cancel) -> judge.Tagged:
            name = judge.name_for(self.image)
            return verify.tag(facts[node.host], host, bases[node.host], name, self.scripts)

        for label, attempt in self.nodes.each(deed, bases).items():
            tagged = attempt.value or judge.Tagged(why(attempt.error))
            done.note(label, *tagged.notes)
            done.fail(label, tagged.error)

    def _send(
        self,
        steps: Sequence[Step],
        origin: str,
        facts: Mapping[str, NodeFacts],
        wish: Wish,
        done: Round,
        known: Routes | None = None,
    ) -> None:
        spread(self.courier, steps, origin, facts, done, lambda labels: self._verify(labels, facts, wish), known or {})

    def _verify(self, labels: Iterable[str], facts: Mapping[str, NodeFacts], wish: Wish) -> dict[str, Checked]:
        def deed(node: Worker, host: Host, cancel: Cancel) -> Checked:
            tell = partial(self._tell, node.host)
            tell("proving that it starts")
            return verify.verify(facts[node.host], host, wish, cancel, scripts=self.scripts, tell=tell)

        found = self.nodes.each(deed, labels)
        return {label: one.value or Checked(label, error=why(one.error)) for label, one in found.items()}

    def _tell(self, label: str, text: str) -> None:
        self.progress(Event(label, Kind.STATE, text))

    def _again(self, found: Plan, facts: Mapping[str, NodeFacts], wish: Wish, done: Round) -> None:
        """Send all of it by the archive, once, to those whose copy can be mended by that."""
        bad = {label: checked for label, checked in done.checked.items() if checked.error and checked.again}
        steps = [
            plan.full(facts[found.source], facts[label], f"its copy did not prove whole: {checked.error}")
            for label, checked in bad.items()
            if self.transport != "relay" and not (label in done.sent and done.sent[label].whole_archive)
        ]
        for step in steps:
            done.note(step.target, step.why)
        self._send([step for step in steps if not step.error], found.source, facts, wish, done)
        due = [step.target for step in steps if not step.error and step.target not in done.errors]
        done.checked |= self._verify(due, facts, wish)

    def _outcomes(
        self, found: Plan, facts: Mapping[str, NodeFacts], proven: Checked, done: Round
    ) -> dict[str, NodeOutcome]:
        for label, outcome in (outcomes := result.outcomes(found, facts, proven, done)).items():
            self.progress(Event(label, Kind.DONE, str(outcome.status)))
        return outcomes


def _image(node: NodeFacts) -> ImageFacts:
    if node.image is None:
        raise ValueError(f"{node.label} does not have the image")
    return node.image
