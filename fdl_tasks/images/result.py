"""What became of an image sync, as values (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import chain
from typing import TYPE_CHECKING

from .plan import Plan, Step

if TYPE_CHECKING:
    from .facts import NodeFacts
    from .logins import Route
    from .sent import Sent
    from .verify import Checked


class Fate(StrEnum):
    """What became of one node; the value is how it is printed. Only ``FAILED`` is no proof of the image there."""

    SOURCE = "source"
    IN_SYNC = "in-sync"
    SYNCED = "synced"
    FAILED = "failed"


@dataclass(frozen=True)
class NodeOutcome:
    """One node. ``mode`` is ``full``, ``delta`` or ``tag`` where something was done; ``bytes`` were sent to it.

    ``identity`` is what its copy was proven by: ``same id`` or ``same content``.
    """

    node: str
    status: Fate
    mode: str | None = None
    transport: str | None = None
    bytes: int = 0
    seconds: float = 0.0
    address: str | None = None
    identity: str | None = None
    notes: tuple[str, ...] = ()
    error: str | None = None

    def as_json(self) -> dict[str, object]:
        """The spec's shape of one node."""
        return {
            "status": str(self.status),
            "mode": self.mode,
            "transport": self.transport,
            "bytes": self.bytes,
            "seconds": round(self.seconds, 3),
            "address": self.address,
            "identity": self.identity,
            "notes": list(self.notes),
            "error": self.error,
        }


@dataclass(frozen=True)
class SyncReport:
    """An image on every node, in the order of cluster.yml. ``plan`` is what was found to do, and then done."""

    image: str
    source: str | None
    reason: str
    nodes: Mapping[str, NodeOutcome] = field(default_factory=dict)
    plan: Plan | None = None

    @property
    def failed(self) -> tuple[NodeOutcome, ...]:
        return tuple(node for node in self.nodes.values() if node.status is Fate.FAILED)

    @property
    def ok(self) -> bool:
        """Whether a container of the image can start on every node."""
        return not self.failed

    def as_json(self) -> dict[str, object]:
        """The spec's shape."""
        nodes = {label: node.as_json() for label, node in self.nodes.items()}
        return {"image": self.image, "source": self.source, "reason": self.reason, "ok": self.ok, "nodes": nodes}


@dataclass
class Round:
    """What has become of the targets so far."""

    sent: dict[str, Sent] = field(default_factory=dict)
    checked: dict[str, Checked] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    notes: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def fail(self, label: str, error: str | None) -> None:
        """What stands against a target now; None: nothing does any more."""
        self.errors.pop(label, None)
        if error:
            self.errors[label] = error

    def note(self, label: str, *notes: str) -> None:
        self.notes[label] = (*self.notes.get(label, ()), *notes)


def by(step: Step, route: Route | None) -> Step:
    """A planned step with the address that would be taken, or why there is none; no route: it needs none."""
    if route is None:
        return step
    address = route.ways[0].address if route.ways else ""
    return replace(step, address=address, notes=(*step.notes, *route.notes), error=route.error)


def outcome(step: Step, done: Round) -> NodeOutcome:
    """What became of one target, from all that was done to it."""
    label = step.target
    sent, checked = done.sent.get(label), done.checked.get(label)
    error = done.errors.get(label) or (checked.error if checked else "it was not looked at again")
    found = (sent.notes if sent else ()), (checked.notes if checked else ())
    notes = tuple(dict.fromkeys(chain(step.notes, done.notes.get(label, ()), *found)))  # a second pass repeats some
    if step.replaces and not any(step.replaces in note for note in notes):
        notes = (*notes, f"{step.replaces} had this name there before")
    status = Fate.FAILED if error else Fate.IN_SYNC if step.mode == "in-sync" and not sent else Fate.SYNCED
    mode = sent.mode if sent else None if step.mode == "in-sync" else step.mode
    return NodeOutcome(
        label,
        status,
        mode,
        sent.transport if sent else None,
        sent.bytes if sent else 0,
        sent.seconds if sent else 0.0,
        sent.address if sent else None,
        str(checked.proof) if checked and checked.proof else None,
        notes,
        error,
    )


def outcomes(found: Plan, nodes: Mapping[str, NodeFacts], proven: Checked, done: Round) -> dict[str, NodeOutcome]:
    """What became of every node; ``proven`` is the source's own copy."""
    steps = {step.target: step for step in found.steps}
    made = {}
    for label, node in nodes.items():
        if label == found.source:
            made[label] = NodeOutcome(label, Fate.SOURCE, identity=str(proven.proof), notes=proven.notes)
        elif label in steps:
            made[label] = outcome(steps[label], done)
        else:
            made[label] = NodeOutcome(label, Fate.FAILED, error=node.error or "it could not be asked")
    return made
