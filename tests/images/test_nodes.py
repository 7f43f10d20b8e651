"""The nodes of a run: who they are, connected once, asked together, an outcome each."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from fdl_tasks.cluster.model import Worker
from fdl_tasks.errors import Cancelled, ConfigError, FdlError, UsageError
from fdl_tasks.hosts.base import Host
from fdl_tasks.hosts.fanout import Cancel
from fdl_tasks.images.nodes import Nodes, members
from fdl_tasks.outcome import Event, Kind
from fdl_tasks.testing import FakeHost, fake_connect, make_cluster


def workers(root: Path) -> tuple[Worker, ...]:
    return members(make_cluster(root, a=None, b=None, c=None), ())


def test_all_workers_unless_some_are_named_and_this_machine_needs_no_ssh(tmp_path: Path) -> None:
    cluster = make_cluster(tmp_path, controller="b", changes={"a": {"transport": "ssh"}, "b": {"transport": "ssh"}},
                           a=None, b=None)  # fmt: skip
    assert [(one.host, one.transport) for one in members(cluster, ())] == [("a", "ssh"), ("b", "local")]
    assert [one.host for one in members(replace(cluster, groups={"some": ("b",)}), ("some",))] == ["b"]


def test_a_name_that_is_none_and_no_workers_at_all_are_errors(tmp_path: Path) -> None:
    cluster = make_cluster(tmp_path, a=None)
    with pytest.raises(UsageError, match="'nobody' names no worker"):
        members(cluster, ("nobody",))
    with pytest.raises(ConfigError):
        members(replace(cluster, workers=None), ())


def test_each_is_connected_once_and_closed_when_all_is_done(tmp_path: Path) -> None:
    hosts = [FakeHost(label) for label in "abc"]
    made: list[str] = []

    def connect(worker: Worker, cancel: Cancel, note: Callable[[str], None]) -> Host:
        made.append(worker.host)
        return fake_connect(*hosts)(worker, cancel, note)

    with pytest.raises(RuntimeError), Nodes(workers(tmp_path), connect=connect) as nodes:
        for _ in range(3):
            nodes.each(lambda node, host, cancel: host.label)
        assert not any(host.closed for host in hosts)
        raise RuntimeError
    assert (made, [host.closed for host in hosts]) == (["a", "b", "c"], [True] * 3)


def test_outcomes_come_in_order_and_an_error_is_one_of_them(tmp_path: Path) -> None:
    def deed(node: Worker, host: Host, cancel: Cancel) -> str:
        if node.host == "b":
            raise OSError("b is odd")
        return host.label

    with Nodes(workers(tmp_path), connect=fake_connect(*map(FakeHost, "abc")), width=2) as nodes:
        found = nodes.each(deed)
        assert [(label, one.value, str(one.error or "")) for label, one in found.items()] == [
            ("a", "a", ""),
            ("b", None, "b is odd"),
            ("c", "c", ""),
        ]
        assert list(nodes.each(deed, ["c", "a"])) == ["c", "a"]
        assert nodes.each(deed, []) == {}


def test_ctrl_c_in_one_ends_the_run(tmp_path: Path) -> None:
    def deed(node: Worker, host: Host, cancel: Cancel) -> None:
        if node.host == "b":
            raise Cancelled("ended by the user")

    with (
        pytest.raises(Cancelled),
        Nodes(workers(tmp_path), connect=fake_connect(*map(FakeHost, "abc"))) as nodes,
    ):
        nodes.each(deed)


def test_two_things_are_done_side_by_side_and_give_both_their_values(tmp_path: Path) -> None:
    met = threading.Barrier(2, timeout=10)
    with Nodes(workers(tmp_path), connect=fake_connect(*map(FakeHost, "abc"))) as nodes:
        assert nodes.both(lambda: ("one", met.wait() < 2), lambda: ("other", met.wait() < 2)) == (
            ("one", True),
            ("other", True),
        )


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("error", [FdlError("no"), Cancelled("ended by the user")])
def test_an_error_of_either_is_raised_when_both_have_ended(tmp_path: Path, which: int, error: FdlError) -> None:
    done = list[int]()

    def deed(number: int) -> None:
        if number == which:
            raise error
        time.sleep(0.1)
        done.append(number)

    with (
        pytest.raises(type(error)),
        Nodes(workers(tmp_path), connect=fake_connect(*map(FakeHost, "abc"))) as nodes,
    ):
        nodes.both(lambda: deed(0), lambda: deed(1))
    assert done == [1 - which]


def test_what_a_connection_notes_is_told_of_its_node(tmp_path: Path) -> None:
    events: list[Event] = []

    def connect(worker: Worker, cancel: Cancel, note: Callable[[str], None]) -> Host:
        note("BatchMode=no is overruled")
        return FakeHost(worker.host)

    Nodes(workers(tmp_path)[:1], connect=connect, progress=events.append)
    assert events == [Event("a", Kind.NOTE, "BatchMode=no is overruled")]
