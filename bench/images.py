"""``sync-image`` beside a script that does the same by hand; and what it costs when there is nothing to do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from tests.lab.engine import Store

from .fleet import SOURCE, TARGETS, Brought, Fleet
from .lab import lab_here
from .measure import Ran, alternate, run
from .rows import Group, Judged, Row

TOP = 20_000_000  # bytes of the layer that changes; no compression makes a layer smaller
SMALL, USUAL, LARGE, HUGE = [45_000_000] * 4, [80_000_000] * 5, [140_000_000] * 7, [330_000_000] * 6  # those below it
SLACK, MEMORY, DISK, IN_SYNC = 1.0, 150.0, 1.0, 1.5  # MB, MB, MB, times
RELAY_SLACK, RELAY_MEMORY, SAME = 0.2, 80.0, 1.25
MB = 1e6
CONTAINER = "--pull=never --network none --entrypoint /bin/sh"
OURS = "`fdl-tasks sync-image`, from the start of Python to the proof that a container starts on every node"
PEER = (
    "`bench/baseline_sync.sh`: ids compared, `docker save` to a file on the source, `ssh … docker load` from it "
    "on all targets at once, then the id again and one `docker run`; host keys are known already"
)
NOTE = (
    "source and targets are nodes of one machine with an engine each: all of them share its cores, and the "
    "network between them costs nothing but CPU. Before each run the image is removed from the targets, and "
    "nothing else. Of *memory* and *disk on the source* the most at any time counts: resident memory of all that "
    "the run started there (docker's client, ssh and shells too; what several ssh map of one program counts once; "
    "summed process by process it was some 20 MB more with three ssh), and growth of its folders; the engines' own are "
    "not in it"
)

TWICE = (
    f"{NOTE}. A graphdriver store writes the whole image below its own directory before `docker save` gives the first "
    "byte, and again before `docker load` unpacks the first layer: a stream saves neither, and what it does save, "
    "a file written and read, costs nothing here either while it fits in the page cache"
)


def between_graphdrivers(folder: Path, rounds: int) -> Group:
    return _by_archive(folder, rounds, Store.GRAPHDRIVER, 0.85, 0.5)


def between_containerds(folder: Path, rounds: int) -> Group:
    return _by_archive(folder, rounds, Store.CONTAINERD, 0.8, 0.7)


def _by_archive(folder: Path, rounds: int, store: Store, *limits: float) -> Group:
    title = f"`sync-image --transport archive` of 420 MB between {store} stores"
    note = TWICE if store is Store.GRAPHDRIVER else NOTE
    return Group(title, f"{OURS}; by the archive", PEER, tuple(_archives(folder / store, store, rounds, *limits)), note)


def _archives(folder: Path, store: Store, rounds: int, cold: float, changed: float) -> list[Row]:
    with lab_here() as lab:
        fleet = Fleet(lab, folder, store)
        first, second = _built(fleet, "usual", USUAL)
        pair = partial(_Pair, fleet, rounds=rounds, transport="archive")
        two, three = pair(first, TARGETS[:2], "full"), pair(first, TARGETS, "full")
        top = pair(second, TARGETS, "delta")  # the baseline has left the first one there
        return [
            two.seconds("cold, two targets", cold),
            three.seconds("cold, three targets", cold),
            top.seconds("top layer of 20 MB changed, three targets", changed),
            top.row("the same, sent to a target", _sent, TOP / MB + SLACK),
            three.row("memory on the source", lambda one: one.seen.memory / MB, MEMORY),
            three.row("memory of the command itself", lambda one: one.ran.memory / MB, MEMORY),
            three.row("disk on the source", lambda one: one.seen.disk / MB, DISK),
        ]


def large_by_archive(folder: Path, rounds: int) -> Group:
    with lab_here() as lab:
        fleet = Fleet(lab, folder / "large", Store.GRAPHDRIVER)
        first, second = _built(fleet, "large", LARGE)
        pair = partial(_Pair, fleet, rounds=rounds, transport="archive")
        cold = [pair(first, TARGETS[:count], "full") for count in (2, 3)]
        changed = pair(second, TARGETS, "delta")
    rows = [one.seconds(f"cold, {len(one.targets)} targets", 0.85) for one in cold]
    rows += [
        changed.seconds("top layer of 20 MB changed, 3 targets", 0.5),
        cold[-1].row("memory on the source", lambda one: one.seen.memory / MB, MEMORY),
    ]
    return Group("`sync-image` of 1 GB between graphdriver stores", f"{OURS}; by the archive", PEER, tuple(rows), TWICE)


def by_relay(folder: Path, rounds: int) -> Group:
    with lab_here() as lab:
        fleet = Fleet(lab, folder / "relay", Store.CONTAINERD)
        rows = _relayed(fleet, rounds)
    return Group("`sync-image` between containerd stores, through a relay", OURS, PEER, tuple(rows), NOTE)


def _relayed(fleet: Fleet, rounds: int) -> list[Row]:
    first, second = _built(fleet, "large", LARGE)
    pair = partial(_Pair, fleet, rounds=rounds, transport="relay")
    cold = [pair(first, TARGETS[:count], "full") for count in (1, 2, 3)]
    changed = pair(second, TARGETS[:1], "delta")
    return [
        *(one.seconds(f"1 GB, cold, {len(one.targets)} of {len(TARGETS)} targets", 0.7) for one in cold),
        changed.seconds("1 GB, top layer of 20 MB changed, 1 target", 0.1),
        changed.row("the same, sent to a target", _sent, TOP / MB + RELAY_SLACK),
        _whatever_the_size(fleet, rounds),
        cold[-1].row("memory of the relay, three targets", lambda one: one.seen.python / MB, RELAY_MEMORY),
        cold[-1].row("memory on the source", lambda one: one.seen.memory / MB, MEMORY),
        cold[-1].row("disk on the source", lambda one: one.seen.disk / MB, DISK),
    ]


def _whatever_the_size(fleet: Fleet, rounds: int) -> Row:
    """The same new layer of a small and a huge image, which one target has but for that."""
    target = TARGETS[:1]
    pairs = {name: _built(fleet, name, below) for name, below in (("huge", HUGE), ("small", SMALL))}
    for first, _ in pairs.values():
        fleet.ours(first, target, "delta", "relay")  # the base is there since the large one

    def once(second: str) -> Ran:
        fleet.forget(target[0], second)
        return fleet.ours(second, target, "delta", "relay").ran

    deeds = [partial(once, second) for _, second in pairs.values()]
    done = alternate("the same change of 2 GB and of 200 MB", rounds, *deeds)
    huge, small = ([ran.wall for ran in runs] for runs in zip(*done, strict=True))
    what = "20 MB changed, 1 target: of 2 GB (*ours*), of 200 MB (*peer*)"
    return Row(what, "s", huge, small, Judged.RATIO, SAME)


def _built(fleet: Fleet, name: str, below: list[int]) -> tuple[str, str]:
    """Two images on the source that differ in their top layer."""
    build = partial(fleet.engines[SOURCE].build, seed=name)
    build(f"{name}:1", [*below, {"/top": TOP}])
    build(f"{name}:2", [*below, {"/changed": TOP}])
    return f"{name}:1", f"{name}:2"


def _sent(brought: Brought) -> float:
    return max(brought.sent) / MB


class _Pair:
    """Ours and the baseline, round by round, from the same state; ``mode`` is how ours must have brought it."""

    def __init__(self, fleet: Fleet, image: str, targets: Sequence[str], mode: str, *, rounds: int, transport: str):
        self._fleet, self._image, self.targets = fleet, image, targets
        self._ours, self._peer = list[Brought](), list[Brought]()
        what = f"{image} to {len(targets)} targets, {fleet.store}, by {transport}"
        ours = self._from_scratch(lambda: fleet.ours(image, targets, mode, transport), self._ours)
        peer = self._from_scratch(lambda: fleet.baseline(image, targets), self._peer)
        alternate(what, rounds, ours, peer, warm=False)

    def _from_scratch(self, deed: Callable[[], Brought], done: list[Brought]) -> Callable[[], Ran]:
        def once() -> Ran:
            for label in TARGETS:
                self._fleet.forget(label, self._image)
            done.append(deed())
            return done[-1].ran

        return once

    def seconds(self, what: str, limit: float) -> Row:
        return self.row(what, lambda one: one.ran.wall, limit, "s", Judged.RATIO)

    def row(
        self,
        what: str,
        figure: Callable[[Brought], float],
        limit: float,
        unit: str = "MB",
        judged: Judged = Judged.ITSELF,
    ) -> Row:
        return Row(what, unit, [figure(one) for one in self._ours], [figure(one) for one in self._peer], judged, limit)


def in_sync(folder: Path, rounds: int) -> Group:
    rows = [row for store in Store for row in _nothing_to_do(folder / store, store, rounds)]
    return Group(
        f"`sync-image` when all of {len(TARGETS) + 1} nodes have the image",
        "`fdl-tasks sync-image`: every node looked at, a container made and started on each, less the start-up, "
        "which is `--dry-run` with all that a sync imports: Python, the libraries, cluster.yml, the scripts",
        "`ssh node` to all of them at once, doing `docker image inspect`, `docker create` (and `rm`), `docker run`",
        tuple(rows),
    )


def _nothing_to_do(folder: Path, store: Store, rounds: int) -> list[Row]:
    image = "bench:0"
    with lab_here() as lab:
        fleet = Fleet(lab, folder, store)
        fleet.engines[SOURCE].build(image, [1000])
        fleet.ours(image, TARGETS, "full", "archive")
        ours = partial(fleet.ours, image, TARGETS, "in-sync")
        asked = [fleet.ssh(label, _by_hand(image)) for label in fleet.nodes]
        deeds = (lambda: ours().ran, lambda: run(*asked), lambda: run(fleet.start_up(image)))
        done = alternate(f"in sync, {store}", rounds, *deeds)
    whole, peer, start = ([ran.wall for ran in way] for way in zip(*done, strict=True))
    less = [a - b for a, b in zip(whole, start, strict=True)]
    return [
        Row(f"{store}: seconds, less the start-up", "s", less, peer, Judged.RATIO, IN_SYNC),
        Row(f"{store}: seconds of the start-up", "s", start, peer, Judged.RATIO),
    ]


def _by_hand(image: str) -> str:
    create = f"made=$(docker create {CONTAINER} {image}) && docker rm $made"
    return f"docker image inspect {image} && {create} && docker run --rm {CONTAINER} {image} -c 'exit 0'"
