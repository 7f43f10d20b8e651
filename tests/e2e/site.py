"""The example monorepo as a shared mount of the lab's nodes, and the commands that a user types there."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.lab.lab import Lab
from tests.lab.node import Node

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "monorepo"
VARIANTS = ("precompiled/cu128", "precompiled/cu126", "precompiled/cpu")
PROGRAM = "from fdl_tasks.tasks.program import main; main()"


def copy_example(folder: Path) -> Path:
    """A copy of the example with its libtorch variants made."""
    project = folder / "mono"
    shutil.copytree(EXAMPLE, project, ignore=shutil.ignore_patterns("target", "libtorch", "cluster.yml"))
    subprocess.run(["sh", project / "make-libtorch.sh", project, *VARIANTS], check=True, capture_output=True)
    return project


@dataclass
class Site:
    """A project on the controller, the nodes that mount it, and the ``cluster.yml`` that names them."""

    lab: Lab
    project: Path
    data: Path
    nodes: dict[str, Node] = field(default_factory=dict)
    workers: list[dict[str, Any]] = field(default_factory=list)

    def add(self, label: str, path: str, arch: str | None, *, share: bool = True, **fields: Any) -> Node:
        """A node that has the project mounted at ``path``, and its worker."""
        mounts = {path: self.project} if share else {}
        node = self.lab.node(f"node{len(self.lab.nodes)}", share={**mounts, "/flodl/data": self.data})
        self.nodes[label] = node
        worker = self.lab.worker(node, path, **({"arch": arch} if arch else {}), **fields)
        self.workers.append({**worker, "host": label})
        return node

    def write(self, controller: Mapping[str, Any] | None = None, **top: Any) -> Path:
        """Write cluster.yml; the controller's own label is ``ctrl``."""
        base = {"host": "ctrl", "path": str(self.project), "data_path": str(self.data)}
        return self.lab.cluster_yml(
            self.project.parent, workers=self.workers, controller={**base, **(controller or {})}, **top
        )

    def argv(self, *words: str) -> list[str]:
        return [sys.executable, "-c", PROGRAM, *words]

    def env(self, **more: str) -> dict[str, str]:
        return {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "FLODL_HOST_NAME": "ctrl",
            "FDL_CLUSTER": str(self.project.parent / "cluster.yml"),
            "COLUMNS": "100",
            **more,
        }

    def run(self, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
        """What ``fdl-tasks WORDS`` prints and ends with, called from the project."""
        return subprocess.run(
            self.argv(*words),
            cwd=self.project,
            env=self.env(**env),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=100,
        )

    def json(self, *words: str, code: int = 0, **env: str) -> dict[str, Any]:
        """The same with ``--json``: the object, the exit code checked."""
        done = self.run(*words, "--json", **env)
        assert done.returncode == code, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer

    def launch(self, label: str, entry: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
        """Start a worker's binary on its node from the envelope alone, as a launcher does."""
        worker = next(worker for worker in self.workers if worker["host"] == label)
        line = 'cd "$1" && LD_LIBRARY_PATH="$2" exec "$3"'
        place = f"{worker['path']}/{entry.get('cwd_subpath', '')}"
        binary = f"{worker['path']}/{entry['bin']}"
        return self.nodes[label].exec("sh", "-c", line, "-", place, entry["ld_library_path"], binary, check=False)


def eventually(holds: Any, seconds: float = 3) -> bool:
    """Whether it holds within so many seconds."""
    end = time.monotonic() + seconds
    while not holds() and time.monotonic() < end:
        time.sleep(0.05)
    return bool(holds())
