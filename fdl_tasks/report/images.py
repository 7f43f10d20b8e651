"""Images on nodes, for people: what there is, what would be done, what was done."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TextIO

from ..images import plan as plans
from ..images.identity import fingerprint
from ..images.result import Fate, NodeOutcome, SyncReport
from ..sizes import human_size
from .table import Mask, counted, plural, render

if TYPE_CHECKING:
    from ..images.facts import NodeFacts

_ORDER = (Fate.SOURCE, Fate.IN_SYNC, Fate.SYNCED, Fate.FAILED)


def sync_table(report: SyncReport, mask: Mask, stream: TextIO | None) -> str:
    """One row a node, failures last; the last lines say where it came from and count."""
    nodes = sorted(report.nodes.values(), key=lambda node: _ORDER.index(node.status))
    rows = [_row(node, mask) for node in nodes]
    table = render(("node", "status", "mode", "sent", "seconds", "over", "proof"), rows, stream)
    states = [node.status for node in nodes]
    count = counted((states.count(state), str(state)) for state in _ORDER)
    return f"{table}\n\n{report.image} from {report.source} ({report.reason}): {count}"


def _row(node: NodeOutcome, mask: Mask) -> tuple[str, ...]:
    sent = human_size(node.bytes) if node.bytes else ""
    seconds = f"{node.seconds:.1f}" if node.seconds else ""
    about = [*([node.error] if node.error else [node.identity or ""]), *node.notes]
    over = f"{node.address or ''}{', relay' if node.transport == 'relay' else ''}"
    return (node.node, str(node.status), node.mode or "", sent, seconds, over, mask("\n".join(about)))


def sync_failures(report: SyncReport) -> str:
    """Every failed node with its reason; the count last."""
    lines = [f"{node.node}: {node.error}" for node in report.failed]
    labels = ", ".join(node.node for node in report.failed)
    count = f"{len(report.failed)} of {plural(len(report.nodes), 'node')} failed: {labels}"
    return "\n".join([*lines, f"{report.image}: {count}"])


def plan_table(report: SyncReport, mask: Mask, stream: TextIO | None) -> str:
    """What would be done on every node, and why."""
    rows = [tuple(map(mask, row)) for row in plans.rows(report.plan)] if report.plan else []
    planned = {row[0] for row in rows}
    rows += [
        (node.node, "failed", "-", "-", mask(node.error or "")) for node in report.failed if node.node not in planned
    ]
    table = render(("node", "mode", "transport", "bytes", "why"), rows, stream)
    return f"{table}\n\n{report.image} from {report.source} ({report.reason}): {_due(report)}"


def _due(report: SyncReport) -> str:
    due = len(report.plan.todo) if report.plan else 0
    stuck = sum(1 for step in report.plan.steps if step.error) if report.plan else 0
    if due or stuck:
        return f"{plural(due, 'node')} to change" + (f", {stuck} can't be" if stuck else "")
    return "nothing to do: every node that could be asked has it"


def plan_json(report: SyncReport) -> dict[str, object]:
    """A plan in the shape of a sync: ``bytes`` are about what would be sent; who needs something is ``planned``."""
    steps = {step.target: _planned(step) for step in (report.plan.steps if report.plan else ())}
    source = NodeOutcome(str(report.source), Fate.SOURCE)
    others = {node.node: node.as_json() for node in (source, *report.failed)}
    return {**report.as_json(), "nodes": {**others, **steps}}


def _planned(step: plans.Step) -> dict[str, object]:
    sends, due = step.sends, step.mode != "in-sync"
    outcome = NodeOutcome(
        step.target,
        Fate.FAILED if step.error else Fate.IN_SYNC,
        step.mode if due else None,
        step.transport if sends else None,
        step.bytes if sends else 0,
        address=step.address or None,
        identity=str(step.proof) or None,
        notes=tuple(filter(None, (step.why, *step.remarks))),
        error=step.error,
    )
    return {**outcome.as_json(), **({"status": "planned"} if due and not step.error else {})}


def images_table(nodes: Sequence[NodeFacts], mask: Mask, stream: TextIO | None) -> str:
    """What each node has of the image."""
    rows = [_found(node, mask) for node in nodes]
    table = render(("node", "id", "content", "created", "complete", "store", "size", "about"), rows, stream)
    having = [node for node in nodes if node.image and not node.broken]
    unknown = sum(node.complete is None for node in having)
    told = f"; of {unknown} only a container tells whether it is whole" if unknown else " whole"
    have = "has" if len(nodes) == 1 else "have"
    return f"{table}\n\n{len(having)} of {plural(len(nodes), 'node')} {have} it{told}"


def _found(node: NodeFacts, mask: Mask) -> tuple[str, ...]:
    if node.image is None:
        return (node.label, "-", "-", "-", "-", node.store or "-", "-", mask(node.error or "does not have it"))
    complete = {True: "yes", False: "no", None: "unknown"}[False if node.broken else node.complete]
    image = node.image
    about = human_size(image.size), mask(node.flaw)
    created = mask(image.created)[:19].replace("T", " ")  # to the second
    return (node.label, image.id[7:19], fingerprint(image), created, complete, node.store, *about)


def images_json(nodes: Sequence[NodeFacts]) -> dict[str, object]:
    """The same for ``--json``; ids whole, sizes in bytes."""
    return {"nodes": {node.label: _as_json(node) for node in nodes}}


def _as_json(node: NodeFacts) -> dict[str, object]:
    image = node.image
    return {
        "id": image.id if image else None,
        "content": fingerprint(image) if image else None,
        "created": image.created if image else None,
        "complete": False if node.broken else node.complete if image else None,
        "store": node.store or None,
        "server": node.server or None,
        "size": image.size if image else None,
        "layers": list(image.layers) if image else [],
        "flaw": node.flaw or None,
        "error": node.error,
    }
