"""Which way the image goes to each target: through a relay, or by the archive; spec/sync-image.md, 5 (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal, get_args

from ..cluster.image import ImageRef
from ..errors import UsageError
from . import judge
from .facts import NodeFacts
from .plan import Plan, Step, amount, with_room

Transport = Literal["auto", "relay", "archive"]


def transport(word: str) -> Transport:
    """One of the words for it. Raises UsageError: it is none."""
    for known in get_args(Transport):
        if word == known:
            return known  # type: ignore[no-any-return]
    raise UsageError(f"the transport {word!r} is none of {', '.join(get_args(Transport))}")


def choose(found: Plan, reference: ImageRef, nodes: Mapping[str, NodeFacts], wanted: Transport) -> Plan:
    """The plan with a transport for every step: a relay wherever that can be, else the archive (``auto``).

    Of ``relay`` and ``archive`` that one: a target that the relay can't serve has an error then.
    """
    source = nodes[found.source]
    steps = [_by(wanted, step, source, nodes[step.target]) for step in found.steps]
    if reference.digest:
        held = (judge.held_by(judge.name_for(reference)),)
        steps = [replace(step, notes=step.notes + held) if step.transport == "relay" else step for step in steps]
    return replace(found, steps=tuple(steps))


def _by(wanted: Transport, step: Step, source: NodeFacts, target: NodeFacts) -> Step:
    if wanted == "archive" or not step.sends or (target.broken and step.error):
        return step
    against = _no_relay(source, target)
    if against and wanted == "relay":
        return replace(step, transport="relay", error=step.error or f"no relay can bring it: {against}")
    if against:
        return replace(step, notes=(*step.notes, f"by the archive, since {against}"))
    return _relayed(step, source, target, None if wanted == "relay" else step)


def _no_relay(source: NodeFacts, target: NodeFacts) -> str:
    """Why a relay does not do; empty where it does. Whether the source can push its image, only its push shows."""
    for node in (source, target):
        if node.store != "containerd":
            return f"a relay takes containerd stores at both ends, and {node.label} has a {node.store} store"
    if not source.programs:
        return f"{source.label} has no python3 3.8 or later, which runs a relay"
    return "its copy there lacks content, and only a load replaces all of it" if target.broken else ""


def _relayed(step: Step, source: NodeFacts, target: NodeFacts, instead: Step | None) -> Step:
    """What the target's store lacks is known to its own pull alone: about so much by the layers of its images."""
    layers = source.image.layers if source.image else ()
    there = {layer for other in filter(None, (target.image, *target.others)) for layer in other.layers}
    count = sum(layer in there for layer in layers)
    mode, why = (
        ("delta", f"{count} of {len(layers)} layers are there") if count else ("full", "no layer of it is there")
    )
    sent, unpacked = amount(source, len(layers) - count if count else None)
    found = replace(
        step, mode=mode, why=why, bytes=sent, needed=sent + unpacked, omit=frozenset(), base=None, error=None
    )
    return with_room(replace(found, transport="relay", instead=instead), target)
