"""Builds that fail for the machine's sake: a full disk, somebody else's files."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from fdl_tasks.cluster.model import Command
from tests.builds.interrupting import start
from tests.builds.monorepo import Project, make_project, statuses
from tests.lab.lab import Lab

pytestmark = pytest.mark.lab


def test_a_full_disk_is_named_with_what_is_free(lab: Lab, project: Project) -> None:
    project.target("b").mkdir(parents=True)
    with lab.small_disk(project.target("b"), "256k"):
        report = project.prebuild()
    assert statuses(report) == {"a": "ok", "b": "failed", "c": "ok"}
    error = report.hosts["b"].error or ""
    assert "no space left on device: 0." in error
    assert f"MiB free at {project.target('b')}" in error


def test_a_disk_without_room_for_the_log_is_named_too(lab: Lab, project: Project) -> None:
    project.variants = {"c": "precompiled/cpu"}
    project.target("c").mkdir(parents=True)
    with lab.small_disk(project.target("c"), "64k"):
        with open(project.target("c") / "fdl", "wb") as file, pytest.raises(OSError, match="No space"):
            while True:
                os.write(file.fileno(), b"x" * 4096)
        report = project.prebuild()
    assert "no space left on device: 0.0 MiB free" in (report.hosts["c"].error or "")


def test_a_failed_build_on_a_roomy_disk_is_not_blamed_on_it(lab: Lab, project: Project) -> None:
    project.variants = {"c": "precompiled/cpu"}
    project.commands["ddp-bench"] = Command("ddp-bench", build="exit 1")
    assert "no space" not in (project.prebuild().hosts["c"].error or "no space")


@pytest.fixture
def unprivileged() -> Iterator[Project]:
    """A project that belongs to an ordinary user, where that user can get at it."""
    with tempfile.TemporaryDirectory(prefix="fdl-test-") as folder:
        Path(folder).chmod(0o755)
        project = make_project(Path(folder) / "mono")
        subprocess.run(["chown", "-R", "61999:61999", project.root], check=True)
        yield project


def prebuild_as_user(project: Project, line: str) -> str:
    return start(project, line, "c", uid=61999).communicate(timeout=60)[0]


@pytest.mark.parametrize("place", ["target", "target/cluster/c/precompiled-cpu"])
def test_roots_target_directory_is_named_with_how_to_mend_it(lab: Lab, unprivileged: Project, place: str) -> None:
    project = unprivileged
    project.target("c").mkdir(parents=True)
    subprocess.run(["chown", "-R", "61999:61999", project.root], check=True)
    os.chown(project.root / place, 0, 0)
    if place == "target":
        project.target("c").rmdir()
        (project.root / "target/cluster/c").rmdir()
        (project.root / "target/cluster").rmdir()
    said = prebuild_as_user(project, "true")
    assert "failed" in said
    assert f"permission denied: {project.root / place} is owned by uid 0, this is uid 61999" in said
    assert "sudo chown -R 61999:61999" in said


def test_a_project_that_is_not_the_users_at_all_is_not_blamed_on_a_container(lab: Lab, unprivileged: Project) -> None:
    os.chown(unprivileged.root, 0, 0)
    said = prebuild_as_user(unprivileged, "true")
    assert f"permission denied: {unprivileged.root} is owned by uid 0, this is uid 61999\n" in said
    assert "container" not in said


def test_roots_files_below_a_good_directory_are_named(lab: Lab, unprivileged: Project) -> None:
    project = unprivileged
    (project.target("c") / "release").mkdir(parents=True)
    subprocess.run(["chown", "-R", "61999:61999", project.root], check=True)
    os.chown(project.target("c") / "release", 0, 0)
    said = prebuild_as_user(project, 'touch "$FDL_TARGET_DIR/release/x"')
    # The directory is of unknown origin, so it is emptied first: an empty one of root's goes, a full one stays.
    assert "can't be seen" in said or "touch: cannot touch" in said
    (project.target("c") / "release").mkdir(exist_ok=True)
    (project.target("c") / "release/old").touch()
    os.chown(project.target("c") / "release", 0, 0)
    said = prebuild_as_user(project, 'touch "$FDL_TARGET_DIR/release/x"')
    assert f"permission denied: {project.target('c')}/release is owned by uid 0" in said
    assert "docker compose run --rm --no-deps SERVICE rm -rf" in said
