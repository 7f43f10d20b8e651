"""Preflight as a whole: real probes on this machine, fakes for whatever an ssh host can do wrong."""

from __future__ import annotations

import _thread
import json
import os
import platform
import shlex
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fdl_tasks.checks import shared
from fdl_tasks.checks.sweep import HostChecks, PreflightReport, preflight
from fdl_tasks.cluster.model import Cluster, Command, Worker
from fdl_tasks.errors import ScriptError, Stage, TransportError
from fdl_tasks.hosts.base import Completed
from fdl_tasks.hosts.connect import Connect
from fdl_tasks.hosts.fanout import Cancel
from fdl_tasks.hosts.local import Local
from fdl_tasks.outcome import Event, Kind, Level
from fdl_tasks.scripts import Script
from fdl_tasks.testing import FakeHost, fake_connect, make_cluster

pytestmark = pytest.mark.subprocess  # the controller's own probe
LINE = Command("bench", build="./ci/build.sh")  # so that no cargo is needed
CU128 = "precompiled/cu128"


def check(cluster: Cluster, **options: Any) -> PreflightReport:
    return preflight(cluster, **({"cmd": LINE} | options))


def bad(checks: HostChecks) -> list[tuple[str, str]]:
    return [(verdict.rule, str(verdict.level)) for verdict in checks.verdicts if verdict.level is not Level.OK]


def answer(script: Script) -> Completed:
    """What a fine worker says, with whichever fresh file the script looks for first."""
    return Completed(0, said(script), "", 0.1)


def said(script: Script, **changes: str) -> str:
    words = shlex.split(script.text.split("\nfirst_fresh_file")[0], comments=True)
    folder = Path(next(word for word in words if word.startswith("ROOT="))[5:]) / "target/cluster"
    file = next((folder / word for word in words if word.startswith(".fdl-probe-")), None)
    shown = f"{file.name} {int(file.stat().st_mtime)} {file.read_text().strip()}" if file else "absent"
    lines = {
        "__FLODL_DP_DIR__": "=1",
        "__FLODL_DP_READ__": "=1",
        "__FLODL_ROOT__": "\n1 /dev/sda 9000000 1000 8000000 1% /",
        "__FLODL_SHARED__": f"\n{shown}",
        "__FLODL_ABI__": f"\n{platform.machine()}",
        "__FLODL_LDD__": "\nldd (GNU libc) 2.34",
        "__FLODL_PKILL__": "\npresent",
        "__FLODL_END__": "",
    } | changes
    return "".join(f"{name}{value}\n" for name, value in lines.items())


def changed(**changes: str) -> Callable[[Script], Completed]:
    return lambda script: Completed(
        0, said(script, **{f"__FLODL_{name}__": text for name, text in changes.items()}), "", 0
    )


def test_local_workers_that_see_the_same_directory_are_ok(root: Path) -> None:
    report = check(make_cluster(root, a=CU128, b=CU128))
    assert {host: checks.status for host, checks in report.hosts.items()} == {"controller": "ok", "a": "ok", "b": "ok"}
    assert list(report.hosts) == ["controller", "a", "b"] and report.ok and report.failure is None
    facts = report.hosts["a"].facts
    assert facts and facts.glibc and facts.mtime_skew_s == 0 and facts.shared and facts.ended
    assert [verdict.rule for verdict in report.hosts["a"].verdicts] == [
        *("data-path", "path", "space", "shared-mount", "file-time", "cpu", "libc", "pkill", "libtorch")
    ] and list((root / "target/cluster").iterdir()) == []


def test_a_worker_whose_path_is_another_directory_is_an_error_that_names_both(root: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    report = check(make_cluster(root, changes={"a": {"path": str(other)}}, a=CU128, b=CU128))
    assert bad(report.hosts["a"]) == [("shared-mount", "error")] and report.hosts["b"].status == "ok"
    (told,) = report.errors
    assert str(root) in told.message and str(other) in told.message
    assert str(report.failure).count("\n  ") == 1 and "1 host" in str(report.failure)


def test_without_the_shared_check_nothing_is_written(root: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    report = check(make_cluster(root, changes={"a": {"path": str(other)}}, a=CU128), shared_check=False)
    assert report.hosts["a"].status == "ok" and not (root / "target").exists()


@pytest.mark.parametrize(
    ("answers", "status", "rules"),
    [
        (answer, "ok", []),
        (changed(DP_DIR="=0"), "error", [("data-path", "error")]),
        (changed(DP_READ="=0"), "error", [("data-path", "error")]),
        (changed(DP_READ=""), "warning", [("data-path", "warning")]),
        (changed(ROOT="\n0"), "error", [("path", "error")]),
        (changed(ROOT="\n1 /dev/sda 9000000 1000 800000 99% /"), "warning", [("space", "warning")]),
        (changed(ROOT="\n1"), "warning", [("space", "warning")]),
        (changed(SHARED="\nabsent"), "error", [("shared-mount", "error")]),
        (changed(SHARED="\n.fdl-probe-00-1 1700000000 old"), "error", [("shared-mount", "error")]),
        (changed(SHARED="\nsome noise"), "warning", [("shared-mount", "warning")]),
        (changed(ABI="\nppc64le"), "error", [("cpu", "error")]),
        (changed(ABI="\nppc64le", LDD="\nmusl libc"), "error", [("cpu", "error")]),
        (changed(ABI=""), "warning", [("cpu", "warning")]),
        (changed(ABI="", LDD="\nMusl libc"), "error", [("cpu", "warning"), ("libc", "error")]),
        (changed(LDD="\n-"), "ok", []),
        (changed(PKILL="\nabsent"), "warning", [("pkill", "warning")]),
        (changed(PKILL=""), "ok", []),
        (changed(END="x"), "warning", [("probe", "warning")]),
        (
            Completed(127, "", "sh: nothing works", 0.1),
            "warning",
            [(rule, "warning") for rule in ("probe", "data-path", "path", "shared-mount", "cpu", "libc")],
        ),
        (TransportError(Stage.CONNECT, "refused"), "unreachable", [("reach", "warning")]),
        (TransportError(Stage.DEADLINE, "ended after 60 s"), "unreachable", [("reach", "warning")]),
        (TransportError(Stage.KEY_CHANGED, "not the pinned one"), "error", [("host-key", "error")]),
        (ScriptError("not whole"), "warning", [("probe", "warning")]),
        (OSError(24, "Too many open files"), "warning", [("probe", "warning")]),
    ],
)
def test_what_a_worker_says_and_what_is_made_of_it(root: Path, answers: Any, status: str, rules: list[Any]) -> None:
    cluster = make_cluster(root, changes={"a": {"data_path_declared": True}}, a=CU128, b=CU128)
    report = check(cluster, connect=fake_connect(FakeHost("a", answers), FakeHost("b", answer)))
    assert report.hosts["a"].status == status
    assert bad(report.hosts["a"]) == rules
    assert report.hosts["b"].status == "ok"  # one host's fault is nobody else's
    assert all(verdict.message.startswith("a: ") for verdict in report.hosts["a"].verdicts)


@pytest.mark.parametrize(("off", "status"), [(-60, "warning"), (0, "ok"), (60, "warning")])
def test_a_mount_with_another_clock_is_a_warning(root: Path, off: int, status: str) -> None:
    def shifted(script: Script) -> Completed:
        for file in (root / "target/cluster").iterdir():
            now = file.stat().st_mtime
            os.utime(file, (now + off, now + off))
        return answer(script)

    report = check(make_cluster(root, a=CU128), connect=fake_connect(FakeHost("a", shifted)))
    assert report.hosts["a"].status == status
    assert bad(report.hosts["a"]) == ([("file-time", "warning")] if off else [])
    assert report.as_json()["hosts"]["a"]["facts"]["mtime_skew_s"] in range(off - 1, off + 2)  # type: ignore[index]


def test_a_mount_that_shows_a_file_of_other_content_is_an_error(root: Path, tmp_path: Path) -> None:
    stale = tmp_path / "stale"

    def connect(worker: Worker, cancel: Cancel, note: object) -> Local:
        (stale / "target/cluster").mkdir(parents=True)
        for file in (root / "target/cluster").iterdir():
            (stale / "target/cluster" / file.name).write_text("from another day\n")
        return Local(worker.host, cancel)

    report = check(make_cluster(root, changes={"a": {"path": str(stale)}}, a=CU128), connect=connect)
    assert bad(report.hosts["a"]) == [("shared-mount", "error")] and "old" in report.errors[0].message


def test_a_mount_that_is_late_is_waited_for(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared, "PAUSE", "0.2")
    late = tmp_path / "late"
    late.mkdir()

    def connect(worker: Worker, cancel: Cancel, note: object) -> Local:
        threading.Timer(0.5, lambda: (late / "target").symlink_to(root / "target")).start()
        return Local(worker.host, cancel)

    report = check(make_cluster(root, changes={"a": {"path": str(late)}}, a=CU128), connect=connect)
    assert report.hosts["a"].status == "ok"


def test_an_unreachable_worker_without_libtorch_is_an_error_all_the_same(root: Path) -> None:
    gone = FakeHost("a", TransportError(Stage.CONNECT, "refused"))
    report = check(make_cluster(root, a="precompiled/cu126"), connect=fake_connect(gone))
    assert report.hosts["a"].status == "error" and bad(report.hosts["a"]) == [
        ("reach", "warning"),
        ("libtorch", "error"),
    ]


def test_mounts_only_asks_nothing_about_binaries(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")  # no cargo
    host = FakeHost("a", changed(ABI="\nppc64le", LDD="\nmusl libc"))
    report = check(make_cluster(root, a=None), connect=fake_connect(host), mounts_only=True, cmd=None)
    assert report.hosts["a"].status == report.hosts["controller"].status == "ok"
    assert "\nABI=0\n" in host.scripts[0].text


def test_a_worker_that_is_not_built_for_is_left_out_of_a_build(root: Path) -> None:
    cluster = make_cluster(root, changes={"arm": {"build": False}}, arm=None, a=CU128)
    fakes = fake_connect(FakeHost("arm", changed(ABI="\nppc64le")), FakeHost("a", answer))
    assert list(check(cluster, building=True, connect=fakes).hosts) == ["controller", "a"]
    arm = check(cluster, connect=fakes).hosts["arm"]
    assert arm.status == "ok" and {v.rule for v in arm.verdicts} == {
        "data-path",
        "path",
        "space",
        "shared-mount",
        "file-time",
    }


def test_the_controller_among_the_workers_is_not_probed_twice(root: Path) -> None:
    cluster = replace(make_cluster(root, controller="lead", here=CU128, lead=CU128, a=CU128), own_label="here")
    report = check(cluster, connect=fake_connect(FakeHost("a", answer)))
    assert list(report.hosts) == ["lead", "a"]


def test_events_tell_the_way_and_the_notes_of_the_connection(root: Path) -> None:
    events: list[Event] = []

    def connect(worker: Worker, cancel: Cancel, note: Callable[[str], None]) -> FakeHost:
        note("host key not checked")
        return FakeHost(worker.host, answer)

    check(make_cluster(root, a=CU128), connect=connect, progress=events.append)
    assert [event for event in events if event.host == "a"] == [
        Event("a", Kind.STATE, "probing"),
        Event("a", Kind.NOTE, "host key not checked"),
        Event("a", Kind.DONE, "ok"),
    ]


def test_the_json_has_the_documented_shape(root: Path) -> None:
    fakes = fake_connect(FakeHost("a", answer), FakeHost("b", TransportError(Stage.AUTH, "refused")))
    told: Any = json.loads(json.dumps(check(make_cluster(root, a=CU128, b=CU128), connect=fakes).as_json()))
    assert told["ok"] is True and list(told["hosts"]) == ["controller", "a", "b"]
    assert [list(one) for one in told["hosts"].values()] == [["status", "verdicts", "facts"]] * 3
    assert told["hosts"]["a"]["facts"] == {
        "data_path": {"directory": True, "listed": True},
        "path": True,
        "free_kib": 8000000,
        "shared": True,
        "mtime_skew_s": 0,
        "arch": platform.machine(),
        "libc": "glibc",
        "glibc": "2.34",
        "pkill": "present",
    }
    assert told["hosts"]["b"]["status"] == "unreachable" and told["hosts"]["b"]["facts"] == {}
    assert {"rule", "level", "message"} == set(told["hosts"]["b"]["verdicts"][0])


def test_ctrl_c_takes_the_fresh_files_away(root: Path) -> None:
    there: list[Path] = []

    def connect(worker: Worker, cancel: Cancel, note: object) -> FakeHost:
        there.extend((root / "target/cluster").iterdir())
        _thread.interrupt_main()
        threading.Event().wait(0.3)
        return FakeHost(worker.host, answer)

    with pytest.raises(KeyboardInterrupt):
        check(make_cluster(root, a=CU128), connect=connect)
    assert len(there) == shared.LOOKS and list((root / "target/cluster").iterdir()) == []


def test_a_worker_that_hangs_is_ended_by_the_time_limit(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fdl_tasks.checks.sweep.LIMIT", 1.0)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/ls").write_text("#!/bin/sh\nexec sleep 60\n")
    (tmp_path / "bin/ls").chmod(0o755)
    hanging: Connect = lambda worker, cancel, note: Local(  # noqa: E731
        worker.host, cancel, {"PATH": f"{tmp_path}/bin:{os.environ['PATH']}"}
    )
    report = check(make_cluster(root, a=CU128), connect=hanging)
    assert report.hosts["a"].status == "unreachable" and "time limit" in report.warnings[0].message
