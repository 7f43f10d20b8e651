"""More targets than one node serves: wave after wave, on nodes that are not there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fdl_tasks.errors import Stage, TransportError
from fdl_tasks.images import tree
from fdl_tasks.images.result import SyncReport
from fdl_tasks.images.sync import sync_image
from fdl_tasks.testing import Completed, fake_connect
from tests.images.making import sha
from tests.images.nodes import CONTAINERD, INFO, Node, ended, made_known, said, shown

LOST = TransportError(Stage.LOST, "the link broke")
FULL = ended(1, ["__FDL_LOAD__", "write: no space left on device", "__FDL_LOADED__ 1"])


@pytest.fixture(autouse=True)
def _worth(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree, "WORTH", 0)


def fleet(targets: int) -> dict[str, Node]:
    """``s`` has the image, ``t1 t2 …`` do not; all have containerd stores."""
    nodes = {"s": Node("s", shown("xyz")), **{f"t{n}": Node(f"t{n}") for n in range(1, targets + 1)}}
    for node in nodes.values():
        node.info = CONTAINERD
    return nodes


def sync(root: Path, nodes: dict[str, Node], **how: Any) -> SyncReport:
    known = list(nodes.values())
    return sync_image(made_known(root, *known), image="app:1", source="s", connect=fake_connect(*known), **how)


def sent(nodes: dict[str, Node]) -> dict[str, list[str]]:
    """The targets of every pass, by sender, one after another."""
    return {label: [" ".join(job["targets"]) for job in node.jobs] for label, node in nodes.items() if node.jobs}


def test_up_to_eight_targets_there_is_one_source_and_one_pass_and_one_proof(tmp_path: Path) -> None:
    nodes = fleet(8)
    report = sync(tmp_path, nodes)
    assert report.ok
    assert sent(nodes) == {"s": ["t1 t2 t3 t4 t5 t6 t7 t8"]}
    asked = nodes["s"].asked
    assert (asked[0], sorted(asked[1:3]), asked[3:]) == ("probe", ["verify", "ways"], ["send"])
    assert all(node.asked == ["probe", "verify"] for label, node in nodes.items() if label != "s")
    assert all(node.notes == () for node in report.nodes.values())


def test_of_a_small_image_the_source_serves_any_number_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree, "WORTH", (4 * 50 << 20) + 1)
    nodes = fleet(12)
    assert sync(tmp_path, nodes).ok
    assert list(sent(nodes)) == ["s"] and len(nodes["s"].jobs) == 1


def test_with_more_those_that_have_it_send_it_on_and_each_is_proven_once(tmp_path: Path) -> None:
    nodes = fleet(12)
    report = sync(tmp_path, nodes)
    assert report.ok
    assert sent(nodes) == {
        "s": ["t1 t2 t3 t4 t5 t6 t7 t8", "t9"], "t1": ["t10"], "t2": ["t11"], "t3": ["t12"],
    }  # fmt: skip
    assert report.nodes["t9"].notes == () and report.nodes["t10"].notes == ("from t1",)
    assert report.nodes["t10"].address == nodes["t10"].settings.hostname  # type: ignore[union-attr]
    assert {node.asked.count("verify") for node in nodes.values()} == {1}
    job = nodes["t1"].jobs[0]
    assert (job["image"], job["vouched"]) == (sha("xyz"), [sha("xyz")])


def test_who_does_not_prove_whole_or_has_no_python_sends_to_nobody(tmp_path: Path) -> None:
    nodes = fleet(11)
    nodes["t1"].odd["verify"] = [said(("IMAGE", json.dumps(shown("xyz"))), ("RAN", "1 exec format error"))]
    nodes["t2"].python = ""
    nodes["t3"].odd["verify"] = [LOST]
    report = sync(tmp_path, nodes)
    assert [node.node for node in report.failed] == ["t1", "t3"]
    assert sent(nodes) == {"s": ["t1 t2 t3 t4 t5 t6 t7 t8", "t9"], "t4": ["t10"], "t5": ["t11"]}
    assert nodes["t1"].asked == ["probe", "verify"], "what is proven broken is not proven twice"


def test_those_in_sync_from_the_beginning_send_at_once_when_there_are_many(tmp_path: Path) -> None:
    nodes = fleet(11)
    nodes["t1"].shown = shown("xyz")
    report = sync(tmp_path, nodes)
    assert report.ok and report.nodes["t1"].status == "in-sync"
    assert sent(nodes) == {"s": ["t2 t4 t6 t8 t10"], "t1": ["t3 t5 t7 t9 t11"]}


@pytest.mark.parametrize("trouble", ["lost", "no way", "no key", "no push", "the program"])
def test_whom_another_node_fails_the_source_serves_and_the_others_go_on(tmp_path: Path, trouble: str) -> None:
    nodes = fleet(12)
    t1, failed = nodes["t1"], [{"end": True, "error": "docker push ended with 1"}]
    answers: dict[str, tuple[str, Completed | Exception]] = {
        "lost": ("send", LOST),
        "no way": ("ways", LOST),
        "no key": ("ways", said(("WAY", "0 255 root@10.77.0.1: Permission denied (publickey)."))),
        "no push": ("send", Completed(0, json.dumps(failed[0]) + "\n", "", 0.1)),
        "the program": ("send", Completed(137, "", "Killed", 0.1)),
    }
    deed, answer = answers[trouble]
    t1.odd[deed] = [answer]
    report = sync(tmp_path, nodes)
    assert report.ok
    assert sent(nodes) == {"s": ["t1 t2 t3 t4 t5 t6 t7 t8", "t9", "t10"], "t2": ["t11"], "t3": ["t12"]}
    [note] = report.nodes["t10"].notes
    assert note.startswith("t1 could not send it on (") and note.endswith("), so s was to")
    assert report.nodes["t11"].notes == ("from t2",)
    assert t1.asked.count("send") == (deed == "send"), "the archive's plan is the source's: no other node tries it"


def test_who_served_nobody_is_not_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree, "WIDTH", 2)
    nodes = fleet(12)
    nodes["t1"].odd["ways"] = [LOST]
    assert sync(tmp_path, nodes).ok
    assert sent(nodes) == {
        **{"s": ["t1 t2", "t3 t6", "t4 t7"], "t2": ["t5 t8", "t9"], "t3": ["t10"], "t6": ["t11"], "t5": ["t12"]},
    }
    assert nodes["t1"].asked.count("ways") == 1


def test_when_no_other_node_can_send_the_source_sends_all_of_the_rest_at_once(tmp_path: Path) -> None:
    nodes = fleet(20)
    for label in (f"t{n}" for n in range(1, 9)):
        nodes[label].python = ""
    assert sync(tmp_path, nodes).ok
    first, second = sent(nodes)["s"]
    assert (len(first.split()), len(second.split())) == (8, 12)


def test_a_full_disk_is_final_whoever_sends(tmp_path: Path) -> None:
    nodes = fleet(10)
    nodes["t1"].ends["t10"] = [FULL]
    report = sync(tmp_path, nodes)
    assert [node.node for node in report.failed] == ["t10"]
    assert "no room: " in (report.failed[0].error or "")
    assert sent(nodes)["s"] == ["t1 t2 t3 t4 t5 t6 t7 t8", "t9"]


@pytest.mark.parametrize(
    "end", [ended(None, [], error="the others waited for it", late=True), ended(255, ["Connection reset"])]
)
def test_who_is_too_slow_for_the_first_wave_holds_up_nobody(tmp_path: Path, end: dict[str, Any]) -> None:
    nodes = fleet(12)
    nodes["s"].ends["t1"] = [end, end]
    report = sync(tmp_path, nodes)
    assert report.ok
    assert sent(nodes) == {
        **{"s": ["t1 t2 t3 t4 t5 t6 t7 t8", "t1", "t1"], "t2": ["t9"], "t3": ["t10"], "t4": ["t11"], "t5": ["t12"]},
    }, "a pass of its own comes last"
    assert "so it was left for later" in report.nodes["t1"].notes[0]
    assert nodes["s"].asked.count("ways") == 2, "a way that was good before is tried again"


def test_in_the_last_wave_who_was_cut_off_twice_has_failed(tmp_path: Path) -> None:
    nodes = fleet(2)
    nodes["s"].ends["t1"] = [ended(255, ["Connection reset"])] * 2
    report = sync(tmp_path, nodes)
    assert [node.node for node in report.failed] == ["t1"]
    assert sent(nodes) == {"s": ["t1 t2", "t1"]}


def test_who_is_too_slow_for_another_node_comes_from_the_source(tmp_path: Path) -> None:
    nodes = fleet(18)
    nodes["t1"].ends["t10"] = [ended(None, [], error="the others waited for it", late=True)]
    assert sync(tmp_path, nodes).ok
    assert (sent(nodes)["t1"], sent(nodes)["s"][1:]) == (["t10"], ["t9 t18", "t10"])


def test_the_archive_comes_from_the_source_while_the_others_send_on(tmp_path: Path) -> None:
    nodes = fleet(12)
    nodes["t5"].info = INFO
    report = sync(tmp_path, nodes)
    assert report.ok and report.nodes["t5"].transport == "archive"
    found = sent(nodes)
    assert found["s"] == ["t1 t2 t3 t4 t6 t7 t8 t9", "t5"]
    assert sorted(found) == ["s", "t1", "t2", "t3"]


def test_a_plan_says_who_gets_it_later(tmp_path: Path) -> None:
    nodes = fleet(9)
    report = sync(tmp_path, nodes, plan_only=True)
    assert report.plan
    notes = {step.target: step.notes for step in report.plan.steps}
    assert notes.pop("t9") == (tree.LATER.format(source="s"),)
    assert set(notes.values()) == {()}


def test_only_the_first_pass_yields_to_another_run(tmp_path: Path) -> None:
    nodes = fleet(11)
    sync(tmp_path, nodes)
    yields = {
        label: ["FDL_YIELD=1\n" in script.text for script in node.scripts if script.name == "images/send.sh"]
        for label, node in nodes.items()
    }
    assert {label: found for label, found in yields.items() if found} == {
        "s": [True, False], "t1": [False], "t2": [False],
    }  # fmt: skip


def test_a_copy_of_equal_content_is_sent_on_by_the_name_that_its_own_docker_has_for_it(tmp_path: Path) -> None:
    nodes = fleet(10)
    other = {**shown("xyz"), "Id": sha("other")}
    t1 = nodes["t1"]

    def looked() -> Completed:
        t1.shown = other
        return said(("IMAGE", json.dumps(other)), ("RAN", "0 "))

    t1.odd["verify"] = [looked]
    assert sync(tmp_path, nodes).ok
    assert nodes["t1"].asked == ["probe", "verify", "probe", "ways", "send"]
    assert nodes["t1"].jobs[0]["vouched"] == [sha("other")]
