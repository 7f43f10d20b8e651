"""The compose script with a stand-in for docker that writes down what it was called with."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from fdl_tasks.builds.plan import Job
from fdl_tasks.builds.work import script
from fdl_tasks.cluster.model import Command
from fdl_tasks.scripts import Scripts

pytestmark = pytest.mark.subprocess
DOCKER = """#!/bin/sh
[ "$1" = compose ] || exec echo "$@" >>"$CALLS/others"
printf '%s\\0' "$PWD" "$LIBTORCH_HOST_PATH" "$LIBTORCH_CPU_PATH" "${CUDA_VERSION-unset}" "$@" >"$CALLS/run"
exit "${CODE:-0}"
"""
ARCH = "builds/it's $(touch pwned)"


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with what docker was called with: ``run`` (NUL-separated words) and ``others`` (lines)."""
    docker = tmp_path / "bin" / "docker"
    docker.parent.mkdir()
    docker.write_text(DOCKER)
    docker.chmod(0o755)
    monkeypatch.setenv("PATH", f"{docker.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("CALLS", str(tmp_path))
    return tmp_path


def run(tmp_path: Path, job: Job) -> subprocess.CompletedProcess[str]:
    made = script(job, Scripts(), 2, stamp="s", nonce="7")
    return subprocess.run(["sh", "-c", made.text], cwd=tmp_path, capture_output=True, text=True)


def job_of(tmp_path: Path) -> Job:
    root = tmp_path / "a \"b\" 'c'\nd"
    root.mkdir()
    return Job("a", Command("ddp-bench"), ARCH, root, "it's here", "/l", service="cu da")


def test_every_value_reaches_docker_as_one_word(tmp_path: Path, calls: Path) -> None:
    job = job_of(tmp_path)
    assert run(tmp_path, job).returncode == 0
    root, libtorch, cpu, cuda, *words, inner, end = (calls / "run").read_text().split("\0")
    assert (root, libtorch, cpu) == (str(job.root), f"{job.root}/libtorch/{ARCH}", "./libtorch/precompiled/cpu")
    assert cuda == "unset"
    run_words = ["compose", "run", "--rm", "-T", "--no-deps", "--name", "fdl-7-a", "-e", "CARGO_BUILD_JOBS=2"]
    assert words == [*run_words, "cu da", "bash", "-c"]
    assert end == ""
    assert inner.startswith("# Builds one worker")
    assert not list(tmp_path.rglob("pwned"))


def test_the_inner_script_builds_in_its_own_view(tmp_path: Path, calls: Path) -> None:
    run(tmp_path, replace(job_of(tmp_path), cwd_subpath=""))
    inner = (calls / "run").read_text().split("\0")[-2]
    heads = [line for line in inner.splitlines() if line.startswith(("FDL_DIRECTORY", "FDL_TARGET"))]
    assert heads == [
        "FDL_DIRECTORY=/workspace",
        """FDL_TARGET='/workspace/target/cluster/a/builds-it'"'"'s $(touch pwned)'""",
    ]


@pytest.mark.parametrize(("code", "removed"), [("0", []), ("101", ["rm -f fdl-7-a"])])
def test_a_bad_end_removes_the_container_and_is_passed_on(
    tmp_path: Path, calls: Path, monkeypatch: pytest.MonkeyPatch, code: str, removed: list[str]
) -> None:
    monkeypatch.setenv("CODE", code)
    assert run(tmp_path, job_of(tmp_path)).returncode == int(code)
    others = calls / "others"
    assert (others.read_text().splitlines() if others.exists() else []) == removed
