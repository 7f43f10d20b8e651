"""Preflight's part on this machine: the controller's own checks, each worker's libtorch, which workers are asked."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fdl_tasks.checks.sweep import HostChecks, PreflightReport, preflight
from fdl_tasks.cluster.model import Cluster, Command
from fdl_tasks.errors import ConfigError, UsageError
from fdl_tasks.outcome import Level
from fdl_tasks.testing import make_cluster

pytestmark = pytest.mark.subprocess
LINE = Command("bench", build="./ci/build.sh")  # so that no cargo is needed
CU128 = "precompiled/cu128"


def check(cluster: Cluster, **options: Any) -> PreflightReport:
    return preflight(cluster, **({"cmd": LINE} | options))


def bad(checks: HostChecks) -> list[tuple[str, str]]:
    return [(verdict.rule, str(verdict.level)) for verdict in checks.verdicts if verdict.level is not Level.OK]


def test_a_controller_path_that_can_not_be_written_is_the_controllers_error(root: Path) -> None:
    (root / "target").write_text("no directory")
    report = check(make_cluster(root, a=CU128))
    assert bad(report.hosts["controller"]) == [("shared-mount", "error")]
    assert str(root / "target/cluster") in report.errors[0].message
    assert "shared-mount" not in [verdict.rule for verdict in report.hosts["a"].verdicts]


def test_every_workers_missing_precondition_is_told_at_once(root: Path) -> None:
    report = check(make_cluster(root, a=None, b="precompiled/cu126", c=CU128))
    assert [bad(report.hosts[host]) for host in "abc"] == [[("variant", "error")], [("libtorch", "error")], []]
    assert "2 hosts" in str(report.failure) and "precompiled/cu126" in str(report.failure)


def test_cargo_is_missed_only_when_a_build_needs_it(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if any(Path(at, "cargo").exists() for at in ("/usr/bin", "/bin", "/usr/local/bin")):
        pytest.skip("cargo is everywhere here")
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    assert bad(check(make_cluster(root, a=CU128), cmd=Command("bench")).hosts["controller"]) == [("cargo", "error")]
    assert bad(check(make_cluster(root, a=CU128), cmd=LINE).hosts["controller"]) == []


def test_a_declared_data_path_of_the_controllers_own_is_looked_at_here(root: Path) -> None:
    cluster = make_cluster(root, a=CU128)
    assert cluster.controller
    for declared, level in ((True, "error"), (False, "warning")):
        lead = replace(cluster.controller, data_path="/nowhere/data", data_path_declared=declared)
        report = check(replace(cluster, controller=lead))
        assert bad(report.hosts["controller"]) == [("data-path", level)] and report.hosts["a"].status == "ok"


def test_no_worker_at_all_writes_nothing_and_is_ok(root: Path) -> None:
    report = check(make_cluster(root), cmd=None)
    assert report.ok and list(report.hosts) == ["controller"] and not (root / "target").exists()


def test_hosts_are_chosen_by_label(root: Path) -> None:
    cluster = make_cluster(root, a=CU128, b=CU128)
    assert list(check(cluster, hosts=["b"]).hosts) == ["controller", "b"]
    with pytest.raises(UsageError):
        check(cluster, hosts=["nobody"])
    with pytest.raises(ConfigError):
        check(replace(cluster, controller=None))
