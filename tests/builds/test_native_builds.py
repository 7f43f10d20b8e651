"""Real builds on this machine: cargo, cc and shared libraries, started from the envelope alone."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest

from fdl_tasks.builds.run import dry_run
from fdl_tasks.cluster.model import Command
from fdl_tasks.outcome import Kind
from tests.builds.monorepo import VARIANTS, Project, make_project, says, statuses

pytestmark = pytest.mark.subprocess
BUILT = dict.fromkeys(VARIANTS, "ok")


def break_for(project: Project, feature: str) -> None:
    """A crate that does not compile with one cargo feature."""
    main = project.root / "ddp-bench/src/main.rs"
    main.write_text(f'{main.read_text()}\n#[cfg(feature = "{feature}")]\ncompile_error!("no {feature} today");\n')


def test_every_worker_gets_a_binary_that_finds_its_own_library(project: Project) -> None:
    report = project.prebuild()
    assert statuses(report) == BUILT
    assert report.ok
    assert [project.start(report, host) for host in VARIANTS] == [
        says("cu128", "cuda"),
        says("cu126", "cuda"),
        says("cpu", "none"),
    ]


def test_the_report_says_what_was_built_where(project: Project) -> None:
    project.variants = {"a": "precompiled/cu128"}
    report = project.prebuild()
    target = "target/cluster/a/precompiled-cu128"
    lib = f"{project.root}/libtorch/precompiled/cu128/lib"
    host = report.as_json()["hosts"]["a"]  # type: ignore[index]
    assert host.pop("seconds") > 0
    assert host == {
        "status": "ok",
        "arch": "precompiled/cu128",
        "feature": "cuda",
        "target_dir": target,
        "bin": f"{target}/release/ddp-bench",
        "shared_with": None,
        "warnings": [],
        "error": None,
    }
    entry = {"bin": f"{target}/release/ddp-bench", "ld_library_path": lib, "cwd_subpath": "ddp-bench"}
    assert report.as_json() | {"hosts": None} == {
        "cmd": "ddp-bench",
        "ok": True,
        "hosts": None,
        "envelope": {"a": entry},
    }


def test_a_name_with_a_newline_in_it_is_a_name_like_any_other(tmp_path: Path) -> None:
    # By a line of its own: cargo's protocol with build scripts knows no way to write a newline.
    project = make_project(tmp_path / "two\nlines", variants={"c": "precompiled/cpu"})
    line = 'install -m 755 /bin/echo "$FDL_TARGET_DIR/v"'
    project.commands["ddp-bench"] = Command("ddp-bench", build=line, bin="v")
    report = project.prebuild()
    assert statuses(report) == {"c": "ok"}
    assert (project.root / report.envelope["c"].bin).read_bytes() == Path("/bin/echo").read_bytes()


def test_nothing_in_a_name_is_run(project: Project) -> None:
    project.prebuild()
    assert not list(project.root.parent.rglob("pwned"))
    assert not Path("pwned").exists()


def test_the_first_build_runs_alone_and_the_others_wait_for_it(project: Project) -> None:
    project.prebuild()
    order = [(event.host, event.text) for event in project.events if event.text in ("building", "built")]
    assert order[:2] == [("a", "building"), ("a", "built")]
    assert project.told("b", Kind.STATE)[0] == "waiting for a"


def test_a_build_that_never_started_cargo_is_not_the_first(project: Project) -> None:
    project.target("a").parent.mkdir(parents=True)
    project.target("a").touch()
    report = project.prebuild()
    assert statuses(report) == {"a": "failed", "b": "ok", "c": "ok"}
    assert "the target directory can't be used" in (report.hosts["a"].error or "")
    order = [(event.host, event.text) for event in project.events if event.text in ("building", "built")]
    assert order == [("b", "building"), ("b", "built"), ("c", "building"), ("c", "built")]


def test_one_job_at_a_time_when_the_user_says_so(project: Project) -> None:
    project.prebuild(jobs=1)
    texts = [event.text for event in project.events if event.text in ("building", "built")]
    assert texts == ["building", "built"] * 3


def test_a_compile_error_of_one_stops_no_other_and_carries_its_lines(project: Project) -> None:
    break_for(project, "cuda")
    report = project.prebuild()
    assert statuses(report) == {"a": "failed", "b": "failed", "c": "ok"}
    assert not report.ok
    assert list(report.envelope) == ["c"]
    for host in ("a", "b"):
        error = report.hosts[host].error
        assert error
        assert "cargo build ended with exit code 101" in error
        assert "  | error: no cuda today" in error
        assert str(report.hosts[host].log) in error
        assert report.hosts[host].bin is None
    assert project.told("a", Kind.DONE) == ["failed"]


def test_the_log_holds_the_builds_lines_and_no_messages_of_cargos(project: Project) -> None:
    project.variants = {"c": "precompiled/cpu"}
    log = project.prebuild().hosts["c"].log
    assert log
    assert log == project.target("c") / "build.log"
    lines = log.read_text().splitlines()
    assert lines[0] == "# ddp-bench for c, linked against precompiled/cpu"
    assert lines[1:] == project.told("c", Kind.LINE)
    assert any("Compiling ddp-bench" in line for line in lines)
    assert not any(line.startswith("{") for line in lines)
    assert "compiling ddp-bench" in project.told("c", Kind.STATE)


def test_what_is_up_to_date_is_not_built_again(project: Project) -> None:
    project.variants = {"c": "precompiled/cpu"}
    project.prebuild()
    report = project.prebuild()
    assert report.ok
    assert not any("Compiling" in line for line in project.told("c", Kind.LINE))


def test_a_libtorch_replaced_in_place_is_built_against_anew(project: Project) -> None:
    project.variants = {"c": "precompiled/cpu"}
    project.prebuild()
    (project.target("c") / "left-over").touch()
    project.make_libtorch("precompiled/cpu", LIBTORCH_VERSION="2.11.0")
    report = project.prebuild()
    assert project.start(report, "c") == "ddp-bench: libtorch cpu (build 2.11.0+cpu), feature none\n"
    assert not (project.target("c") / "left-over").exists()
    assert any("libtorch is not the one" in line for line in project.told("c", Kind.LINE))


def test_a_target_directory_of_unknown_origin_is_not_trusted(project: Project) -> None:
    project.variants = {"c": "precompiled/cpu"}
    project.prebuild()
    (project.target("c") / ".fdl-libtorch").unlink()
    project.prebuild()
    assert any("Compiling ddp-bench" in line for line in project.told("c", Kind.LINE))


def test_a_libtorch_replaced_during_the_build_fails_it(project: Project) -> None:
    project.variants = {"c": "precompiled/cpu"}
    lib = project.root / "libtorch/precompiled/cpu/lib"
    script = project.root / "ddp-bench/build.rs"
    more = f'fs::write(r#"{lib}/late.so"#, "x").unwrap();'
    script.write_text(
        script.read_text().replace("let libtorch = libtorch_home();", f"let libtorch = libtorch_home(); {more}")
    )
    report = project.prebuild()
    assert statuses(report) == {"c": "failed"}
    assert "was replaced while it was built against" in (report.hosts["c"].error or "")
    assert report.envelope == {}


def test_the_artifact_is_where_cargo_says_not_where_an_old_one_lies(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.variants = {"c": "precompiled/cpu"}
    old = project.prebuild().envelope["c"].bin
    triple = subprocess.run(["rustc", "-vV"], capture_output=True, text=True).stdout.partition("host: ")[2].split()[0]
    monkeypatch.setenv("CARGO_BUILD_TARGET", triple)
    report = project.prebuild()
    assert report.envelope["c"].bin == old.replace("/release/", f"/{triple}/release/")
    assert project.start(report, "c") == says("cpu", "none")


def test_two_packages_with_a_binary_of_that_name_are_not_one_binary(project: Project) -> None:
    project.variants = {"c": "precompiled/cpu"}
    shutil.copytree(project.root / "ddp-bench", project.root / "fork")
    manifest = project.root / "fork/Cargo.toml"
    manifest.write_text(manifest.read_text().replace('name = "ddp-bench"', 'name = "fork"', 1) + BIN)
    (project.root / "Cargo.toml").write_text('[workspace]\nresolver = "2"\nmembers = ["ddp-bench", "fork"]\n')
    project.commands["ddp-bench"] = Command("ddp-bench", cwd=".")
    report = project.prebuild()
    error = report.hosts["c"].error or ""
    assert (statuses(report), report.envelope) == ({"c": "failed"}, {})
    assert "built more than one binary ddp-bench" in error and "/fork#" in error and "/ddp-bench#" in error
    project.commands["ddp-bench"] = Command("ddp-bench", cwd=".", cargo_args=("-p", "ddp-bench"))
    assert statuses(project.prebuild()) == {"c": "ok"}


BIN = '[[bin]]\nname = "ddp-bench"\npath = "src/main.rs"\n'


def test_a_build_directory_of_the_users_is_not_shared_by_the_variants(
    project: Project, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CARGO_BUILD_BUILD_DIR", str(tmp_path / "builds"))
    project.variants = {"c": "precompiled/cpu"}
    project.prebuild()
    project.make_libtorch("precompiled/cpu", LIBTORCH_VERSION="2.11.0")
    report = project.prebuild()
    assert project.start(report, "c") == "ddp-bench: libtorch cpu (build 2.11.0+cpu), feature none\n"
    assert not (tmp_path / "builds").exists()


def test_a_binary_outside_the_target_directory_is_refused(project: Project, tmp_path: Path) -> None:
    project.variants = {"c": "precompiled/cpu"}
    project.commands["ddp-bench"] = Command("ddp-bench", cargo_args=("--target-dir", str(tmp_path / "other")))
    assert "outside the target directory" in (project.prebuild().hosts["c"].error or "")


def test_cuda_of_the_environment_is_replaced_only_where_the_variant_states_one(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VERSION", "7.5.18")
    project.commands["ddp-bench"] = Command("ddp-bench", build=printing("$CUDA_VERSION ${CUDA_TAG-unset}"))
    project.prebuild()
    assert [project.told(host, Kind.LINE) for host in VARIANTS] == [["12.8.0 12.8"], ["12.6.0 12.6"], ["7.5.18 unset"]]


def printing(text: str) -> str:
    """An own line that prints ``text`` and makes a program."""
    return f'echo "{text}"; {MAKE}'


MAKE = "mkdir -p $FDL_TARGET_DIR/release && install -m 755 /bin/true $FDL_TARGET_DIR/release/$FDL_CMD"
MAKE = MAKE.replace("$FDL_TARGET_DIR/release", '"$FDL_TARGET_DIR/release"')


def test_an_own_line_gets_its_variables_and_the_commands_directory(project: Project) -> None:
    project.variants = {"a": "precompiled/cu128"}
    line = printing(
        "${PWD##*/} $FDL_GPU_FEATURE $FDL_CMD ${LIBTORCH_PATH##*/} ${FDL_TARGET_DIR##*/} ${CARGO_TARGET_DIR##*/}"
    )
    project.commands["ddp-bench"] = Command("ddp-bench", build=line)
    report = project.prebuild()
    assert project.told("a", Kind.LINE) == ["ddp-bench cuda ddp-bench cu128 precompiled-cu128 precompiled-cu128"], (
        report.hosts["a"].error
    )
    assert report.envelope["a"].bin == "target/cluster/a/precompiled-cu128/release/ddp-bench"


def test_stdin_of_a_build_is_empty(project: Project) -> None:
    project.variants = {"c": "precompiled/cpu"}
    project.commands["ddp-bench"] = Command("ddp-bench", build=f"cat; {MAKE}")
    assert project.prebuild().ok


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("true", "can't be seen"),
        ("exit 255", "the custom build line ended with exit code 255"),
        ("exit 3", "the custom build line ended with exit code 3"),
        ("kill -KILL $$", "was ended by signal 9"),
        ("no-such-tool", "the PATH of this shell needs what the line calls"),
        ('mkdir -p "$FDL_TARGET_DIR/release/ddp-bench"', "is no program"),
    ],
)
def test_an_own_line_that_makes_nothing_fails(project: Project, line: str, says: str) -> None:
    project.variants = {"c": "precompiled/cpu"}
    project.commands["ddp-bench"] = Command("ddp-bench", build=line)
    report = project.prebuild()
    assert statuses(report) == {"c": "failed"}
    assert says in (report.hosts["c"].error or "")


def test_an_old_artifact_counts_only_when_no_source_is_newer(project: Project) -> None:
    project.variants = {"c": "precompiled/cpu"}
    project.commands["ddp-bench"] = Command("ddp-bench", build=MAKE)
    assert project.prebuild().ok
    project.commands["ddp-bench"] = Command("ddp-bench", build="true")
    assert project.prebuild().ok
    later = time.time() + 5
    os.utime(project.root / "ddp-bench/src/main.rs", (later, later))
    assert "is an old one" in (project.prebuild().hosts["c"].error or "")
    sources = (project.root / "ddp-bench/src").rename(project.root / "ddp-bench/target")
    assert "is an old one" in (project.prebuild().hosts["c"].error or "")
    (sources / "CACHEDIR.TAG").touch()  # it was cargo's, and no directory of sources
    assert project.prebuild().ok
    (sources / "CACHEDIR.TAG").unlink()
    project.commands["ddp-bench"] = Command("ddp-bench", build=MAKE)
    assert project.prebuild().ok  # made by this very run: no matter what times the sources have


def test_the_place_of_an_own_lines_artifact_is_configured(project: Project) -> None:
    project.variants = {"c": "precompiled/cpu"}
    line = 'install -D -m 755 /bin/true "$FDL_TARGET_DIR/out/x"'
    project.commands["ddp-bench"] = Command("ddp-bench", build=line, bin="out/x")
    assert project.prebuild().envelope["c"].bin == "target/cluster/c/precompiled-cpu/out/x"


def test_a_profile_of_ones_own(project: Project) -> None:
    project.variants = {"c": "precompiled/cpu"}
    project.commands["ddp-bench"] = Command("ddp-bench", profile="dev", cargo_args=("--locked",))
    assert project.prebuild().envelope["c"].bin == "target/cluster/c/precompiled-cpu/debug/ddp-bench"


def test_workers_that_cannot_be_built_for_fail_alone(project: Project) -> None:
    project.variants = {"a": None, "b": "builds/none", "c": "precompiled/cpu", "d": "precompiled/cpu", "ctrl": None}
    project.workers = {"d": {"build": False}}
    report = project.prebuild()
    assert statuses(report) == {"a": "failed", "b": "failed", "c": "ok", "d": "skipped", "ctrl": "skipped"}
    assert "has no arch" in (report.hosts["a"].error or "")
    assert f"{project.root}/libtorch/builds/none has no lib/" in (report.hosts["b"].error or "")
    assert report.hosts["d"].warnings == ("build: false in cluster.yml",)
    assert list(report.envelope) == ["c"]


def test_only_the_named_hosts_are_built(project: Project) -> None:
    assert list(project.prebuild(hosts=["c"]).hosts) == ["c"]


def test_preflight_stops_before_the_first_build(project: Project) -> None:
    project.variants["b"] = None
    report = project.prebuild(preflight=True)
    assert (report.ok, dict(report.hosts), report.envelope) == (False, {}, {})
    assert report.preflight
    assert report.as_json() == {"cmd": "ddp-bench", "ok": False, "preflight": report.preflight.as_json()}
    assert not project.target("a").exists()


def test_preflight_that_finds_nothing_lets_the_build_go_on(project: Project) -> None:
    project.variants = {"c": "precompiled/cpu"}
    report = project.prebuild(preflight=True)
    assert report.ok
    assert report.preflight
    assert statuses(report) == {"c": "ok"}


def test_no_environment_variable_is_touched(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLODL_INTERNAL_PREBUILD_PER_HOST", "inherited")
    project.variants = {"c": "precompiled/cpu"}
    before = dict(os.environ)
    assert project.prebuild().ok
    assert dict(os.environ) == before


def test_a_killed_build_says_by_what(project: Project) -> None:
    project.variants = {"c": "precompiled/cpu"}
    pid = project.root / "pid"
    project.commands["ddp-bench"] = Command("ddp-bench", build=f"echo $$ >'{pid.name}'; sleep 30")
    pid = project.root / "ddp-bench" / pid.name
    threading.Thread(target=kill_when_there, args=(pid,)).start()
    report = project.prebuild()
    assert "was ended by signal 15" in (report.hosts["c"].error or "")


def kill_when_there(file: Path) -> None:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        if file.exists() and (text := file.read_text().strip()):
            os.kill(int(text), signal.SIGTERM)
            return
        time.sleep(0.02)


def test_a_dry_run_shows_the_very_script_and_builds_nothing(project: Project) -> None:
    shown = dry_run(project.cluster, "ddp-bench", cwd=project.root)
    assert [(label, script.name) for label, script in shown] == [
        *((label, "checks/probe.sh") for label in VARIANTS),
        *((label, "builds/build.sh") for label in VARIANTS),
        *((label, "builds/verify.sh") for label in VARIANTS),
    ]
    assert not project.target("a").exists()
    project.target("c").mkdir(parents=True)
    subprocess.run(["sh"], input=shown[5][1].text, text=True, check=True, capture_output=True)
    project.variants = {"c": "precompiled/cpu"}
    project.prebuild()
    assert not any("Compiling" in line for line in project.told("c", Kind.LINE))
