"""What the tasks ask of a cluster: the controller, the workers, a selection, a command."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from fdl_tasks.cluster import Cluster, Command, Controller, Ssh, Worker
from fdl_tasks.errors import ConfigError, UsageError

FILE = Path("/conf/cluster.yml")


def cluster_of(*labels: str, own_label: str = "here") -> Cluster:
    workers = tuple(Worker(label, "/p", Ssh(label)) for label in labels)
    groups = {"spark": ("c", "a"), "none": ()}
    return Cluster(FILE, own_label, Controller("ctrl", Path("/p")), workers, groups=groups)


@pytest.mark.parametrize(
    ("hosts", "selected"),
    [
        ([], ["a", "b", "c"]),
        (["b"], ["b"]),
        (["c", "a", "c"], ["a", "c"]),
        (["spark"], ["a", "c"]),
        (["b", "spark"], ["a", "b", "c"]),
        (["none"], []),
    ],
)
def test_labels_and_groups_select_workers_in_the_order_of_the_file(hosts: Sequence[str], selected: list[str]) -> None:
    assert [worker.host for worker in cluster_of("a", "b", "c").select(hosts)] == selected


def test_an_unknown_host_is_refused_with_the_known_labels_and_groups() -> None:
    with pytest.raises(UsageError) as caught:
        cluster_of("a", "b").select(["a", "x", "10.0.0.1"])
    assert str(caught.value) == (
        "/conf/cluster.yml: 'x', '10.0.0.1' name no worker and no group\n"
        "  next: known workers: a, b; groups: spark, none"
    )
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("label", "is_it"), [("here", True), ("ctrl", True), ("node-a", False), ("127.0.0.1", False), ("HERE", False)]
)
def test_labels_decide_who_is_the_controller(label: str, is_it: bool) -> None:
    assert cluster_of().is_controller(label) is is_it


def test_without_a_controller_block_only_this_machines_own_label_is_the_controller() -> None:
    cluster = Cluster(FILE, "here")
    assert cluster.is_controller("here")
    assert not cluster.is_controller("ctrl")


def test_missing_keys_are_named_with_the_file_and_what_to_write() -> None:
    cluster = Cluster(FILE, "here")
    for need, key in ((cluster.need_controller, "controller"), (cluster.need_workers, "workers")):
        with pytest.raises(ConfigError, match=f"/conf/cluster.yml: `{key}:` is missing\n  next: write ") as caught:
            need()
        assert caught.value.exit_code == 2
    with pytest.raises(ConfigError, match="`workers:` is missing"):
        cluster.select([])


def test_no_workers_at_all_is_no_fault() -> None:
    assert cluster_of().need_workers() == ()
    assert cluster_of().select([]) == ()


def test_a_command_that_the_file_does_not_name_has_the_defaults() -> None:
    assert cluster_of().command("train") == Command("train", profile="release")


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/a", "a b", "-a", "a:b", "a\nb", "a\0"])
def test_a_command_may_not_be_named_like_a_path_or_an_option(name: str) -> None:
    with pytest.raises(UsageError, match="no name for a command"):
        cluster_of().command(name)


def test_values_of_env_are_not_in_the_text_of_the_values() -> None:
    worker = Worker("a", "/p", Ssh("a"), env={"TOKEN": "s3cret"})
    assert "s3cret" not in repr(Cluster(FILE, "here", None, (worker,), env={"TOKEN": "s3cret"}))
