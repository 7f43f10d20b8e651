"""Two prebuilds at once, as processes: the second waits, says for what, and both succeed."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.builds.interrupting import ROOT, interrupt, wait_for
from tests.builds.monorepo import Project

pytestmark = pytest.mark.subprocess
RUN = """
import json, sys
from pathlib import Path
from fdl_tasks.cluster.model import Command
from tests.builds.monorepo import Project
root, line, *hosts = sys.argv[1:]
project = Project(Path(root))
project.commands["ddp-bench"] = Command("ddp-bench", build=line)
told = lambda event: print(event.host, event.kind, event.text, flush=True)
try:
    report = project.prebuild(hosts=hosts, progress=told)
except KeyboardInterrupt:
    sys.exit(130)
print(json.dumps({host: str(built.status) for host, built in report.hosts.items()}))
"""
MAKE = 'mkdir -p "$FDL_TARGET_DIR/release" && install -m 755 /bin/true "$FDL_TARGET_DIR/release/ddp-bench"'
HOLD = f"touch ../begun; while [ ! -e ../go ]; do sleep 0.05; done; {MAKE}"


class Run:
    """A prebuild in a process of its own; what it tells goes to a file."""

    def __init__(self, project: Project, name: str, line: str, *hosts: str):
        self.said = project.root.parent / name
        with open(self.said, "w") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-c", RUN, str(project.root), line, *hosts],
                cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=out, stderr=subprocess.STDOUT,
            )  # fmt: skip

    def says(self, text: str) -> bool:
        return text in self.said.read_text()

    def statuses(self) -> object:
        assert self.process.wait(30) == 0, self.said.read_text()
        return json.loads(self.said.read_text().splitlines()[-1])


def held(project: Project, *hosts: str) -> Run:
    """A run that is in the middle of its first build."""
    run = Run(project, "first", HOLD, *hosts)
    wait_for(lambda: (project.root / "begun").exists() or run.process.poll(), "the first run builds")
    return run


def go(project: Project) -> None:
    (project.root / "go").touch()


def test_the_second_waits_says_for_what_and_both_succeed(project: Project) -> None:
    first = held(project, "a", "b")
    second = Run(project, "second", MAKE, "b", "a", "c")
    waits = f"a note waiting for process {first.process.pid} on "
    wait_for(lambda: second.says(waits), "the second says for what it waits")
    assert second.says(f"which builds there ({project.target('a')}/.fdl-lock)")
    assert not second.says("building")
    go(project)
    assert first.statuses() == {"a": "ok", "b": "ok"}
    assert second.statuses() == {"a": "ok", "b": "ok", "c": "ok"}


def test_runs_for_different_workers_do_not_wait(project: Project) -> None:
    first = held(project, "a")
    second = Run(project, "second", MAKE, "b", "c")
    assert second.statuses() == {"b": "ok", "c": "ok"}
    assert not second.says("waiting for process")
    go(project)
    assert first.statuses() == {"a": "ok"}


def test_ctrl_c_ends_the_waiting_and_not_the_other_run(project: Project) -> None:
    first = held(project, "a")
    second = Run(project, "second", MAKE, "a")
    wait_for(lambda: second.says("waiting for process"), "the second waits")
    code, seconds = interrupt(second.process)  # type: ignore[arg-type]
    assert (code, seconds < 2) == (130, True)
    go(project)
    assert first.statuses() == {"a": "ok"}


def test_a_lock_of_a_killed_run_holds_nobody_up(project: Project) -> None:
    first = held(project, "a")
    second = Run(project, "second", MAKE, "a")
    wait_for(lambda: second.says("waiting for process"), "the second waits")
    first.process.kill()
    first.process.wait()
    assert second.statuses() == {"a": "ok"}
    assert Run(project, "third", MAKE, "a").statuses() == {"a": "ok"}


def test_building_anew_leaves_the_lock_alone(project: Project) -> None:
    project.make_libtorch("precompiled/cu128", LIBTORCH_VERSION="2.9.0")
    assert Run(project, "before", MAKE, "a").statuses() == {"a": "ok"}
    inode = (project.target("a") / ".fdl-lock").stat().st_ino
    project.make_libtorch("precompiled/cu128", LIBTORCH_VERSION="2.9.1")
    first = Run(project, "first", HOLD, "a")
    wait_for((project.root / "begun").exists, "all was built anew, with the lock held")
    assert (project.target("a") / ".fdl-lock").stat().st_ino == inode
    assert (project.target("a") / ".fdl-lock-holder").read_text().startswith(f"process {first.process.pid} ")
    go(project)
    assert first.statuses() == {"a": "ok"}
