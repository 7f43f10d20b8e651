"""What became of a node, from all that was done to it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fdl_tasks.images.identity import Proof
from fdl_tasks.images.plan import Step
from fdl_tasks.images.result import Fate, NodeOutcome, Round, SyncReport, outcome
from fdl_tasks.images.sent import Sent
from fdl_tasks.images.verify import Checked

GOOD = Checked("b", Proof.CONTENT)
SENT = Sent("b", 4096, 1.5, "10.78.0.2", mode="delta")
TAG, FULL, THERE = Step("b", "tag", base="sha256:1"), Step("b", "full"), Step("b", "in-sync", proof=Proof.ID)


def round_of(sent: Sent | None = None, checked: Checked | None = GOOD, error: str | None = None) -> Round:
    done = Round({"b": sent} if sent else {}, {"b": checked} if checked else {})
    done.fail("b", error)
    return done


@pytest.mark.parametrize(
    ("step", "done", "status", "mode", "error"),
    [
        (THERE, round_of(), Fate.IN_SYNC, None, None),
        (TAG, round_of(), Fate.SYNCED, "tag", None),
        (FULL, round_of(replace(SENT, mode="full")), Fate.SYNCED, "full", None),
        (replace(FULL, mode="delta"), round_of(SENT), Fate.SYNCED, "delta", None),
        (replace(FULL, mode="delta"), round_of(replace(SENT, mode="full")), Fate.SYNCED, "full", None),
        (THERE, round_of(replace(SENT, mode="full")), Fate.SYNCED, "full", None),
        (FULL, round_of(SENT, None, "no room"), Fate.FAILED, "delta", "no room"),
        (FULL, round_of(SENT, Checked("b", error="it will not start")), Fate.FAILED, "delta", "it will not start"),
        (THERE, round_of(None, Checked("b", error="it will not start")), Fate.FAILED, None, "it will not start"),
        (TAG, round_of(None, None), Fate.FAILED, "tag", "it was not looked at again"),
        (THERE, round_of(None, None), Fate.FAILED, None, "it was not looked at again"),
    ],
)
def test_only_what_was_looked_at_and_found_good_is_no_failure(
    step: Step, done: Round, status: Fate, mode: str | None, error: str | None
) -> None:
    found = outcome(step, done)
    assert (found.status, found.mode, found.error) == (status, mode, error)


def test_what_was_sent_is_told_with_its_way_and_its_proof() -> None:
    found = outcome(FULL, round_of(SENT))
    assert (found.transport, found.bytes, found.seconds, found.address) == ("archive", 4096, 1.5, "10.78.0.2")
    assert found.identity == "same content"
    assert outcome(THERE, round_of()).transport is None


def test_an_error_that_was_mended_is_none_any_more() -> None:
    done = round_of(SENT, error="the delta failed")
    done.fail("b", None)
    assert outcome(FULL, done).error is None


def test_notes_of_every_step_are_kept_in_order_and_once() -> None:
    done = round_of(replace(SENT, notes=("by the second address", "slow")), replace(GOOD, notes=("no shell",)))
    done.note("b", "dead fabric")
    done.note("b", "dead fabric", "slow")
    notes = outcome(replace(FULL, notes=("for another CPU",)), done).notes
    assert notes == ("for another CPU", "dead fabric", "slow", "by the second address", "no shell")


@pytest.mark.parametrize(
    ("note", "notes"),
    [("app:1 meant sha256:old there before", 1), ("another", 2)],
)
def test_what_the_name_meant_before_is_said_by_docker_or_else_by_us(note: str, notes: int) -> None:
    found = outcome(replace(FULL, replaces="sha256:old"), round_of(replace(SENT, notes=(note,)))).notes
    assert len(found) == notes
    assert any("sha256:old" in one for one in found)


def test_a_report_is_ok_when_no_node_failed_and_has_the_stable_shape() -> None:
    nodes = {"a": NodeOutcome("a", Fate.SOURCE, identity="same id"), "b": outcome(FULL, round_of(SENT))}
    report = SyncReport("app:1", "a", "the only node that has it", nodes)
    assert (report.ok, report.failed) == (True, ())
    empty: dict[str, Any] = {"mode": None, "transport": None, "bytes": 0, "seconds": 0.0, "address": None}
    assert report.as_json() == {
        "image": "app:1",
        "source": "a",
        "reason": "the only node that has it",
        "ok": True,
        "nodes": {
            "a": {"status": "source", **empty, "identity": "same id", "notes": [], "error": None},
            "b": {"status": "synced", "mode": "delta", "transport": "archive", "bytes": 4096, "seconds": 1.5,
                  "address": "10.78.0.2", "identity": "same content", "notes": [], "error": None},
        },
    }  # fmt: skip
    failed = replace(report, nodes={**nodes, "c": NodeOutcome("c", Fate.FAILED, error="off")})
    assert (failed.ok, [node.node for node in failed.failed]) == (False, ["c"])
