"""How many compilers run at once, counted by a stand-in that cargo starts in rustc's place."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from fdl_tasks.builds import schedule
from fdl_tasks.builds.jobserver import NO_TOKENS, Jobserver, Tokens
from fdl_tasks.cluster.model import Command
from fdl_tasks.outcome import Kind
from tests.builds.interrupting import running, start, wait_for
from tests.builds.monorepo import VARIANTS, Project, statuses

pytestmark = pytest.mark.subprocess
CORES, CRATES = 4, 8
WRAPPER = """#!/bin/sh
case " $* " in *" --crate-name p"*) ;; *) exec "$@" ;; esac
echo 1 >>"$COUNT"
sleep 0.15
"$@"
code=$?
echo -1 >>"$COUNT"
exit $code
"""


@pytest.fixture
def jobservers(monkeypatch: pytest.MonkeyPatch) -> list[Jobserver]:
    """A machine with more cores than builds, and the jobservers that were made on it."""
    made: list[Jobserver] = []

    class Remembered(Jobserver):
        def __init__(self, cores: int):
            super().__init__(cores)
            made.append(self)

    monkeypatch.setattr(schedule, "cores", lambda: CORES)
    monkeypatch.setattr(schedule, "Jobserver", Remembered)
    return made


@pytest.fixture
def counted(project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Crates that could all be compiled at once; where their compilers' starts and ends are written down."""
    manifest = project.root / "ddp-bench/Cargo.toml"
    needs = "".join(f'p{n} = {{ path = "../p{n}" }}\n' for n in range(CRATES))
    manifest.write_text(f"{manifest.read_text()}\n[dependencies]\n{needs}")
    (project.root / "ddp-bench/Cargo.lock").unlink(missing_ok=True)
    for n in range(CRATES):
        (project.root / f"p{n}/src").mkdir(parents=True)
        (project.root / f"p{n}/src/lib.rs").touch()
        (project.root / f"p{n}/Cargo.toml").write_text(f'[package]\nname = "p{n}"\nversion = "0.1.0"\n')
    wrapper, count = tmp_path / "wrapper", tmp_path / "count"
    wrapper.write_text(WRAPPER)
    wrapper.chmod(0o755)
    monkeypatch.setenv("RUSTC_WRAPPER", str(wrapper))
    monkeypatch.setenv("COUNT", str(count))
    return count


def peak(count: Path) -> int:
    at_once = most = 0
    for step in count.read_text().split():
        at_once += int(step)
        most = max(most, at_once)
    assert at_once == 0
    return most


def test_compilers_of_all_builds_keep_within_the_cores(
    project: Project, counted: Path, jobservers: list[Jobserver]
) -> None:
    report = project.prebuild(hosts=["a"])
    assert (report.ok, 1 < peak(counted) <= CORES) == (True, True)  # alone: all cores
    counted.unlink()
    report = project.prebuild()
    assert report.ok, [built.error for built in report.hosts.values()]
    assert 2 < peak(counted) <= CORES + 2  # two builds: more than one each, so tokens were used
    for host in VARIANTS:
        assert not any("jobserver" in line for line in project.told(host, Kind.LINE))


def test_without_the_jobserver_there_would_be_more(
    project: Project, counted: Path, jobservers: list[Jobserver], monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextlib.contextmanager
    def none(self: Jobserver) -> Iterator[Tokens]:
        yield NO_TOKENS

    monkeypatch.setattr(Jobserver, "build", none)
    monkeypatch.setenv("CARGO_BUILD_JOBS", str(CRATES))
    assert project.prebuild(hosts=["b", "c"]).ok
    assert peak(counted) > CORES + 2


TAKE = """
take() { auth=${CARGO_MAKEFLAGS##*=}; head -c "$1" "/proc/self/fd/${auth%,*}" >/dev/null; }
make_it() { mkdir -p "$FDL_TARGET_DIR/release" && cp /bin/true "$FDL_TARGET_DIR/release/ddp-bench"; }
case $FDL_TARGET_DIR in
*/a/*) make_it ;;
*/b/*) take 2; echo $$ >../pid; sleep 61.7 ;;
*/c/*) while [ ! -e ../killed ]; do sleep 0.05; done; take 3; make_it ;;
esac
"""


def test_the_tokens_of_a_killed_build_are_there_for_the_others(project: Project, jobservers: list[Jobserver]) -> None:
    project.commands["ddp-bench"] = Command("ddp-bench", build=TAKE)
    pid, killed, spare = project.root / "pid", project.root / "killed", list[int]()

    def kill() -> None:
        wait_for(lambda: pid.exists() and pid.read_text(), "b has taken all tokens")
        spare.append(jobservers[0].spare)
        os.killpg(os.getpgid(int(pid.read_text())), signal.SIGKILL)
        wait_for(lambda: "failed" in project.told("b", Kind.DONE), "b has failed")
        spare.append(jobservers[0].spare + sum(lane.lent for lane in jobservers[0]._lanes))
        killed.touch()

    killer = threading.Thread(target=kill)
    killer.start()
    report = project.prebuild()
    killer.join()
    assert [host for host, status in statuses(report).items() if status == "failed"] == ["b"]
    assert "was ended by signal 9" in (report.hosts["b"].error or "")
    # c had to take three before it could end: all but its own. b had held two of the two that there were.
    assert spare == [0, CORES - 1]
    assert not running("sleep 61.7")


def test_a_build_that_waits_for_a_token_dies_with_the_library(project: Project) -> None:
    word = f"/dev/null 319.{abs(hash(project.root)) % 10**9}"
    line = f'auth=${{CARGO_MAKEFLAGS##*=}}; cat "/proc/self/fd/${{auth%,*}}" {word}'
    process = start(project, line, "a")
    wait_for(lambda: running(word), "the build waits")
    process.kill()
    process.wait()
    wait_for(lambda: not running(word), "the build is gone", limit=3)
