"""A node that answers with anything at all: its own error at most, nothing raw on the screen, nobody else harmed."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from fdl_tasks.images.facts import NodeFacts
from fdl_tasks.images.probe import look
from fdl_tasks.images.result import SyncReport
from fdl_tasks.images.sync import sync_image
from fdl_tasks.outcome import Event
from fdl_tasks.report.images import images_json, images_table, plan_json, plan_table, sync_failures, sync_table
from fdl_tasks.report.masking import Masker
from fdl_tasks.report.progress import Lines
from fdl_tasks.report.stdout import dumps
from fdl_tasks.testing import Completed, fake_connect
from tests.images.making import sha
from tests.images.nodes import INFO, VERSION, Node, ended, looked, made_known, said, shown

MASK = Masker()
EVIL = "\x1b]0;owned\x07\x1b[2J\u202e\ud800\r\n$(touch /tmp/owned)`id`'\";-rf"
LINE = EVIL.replace("\ud800", "").replace("\n", "")  # as a line of an answer, which is UTF-8
DEEP: Any = json.loads("[" * 500 + "]" * 500)


def answered(image: object, others: object = None, **facts: str) -> Completed:
    """A probe's answer with this inspect; ``others`` is one more image there."""
    known = {"WAY": "user", "VERSION": VERSION, "INFO": INFO, "PYTHON": "3.11"} | facts
    lines = [*known.items(), ("IMAGE", json.dumps(image))]
    return said(*lines, *([("OTHER", json.dumps(others))] if others else []))


def harmless(text: str) -> None:
    """It can be printed as it is."""
    assert not [ch for ch in text if (ch < " " and ch not in "\n\t") or ch in "\x7f\x9b\u202e"], text
    assert "owned\x07" not in text


def printed(report: SyncReport, events: list[Event]) -> None:
    """All that a run shows of it, as a table, a plan, an error, progress and JSON."""
    harmless(sync_table(report, MASK, None))
    harmless(plan_table(report, MASK, None))
    harmless(MASK(sync_failures(report)))
    for value in (report.as_json(), plan_json(report)):
        harmless(dumps(MASK.values(value), ascii_only=True))
    stream = io.StringIO()
    for event in events:
        Lines(stream, MASK)(event)
    harmless(stream.getvalue())


def looked_at(nodes: tuple[NodeFacts, ...]) -> None:
    harmless(images_table(nodes, MASK, None))
    harmless(dumps(MASK.values(images_json(nodes)), ascii_only=True))


SERVER = {"ApiVersion": "1.51", "Version": EVIL, "Arch": EVIL}
HUGE = 10**4000
SAME: Mapping[str, Any] = shown("xyz")
INSPECTS: dict[str, Any] = {
    "no object": 7,
    "nothing": {},
    "a list": [SAME],
    "an id that is none": {**SAME, "Id": f"--help {EVIL}"},
    "no layers": {**SAME, "RootFS": {"Layers": None}},
    "layers that are words": {**SAME, "RootFS": {"Layers": EVIL}},
    "odd layers": {**SAME, "RootFS": {"Layers": [1, None, [], {}, EVIL, "../../etc/passwd"]}},
    "very many layers": {**SAME, "RootFS": {"Layers": [sha("z")] * 20_000}},
    "a huge size": {**SAME, "Size": HUGE},
    "a size that is none": {**SAME, "Size": EVIL},
    "a size below zero": {**SAME, "Size": -HUGE},
    "a size with a point": {**SAME, "Size": 1e308},
    "an odd platform": {**SAME, "Os": EVIL, "Architecture": EVIL, "Variant": EVIL},
    "numbers for words": {**SAME, "Os": 1, "Architecture": [], "Created": {}, "RepoTags": "x", "Config": 3},
    "an odd date": {**SAME, "Created": EVIL},
    "a date at the end of time": {**SAME, "Created": "9999-12-31T23:59:59-14:00"},
    "odd names": {**SAME, "RepoTags": [EVIL, 5, None], "RepoDigests": {EVIL: EVIL}},
    "an odd config": {**SAME, "Config": {"Env": EVIL, EVIL: EVIL, "Labels": {EVIL: DEEP}}},
    "a deep config": {**SAME, "Config": {"Env": DEEP}},
}


@pytest.mark.parametrize("name", INSPECTS)
def test_an_inspect_that_is_anything_at_all_harms_that_node_at_most(name: str, tmp_path: Path) -> None:
    a, b, c = Node("a", shown("xyz")), Node("b"), Node("c")
    b.odd["probe"] = [answered(INSPECTS[name])]
    events: list[Event] = []
    report = sync_image(
        made_known(tmp_path, a, b, c), image="app:1", source="a", connect=fake_connect(a, b, c), progress=events.append
    )
    assert (report.nodes["a"].status, report.nodes["c"].status) == ("source", "synced")
    printed(report, events)


@pytest.mark.parametrize("name", INSPECTS)
def test_other_images_that_are_anything_at_all_harm_nobody(name: str, tmp_path: Path) -> None:
    a, b = Node("a", shown("xyz")), Node("b")
    b.others = [INSPECTS[name]]
    events: list[Event] = []
    report = sync_image(made_known(tmp_path, a, b), image="app:1", connect=fake_connect(a, b), progress=events.append)
    assert report.ok
    printed(report, events)


@pytest.mark.parametrize("name", INSPECTS)
def test_what_the_nodes_have_can_be_shown_whatever_they_say(name: str, tmp_path: Path) -> None:
    a, b = Node("a", shown("xyz")), Node("b")
    b.odd["probe"] = [answered(INSPECTS[name])]
    nodes = look(made_known(tmp_path, a, b), image="app:1", connect=fake_connect(a, b))
    assert nodes[0].image and nodes[0].error is None
    looked_at(nodes)


@pytest.mark.parametrize(
    "facts",
    [
        {"SIZES": "9" * 2000},
        {"SIZES": "9" * 5000},
        {"SIZES": LINE},
        {"VERSION": "{}"},
        {"VERSION": json.dumps({"Client": {"ApiVersion": EVIL}, "Server": [EVIL]})},
        {"VERSION": json.dumps({**json.loads(VERSION), "Server": SERVER})},
        {"VERSION": VERSION.replace("28.5.2", "9" * 5000)},
        {"INFO": json.dumps({"Driver": EVIL, "DriverStatus": [EVIL, [EVIL], 5]})},
        {"FREE": f"999999999999999 /{LINE}"},
        {"TOOLS": LINE},
        {"PYTHON": "999.999"},
    ],
    ids=lambda facts: "-".join(facts),
)
def test_every_other_fact_may_be_anything_too(facts: dict[str, str], tmp_path: Path) -> None:
    for label in "ab":  # as a target, and as the source that everybody else needs
        a, b, c = Node("a", shown("xyz")), Node("b", shown("xyz")), Node("c")
        {"a": a, "b": b}[label].odd["probe"] = [answered(shown("xyz"), **facts)]
        events: list[Event] = []
        report = sync_image(
            made_known(tmp_path, a, b, c), image="app:1", connect=fake_connect(a, b, c), progress=events.append
        )
        assert set(report.nodes) == {"a", "b", "c"}
        assert label == "a" or report.nodes["a"].status == "source"
        printed(report, events)


LINES: list[Any] = [
    {"lock": EVIL},
    {"lock": [EVIL]},
    {"note": EVIL},
    {"note": [EVIL], "targets": 5},
    {"note": EVIL, "targets": [[EVIL]]},
    {"target": EVIL, "bytes": 5},
    {"target": [EVIL], "bytes": 5},
    {"target": "b", "bytes": EVIL},
    {"target": "b", "bytes": HUGE},
    {"target": "b", "bytes": float("inf")},
    {"target": "b", "bytes": None},
    {"target": "b", "bytes": -1},
    {"target": "b", "said": 5},
    {"target": "b", **ended(EVIL)},  # type: ignore[arg-type]
    {"target": "b", **ended(words=[EVIL, "__FDL_LOAD__", "__FDL_LOADED__ " + "9" * 3000])},
    {"target": "b", **ended(seconds=EVIL)},
    {"target": "b", **ended(seconds=float("nan"))},
    {"target": "b", **ended(bytes=EVIL)},
    {"target": "b", **ended(bytes=HUGE)},
    {"target": "b", **ended(error=[EVIL])},
    {"target": "b", **ended(None, [EVIL], error=EVIL)},
    {"end": True},
    {"end": True, "error": [EVIL]},
    DEEP,
    7,
]


@pytest.mark.parametrize("line", LINES, ids=range(len(LINES)))
def test_a_source_whose_transfer_says_anything_at_all_harms_its_targets_at_most(line: Any, tmp_path: Path) -> None:
    a, b, c, d = Node("a", shown("xyz")), Node("b"), Node("c"), Node("d", shown("xyz"))

    def answer() -> Completed:
        b.shown = c.shown = a.shown
        last = [{"target": "b", **ended()}] if "said" not in str(line) else []
        good = [{"target": "c", **ended()}, *last, {"end": True, "error": None}]
        return Completed(0, "".join(json.dumps(one) + "\n" for one in (line, *good)), "", 0.1)

    a.odd["send"] = [answer] * 9
    events: list[Event] = []
    how: Any = {"progress": events.append, "live": events.append, "connect": fake_connect(a, b, c, d)}
    report = sync_image(made_known(tmp_path, a, b, c, d), image="app:1", source="a", **how)
    assert (report.nodes["a"].status, report.nodes["d"].status) == ("source", "in-sync")
    printed(report, events)
    json.loads(dumps(report.as_json(), ascii_only=True), parse_constant=pytest.fail)  # no NaN, which is no JSON


@pytest.mark.parametrize("name", INSPECTS)
def test_a_copy_that_is_shown_as_anything_at_all_is_never_called_synced_unless_it_is_the_sources(
    name: str, tmp_path: Path
) -> None:
    a, b, c = Node("a", shown("xyz")), Node("b"), Node("c")
    b.odd["verify"] = [looked(INSPECTS[name])] * 2
    report = sync_image(made_known(tmp_path, a, b, c), image="app:1", connect=fake_connect(a, b, c))
    mine = INSPECTS[name].get("Id") if isinstance(INSPECTS[name], dict) else None
    assert (report.nodes["b"].status, report.nodes["c"].status) == (
        "synced" if mine == SAME["Id"] else "failed",
        "synced",
    )
    printed(report, [])


@pytest.mark.parametrize("tried", [LINE, "0 0", "99 0 x", "- - -", f"0 255 {LINE}", f"1 {LINE} {LINE}"])
def test_a_source_that_says_anything_at_all_of_its_ways_harms_its_targets_at_most(tried: str, tmp_path: Path) -> None:
    a, b, c = Node("a", shown("xyz")), Node("b"), Node("c", shown("xyz"))
    a.odd["ways"] = [said(("WAY", tried))] * 9
    report = sync_image(made_known(tmp_path, a, b, c), image="app:1", source="a", connect=fake_connect(a, b, c))
    assert [str(report.nodes[label].status) for label in "abc"] == ["source", "failed", "in-sync"]
    printed(report, [])
