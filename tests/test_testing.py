from __future__ import annotations

from pathlib import Path

import pytest

from fdl_tasks.errors import Stage, TransportError
from fdl_tasks.hosts.base import Host
from fdl_tasks.hosts.fanout import Cancel
from fdl_tasks.scripts import Script
from fdl_tasks.testing import Completed, FakeHost, fake_connect, make_cluster

SCRIPT = Script("x.sh", "true\n")


def test_a_fake_host_answers_in_turn_and_the_last_answer_stays() -> None:
    lost = TransportError(Stage.LOST, "gone")
    host = FakeHost("a", Completed(0, "one", "", 0.1), lost, lambda script: Completed(3, script.name, "", 0.1))
    assert host.run(SCRIPT, limit=1).out == "one"
    with pytest.raises(TransportError):
        host.run(SCRIPT, limit=1)
    assert [host.run(SCRIPT, limit=1).out for _ in range(2)] == ["x.sh", "x.sh"]
    assert host.scripts == [SCRIPT] * 4


def test_a_fake_host_is_a_host_and_passes_lines_on() -> None:
    said: list[tuple[str, str]] = []
    with FakeHost("a", Completed(0, "one\ntwo\n", "oops\n", 0.1)) as host:
        as_host: Host = host
        as_host.run(SCRIPT, limit=1, on_line=lambda stream, line: said.append((stream, line)))
    assert said == [("out", "one"), ("out", "two"), ("err", "oops")]
    assert host.closed


def test_a_made_cluster_has_local_workers_and_takes_changes(tmp_path: Path) -> None:
    cluster = make_cluster(tmp_path, changes={"b": {"transport": "ssh", "build": False}}, a="precompiled/cpu", b=None)
    workers = cluster.need_workers()
    assert [(w.host, w.arch, w.transport, w.build) for w in workers] == [
        ("a", "precompiled/cpu", "local", True),
        ("b", None, "ssh", False),
    ]
    assert cluster.is_controller("controller")


def test_a_change_for_nobody_is_a_mistake(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no worker: c"):
        make_cluster(tmp_path, changes={"c": {}}, a=None)


def test_a_fake_connection_knows_its_hosts_only(tmp_path: Path) -> None:
    a, b = make_cluster(tmp_path, a=None, b=None).need_workers()
    host = FakeHost("a")
    connect = fake_connect(host)
    assert connect(a, Cancel(), print) is host
    with pytest.raises(KeyError):
        connect(b, Cancel(), print)
