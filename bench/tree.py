"""``sync-image`` to many nodes: those that have the image send it on, beside one source that serves them all."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from tests.lab.engine import Store
from tests.lab.lab import Lab

from . import projects
from .lab import lab_here
from .measure import BenchError, Program, Ran, alternate, run
from .rows import Group, Judged, Row

SOURCE, TARGETS = "n0", [f"n{number}" for number in range(1, 17)]
UPLINK = 8e6  # bytes a second of every node: what a source can send is bounded, as by a network card
IMAGE, LAYERS = "bench:1", [4_000_000] * 4
STAR, WIDTHS = 99, (8, 2)
SET = "import fdl_tasks.images.tree as tree; tree.WIDTH, tree.WORTH = {}, 0"  # a wave even for so few bytes
NARROW = f"{SET}; from fdl_tasks.tasks.program import main; main()"
LIMIT = 0.9
MB = 1e6


def measure(folder: Path, rounds: int) -> Group:
    with lab_here() as lab:
        many = _Many(lab, folder)
        star, *trees = zip(*alternate("many", rounds, *map(many.brings, (STAR, *WIDTHS)), warm=False), strict=True)
    peer = [ran.wall for ran in star]
    return Group(
        f"`sync-image` of {sum(LAYERS) / MB:.0f} MB to {len(TARGETS)} nodes: a tree beside a star",
        "`fdl-tasks sync-image`, where a node serves so many others at once and those that have it send it on "
        "(8 is what it does by itself)",
        "the same, where the one source serves all",
        tuple(
            Row(f"{width} at once", "s", [ran.wall for ran in tree], peer, Judged.RATIO, LIMIT if width == 8 else None)
            for width, tree in zip(WIDTHS, trees, strict=True)
        ),
        f"every node sends {UPLINK / MB:g} MB/s and no more (`tc … tbf`): a source with many targets has no more for "
        "each on a real network either. What the waves cost besides, ways, programs and proofs, is this one machine's, "
        "which does it for all nodes. Containerd stores, by the relay; the image is removed from the targets before "
        "each run",
    )


class _Many:
    """A source that has the image, and targets, all with an engine and an uplink of the same rate."""

    def __init__(self, lab: Lab, folder: Path):
        self._folder = folder
        nodes = {label: lab.node(label, fabric=True) for label in (SOURCE, *TARGETS)}
        kinds = {label: {"store": Store.CONTAINERD, "node": node} for label, node in nodes.items()}
        self._engines = lab.start_engines(kinds)
        self._engines[SOURCE].build(IMAGE, LAYERS, seed="bench")
        for label in TARGETS:
            self._forget("tiny:1", label)
        for node in nodes.values():
            lab.give_key(node)
            shape = ("rate", f"{8 * UPLINK:.0f}bit", "burst", "256k", "latency", "100ms")
            node.exec("tc", "qdisc", "add", "dev", "fabric0", "root", "tbf", *shape)
        projects.write_cluster(folder, [lab.worker(node, "/srv") for node in nodes.values()])

    def brings(self, width: int) -> Callable[[], Ran]:
        """What is measured: it ends when a container of the image started on every node."""
        words = ["sync-image", "--image", IMAGE, "--source", SOURCE, "--json"]
        program = projects.ours(self._folder, *words)
        python, code, _, *rest = program.argv
        return partial(self._bring, Program([python, code, NARROW.format(width), *rest], program.cwd, program.env))

    def _bring(self, program: Program) -> Ran:
        with ThreadPoolExecutor() as pool:
            list(pool.map(partial(self._forget, IMAGE), TARGETS))
        ran = run(program)
        found = {label: node["transport"] for label, node in json.loads(ran.out[0])["nodes"].items()}
        if wrong := [label for label in TARGETS if found[label] != "relay"]:
            raise BenchError(f"not brought by the relay: {', '.join(wrong)}\n{ran.err[0]}")
        return ran

    def _forget(self, image: str, label: str) -> None:
        """Remove it; nothing else is dropped."""
        engine = self._engines[label]
        engine.docker("rmi", "-f", image, check=False)
        if engine.docker("image", "inspect", image, check=False).returncode == 0:
            raise BenchError(f"{image} can't be removed from {label}")
