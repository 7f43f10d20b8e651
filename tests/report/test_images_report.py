"""Images on nodes, as people and programs get them."""

from __future__ import annotations

from typing import Any

from fdl_tasks.images.facts import ImageFacts, NodeFacts
from fdl_tasks.images.plan import Plan, Step
from fdl_tasks.images.result import Fate, NodeOutcome, SyncReport
from fdl_tasks.report.images import (
    images_json,
    images_table,
    plan_json,
    plan_table,
    sync_failures,
    sync_table,
)
from fdl_tasks.report.masking import Masker

PLAIN = Masker()
ID, OLD = f"sha256:{'a' * 64}", f"sha256:{'b' * 64}"
MIB = 1 << 20
NODES = {
    "c": NodeOutcome("c", Fate.FAILED, error="no room: it needs 3 MiB"),
    "b": NodeOutcome("b", Fate.SYNCED, "delta", "archive", 5 * MIB, 2.25, "10.78.0.2", "same id", ("dead fabric",)),
    "d": NodeOutcome("d", Fate.IN_SYNC, identity="same content"),
    "a": NodeOutcome("a", Fate.SOURCE, identity="same id"),
}
REPORT = SyncReport("app:1", "a", "the only node that has it", NODES)


def test_one_row_a_node_failures_last_and_the_source_and_its_reason_below() -> None:
    assert sync_table(REPORT, PLAIN, None) == (
        "node  status   mode   sent     seconds  over       proof\n"
        "a     source                                       same id\n"
        "d     in-sync                                      same content\n"
        "b     synced   delta  5.0 MiB      2.2  10.78.0.2  same id\n"
        "                                                   dead fabric\n"
        "c     failed                                       no room: it needs 3 MiB\n"
        "\n"
        "app:1 from a (the only node that has it): 1 source, 1 in-sync, 1 synced, 1 failed"
    )


def test_every_failure_is_told_with_its_reason_and_counted() -> None:
    nodes = {**NODES, "e": NodeOutcome("e", Fate.FAILED, error="off")}
    assert sync_failures(SyncReport("app:1", "a", "", nodes)) == (
        "c: no room: it needs 3 MiB\ne: off\napp:1: 2 of 5 nodes failed: c, e"
    )


def plan_of(*steps: Step, failed: dict[str, NodeOutcome] | None = None) -> str:
    return plan_table(SyncReport("app:1", "a", "named as the source", failed or {}, Plan("a", steps)), PLAIN, None)


def test_a_plan_says_what_would_be_done_and_why_not() -> None:
    table = plan_of(
        Step("b", "delta", bytes=5 * MIB, why="3 of 4 layers are there, in base:1", address="10.78.0.2"),
        Step("d", "in-sync", proof="same id"),
        Step("e", "full", error="no room: the image needs about 9 MiB in /x"),
        failed={"c": NodeOutcome("c", Fate.FAILED, error="connect: refused")},
    )
    assert table == (
        "node  mode     transport  bytes     why\n"
        "b     delta    archive    ~5.0 MiB  3 of 4 layers are there, in base:1; by 10.78.0.2\n"
        "d     in-sync  -          -         same id\n"
        "e     failed   archive    ~0 KiB    no room: the image needs about 9 MiB in /x\n"
        "c     failed   -          -         connect: refused\n"
        "\n"
        "app:1 from a (named as the source): 1 node to change, 1 can't be"
    )


def test_the_json_of_a_plan_has_every_node_in_the_shape_of_a_sync() -> None:
    steps = (
        Step("b", "delta", bytes=5, why="3 of 4 layers are there", address="10.78.0.2", replaces=OLD),
        Step("d", "in-sync", proof="same id"),
        Step("e", "full", bytes=9, error="no room"),
        Step("f", "tag", base=ID, bytes=0, proof="same content", why="it is there already"),
    )
    failed = {"c": NodeOutcome("c", Fate.FAILED, error="off")}
    shown: Any = plan_json(SyncReport("app:1", "a", "named as the source", failed, Plan("a", steps)))
    found = {
        label: (node["status"], node["mode"], node["transport"], node["bytes"], node["error"])
        for label, node in shown["nodes"].items()
    }
    assert found == {
        "a": ("source", None, None, 0, None),
        "b": ("planned", "delta", "archive", 5, None),
        "c": ("failed", None, None, 0, "off"),
        "d": ("in-sync", None, None, 0, None),
        "e": ("failed", "full", "archive", 9, "no room"),
        "f": ("planned", "tag", None, 0, None),
    }
    assert [node["address"] for node in shown["nodes"].values() if node["address"]] == ["10.78.0.2"]
    assert shown["nodes"]["b"]["notes"] == ["3 of 4 layers are there", f"the name now means {OLD}"]
    assert shown["source"] == "a"


def test_a_plan_of_which_nothing_can_be_done_does_not_say_that_all_is_there() -> None:
    assert plan_of(Step("b", "full", error="no room")).endswith(": 0 nodes to change, 1 can't be")


def test_an_empty_plan_says_that_there_is_nothing_to_do() -> None:
    last = plan_of(Step("b", "in-sync", proof="same id")).splitlines()[-1]
    assert last.endswith(": nothing to do: every node that could be asked has it")


def image(**fields: Any) -> ImageFacts:
    known = {"id": ID, "layers": ("sha256:1",), "os": "linux", "architecture": "amd64", "variant": "", "config": "{}"}
    return ImageFacts(
        **{
            **known,
            "created": "2026-11-30T13:38:41.46758Z",
            "repo_tags": (),
            "repo_digests": (),
            "size": 5 * MIB,
            **fields,
        }
    )


FOUND = (
    NodeFacts("a", server="28.5.2", store="containerd", image=image(), complete=True),
    NodeFacts("b", store="graphdriver", image=image(id=OLD), complete=None),
    NodeFacts("c", store="containerd", image=image(), complete=False, flaw="its store lacks it"),
    NodeFacts("d", store="containerd", image=image(), complete=True, startable=False, flaw="no space left"),
    NodeFacts("e", store="graphdriver"),
    NodeFacts("f", error="docker says: no"),
)


def test_what_each_node_has_and_only_whole_copies_are_counted() -> None:
    assert images_table(FOUND, PLAIN, None) == (
        "node  id            content       created              complete  store        size     about\n"
        "a     aaaaaaaaaaaa  f521bfb7b4fb  2026-11-30 13:38:41  yes       containerd   5.0 MiB\n"
        "b     bbbbbbbbbbbb  f521bfb7b4fb  2026-11-30 13:38:41  unknown   graphdriver  5.0 MiB\n"
        "c     aaaaaaaaaaaa  f521bfb7b4fb  2026-11-30 13:38:41  no        containerd   5.0 MiB  its store lacks it\n"
        "d     aaaaaaaaaaaa  f521bfb7b4fb  2026-11-30 13:38:41  no        containerd   5.0 MiB  no space left\n"
        "e     -             -             -                    -         graphdriver  -        does not have it\n"
        "f     -             -             -                    -         -            -        docker says: no\n"
        "\n"
        "2 of 6 nodes have it; of 1 only a container tells whether it is whole"
    )
    assert images_table(FOUND[:1], PLAIN, None).endswith("\n\n1 of 1 node has it whole")


def test_programs_get_whole_ids_bytes_and_null_for_what_is_not_known() -> None:
    nodes: Any = images_json(FOUND)["nodes"]
    assert nodes["a"] == {
        "id": ID,
        "content": "f521bfb7b4fb",
        "created": "2026-11-30T13:38:41.46758Z",
        "complete": True,
        "store": "containerd",
        "server": "28.5.2",
        "size": 5 * MIB,
        "layers": ["sha256:1"],
        "flaw": None,
        "error": None,
    }
    assert [nodes[label]["complete"] for label in "abcdef"] == [True, None, False, False, None, None]
    assert (nodes["e"]["id"], nodes["e"]["error"], nodes["f"]["error"]) == (None, None, "docker says: no")


def test_no_secret_and_no_control_character_of_a_node_is_shown() -> None:
    mask = Masker({"hunter2hunter2"})
    bad = "\x1b[31mtoken hunter2hunter2"
    failed = {"c": NodeOutcome("c", Fate.FAILED, error=bad)}
    tables = [
        sync_table(SyncReport("app:1", "a", "", failed), mask, None),
        plan_table(SyncReport("app:1", "a", "", failed, Plan("a", (Step("b", "full", why=bad),))), mask, None),
        images_table([NodeFacts("c", error=bad)], mask, None),
        images_table([NodeFacts("c", store="graphdriver", image=image(created=bad))], mask, None),
    ]
    for table in tables:
        assert "hunter2" not in table
        assert "\x1b" not in table
        assert "***" in table
