"""Ctrl-C while builds run: an end within two seconds, and nothing left behind."""

from __future__ import annotations

import pytest

from tests.builds.interrupting import interrupt, running, start, wait_for
from tests.builds.monorepo import Project

pytestmark = pytest.mark.subprocess


@pytest.mark.parametrize("trap", ["", "trap '' TERM; "], ids=["polite", "deaf to TERM"])
def test_ctrl_c_ends_every_build_and_what_it_started(project: Project, trap: str) -> None:
    word = f"{311 + len(trap)}.{abs(hash(project.root)) % 10**9}"
    process = start(project, f"{trap}sleep {word} & sleep {word}; wait", "a")
    wait_for(lambda: len([line for line in running(word) if line.startswith("sleep")]) == 2, "the build runs")
    code, seconds = interrupt(process)
    assert code == 130
    assert seconds < 2
    wait_for(lambda: not running(word), "the build's processes are gone", limit=1)


def test_ctrl_c_while_the_others_are_built_leaves_none_of_them(project: Project) -> None:
    word = f"313.{abs(hash(project.root)) % 10**9}"
    # "a" is built first and alone; it ends at once, and the two others are then built together.
    line = f"case $FDL_TARGET_DIR in */a/*) exit 1 ;; *) sleep {word} ;; esac"
    process = start(project, line)
    wait_for(lambda: len([line for line in running(word) if line.startswith("sleep")]) == 2, "both builds run")
    code, seconds = interrupt(process)
    assert (code, seconds < 2) == (130, True)
    wait_for(lambda: not running(word), "the builds' processes are gone", limit=1)


def test_a_library_that_dies_takes_its_builds_with_it(project: Project) -> None:
    word = f"317.{abs(hash(project.root)) % 10**9}"
    process = start(project, f"sleep {word}", "a")
    wait_for(lambda: running(f"sleep {word}"), "the build runs")
    process.kill()
    process.wait()
    wait_for(lambda: not running(word), "the build's processes are gone", limit=3)
