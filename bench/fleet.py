"""Nodes with a Docker engine each: a source that has an image, targets that lack it, and two ways to bring it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.lab.engine import Store
from tests.lab.lab import Lab
from tests.lab.node import Node
from tests.lab.releases import Release

from . import projects
from .measure import BenchError, Program, Ran, run
from .watch import Footprint, Watch

SOURCE, TARGETS = "source", ("one", "two", "three")
BASELINE = Path(__file__).with_name("baseline_sync.sh")
FILE = "/tmp/image.tar"  # noqa: S108 - on a node, whose /tmp is its own
START_UP = "import fabric; from fdl_tasks.tasks.program import main; main()"


class Fleet:
    """Four nodes of one store on one fabric. ``ours`` and ``baseline`` bring an image from the source to the others."""

    def __init__(self, lab: Lab, folder: Path, store: Store):
        self.folder, self.store = folder, store
        folder.mkdir()
        self.nodes = {label: lab.node(label, fabric=True) for label in (SOURCE, *TARGETS)}
        kind = {"store": store, "release": Release.D26}
        self.engines = lab.start_engines({label: {**kind, "node": node} for label, node in self.nodes.items()})
        for label in TARGETS:
            self.forget(label, "tiny:1")
        for node in self.nodes.values():
            lab.give_key(node)
        projects.write_cluster(folder, [lab.worker(node, "/srv") for node in self.nodes.values()])
        self._write_ssh(lab)

    def _write_ssh(self, lab: Lab) -> None:
        """The controller's configuration for the baseline, and the keys that its source trusts."""
        common = [f"IdentityFile={lab.client_key}", "BatchMode=yes", "User=root", *lab.ssh_options()]
        hosts = [f"Host {label}\nHostName={node.address}" for label, node in self.nodes.items()]
        self.config = self.folder / "ssh_config"
        self.config.write_text("\n".join([*hosts, "Host *", *common]) + "\n")
        known = [f"{self.nodes[label].fabric_address} {_key(self.nodes[label])}\n" for label in TARGETS]
        self.nodes[SOURCE].write("/root/.ssh/known_hosts", "".join(known), mode="600")

    def forget(self, label: str, image: str) -> None:
        """Remove an image from a node; nothing else is dropped."""
        engine = self.engines[label]
        engine.docker("rmi", "-f", image, check=False)
        if engine.docker("image", "inspect", image, check=False).returncode == 0:
            raise BenchError(f"{image} can't be removed from {label}")

    def ours(self, image: str, targets: Sequence[str], mode: str, transport: str = "") -> Brought:
        """``fdl-tasks sync-image``; every target must have become in sync by that mode and transport.

        Raises:
            BenchError: some target did not, or failed.
        """
        by = ["--transport", transport] if transport else []
        with Watch(self.nodes[SOURCE]) as watch:
            ran = run(self.program(image, targets, "--json", *by))
        nodes, wanted = json.loads(ran.out[0])["nodes"], (mode, transport or None)
        if wrong := {label: nodes[label] for label in targets if _way(nodes[label]) != wanted}:
            raise BenchError(f"not all of {targets} got {image} as {wanted}: {wrong}\n{ran.err[0]}")
        return Brought(ran, watch.seen, [nodes[label]["bytes"] for label in targets])

    def program(self, image: str, targets: Sequence[str], *words: str) -> Program:
        hosts = [word for label in (SOURCE, *targets) for word in ("--host", label)]
        return projects.ours(self.folder, "sync-image", "--image", image, "--source", SOURCE, *hosts, *words)

    def start_up(self, image: str) -> Program:
        """All that a sync does before its first connection: Python, every import, cluster.yml, the scripts."""
        whole = self.program(image, TARGETS, "--dry-run")
        return Program([whole.argv[0], "-c", START_UP, *whole.argv[3:]], whole.cwd, whole.env)

    def baseline(self, image: str, targets: Sequence[str]) -> Brought:
        """The same by the script."""
        to = [f"{label}={self.nodes[label].fabric_address}" for label in targets]
        with Watch(self.nodes[SOURCE]) as watch:
            ran = run(Program(["sh", BASELINE, self.config, image, FILE, SOURCE, *to], self.folder))
        return Brought(ran, watch.seen, [watch.seen.disk for _ in targets])

    def ssh(self, label: str, *words: str) -> Program:
        return Program(["ssh", "-F", self.config, label, *words], self.folder)


class Brought:
    """One way's run, what it took of the source meanwhile, and the bytes that went to each target."""

    def __init__(self, ran: Ran, seen: Footprint, sent: list[int]):
        self.ran, self.seen, self.sent = ran, seen, sent


def _way(node: dict[str, Any]) -> tuple[str, str | None]:
    return node["mode"] or "in-sync", node["transport"]


def _key(node: Node) -> str:
    return node.known_hosts_line.partition(" ")[2]
