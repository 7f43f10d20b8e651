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

BELOW, TOP = [80_000_000] * 5, 20_000_000  # bytes of the layers; no compression makes them smaller
FIRST, SECOND = "bench:1", "bench:2"  # they differ in their top layer
COLD = {Store.CONTAINERD: 0.8, Store.GRAPHDRIVER: 0.85}
CHANGED = {Store.CONTAINERD: 0.7, Store.GRAPHDRIVER: 0.5}
SLACK, MEMORY, DISK, IN_SYNC = 1.0, 150.0, 1.0, 1.5  # MB, MB, MB, times
MB = 1e6
CONTAINER = "--pull=never --network none --entrypoint /bin/sh"


def measure(folder: Path, rounds: int) -> Group:
    rows = [row for store in Store for row in _transfers(folder / store, store, rounds)]
    return Group(
        f"`sync-image` of {(sum(BELOW) + TOP) / MB:.0f} MB in {len(BELOW) + 1} layers that don't compress",
        "`fdl-tasks sync-image`, from the start of Python to the proof that a container starts on every node",
        "`bench/baseline_sync.sh`: ids compared, `docker save` to a file on the source, `ssh … docker load` from it "
        "on all targets at once, then the id again and one `docker run`; host keys are known already",
        tuple(rows),
        "source and targets are nodes of one machine with an engine each: all of them share its cores, and the "
        "network between them costs nothing but CPU. The way is the tool's own choice: the relay between containerd "
        "stores, the archive between graphdriver ones. Before each run the image is removed from the targets, and "
        "nothing else. Of *memory* and *disk on the source* the most at any time counts: resident memory of all that "
        "the run started there (`docker save`'s client, ssh and shells too), and growth of its folders; "
        "the engines' own are not in it",
    )


def _transfers(folder: Path, store: Store, rounds: int) -> list[Row]:
    with lab_here() as lab:
        fleet = Fleet(lab, folder, store)
        build = partial(fleet.engines[SOURCE].build, seed="bench")
        build(FIRST, [*BELOW, {"/top": TOP}])
        build(SECOND, [*BELOW, {"/changed": TOP}])
        two = _Pair(fleet, FIRST, TARGETS[:2], "full", rounds)
        three = _Pair(fleet, FIRST, TARGETS, "full", rounds)
        changed = _Pair(fleet, SECOND, TARGETS, "delta", rounds)  # the baseline has left the first one there
    return [
        two.seconds(f"{store}: cold, two targets", COLD[store]),
        three.seconds(f"{store}: cold, three targets", COLD[store]),
        changed.seconds(f"{store}: top layer changed, three targets", CHANGED[store]),
        changed.row(f"{store}: top layer changed, sent to a target", _sent, TOP / MB + SLACK),
        three.row(f"{store}: memory on the source", lambda one: one.seen.memory / MB, MEMORY),
        three.row(f"{store}: memory of the command itself", lambda one: one.ran.memory / MB, MEMORY),
        three.row(f"{store}: disk on the source", lambda one: one.seen.disk / MB, DISK),
    ]


def _sent(brought: Brought) -> float:
    return max(brought.sent) / MB


class _Pair:
    """Ours and the baseline, round by round, from the same state; ``mode`` is how ours must have brought it."""

    def __init__(self, fleet: Fleet, image: str, targets: Sequence[str], mode: str, rounds: int):
        self._fleet, self._image, self._targets = fleet, image, targets
        self._ours, self._peer = list[Brought](), list[Brought]()
        what = f"{image} to {len(targets)} targets, {fleet.store}"
        ours = self._from_scratch(lambda: fleet.ours(image, targets, mode), self._ours)
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
        fleet.ours(image, TARGETS, "full")
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
