"""Real builds of workers with the same arch: one build, and copies that never spoil the others' own caches."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from fdl_tasks.builds import schedule, share, work
from fdl_tasks.builds.plan import Job
from fdl_tasks.builds.run import dry_run
from fdl_tasks.cluster.model import Command
from fdl_tasks.outcome import Kind
from fdl_tasks.scripts import Scripts
from tests.builds.monorepo import Project, says, statuses
from tests.lab.lab import Lab

pytestmark = pytest.mark.subprocess
CPU = "precompiled/cpu"


@pytest.fixture
def twins(project: Project) -> Project:
    """Two workers of one arch."""
    project.variants = {"a": CPU, "b": CPU}
    return project


def compiled(project: Project) -> list[str]:
    """The workers for which something was compiled."""
    return [host for host in project.variants if any("Compiling" in line for line in project.told(host, Kind.LINE))]


def version(text: str) -> str:
    return f"ddp-bench: libtorch cpu (build {text}+cpu), feature none\n"


def test_workers_of_one_arch_are_built_once_and_each_has_its_own_file(twins: Project) -> None:
    twins.variants["c"] = "precompiled/cu126"
    report = twins.prebuild()
    assert report.ok, [built.error for built in report.hosts.values()]
    assert compiled(twins) == ["a", "c"]
    assert {host: built.shared_with for host, built in report.hosts.items()} == {"a": None, "b": "a", "c": None}
    assert [twins.start(report, host) for host in "abc"] == [says("cpu", "none")] * 2 + [says("cu126", "cuda")]
    assert twins.told("b", Kind.STATE)[:2] == ["waiting for a", "copied from a"]
    one, other = ((twins.root / report.envelope[host].bin).stat() for host in "ab")
    assert (one.st_ino != other.st_ino, one.st_mode) == (True, other.st_mode)
    assert report.envelope["b"].bin == "target/cluster/b/precompiled-cpu/release/ddp-bench"
    assert (
        f"built once, for a: the output is in {twins.target('a')}/build.log"
        in (twins.target("b") / "build.log").read_text()
    )


def test_each_is_built_by_itself_when_the_user_says_so(twins: Project) -> None:
    report = twins.prebuild(dedupe=False)
    assert (report.ok, compiled(twins)) == (True, ["a", "b"])
    assert [built.shared_with for built in report.hosts.values()] == [None, None]


@pytest.mark.parametrize(("dedupe", "built"), [(True, ["a"]), (False, ["a", "b"])])
def test_a_dry_run_shows_the_builds_that_would_run(twins: Project, dedupe: bool, built: list[str]) -> None:
    shown = dry_run(twins.cluster, "ddp-bench", cwd=twins.root, dedupe=dedupe)
    assert [host for host, script in shown if script.name == "builds/build.sh"] == built


def test_a_worker_that_got_a_copy_is_later_built_by_itself_and_right(twins: Project) -> None:
    twins.prebuild()
    report = twins.prebuild(hosts=["b"])
    assert (compiled(twins), twins.start(report, "b")) == (["b"], says("cpu", "none"))


def test_copies_and_own_builds_take_turns_while_libtorch_is_replaced(twins: Project) -> None:
    def step(release: str, **options: object) -> list[str]:
        twins.make_libtorch(CPU, LIBTORCH_VERSION=release)
        report = twins.prebuild(**options)
        assert {twins.start(report, host) for host in report.envelope} == {version(release)}, release
        return compiled(twins)

    assert step("2.1.0", dedupe=False) == ["a", "b"]
    assert step("2.2.0") == ["a"]  # b keeps a cache of 2.1.0 beside a binary of 2.2.0
    assert step("2.3.0", hosts=["b"]) == ["b"]
    assert step("2.4.0", dedupe=False) == ["a", "b"]
    assert step("2.5.0") == ["a"]


def test_a_copy_is_not_taken_for_ones_own_when_the_libtorch_before_it_comes_back(twins: Project) -> None:
    twins.commands["ddp-bench"] = Command("ddp-bench", build=LINK)
    libtorch, aside = twins.root / "libtorch" / CPU, twins.root / "aside"
    assert twins.prebuild(dedupe=False).ok
    shutil.copytree(libtorch, aside, symlinks=True)
    twins.make_libtorch(CPU, LIBTORCH_VERSION="2.1.0")
    assert twins.prebuild().hosts["b"].shared_with == "a"
    shutil.rmtree(libtorch)
    aside.rename(libtorch)
    report = twins.prebuild(hosts=["b"])
    assert b"built against 2.10.0" in (twins.root / report.envelope["b"].bin).read_bytes()


LINK = """
    made=$FDL_TARGET_DIR/release/ddp-bench
    [ "$made" -nt src/main.rs ] && exit
    mkdir -p "${made%/*}"
    printf 'char v[] = "built against %s"; int main(void) { return !v[0]; }' "$(cat "$LIBTORCH_PATH/build-version")" |
        cc -x c - -o "$made"
"""


def test_a_copy_leaves_the_workers_own_cache_as_it_was(twins: Project) -> None:
    twins.prebuild(dedupe=False)
    cached = next(path for path in (twins.target("b") / "release/deps").glob("ddp_bench-*") if not path.suffix)
    before = cached.read_bytes()
    main = twins.root / "ddp-bench/src/main.rs"
    text = main.read_text()
    main.write_text(text.replace("ddp-bench: libtorch", "changed: libtorch"))
    report = twins.prebuild()
    assert twins.start(report, "b").startswith("changed: ")
    assert cached.read_bytes() == before
    main.write_text(text)
    assert twins.start(twins.prebuild(hosts=["b"]), "b") == says("cpu", "none")


def test_an_up_to_date_build_of_ones_own_puts_its_own_binary_back(twins: Project) -> None:
    twins.prebuild(dedupe=False)
    place = twins.root / twins.prebuild(hosts=["b"]).envelope["b"].bin
    share.copy(Path("/bin/true"), place)
    report = twins.prebuild(hosts=["b"])
    assert (compiled(twins), twins.start(report, "b")) == ([], says("cpu", "none"))


def test_a_build_that_fails_is_everybodys_failure(twins: Project) -> None:
    (twins.root / "ddp-bench/src/main.rs").write_text("not rust\n")
    report = twins.prebuild()
    assert statuses(report) == {"a": "failed", "b": "failed"}
    errors = {host: built.error or "" for host, built in report.hosts.items()}
    assert "cargo build ended with exit code 101" in errors["a"]
    assert "cargo build ended with exit code 101 (the build of a, which is this worker's too)" in errors["b"]
    assert str(twins.target("a") / "build.log") in errors["b"]
    assert report.hosts["b"].shared_with == "a"
    assert twins.told("b", Kind.DONE) == ["failed"]


def test_a_leader_that_can_not_even_start_lets_the_next_one_lead(twins: Project) -> None:
    twins.variants["c"] = CPU
    twins.target("a").parent.mkdir(parents=True)
    twins.target("a").touch()
    report = twins.prebuild()
    assert statuses(report) == {"a": "failed", "b": "ok", "c": "ok"}
    assert {host: built.shared_with for host, built in report.hosts.items()} == {"a": None, "b": None, "c": "b"}
    assert compiled(twins) == ["b"]


def test_a_follower_whose_place_is_taken_fails_alone(twins: Project) -> None:
    twins.variants["c"] = CPU
    twins.target("b").mkdir(parents=True)
    (twins.target("b") / "release").touch()
    report = twins.prebuild()
    assert statuses(report) == {"a": "ok", "b": "failed", "c": "ok"}
    assert "the target directory can't be used" in (report.hosts["b"].error or "")
    assert report.hosts["b"].shared_with == "a"


def test_a_follower_whose_disk_is_full_fails_alone(lab: Lab, twins: Project) -> None:
    twins.target("b").mkdir(parents=True)
    with lab.small_disk(twins.target("b"), "128k"):
        report = twins.prebuild()
    assert statuses(report) == {"a": "ok", "b": "failed"}
    assert "no space left on device: 0." in (report.hosts["b"].error or "")


def test_a_copy_goes_where_cargo_put_the_original(twins: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    twins.prebuild()
    triple = subprocess.run(["rustc", "-vV"], capture_output=True, text=True).stdout.partition("host: ")[2].split()[0]
    monkeypatch.setenv("CARGO_BUILD_TARGET", triple)
    report = twins.prebuild()
    assert report.envelope["b"].bin == f"target/cluster/b/precompiled-cpu/{triple}/release/ddp-bench"
    assert twins.start(report, "b") == says("cpu", "none")


def test_what_a_line_of_ones_own_makes_is_copied_too(twins: Project) -> None:
    line = 'echo run >&2; install -D -m 755 /bin/true "$FDL_TARGET_DIR/out/x"'
    twins.commands["ddp-bench"] = Command("ddp-bench", build=line, bin="out/x")
    report = twins.prebuild()
    assert [twins.told(host, Kind.LINE) for host in "ab"] == [["run"], []]
    assert (twins.root / report.envelope["b"].bin).read_bytes() == Path("/bin/true").read_bytes()


def test_a_copy_that_another_user_forbids_is_built_by_the_container_that_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(*args: object) -> str:
        raise PermissionError(13, "Permission denied", str(tmp_path))

    built: Callable[..., str] = lambda job, *rest: f"{job.target_dir}/release/x"  # noqa: E731
    monkeypatch.setattr(share, "take", denied)
    monkeypatch.setattr(work, "build", built)
    in_docker = Job("a", Command("x"), CPU, tmp_path, "", "/l", service="cuda")
    for job, shared, failed in [(in_docker, {}, False), (replace(in_docker, service=None), {"b": "a"}, True)]:
        jobs = {"a": job, "b": replace(job, host="b")}
        attempts, shared_with = schedule.build_all(jobs, Scripts(), 4, lambda event: None)
        assert (shared_with, attempts["b"].error is not None) == (shared, failed)
