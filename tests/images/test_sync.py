"""The whole pipeline on nodes that are not there: what is asked of whom, and what becomes of every node."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fdl_tasks.cluster.image import ImageRef
from fdl_tasks.cluster.model import Recipe
from fdl_tasks.errors import ConfigError, FdlError, ScriptError, Stage, TransportError, UsageError
from fdl_tasks.images.probe import look
from fdl_tasks.images.result import Fate, SyncReport
from fdl_tasks.images.source import SourceError
from fdl_tasks.images.sync import ensure_image, sync_image
from fdl_tasks.outcome import Event, Kind
from fdl_tasks.testing import Completed, fake_connect
from tests.images.making import sha
from tests.images.nodes import CONTAINERD, Node, ended, looked, made_known, said, shown

LOST = TransportError(Stage.LOST, "the link broke")
NOT_WHOLE = looked(shown("xyz"), "125 content digest not found", "1 content digest not found")
TOO_OLD = looked(shown("xyz"), "1 too old")


def sync(root: Path, *nodes: Node, changes: Any = None, **how: Any) -> SyncReport:
    how.setdefault("image", "app:1")
    return sync_image(made_known(root, *nodes, changes=changes), connect=fake_connect(*nodes), **how)


def fates(report: SyncReport) -> dict[str, str]:
    return {label: str(node.status) for label, node in report.nodes.items()}


def error(report: SyncReport, label: str) -> str:
    assert report.nodes[label].status is Fate.FAILED
    return report.nodes[label].error or ""


def test_the_image_goes_from_the_node_that_has_it_to_all_others_and_is_looked_at_everywhere(tmp_path: Path) -> None:
    a, b, c = Node("a", shown("xyz")), Node("b"), Node("c", shown("xyz"))
    report = sync(tmp_path, b, a, c)
    assert fates(report) == {"b": "synced", "a": "source", "c": "in-sync"}
    assert (report.source, report.reason, report.ok) == ("a", "every copy has the same content", True)
    assert (a.asked[:2], sorted(a.asked[2:4]), a.asked[4:]) == (["probe"] * 2, ["verify", "ways"], ["send"])
    assert b.asked == ["probe", "verify"]
    assert c.asked == ["probe", "probe", "verify"]
    synced = report.nodes["b"]
    assert (synced.mode, synced.transport, synced.bytes, synced.seconds) == ("full", "archive", 4 << 20, 2.0)
    assert (synced.address, synced.identity) == (f"10.77.0.{ord('b')}", "same id")
    assert all(node.closed for node in (a, b, c))


def test_when_all_have_it_nothing_is_sent_and_a_container_is_started_on_each(tmp_path: Path) -> None:
    nodes = [Node(label, shown("xyz")) for label in "abc"]
    report = sync(tmp_path, *nodes)
    assert fates(report) == {"a": "source", "b": "in-sync", "c": "in-sync"}
    assert report.plan and report.plan.todo == ()
    assert all(node.asked == ["probe", "verify"] and "BRIEF=1\n" in node.scripts[0].text for node in nodes)


def test_a_source_whose_copy_does_not_start_yields_to_the_next_and_is_told(tmp_path: Path) -> None:
    a, b, c = Node("a", shown("xyz")), Node("b", shown("xyz")), Node("c")
    a.odd["verify"] = [looked(shown("xyz"), "1 exec format error")] * 2
    report = sync(tmp_path, a, b, c)
    assert fates(report) == {"a": "failed", "b": "source", "c": "synced"}
    assert "exec format error" in error(report, "a")
    assert "send" not in a.asked and b.asked.count("ways") == 1


def test_the_ways_are_tried_while_the_source_proves_and_once(tmp_path: Path) -> None:
    a, b, met = Node("a", shown("xyz")), Node("b"), threading.Barrier(2, timeout=10)

    def beside(answer: Callable[[], Completed]) -> Callable[[], Completed]:
        return lambda: answer() if met.wait() is not None else said()

    a.odd["verify"], a.odd["ways"] = [beside(a._verify)], [beside(a._ways)]
    assert sync(tmp_path, a, b).ok
    assert a.asked.count("ways") == 1


@pytest.mark.parametrize("trouble", [LOST, said(("NOSSH", ""))])
def test_a_source_that_finds_no_way_is_told_of_every_target(tmp_path: Path, trouble: Completed | Exception) -> None:
    a, b, c = Node("a", shown("xyz")), Node("b"), Node("c")
    a.odd["ways"] = [trouble]
    report = sync(tmp_path, a, b, c)
    assert fates(report) == {"a": "source", "b": "failed", "c": "failed"}
    assert error(report, "b") == error(report, "c") and error(report, "b").startswith("the source a: ")
    assert "a: a:" not in error(report, "b") and "send" not in a.asked


def test_when_no_copy_starts_the_error_says_why_of_each(tmp_path: Path) -> None:
    a, b = Node("a", shown("xyz")), Node("b", shown("xyz"))
    a.odd["verify"], b.odd["verify"] = [TOO_OLD], [LOST, LOST]
    with pytest.raises(SourceError) as caught:
        sync(tmp_path, a, b, Node("c"))
    assert "no node has a copy that starts: a: " in caught.value.what
    assert "too old" in caught.value.what and "; b: connection lost" in caught.value.what


def test_those_in_sync_are_proven_beside_the_source_and_judged_again_by_it_where_their_probe_failed(
    tmp_path: Path,
) -> None:
    bare = looked(shown("xyz"), '127 exec: "/bin/sh": no such file or directory', "0 abc")
    a, b, c = (Node(name, shown("xyz")) for name in "abc")
    c.odd["verify"] = [bare]
    report = sync(tmp_path, a, b, c)
    assert [report.nodes[name].status for name in "abc"] == [Fate.SOURCE, Fate.IN_SYNC, Fate.IN_SYNC]
    assert report.nodes["c"].notes == (), "the source has a shell, so a second look has to show one there too"


def base_and_target() -> tuple[Node, Node]:
    """A source, and a target that has the two lower layers of its image under another name."""
    return Node("a", shown("xyz")), Node("b", None, [shown("xy", tags=["base:1"])])


def test_what_is_there_is_left_out(tmp_path: Path) -> None:
    a, b = base_and_target()
    report = sync(tmp_path, a, b)
    assert report.nodes["b"].mode == "delta"
    names = [f"blobs/sha256/{sha(letter)[7:]}" for letter in "xy"]
    assert a.jobs[0]["groups"] == [{"targets": ["b"], "omit": sorted(names), "base": None}]


def test_a_delta_that_does_not_prove_whole_is_followed_by_all_of_it(tmp_path: Path) -> None:
    a, b = base_and_target()
    b.odd["verify"] = [NOT_WHOLE]
    report = sync(tmp_path, a, b)
    assert fates(report) == {"a": "source", "b": "synced"}
    assert [job["groups"][0]["omit"] == [] for job in a.jobs] == [False, True]
    assert report.nodes["b"].mode == "full"
    assert "did not prove whole" in " ".join(report.nodes["b"].notes)


def test_all_of_it_is_sent_again_once_only(tmp_path: Path) -> None:
    a, b = base_and_target()
    b.odd["verify"] = [NOT_WHOLE, NOT_WHOLE, NOT_WHOLE]
    report = sync(tmp_path, a, b)
    assert len(a.jobs) == 2
    assert "content digest not found" in error(report, "b")


@pytest.mark.parametrize(
    "found",
    [
        looked(shown("xyz"), "125 no space left on device", "1 write /x: no space left on device"),
        looked(shown("pqr")),
    ],
    ids=["full disk", "another image"],
)
def test_what_sending_again_cannot_mend_is_not_sent_again(tmp_path: Path, found: Completed) -> None:
    a, b = base_and_target()
    b.odd["verify"] = [found] * 2
    assert fates(sync(tmp_path, a, b))["b"] == "failed"
    assert len(a.jobs) == 1


def test_what_was_sent_whole_is_not_sent_again(tmp_path: Path) -> None:
    a, b = Node("a", shown("xyz")), Node("b")
    b.odd["verify"] = [NOT_WHOLE, NOT_WHOLE]
    assert fates(sync(tmp_path, a, b))["b"] == "failed"
    assert len(a.jobs) == 1


@pytest.mark.parametrize("head", ["", "blobs/ blobs/sha256/ blobs/sha256/aa"], ids=["unknown", "begins well"])
def test_a_copy_that_looked_right_and_is_not_whole_is_sent_anew(tmp_path: Path, head: str) -> None:
    a, b, c = (Node(name, shown("xyz")) for name in "abc")
    a.info = b.info = c.info = CONTAINERD
    b.odd["probe"] = [b._probe(brief=True), said(("ARCHIVE", head), *b.facts())]
    b.odd["verify"] = [NOT_WHOLE]
    report = sync(tmp_path, a, b, c)
    assert (report.nodes["b"].status, report.nodes["b"].mode, len(a.jobs)) == (Fate.SYNCED, "full", 1)
    assert report.nodes["b"].transport == "archive" and "lacks content" in " ".join(report.nodes["b"].notes)
    assert [node.asked for node in (a, b, c)] == [
        ["probe", "verify", "probe", "ways", "send"],
        ["probe", "verify", "probe", "verify"],
        ["probe", "verify", "probe"],
    ]


def test_a_copy_of_a_graphdriver_store_that_is_not_whole_is_an_error_since_its_loader_mends_none(
    tmp_path: Path,
) -> None:
    a, b = Node("a", shown("xyz")), Node("b", shown("xyz"))
    b.odd["verify"] = [looked(shown("xyz"), "125 layer does not exist", "1 layer does not exist")]
    assert "would not help" in error(sync(tmp_path, a, b), "b") and a.jobs == []


def test_a_source_that_starts_and_cannot_be_saved_yields_to_the_next(tmp_path: Path) -> None:
    a, b, c = Node("a", shown("xyz")), Node("b", shown("xyz")), Node("c")
    a.info = b.info = CONTAINERD
    a.odd["probe"] = [a._probe(brief=True), said(("ARCHIVE", "no suitable export target found"), *a.facts())]
    report = sync(tmp_path, a, b, c)
    assert fates(report) == {"a": "synced", "b": "source", "c": "synced"}, "and is healed"
    assert "lacks content" in " ".join(report.nodes["a"].notes)


def test_a_note_is_told_once_however_often_it_came_up(tmp_path: Path) -> None:
    a, b = base_and_target()
    b.odd["verify"] = [NOT_WHOLE]
    a.odd["ways"] = [said(("WAY", "0 255 timed out"), ("WAY", "1 0 "))] * 2
    notes = sync(tmp_path, a, b, changes={"b": {"fabric_ip": "10.78.0.2"}}).nodes["b"].notes
    assert [note for note in notes if "fabric address" in note] == [
        "fabric address 10.78.0.2 port 22 failed (timed out)"
    ]


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (LOST, "connection lost: the link broke"),
        (ScriptError("it did not arrive whole"), "did not arrive whole"),
        (OSError("no such thing"), "OSError: no such thing"),
        (
            Completed(0, "Welcome!\n", "sh: docker: boom\n", 0.1),
            "cut off or mixed with other output (sh: docker:",
        ),
        (said(("REFUSED", "Cannot connect to the Docker daemon")), "docker says: Cannot connect"),
    ],
)
def test_a_node_that_cannot_be_asked_fails_alone(tmp_path: Path, answer: Completed | Exception, says: str) -> None:
    a, b, c = Node("a", shown("xyz")), Node("b"), Node("c")
    b.odd["probe"] = [answer]
    report = sync(tmp_path, a, b, c)
    assert fates(report) == {"a": "source", "b": "failed", "c": "synced"}
    assert says in error(report, "b")
    assert b.asked == ["probe"]


@pytest.mark.parametrize(
    ("label", "deed", "failed"),
    [
        ("b", "probe", "b"),
        ("b", "verify", "b"),
        ("d", "tag", "d"),
        ("d", "verify", "d"),
        ("a", "ways", "b"),
        ("a", "send", "b"),
    ],
)
@pytest.mark.parametrize("trouble", [LOST, RuntimeError("odd")], ids=["lost", "odd"])
def test_whatever_breaks_every_node_has_an_outcome(
    tmp_path: Path, label: str, deed: str, failed: str, trouble: Exception
) -> None:
    """a is the source, b lacks it, c has it, d has it under another name."""
    a, b, c = Node("a", shown("xyz")), Node("b"), Node("c", shown("xyz"))
    d = Node("d", None, [shown("xyz", tags=["other:1"])])
    nodes = {"a": a, "b": b, "c": c, "d": d}
    nodes[label].odd[deed] = [trouble] * 9
    events: list[Event] = []
    report = sync(tmp_path, a, b, c, d, source="a", progress=events.append)
    good = {"a": "source", "b": "synced", "c": "in-sync", "d": "synced"}
    assert fates(report) == good | {failed: "failed"}
    assert str(trouble) in error(report, failed)
    assert {event.host: event.text for event in events if event.kind is Kind.DONE} == fates(report)


def test_a_target_without_a_way_fails_alone_and_says_why(tmp_path: Path) -> None:
    a, b, c = Node("a", shown("xyz")), Node("b"), Node("c")
    assert b.settings
    b.settings = replace(b.settings, hostname="127.0.0.1")
    report = sync(tmp_path, a, b, c)
    assert fates(report) == {"a": "source", "b": "failed", "c": "synced"}
    assert "127.0.0.1 is a loopback address" in error(report, "b")
    assert list(a.jobs[0]["targets"]) == ["c"]


def test_with_require_fabric_a_management_address_is_never_used(tmp_path: Path) -> None:
    a, b, c = Node("a", shown("xyz")), Node("b"), Node("c")
    report = sync(tmp_path, a, b, c, require_fabric=True, changes={"c": {"fabric_ip": "10.78.0.3"}})
    assert "it has no fabric_ip in cluster.yml" in error(report, "b")
    assert report.nodes["c"].address == "10.78.0.3"


def test_a_tag_is_enough_where_the_content_is(tmp_path: Path) -> None:
    a, b = Node("a", shown("xyz")), Node("b", None, [shown("xyz", tags=["other:1"])])
    report = sync(tmp_path, a, b)
    assert (report.nodes["b"].status, report.nodes["b"].mode, report.nodes["b"].bytes) == (Fate.SYNCED, "tag", 0)
    assert b.asked == ["probe", "tag", "verify"]
    assert a.jobs == []


def test_a_tag_that_is_refused_is_that_nodes_error(tmp_path: Path) -> None:
    a, b = Node("a", shown("xyz")), Node("b", None, [shown("xyz", tags=["other:1"])])
    b.odd["tag"] = [said(("TAGGED", "1 read-only file system"))]
    assert error(sync(tmp_path, a, b), "b") == "docker tag failed: read-only file system"


@pytest.mark.parametrize(
    ("end", "says"),
    [
        (ended(1, ["__FDL_LOAD__", "write: no space left on device", "__FDL_LOADED__ 1"]), "no room: "),
        (ended(0, ["__FDL_LOAD__", "Loaded image: app:1", "Error unpacking image app:1: x", "__FDL_LOADED__ 0"]),
         "it could not be unpacked: Error unpacking image"),
        (ended(None, [], error="it took no byte for 120 s"), "it took no byte for 120 s"),
    ],
)  # fmt: skip
def test_a_load_that_fails_is_its_targets_error_and_no_others(tmp_path: Path, end: dict[str, Any], says: str) -> None:
    a, b, c = Node("a", shown("xyz")), Node("b"), Node("c")
    a.ends["b"] = [end]
    report = sync(tmp_path, a, b, c)
    assert says in error(report, "b")
    assert fates(report)["c"] == "synced"
    assert b.asked == ["probe"], "what was not loaded is not looked at as if it had been"


def test_what_a_name_meant_before_is_a_note_with_its_whole_id(tmp_path: Path) -> None:
    a, b = Node("a", shown("xyz")), Node("b", shown("pqr", created="2020-01-01T00:00:00Z"))
    report = sync(tmp_path, a, b)
    assert report.reason.startswith("the newest of 2 different images")
    assert [note for note in report.nodes["b"].notes if sha("pqr") in note]


def test_the_exec_probe_runs_once_on_each_node_and_never_in_the_old_image(tmp_path: Path) -> None:
    a, b, c = Node("a", shown("xyz")), Node("b", shown("pqr", created="2020-01-01T00:00:00Z")), Node("c", shown("xyz"))
    assert fates(sync(tmp_path, a, b, c)) == {"a": "source", "b": "synced", "c": "in-sync"}
    assert [node.asked.count("verify") for node in (a, b, c)] == [1, 1, 1]
    assert b.asked == ["probe", "probe", "verify"] and a.asked.index("verify") < a.asked.index("send")


def test_without_python3_on_the_source_all_goes_by_a_file_and_the_report_says_so(tmp_path: Path) -> None:
    a, b = base_and_target()
    a.python = ""
    a.odd["send-file"] = [Completed(0, "", "", 0.1)]
    report = sync(tmp_path, a, b)
    assert "send-file" in a.asked and "send" not in a.asked
    assert "no python3 3.8" in " ".join([*report.nodes["b"].notes, error(report, "b")])


@pytest.mark.parametrize(
    ("wanted", "kind", "says"),
    [("nobody", UsageError, "none of the nodes"), ("b", SourceError, "does not have the image")],
)
def test_a_named_source_that_cannot_be_one_changes_nothing(
    tmp_path: Path, wanted: str, kind: type[FdlError], says: str
) -> None:
    a, b = Node("a", shown("xyz")), Node("b")
    with pytest.raises(kind, match=says):
        sync(tmp_path, a, b, source=wanted)
    assert (a.asked, b.asked) == (["probe"], ["probe"])
    assert a.closed and b.closed


def test_a_plan_only_looks(tmp_path: Path) -> None:
    a, b, c = Node("a", shown("xyz")), Node("b"), Node("c")
    c.odd["probe"] = [LOST]
    report = sync(tmp_path, a, b, c, plan_only=True)
    assert report.plan and [(step.target, step.mode) for step in report.plan.todo] == [("b", "full")]
    assert report.plan.todo[0].address == f"10.77.0.{ord('b')}"
    assert (list(report.nodes), report.ok) == (["c"], False)
    assert (a.asked, b.asked) == (["probe", "ways"], ["probe"])
    assert all("BRIEF=0\n" in node.scripts[0].text for node in (a, b))


def test_a_plan_tries_the_ways_and_a_target_without_one_is_an_error_of_it(tmp_path: Path) -> None:
    a, b, c = Node("a", shown("xyz")), Node("b"), Node("c")
    a.odd["ways"] = [said(("WAY", "0 255 timed out"), ("WAY", "1 0 "), ("WAY", "2 255 no route"))]
    changes = {"b": {"fabric_ip": "10.78.0.2"}}
    report = sync(tmp_path, a, b, c, plan_only=True, changes=changes)
    assert report.plan and [step.address for step in report.plan.steps] == [f"10.77.0.{ord('b')}", ""]
    assert report.plan.steps[0].notes[1:] == ("fabric address 10.78.0.2 port 22 failed (timed out)",)
    assert [step.target for step in report.plan.todo] == ["b"]
    assert "the source can't reach it" in error(report, "c") and "no route" in error(report, "c")


def test_a_plan_in_which_nothing_is_sent_tries_no_way(tmp_path: Path) -> None:
    a, b, c = Node("a", shown("xyz")), Node("b", shown("xyz")), Node("c", None, [shown("xyz", tags=["other:1"])])
    report = sync(tmp_path, a, b, c, plan_only=True)
    assert report.ok and "ways" not in a.asked


@pytest.mark.parametrize("named", [{}, {"image": "app:1", "recipe": "x"}, {"image": ""}])
def test_one_image_is_named_by_one_of_two_ways(tmp_path: Path, named: dict[str, str]) -> None:
    a = Node("a", shown("xyz"))
    with pytest.raises(UsageError, match="--recipe or by --image"):
        sync_image(made_known(tmp_path, a), connect=fake_connect(a), **named)  # type: ignore[arg-type]
    assert a.asked == []


def test_a_recipe_gives_the_image_and_the_command_that_must_run(tmp_path: Path) -> None:
    a = Node("a", shown("xyz"))
    recipe = Recipe("x", ImageRef.parse("app:1"), ("/bin/true", "--now"))
    cluster = replace(made_known(tmp_path, a), recipes={"x": recipe})
    assert sync_image(cluster, recipe="x", connect=fake_connect(a)).image == "app:1"
    assert "/bin/true" in a.scripts[-1].text and "--now" in a.scripts[-1].text
    with pytest.raises(ConfigError, match="no recipe 'y'"):
        sync_image(cluster, recipe="y", connect=fake_connect(a))


def test_ensure_image_returns_when_every_node_has_it(tmp_path: Path) -> None:
    a, b = Node("a", shown("xyz")), Node("b")
    report = ensure_image(made_known(tmp_path, a, b), "app:1", connect=fake_connect(a, b))
    assert fates(report) == {"a": "source", "b": "synced"}


def test_ensure_image_fails_with_every_reason(tmp_path: Path) -> None:
    a, b, c = Node("a", shown("xyz")), Node("b"), Node("c")
    b.odd["probe"], c.odd["verify"] = [LOST], [TOO_OLD] * 2
    with pytest.raises(FdlError) as caught:
        ensure_image(made_known(tmp_path, a, b, c), "app:1", connect=fake_connect(a, b, c))
    assert "app:1 is not on every node" in caught.value.what
    assert "b: connection lost" in caught.value.what and "too old" in caught.value.what


def test_ensure_image_never_lets_a_missing_image_become_a_pull(tmp_path: Path) -> None:
    a, b = Node("a"), Node("b")
    with pytest.raises(SourceError, match="no node has the image"):
        ensure_image(made_known(tmp_path, a, b), "app:1", connect=fake_connect(a, b))
    assert (a.asked, b.asked) == (["probe"], ["probe"])


def test_look_tells_what_each_has_and_makes_no_container(tmp_path: Path) -> None:
    a, b, c = Node("a", shown("xyz")), Node("b"), Node("c")
    c.odd["probe"] = [LOST]
    nodes = look(made_known(tmp_path, a, b, c), image="app:1", connect=fake_connect(a, b, c))
    assert [(node.label, node.image.id if node.image else None, node.error is None) for node in nodes] == [
        ("a", sha("xyz"), True),
        ("b", None, True),
        ("c", None, False),
    ]
    assert "BRIEF=0\n" in a.scripts[0].text and a.asked == ["probe"]


def test_who_waited_for_another_run_looks_again_and_sends_nothing_that_came_meanwhile(tmp_path: Path) -> None:
    a, b = Node("a", shown("xyz")), Node("b")

    def waited() -> Completed:
        b.shown = a.shown  # brought by the other run
        return Completed(0, '{"lock": "waiting"}\n{"lock": "waited"}\n', "", 0.1)

    a.odd["send"] = [waited]
    report = sync(tmp_path, a, b)
    assert fates(report) == {"a": "source", "b": "in-sync"}
    assert (a.asked.count("send"), b.asked.count("probe")) == (1, 2)
