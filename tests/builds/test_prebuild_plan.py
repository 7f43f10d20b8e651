"""What prebuild decides before it starts anything: no process is needed, and none can be started here."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fdl_tasks.builds.run import dry_run, prebuild
from fdl_tasks.cluster.model import Cluster, Command, Controller, Ssh, Worker
from fdl_tasks.errors import BuildError, ConfigError, FdlError, UsageError
from fdl_tasks.outcome import Status

CU = "precompiled/cu128"


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    root = tmp_path / "mono"
    (root / "bench").mkdir(parents=True)
    (root / "bench" / "Cargo.toml").touch()
    (root / "libtorch" / CU / "lib").mkdir(parents=True)
    workers = tuple(Worker(host, str(root), Ssh(host), arch=CU) for host in ("a", "b"))
    return Cluster(root / "cluster.yml", "own", Controller("ctrl", root), workers)


@pytest.mark.parametrize(
    ("cmd", "options", "kind", "says"),
    [
        ("bench", {"jobs": 0}, UsageError, "at least one build"),
        ("bench", {"hosts": ["x"]}, UsageError, "'x'"),
        ("-x", {}, UsageError, "begins with '-'"),
        ("a/b", {}, UsageError, "'/'"),
        ("../bench", {}, UsageError, "'/'"),
        ("", {}, UsageError, "empty"),
        ("other", {}, UsageError, "no directory for the command other"),
        ("gone", {}, UsageError, "is not there"),
        ("out", {}, UsageError, "leads out of the project root"),
    ],
)
def test_what_cannot_be_asked_for_is_refused(
    cluster: Cluster, tmp_path: Path, cmd: str, options: dict[str, Any], kind: type[FdlError], says: str
) -> None:
    (tmp_path / "mono" / "link").symlink_to(tmp_path)
    commands = {"gone": Command("gone", cwd="nowhere"), "out": Command("out", cwd="link")}
    with pytest.raises(kind, match=says) as got:
        prebuild(replace(cluster, commands=commands), cmd, cwd=tmp_path, **options)
    assert got.value.exit_code == 2


@pytest.mark.parametrize("missing", ["controller", "workers"])
def test_a_cluster_without_them_is_a_wrong_configuration(cluster: Cluster, missing: str) -> None:
    without: dict[str, Any] = {missing: None}
    with pytest.raises(ConfigError, match=missing):
        prebuild(replace(cluster, **without), "bench")


def test_with_nothing_to_build_nothing_is_started_and_all_is_well(cluster: Cluster, tmp_path: Path) -> None:
    assert cluster.workers
    left_out = replace(cluster.workers[0], build=False)
    report = prebuild(replace(cluster, workers=(left_out, replace(left_out, host="own"))), "bench", cwd=tmp_path)
    assert [built.status for built in report.hosts.values()] == [Status.SKIPPED] * 2
    assert [built.warnings for built in report.hosts.values()] == [
        ("build: false in cluster.yml",),
        ("is the controller, which builds for itself",),
    ]
    assert (report.ok, report.envelope, report.preflight) == (True, {}, None)


def test_a_worker_that_can_not_be_built_for_is_reported_in_full(cluster: Cluster, tmp_path: Path) -> None:
    assert cluster.workers
    bare = replace(cluster.workers[0], arch=None)
    report = prebuild(replace(cluster, workers=(bare,)), "bench", cwd=tmp_path, preflight=False)
    json = report.as_json()
    error = json["hosts"]["a"].pop("error")  # type: ignore[index]
    assert error.startswith("worker a has no arch")
    assert json == {
        "cmd": "bench",
        "ok": False,
        "hosts": {
            "a": {
                "status": "failed",
                "seconds": 0.0,
                "arch": None,
                "feature": "",
                "target_dir": None,
                "bin": None,
                "shared_with": None,
                "warnings": [],
            }
        },
        "envelope": {},
    }


@pytest.mark.parametrize(
    ("here", "expected"), [(".", ""), ("tools", "/tools"), ("../mono/tools", "/tools"), ("../by-link/tools", "/tools")]
)
def test_the_current_directory_is_the_commands_when_it_is_inside_and_has_a_manifest(
    cluster: Cluster, tmp_path: Path, here: str, expected: str
) -> None:
    root = tmp_path / "mono"
    (root / "tools").mkdir()
    (tmp_path / "by-link").symlink_to(root)
    with pytest.raises(UsageError, match="no directory for the command other"):
        dry_run(cluster, "other", cwd=root / here)
    (root / "Cargo.toml").touch()
    script = dry_run(cluster, "other", cwd=root / here, verify=False)[-1][1]
    assert f"FDL_DIRECTORY={root}{expected}\n" in script.text


def test_a_command_with_a_line_of_its_own_needs_no_manifest(cluster: Cluster) -> None:
    own = replace(cluster, commands={"other": Command("other", build="./build.sh")})
    root = cluster.need_controller().path
    script = dry_run(own, "other", cwd=root / "libtorch", verify=False)[-1][1]
    assert f"FDL_DIRECTORY={root}/libtorch\n" in script.text


def test_a_dry_run_names_every_worker_that_can_not_be_built_for(cluster: Cluster, tmp_path: Path) -> None:
    assert cluster.workers
    workers = tuple(replace(worker, arch=None) for worker in cluster.workers)
    with pytest.raises(BuildError, match=r"(?s)a: worker a has no arch.*b: worker b has no arch"):
        dry_run(replace(cluster, workers=workers), "bench", cwd=tmp_path)


@pytest.mark.parametrize("shared_check", [True, False])
def test_a_dry_run_shows_the_probes_as_they_would_be(cluster: Cluster, tmp_path: Path, shared_check: bool) -> None:
    shown = dry_run(cluster, "bench", cwd=tmp_path, shared_check=shared_check, hosts=["b"], verify=False)
    assert [(label, script.name) for label, script in shown] == [("b", "checks/probe.sh"), ("b", "builds/build.sh")]
    assert (".fdl-probe-" in shown[0][1].text) is shared_check
