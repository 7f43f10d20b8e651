"""Which node the image is taken from, in what order, and why (pure).

Rules: spec/sync-image.md, 3. The origin compared the texts of ``Created`` and let the newest win, also where
the dates meant nothing; here contents that differ without a date that tells are an error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from ..errors import FdlError, UsageError
from .facts import ImageFacts, NodeFacts
from .identity import same

EPOCHS = 1981  # reproducible builds write a date before: 0001, 1970 (SOURCE_DATE_EPOCH=0), 1980 (buildpacks, zip)


class SourceError(FdlError):
    """No node can be the source."""


@dataclass(frozen=True)
class Choice:
    """Who may be the source, best first; the next is taken when one turns out to be incomplete.

    ``refused`` are nodes that have the image but not whole or not startable, and what is wrong there.
    """

    labels: tuple[str, ...]
    reason: str
    refused: Mapping[str, str] = field(default_factory=dict)


def choose(nodes: Sequence[NodeFacts], wanted: str | None = None) -> Choice:
    """The order of the source candidates among ``nodes``; ``wanted`` is what ``--source`` names.

    Raises:
        UsageError: ``wanted`` is none of the nodes.
        SourceError: no node has the image, or not whole, or contents differ and no date tells the newest.
    """
    if wanted is not None:
        return _wanted(nodes, wanted)
    holders = [node for node in nodes if node.image]
    if not holders:
        raise SourceError(
            "no node has the image: " + _each(nodes),
            hint="pull or build it on one node first",
        )
    winners, reason = _newest(holders)
    return _ordered(nodes, winners, reason)


def none_starts(tried: Sequence[NodeFacts]) -> SourceError:
    """What is to be raised when none of the candidates proved whole."""
    known = "; ".join(f"{node.label}: {node.flaw or node.error}" for node in tried)
    return SourceError(f"no node has a copy that starts: {known}", hint="pull or build it on one node again")


def _wanted(nodes: Sequence[NodeFacts], label: str) -> Choice:
    named(label, [node.label for node in nodes])
    found = next(node for node in nodes if node.label == label)
    if found.image is None or found.broken:
        raise SourceError(f"the source {label} {_state(found)}", hint="name another source, or pull or build it there")
    return Choice((label,), "named as the source")


def named(label: str, labels: Sequence[str]) -> None:
    """Check that the source that was asked for is one of the nodes.

    Raises:
        UsageError: it is not.
    """
    if label not in labels:
        raise UsageError(f"the source {label!r} is none of the nodes", hint=f"nodes: {', '.join(labels)}")


def _newest(holders: Sequence[NodeFacts]) -> tuple[list[NodeFacts], str]:
    """The nodes with the newest content, and how that was told."""
    contents = _contents(holders)
    if len(contents) == 1:
        return contents[0], "every copy has the same content" if len(holders) > 1 else "the only node that has it"
    dates = [_created(nodes[0].image) for nodes in contents]
    latest = max((date for date in dates if date), default=None)
    if latest is None or None in dates or dates.count(latest) > 1:
        raise SourceError(
            f"the nodes have different images of that name, and their dates do not tell which is the newest: "
            f"{_each(holders)}",
            hint=f"name the right one: --source {holders[0].label}",
        )
    return contents[dates.index(latest)], f"the newest of {len(contents)} different images (created {latest:%F %T} UTC)"


def _contents(holders: Sequence[NodeFacts]) -> list[list[NodeFacts]]:
    """The nodes by content, in their order; a content's date is that of its first node."""
    groups: list[list[NodeFacts]] = []
    for node in holders:
        group = next((group for group in groups if _equal(group[0], node)), None)
        if group is None:
            groups.append([node])
        else:
            group.append(node)
    return groups


def _equal(a: NodeFacts, b: NodeFacts) -> bool:
    return bool(a.image and b.image and same(a.image, b.image))


def _created(image: ImageFacts | None) -> datetime | None:
    """When it was made; None when its date tells nothing."""
    try:
        made = datetime.fromisoformat(image.created if image else "")
        made = made.astimezone(UTC) if made.tzinfo else made.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        return None
    return made if made.year >= EPOCHS else None


def _ordered(nodes: Sequence[NodeFacts], winners: Sequence[NodeFacts], reason: str) -> Choice:
    """Whole copies, of the store that most of the others have first: less is sent, and ids stay equal."""
    refused = {node.label: node.flaw for node in winners if node.broken}
    whole = [node for node in winners if not node.broken]
    if not whole:
        raise SourceError(
            "no node has a whole copy of the image: " + "; ".join(f"{label}: {why}" for label, why in refused.items()),
            hint="pull or build it on one node again, or name a source with an older image: --source NODE",
        )
    kinds = [node.store for node in nodes if not node.error]
    ordered = sorted(whole, key=lambda node: (-kinds.count(node.store), node.complete is None))
    return Choice(tuple(node.label for node in ordered), reason, refused)


def _each(nodes: Sequence[NodeFacts]) -> str:
    return "; ".join(f"{node.label} {_state(node)}" for node in nodes)


def _state(node: NodeFacts) -> str:
    if node.error:
        return f"can't be asked ({node.error})"
    if node.image is None:
        return "does not have the image"
    flaw = f", but {node.flaw}" if node.broken else ""
    return f"has {node.image.id} created {node.image.created or 'at an unknown time'}{flaw}"
