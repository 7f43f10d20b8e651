"""Who gets the image from whom: with many targets, those that have it by now send it on (pure).

A relay sends from any node whose copy is proven. The archive's plan is made for the first source: it alone sends that.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from .facts import NodeFacts
from .plan import Step

WIDTH = 8  # targets that one node serves at once; up to so many there is one source and one wave
WORTH = 2 << 30  # bytes that the others save the source; less is sent sooner than another wave is made ready
LATER = "gets it after the first nodes, from one of these or from {source}"
Shares = dict[str, list[Step]]


def wave(
    steps: Sequence[Step],
    source: str,
    others: Sequence[str] = (),
    alone: Collection[str] = (),
    *,
    first: bool = True,
    width: int,
    worth: int = 0,
) -> Shares:
    """Who sends to whom now, by sender; a step that is in no share waits for the next wave.

    Args:
        steps: what is still to be sent.
        others: nodes beside ``source`` whose copies are proven, and that can send.
        alone: targets that another sender could not serve: the source does.
        first: nothing was sent yet. Later, without ``others``, the source sends all that is left at once.
        worth: with fewer bytes than that beyond what it sends to ``width`` targets, the source sends all at once.
    """
    own = [step for step in steps if step.transport != "relay" or step.target in alone]
    rest = [step for step in steps if step not in own]
    few = len(rest) <= width or sum(step.bytes for step in rest[width:]) < worth
    if few if first else not others:
        return {source: list(steps)}
    if not others:
        return {source: rest[:width]}
    senders = [*([] if own else [source]), *others]
    shares = {source: own} | {label: rest[at :: len(senders)][:width] for at, label in enumerate(senders)}
    return {label: share for label, share in shares.items() if share}


def sends(node: NodeFacts) -> bool:
    """Whether a node with a proven copy can send it on."""
    return node.store == "containerd" and node.programs


def later(steps: Sequence[Step], source: str) -> list[Step]:
    """The planned steps; who is not in the first wave has a note that says so."""
    waits = {step.target for step in _due(steps)} - {step.target for step in first(steps, source)}
    note = LATER.format(source=source)
    return [replace(step, notes=(*step.notes, note)) if step.target in waits else step for step in steps]


def first(steps: Sequence[Step], source: str, others: Sequence[str] = ()) -> list[Step]:
    """The steps that the source itself sends in the first wave; ``others`` can send as well."""
    return wave(_due(steps), source, others, width=WIDTH, worth=WORTH).get(source, [])


def _due(steps: Sequence[Step]) -> list[Step]:
    return [step for step in steps if step.sends and not step.error]
