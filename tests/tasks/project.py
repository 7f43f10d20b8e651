"""A small project of somebody: two local workers, a build line of its own, a task file that mounts the library."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

TOP = Path(__file__).resolve().parents[2]
ENV_NAME = "FLODL_INTERNAL_PREBUILD_PER_HOST"

CLUSTER = """\
controller: {host: ctrl, path: ., data_path: /tmp}
workers:
  - {host: new, transport: local, path: ., arch: precompiled/cu128, data_path: /tmp}
  - {host: old, transport: local, path: ., arch: precompiled/cu126, data_path: /tmp}
env: {SECRET_TOKEN: hunter2hunter2}
groups: {both: [new, old]}
commands:
  train: {build: sh ci/build.sh, bin: release/train, cwd: .}
  other: {build: sh ci/build.sh, bin: release/other, cwd: .}
"""

BUILD = """\
set -eu
echo "using token hunter2hunter2"
case ${FAIL_ON:-none} in *"$(basename "$LIBTORCH_PATH")"*)
    printf 'error: \\033[31mno kernel for %s\\033[0m, token hunter2hunter2\\n' "$FDL_CMD" >&2
    exit 1 ;;
esac
sleep "${SLEEP:-0}"
mkdir -p "$FDL_TARGET_DIR/release"
printf '#include <stdio.h>\\nint main(void) { return puts("%s for %s") < 0; }\\n' \\
    "$FDL_CMD" "$(basename "$LIBTORCH_PATH")" |
    cc -x c -o "$FDL_TARGET_DIR/release/$FDL_CMD" -
"""

TASKS = """\
import os
from invoke import Collection, call, task
import fdl_tasks


@task(pre=[call(fdl_tasks.tasks.prebuild, cmd=["train"])])
def train(c):
    print("train sees", os.environ["FLODL_INTERNAL_PREBUILD_PER_HOST"])


@task
def body(c):
    [report] = fdl_tasks.tasks.prebuild(c, cmd=["train"])
    print("body got", report.cmd, report.ok, sorted(report.envelope))
    [report] = fdl_tasks.tasks.prebuild(c, cmd="other", host="old", preflight=False)
    print("body got", report.cmd, report.ok, sorted(report.envelope))
    fdl_tasks.tasks.preflight(c)


@task
def show(c):
    print("show sees", os.environ.get("FLODL_INTERNAL_PREBUILD_PER_HOST"), flush=True)
    c.run("printenv FLODL_INTERNAL_PREBUILD_PER_HOST", warn=True, in_stream=False)


ns = Collection(train, body, show)
ns.add_collection(fdl_tasks.collection(), "fdl")
"""


@dataclass(frozen=True)
class Project:
    """Where it is, and how its user calls it."""

    root: Path

    def environment(self, **more: str) -> dict[str, str]:
        return {**os.environ, "PYTHONPATH": str(TOP), "FLODL_HOST_NAME": "ctrl", **more}

    def run(self, *argv: str, stdin: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", *argv],
            cwd=self.root,
            env=self.environment(**environment),
            input=stdin,
            capture_output=True,
            text=True,
            timeout=60,
        )

    def inv(self, *argv: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return self.run("invoke", *argv, **environment)

    def program(self, *argv: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """The console script ``fdl-tasks``."""
        return self.run("tests.tasks.as_program", *argv, **environment)

    def target(self, host: str, slug: str, cmd: str = "train") -> Path:
        return self.root / "target" / "cluster" / host / slug / "release" / cmd

    def loader_path(self, variant: str) -> str:
        return f"{self.root}/libtorch/precompiled/{variant}/lib"


def make_project(root: Path) -> Project:
    (root / "ci").mkdir(parents=True)
    (root / "ci" / "build.sh").write_text(BUILD)
    (root / "cluster.yml").write_text(CLUSTER)
    (root / "tasks.py").write_text(TASKS)
    for variant in ("cu128", "cu126"):
        (root / "libtorch" / "precompiled" / variant / "lib").mkdir(parents=True)
    return Project(root)


def steady(text: str) -> str:
    """Output without what differs from run to run: seconds."""
    return re.sub(r"\b\d+\.\d\b", "N.N", text)
