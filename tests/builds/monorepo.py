"""A small real project to build: the example's crate, and libtorch stand-ins made with cc."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fdl_tasks.builds.run import PrebuildReport, prebuild
from fdl_tasks.cluster.model import Cluster, Command, Controller, Ssh, Worker
from fdl_tasks.outcome import Event, Kind

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "monorepo"
VARIANTS = {"a": "precompiled/cu128", "b": "precompiled/cu126", "c": "precompiled/cpu"}


@dataclass
class Project:
    """A copy of the example at ``root`` with workers ``a``, ``b`` and ``c`` on this machine."""

    root: Path
    controller: dict[str, Any] = field(default_factory=dict)
    commands: dict[str, Command] = field(default_factory=dict)
    variants: dict[str, str | None] = field(default_factory=lambda: dict(VARIANTS))
    workers: dict[str, dict[str, Any]] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)

    @property
    def cluster(self) -> Cluster:
        controller = Controller("ctrl", self.root, **self.controller)
        workers = [
            Worker(host, str(self.root), Ssh(host), arch=arch, transport="local", **self.workers.get(host, {}))
            for host, arch in self.variants.items()
        ]
        return Cluster(self.root / "cluster.yml", "ctrl", controller, tuple(workers), commands=self.commands)

    def prebuild(self, **options: Any) -> PrebuildReport:
        """Prebuild ``ddp-bench`` without preflight; what it told is then in ``events``."""
        self.events.clear()
        usual: dict[str, Any] = {"preflight": False, "progress": self.events.append, "cwd": self.root}
        return prebuild(self.cluster, "ddp-bench", **(usual | options))

    def told(self, host: str, kind: Kind) -> list[str]:
        return [event.text for event in self.events if (event.host, event.kind) == (host, kind)]

    def start(self, report: PrebuildReport, host: str) -> str:
        """What the worker's binary prints, started from the envelope alone."""
        entry = report.envelope[host]
        env = {**os.environ, "LD_LIBRARY_PATH": entry.ld_library_path}
        done = subprocess.run(
            [self.root / entry.bin], cwd=self.root / entry.cwd_subpath, env=env, capture_output=True, text=True
        )
        return done.stdout + done.stderr

    def make_libtorch(self, *variants: str, **env: str) -> None:
        """Make these variants, or replace them in place when ``LIBTORCH_VERSION`` is another one."""
        make = [str(self.root / "make-libtorch.sh"), str(self.root), *variants]
        subprocess.run(make, check=True, capture_output=True, env={**os.environ, **env})

    def target(self, host: str) -> Path:
        arch = self.variants[host]
        assert arch
        return self.root / "target/cluster" / host / arch.replace("/", "-")


def make_project(root: Path, **fields: Any) -> Project:
    """Copy the example to ``root`` and make the variants of ``VARIANTS``."""
    shutil.copytree(EXAMPLE, root, ignore=shutil.ignore_patterns("target", "libtorch", "__pycache__"))
    project = Project(root, **fields)
    project.make_libtorch(*VARIANTS.values())
    return project


def says(name: str, feature: str) -> str:
    """What the example's binary prints when it found its own library."""
    return f"ddp-bench: libtorch {name} (build 2.10.0+{name}), feature {feature}\n"


def statuses(report: PrebuildReport) -> Mapping[str, str]:
    return {host: str(built.status) for host, built in report.hosts.items()}
