"""What each target needs: nothing, a tag, some layers, or all of it; grouped by what is left out (pure).

Rules: spec/sync-image.md, 2 and 5; the measurements behind them: facts/images.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile

from ..cluster.image import ImageRef
from ..sizes import human_size
from .facts import ImageFacts, NodeFacts
from .identity import Proof, same

OCI_SAVE = 25  # since this release `docker save` names a layer's entry by its diff id; before, by a random id
PLATFORM_SAVE = (1, 48)  # the API of `docker save --platform`
WORTH = 0.1  # share of the bytes that a containerd delta has to save: the source reads the base's archive too


@dataclass(frozen=True)
class Step:
    """What one target gets. ``mode`` is ``in-sync``, ``tag``, ``delta`` or ``full``.

    ``omit`` are the archive's entries that are left out. A delta without ``omit`` leaves out every blob that the
    archive of the image ``base`` (a full id, on both nodes) has: only the source can list those. With ``tag``,
    ``base`` is the id to tag. ``bytes`` is about what is sent, ``needed`` about what that takes at the target's
    store. ``proof`` is how the target's copy was shown to be the image. ``platform`` is for ``docker save
    --platform``, or empty. ``replaces`` is the id that the reference pointed to. With ``error`` nothing is sent.
    ``address`` is where it would be sent, once that was tried. ``transport`` is ``relay`` or ``archive``;
    ``instead`` brings it by the archive when the relay does not.
    """

    target: str
    mode: str
    omit: frozenset[str] = frozenset()
    base: str | None = None
    bytes: int = 0
    proof: str = ""
    why: str = ""
    transport: str = "archive"
    platform: str = ""
    needed: int = 0
    replaces: str = ""
    notes: tuple[str, ...] = ()
    error: str | None = None
    address: str = ""
    instead: Step | None = None

    @property
    def sends(self) -> bool:
        """Whether bytes of the image go over the way."""
        return self.mode in ("delta", "full")

    @property
    def remarks(self) -> tuple[str, ...]:
        """The notes, and what the reference means there until the step is done."""
        return (*self.notes, *([f"the name now means {self.replaces}"] if self.replaces else ()))


@dataclass(frozen=True)
class Group:
    """Targets that one and the same archive serves, or one relay; see ``Step`` for the fields."""

    targets: tuple[str, ...]
    omit: frozenset[str]
    base: str | None
    platform: str
    bytes: int
    transport: str = "archive"


@dataclass(frozen=True)
class Plan:
    """The steps of all targets that could be asked, in their order."""

    source: str
    steps: tuple[Step, ...]

    @property
    def todo(self) -> tuple[Step, ...]:
        """The steps that change a node; none when everything is in sync."""
        return tuple(step for step in self.steps if step.mode != "in-sync" and not step.error)

    @property
    def in_sync(self) -> frozenset[str]:
        """The targets that need nothing."""
        return frozenset(step.target for step in self.steps if step.mode == "in-sync")

    @property
    def groups(self) -> tuple[Group, ...]:
        """What is to be sent: an archive or a relay a group."""
        found: dict[tuple[frozenset[str], str | None, str, str], list[Step]] = {}
        for step in [step for step in self.todo if step.sends]:
            key = (step.omit, None if step.omit else step.base, step.platform, step.transport)
            found.setdefault(key, []).append(step)
        return tuple(
            Group(tuple(step.target for step in steps), *key[:3], max(step.bytes for step in steps), key[3])
            for key, steps in found.items()
        )


def plan(reference: ImageRef, source: NodeFacts, nodes: Sequence[NodeFacts]) -> Plan:
    """The steps that bring ``source``'s image by the archive to all other ``nodes``.

    Those that could not be asked have none. ``transports.choose`` tells who gets it through a relay.

    Raises:
        ValueError: the source does not have the image.
    """
    if source.image is None:
        raise ValueError(f"{source.label} is no source: it does not have the image")
    targets = [node for node in nodes if not node.error and node.label != source.label]
    return Plan(
        source.label, tuple(_noted(_step(reference, source, source.image, node), source, node) for node in targets)
    )


def full(source: NodeFacts, target: NodeFacts, why: str) -> Step:
    """Send everything: the first way to bring it, and the second when less did not do."""
    size, unpacked = amount(source, None)
    return with_room(Step(target.label, "full", bytes=size, why=why, needed=size + unpacked), target)


def _step(reference: ImageRef, source: NodeFacts, image: ImageFacts, target: NodeFacts) -> Step:
    proof = target.image and same(target.image, image)
    if proof and target.broken:
        return _again(source, target, proof)
    if proof:
        return Step(target.label, "in-sync", proof=proof)
    if named := _elsewhere(reference, image, target):
        other, proof = named
        known_as = ", ".join(other.repo_tags) or "without a name"
        return Step(target.label, "tag", base=other.id, proof=proof, why=f"it is there already, {known_as}")
    return _delta(source, image, target)


def _again(source: NodeFacts, target: NodeFacts, proof: Proof) -> Step:
    """A copy that lacks content is sent anew; one that is whole and will not start would be no better for it."""
    step = full(source, target, f"{proof}, but {target.flaw}")
    if not target.complete or step.error:
        return step
    return replace(step, error=f"the image is whole there, so sending it again would not help: {target.flaw}")


def _elsewhere(reference: ImageRef, image: ImageFacts, target: NodeFacts) -> tuple[ImageFacts, Proof] | None:
    """The same image under another name; in a containerd store a digest names one manifest and no equal one."""
    found = [(other, proof) for other in target.others if (proof := same(other, image))]
    if reference.digest and target.store == "containerd":
        found = [(other, proof) for other, proof in found if other.id == reference.digest]
    return min(found, key=lambda pair: pair[1] is not Proof.ID, default=None)


def _delta(source: NodeFacts, image: ImageFacts, target: NodeFacts) -> Step:
    if source.store != target.store:
        return full(source, target, f"the stores differ: {source.store} here, {target.store} there")
    local = [*([target.image] if target.image else []), *target.others]
    if source.store == "containerd":
        return _by_base(source, image, target, local)
    return _by_chain(source, image, target, local)


def _by_chain(source: NodeFacts, image: ImageFacts, target: NodeFacts, local: Iterable[ImageFacts]) -> Step:
    """Graphdriver: the loader never opens a layer whose whole chain is there."""
    if _release(source.server) < OCI_SAVE:
        return full(source, target, f"Docker {source.server} names layers by random ids in its archives")
    base = max(local, key=lambda other: _shared(image, other), default=None)
    count = _shared(image, base) if base else 0
    if base is None or not count:
        return full(source, target, "no image there has a layer of it to begin with")
    lacking = set(image.layers[count:])
    omit = frozenset(entry(layer) for layer in image.layers[:count] if layer not in lacking)
    if not omit:
        return full(source, target, "every layer that is there is needed once more above the others")
    return _less(source, target, base, count, omit)


def _by_base(source: NodeFacts, image: ImageFacts, target: NodeFacts, local: Iterable[ImageFacts]) -> Step:
    """Containerd: a blob is known to be there only as part of an image whose id both nodes have."""
    here = {other.id for other in source.others}
    bases = [other for other in local if other.id in here and other.id != image.id]
    base = max(bases, key=lambda other: len(set(image.layers) & set(other.layers)), default=None)
    count = len([layer for layer in image.layers if layer in base.layers]) if base else 0
    if base is None or not count:
        return full(source, target, "no image with a layer of it has the same id on both nodes")
    step = _less(source, target, base, count, frozenset())
    if step.bytes > _size(source) * (1 - WORTH):
        return full(source, target, "what both nodes have is too little to be worth leaving out")
    return step


def _less(source: NodeFacts, target: NodeFacts, base: ImageFacts, count: int, omit: frozenset[str]) -> Step:
    """A delta that leaves out ``count`` of the image's layers."""
    layers = source.image.layers if source.image else ()
    sent, unpacked = amount(source, len(layers) - count)
    name = next(iter(base.repo_tags), base.id)
    step = Step(target.label, "delta", omit, base.id, sent, needed=sent + unpacked)
    return with_room(replace(step, why=f"{count} of {len(layers)} layers are there, in {name}"), target)


def amount(source: NodeFacts, top: int | None) -> tuple[int, int]:
    """About the bytes of the ``top`` layers as they are sent, and unpacked; None: of all."""
    size, total = _size(source), sum(source.unpacked)
    if top is None or not total:
        return size, total or size
    unpacked = _top(source.unpacked, len(source.image.layers) if source.image else 0, top)
    return int(unpacked * min(1.0, size / total)), unpacked  # blobs of a containerd store are compressed


def entry(layer: str) -> str:
    """What a graphdriver store's ``docker save`` calls a layer, by its diff id."""
    return f"blobs/sha256/{layer.removeprefix('sha256:')}"


def _shared(image: ImageFacts, other: ImageFacts) -> int:
    """How many layers from the bottom up both have."""
    pairs = zip(image.layers, other.layers, strict=False)
    return len(list(takewhile(lambda pair: pair[0] == pair[1], pairs)))


def _top(history: Sequence[int], layers: int, count: int) -> int:
    """At least how many bytes the top ``count`` of ``layers`` layers have unpacked, by the history.

    A history has entries without a layer, all of no size; so have some layers, and nothing tells which.
    """
    sizes = [size for size in history if size]
    return sum(sizes[: max(0, count - max(0, layers - len(sizes)))])


def _size(source: NodeFacts) -> int:
    """About the bytes of the whole archive."""
    return (source.image.size if source.image else 0) or sum(source.unpacked)


def with_room(step: Step, target: NodeFacts) -> Step:
    """Loading takes what is sent once more: unpacked beside the blobs, or beside the loader's temporary copy.

    Which of several directories the store is in is not known: only when none has room it is an error.
    """
    if not target.free or max(target.free.values()) >= step.needed:
        return step
    where, free = max(target.free.items(), key=lambda item: item[1])
    error = f"no room: the image needs about {human_size(step.needed)} in {where}, and {human_size(free)} are free"
    return replace(step, error=error)


def _noted(step: Step, source: NodeFacts, target: NodeFacts) -> Step:
    image, had = source.image, target.image
    notes = []
    if image and image.architecture and target.arch and image.architecture != target.arch:
        notes.append(f"the image is for {image.architecture}, the engine is {target.arch}")
    mixed = source.store == "containerd" and target.store == "graphdriver" and step.mode == "full"
    if image and mixed and source.api >= PLATFORM_SAVE:  # attestations and other platforms break that loader
        step = replace(step, platform="/".join(filter(None, (image.os, image.architecture, image.variant))))
    replaces = had.id if had and step.mode != "in-sync" and image and had.id != image.id else ""
    return replace(step, notes=tuple(notes), replaces=replaces)


def _release(server: str) -> int:
    major = server.partition(".")[0]
    return int(major) if major.isdecimal() else 0


def rows(plan: Plan) -> tuple[tuple[str, str, str, str, str], ...]:
    """The plan for ``--plan``: node, mode, transport, bytes, and why or what stands against it."""
    return tuple(_row(step) for step in plan.steps)


def _row(step: Step) -> tuple[str, str, str, str, str]:
    way = f"by {step.address}" if step.address else ""
    said = [step.error or "", *([] if step.error else [step.proof, step.why, way]), *step.remarks]
    mode = "failed" if step.error else step.mode
    return (
        step.target,
        mode,
        step.transport if step.sends else "-",
        f"~{human_size(step.bytes)}" if step.sends else "-",
        "; ".join(filter(None, said)),
    )
