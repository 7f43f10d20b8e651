"""The examples of docs/chaining.md (and of the README) run as they are written."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import fdl_tasks.testing
from tests.tasks.project import TOP, Project, make_project

pytestmark = pytest.mark.subprocess

CLUSTER = """\
controller: {host: ctrl, path: ., data_path: /tmp}
workers:
  - {host: node-a, transport: local, path: ., arch: precompiled/cu128, data_path: /tmp}
  - {host: spark, transport: local, path: ., arch: precompiled/cu126, data_path: /tmp}
commands:
  train: {build: sh ci/build.sh, bin: release/train, cwd: .}
"""
LAUNCH = "#!/bin/sh\necho launched with $FLODL_INTERNAL_PREBUILD_PER_HOST\n"


def example(heading: str, page: str = "docs/chaining.md") -> str:
    """The Python block below a heading."""
    found = re.search(rf"^## {heading}$.*?^```python\n(.*?)^```", (TOP / page).read_text(), re.M | re.S)
    assert found, heading
    return found[1]


@pytest.fixture
def project(tmp_path: Path) -> Project:
    made = make_project(tmp_path / "mono")
    (made.root / "cluster.yml").write_text(CLUSTER)
    (made.root / "launch.sh").write_text(LAUNCH)
    (made.root / "launch.sh").chmod(0o755)
    return made


@pytest.mark.parametrize(("heading", "page"), [("Mount them", "docs/chaining.md"), ("Chaining", "README.md")])
def test_a_task_file_that_mounts_them(project: Project, heading: str, page: str) -> None:
    (project.root / "tasks.py").write_text(example(heading, page))
    done = project.inv("train")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].startswith('launched with {"node-a":{"bin":"target/cluster/node-a/')
    assert project.inv("fdl.prebuild", "--cmd", "train").returncode == 0


def test_from_the_body_of_a_task(project: Project) -> None:
    (project.root / "tasks.py").write_text(example("Mount them") + "\n\n" + example("From the body of a task"))
    done = project.inv("nightly")
    assert done.returncode == 0, done.stderr
    assert "['spark']\n" in done.stdout
    assert done.stdout.endswith("3 hosts: 3 ok\n")


def test_without_invoke(project: Project) -> None:
    code = "import fdl_tasks\n" + example("Without Invoke") + "\nprint(entry.bin)\n"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=project.root, env=project.environment(), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "target/cluster/node-a/precompiled-cu128/release/train"


def test_the_tests_that_users_are_told_to_write(project: Project) -> None:
    (project.root / "test_ours.py").write_text(example("Testing your own task file"))
    done = project.run("pytest", "-q", "-p", "no:cacheprovider", "test_ours.py")
    assert done.returncode == 0, done.stdout
    assert "4 passed" in done.stdout


def test_every_name_of_the_testing_module_is_on_the_page() -> None:
    told = (TOP / "docs/chaining.md").read_text()
    assert [name for name in fdl_tasks.testing.__all__ if f"`{name}" not in told and name != "Answer"] == []
