"""A transfer through a relay: what is rendered, what its end means, and what is tried then."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fdl_tasks.errors import Cancelled, Stage, TransportError
from fdl_tasks.images import relaying, transfer
from fdl_tasks.images.archive import Limits, Sending
from fdl_tasks.images.plan import Step
from fdl_tasks.images.sent import Answer, Meter, Sent, Turn, judged
from fdl_tasks.images.sync import sync_image
from fdl_tasks.images.ways import ssh_argv
from fdl_tasks.outcome import Event, Kind
from fdl_tasks.report.images import sync_table
from fdl_tasks.scripts import Scripts
from fdl_tasks.testing import Completed, FakeHost, fake_connect
from tests.images.making import make_image, make_node
from tests.images.nodes import CONTAINERD, Node, ended, looked, made_known, shown
from tests.images.test_archive import LOST, PINNED, WAYS, job_of

IMAGE = make_image("app")
SOURCE = make_node("s", IMAGE, "containerd", docker=("sudo", "-n", "docker"), python=(3, 11))
NODES = {name: make_node(name, store="containerd", docker=("docker", "--host", "unix:///x")) for name in "ab"}
ARCHIVES = {name: Step(name, "full", bytes=9) for name in "ab"}
STEPS = [Step(name, "delta", bytes=5, transport="relay", instead=ARCHIVES[name]) for name in "ab"]
SENDING = Sending(SOURCE, "app:1", NODES, PINNED, tag="app:1", run="7", limits=Limits(1, 2, 3))
PULLED = ("__FDL_LOAD__", "Status: Downloaded newer image for 127.0.0.1:1/fdl-7/app", "__FDL_LOADED__ 0")


# -- what is rendered ----------------------------------------------------------------------------


def test_the_job_names_the_image_by_its_id_and_each_targets_command() -> None:
    script = relaying.render(Scripts(), SENDING, [Turn(step, WAYS[step.target]) for step in STEPS])
    job = job_of(script)
    words = job.pop("targets")
    assert job == {
        "docker": ["sudo", "-n", "docker"],
        "image": IMAGE.id,
        "name": "fdl-7/app",
        "vouched": [IMAGE.id],
        **{"stall": 1, "load_stall": 2, "lag": 3},
    }
    assert list(words) == ["a", "b"]
    assert "FDL_NAME=fdl-send-7\n" in script.text
    assert "def work(relay" in script.text


def test_the_command_forwards_a_port_and_ends_when_it_may_not() -> None:
    argv = relaying.command(Scripts(), SENDING, Turn(STEPS[0], WAYS["a"]))
    assert argv[argv.index("-R") + 1] == "127.0.0.1:@THERE@:127.0.0.1:@PORT@"
    assert {"ExitOnForwardFailure=yes", "ClearAllForwardings=no", "StrictHostKeyChecking=yes"} < set(argv)
    text = base64.b64decode(argv[-1].rsplit(" ", 1)[1]).decode()
    assert "set -- docker --host unix:///x\n" in text and "NAME=app:1\n" in text
    assert not any(word.startswith(("ExitOnForward", "-R")) for word in ssh_argv(WAYS["a"][0], "."))


# -- what its end means --------------------------------------------------------------------------

TURN = Turn(STEPS[0], WAYS["a"])
REFUSED = "Error: remote port forwarding failed for listen port 23456"


def end(code: int | None, *said: str, **fields: Any) -> str:
    return json.dumps({"target": "a", **ended(code, said, **{"bytes": 0, **fields})})


@pytest.mark.parametrize(
    ("lines", "error", "retry"),
    [
        ([end(0, *PULLED)], None, "no"),
        ([end(1, "__FDL_LOAD__", "no manifest", "__FDL_LOADED__ 1")], "docker pull failed: no manifest", "archive"),
        (
            [end(1, "__FDL_LOAD__", "write /x: no space left on device", "__FDL_LOADED__ 1")],
            "no room: write /x: no space left on device",
            "no",
        ),
        ([end(1, "__FDL_LOADED__ 137")], "docker pull failed: it said nothing (exit code 137)", "archive"),
        ([end(255, REFUSED)], f"ssh ended with 255: {REFUSED}", "archive"),
        ([end(255, "Could not request local forwarding.")],
         "ssh ended with 255: Could not request local forwarding.", "archive"),
        ([end(255, "__FDL_LOAD__", "lost")], "ssh ended with 255: lost", "way"),
        ([end(255, "__FDL_LOAD__", "no forwarding")], "ssh ended with 255: no forwarding", "way"),
        ([end(255, "Connection reset by peer")], "ssh ended with 255: Connection reset by peer", "drop"),
        ([end(127, "sh: base64: not found")], "ssh ended with 127: sh: base64: not found", "archive"),
        ([end(None, error="[Errno 2] ssh")], "[Errno 2] ssh", "archive"),
        ([end(None, error="it took no byte for 9 s", bytes=1)], "it took no byte for 9 s", "no"),
        (
            [end(None, "__FDL_LOAD__", error="the source failed: gone"), '{"end": true, "error": "gone"}'],
            "the source failed: gone",
            "archive",
        ),
        (['{"end": true, "error": "docker push ended with 1", "learnt": null}'],
         "the source failed: docker push ended with 1", "archive"),
        ([], "the script on the source ended before it told what became of this node", "archive"),
    ],
)  # fmt: skip
def test_what_became_of_a_target(lines: list[str], error: str | None, retry: str) -> None:
    answer = Answer()
    for line in lines:
        answer.take(line)
    sent = judged(TURN, answer)
    assert (sent.error, sent.retry, sent.transport) == (error, retry, "relay")


def test_a_lost_source_is_not_asked_again() -> None:
    assert judged(TURN, Answer(lost=True), "the source was lost").retry == "no"


def test_the_total_is_what_the_relay_says_once_it_knows() -> None:
    answer = Answer()
    meter = Meter({"a": TURN}, answer.totals)
    assert meter.sentence("a", 1 << 20, 0) == "1.0 MiB of ~0 KiB, by the fabric address 10.0.0.1"
    assert answer.take('{"target": "a", "total": 4194304}') is None
    assert meter.sentence("a", 1 << 20, 0) == "1.0 MiB of 4.0 MiB, by the fabric address 10.0.0.1"
    assert [meter.due("a", count) for count in (100, 1 << 20, 1 << 20, 3 << 20)] == [False, True, False, True]


# -- passes --------------------------------------------------------------------------------------


def said(error: str | None = None, **targets: Any) -> Completed:
    lines = [json.dumps({"target": name, **found}) for name, found in targets.items()]
    return Completed(0, "\n".join([*lines, json.dumps({"end": True, "error": error})]), "", 1.0)


def sent_over(host: FakeHost, steps: list[Step], events: list[Event] | None = None) -> dict[str, Sent]:
    return transfer.send(host, SENDING, steps, WAYS, progress=(events if events is not None else []).append)


def programs(host: FakeHost) -> list[str]:
    """Of every pass, the way it goes."""
    return ["relay" if "name" in job_of(script) else "archive" for script in host.scripts]


def test_who_the_relay_does_not_serve_is_served_by_the_archive_and_told() -> None:
    host, events = (
        FakeHost("s", said(a=ended(0, PULLED), b=ended(255, [REFUSED], bytes=0)), said(b=ended())),
        list[Event](),
    )
    found = sent_over(host, STEPS, events)
    assert programs(host) == ["relay", "archive"]
    assert [(found[name].error, found[name].transport, found[name].mode) for name in "ab"] == [
        (None, "relay", "delta"),
        (None, "archive", "full"),
    ]
    note = f"the relay did not bring it (ssh ended with 255: {REFUSED}), so it was sent by the archive"
    assert (found["a"].notes, found["b"].notes) == ((), (note,))
    assert [event.text for event in events if event.kind is Kind.NOTE] == [note]


def test_on_the_way_the_true_total_is_told() -> None:
    lines = ['{"target": "a", "total": 8388608}', '{"target": "a", "bytes": 2097152}', said(a=ended(0, PULLED)).out]
    host, events = FakeHost("s", Completed(0, "\n".join(lines), "", 1.0)), list[Event]()
    sent_over(host, STEPS[:1], events)
    assert events[0].text.startswith("2.0 MiB of 8.0 MiB, ")


def test_a_source_that_cannot_push_serves_all_by_one_archive() -> None:
    host = FakeHost("s", said("docker push ended with 1"), said(a=ended(), b=ended()))
    found = sent_over(host, STEPS)
    assert programs(host) == ["relay", "archive"]
    assert list(job_of(host.scripts[1])["targets"]) == ["a", "b"]
    assert {found[name].error for name in "ab"} == {None}


@pytest.mark.parametrize("instead", [None, Step("a", "full", error="no room")])
def test_where_the_archive_can_not_be_the_relays_error_stays(instead: Step | None) -> None:
    host = FakeHost("s", said(a=ended(255, [REFUSED], bytes=0)))
    found = sent_over(host, [replace(STEPS[0], instead=instead)])
    assert (programs(host), found["a"].error) == (["relay"], f"ssh ended with 255: {REFUSED}")


def test_the_two_ways_are_passes_of_their_own() -> None:
    host = FakeHost("s", said(a=ended(0, PULLED)), said(b=ended()))
    found = sent_over(host, [STEPS[0], ARCHIVES["b"]])
    assert (programs(host), {found[name].error for name in "ab"}) == (["relay", "archive"], {None})


def test_a_lost_source_is_cleaned_of_the_relays_name_too() -> None:
    host = FakeHost("s", LOST, Completed(0, "", "", 0.1))
    assert "the source was lost" in (sent_over(host, STEPS)["a"].error or "")
    assert [script.name for script in host.scripts] == ["images/send.sh", "images/clean.sh"]
    assert "FDL_RELAYED='*/fdl-7/app'\n" in host.scripts[1].text
    assert "set -- sudo -n docker\n" in host.scripts[1].text
    host = FakeHost("s", LOST, Completed(0, "", "", 0.1))
    sent_over(host, list(ARCHIVES.values()))
    assert "FDL_RELAYED=''\n" in host.scripts[1].text


def test_after_ctrl_c_what_may_be_left_is_named() -> None:
    events = list[Event]()
    gone = FakeHost("s", TransportError(Stage.LOST, "cut", where="s"))
    with pytest.raises(Cancelled):
        transfer.send(
            FakeHost("s", Cancelled("ended")), SENDING, STEPS, WAYS, progress=events.append, anew=lambda: gone
        )
    assert "fdl-send-7.*, and the image name */fdl-7/app, may be left on s" in events[-1].text


def test_the_whole_pipeline_reports_the_way_that_was_taken(tmp_path: Path) -> None:
    a, b, c, d = Node("a", shown("xyz")), Node("b"), Node("c"), Node("d")
    for node in (a, b, c):
        node.info = CONTAINERD
    a.ends["c"] = [ended(255, [REFUSED], bytes=0)]
    a.ends["b"] = [ended(0, PULLED)]
    b.odd["verify"] = [looked(a.shown)]
    report = sync_image(made_known(tmp_path, a, b, c, d), image="app:1", connect=fake_connect(a, b, c, d))
    assert {label: (str(node.status), node.transport) for label, node in report.nodes.items()} == {
        **{"a": ("source", None), "b": ("synced", "relay")},
        **{"c": ("synced", "archive"), "d": ("synced", "archive")},
    }, report.as_json()
    assert [list(job["targets"]) for job in a.jobs] == [["b", "c"], ["d"], ["c"]]
    rows = sync_table(report, str, None).splitlines()
    assert [f"10.77.0.{ord(label)}, relay" in row for label, row in zip("abcd", rows[1:], strict=False)] == [
        *(False, True, False, False)
    ]


NOT_WHOLE = looked(shown("xyz"), "125 content digest not found", "1 content digest not found")


@pytest.mark.parametrize(("transport", "fate", "by"), [("auto", "synced", "archive"), ("relay", "failed", "relay")])
def test_a_copy_that_is_not_whole_is_sent_by_the_archive_unless_that_is_not_wanted(
    transport: str, fate: str, by: str, tmp_path: Path
) -> None:
    a, b = Node("a", shown("xyz")), Node("b")
    a.info = b.info = CONTAINERD
    a.ends["b"] = [ended(0, PULLED)]
    b.odd["verify"] = [NOT_WHOLE]
    report = sync_image(made_known(tmp_path, a, b), image="app:1", transport=transport, connect=fake_connect(a, b))
    assert (str(report.nodes["b"].status), report.nodes["b"].transport) == (fate, by)
    assert ["name" in job for job in a.jobs] == [True, *([False] if fate == "synced" else [])]
