"""What the lines of a transfer mean, and what is tried next."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fdl_tasks.images.addresses import Way
from fdl_tasks.images.plan import Step
from fdl_tasks.images.sent import CUT, DROPS, STALE, Answer, Meter, Sent, Turn, again, judged

CASES = Path(__file__).parent.parent / "cases/images/load"
FABRIC = Way("b", "10.0.0.2", 22, "root", "fdl-b", None, True)
MANAGEMENT = replace(FABRIC, address="192.168.0.2", fabric=False)
DELTA = Turn(Step("b", "delta", frozenset({"blobs/sha256/1"}), "sha256:base", 5 << 20), (FABRIC, MANAGEMENT))
FULL = Turn(Step("b", "full", bytes=100 << 20), (FABRIC, MANAGEMENT))


def end(code: int | None, *said: str, error: str | None = None, late: bool = False) -> str:
    facts = {"bytes": 7, "seconds": 1.5, "code": code, "said": said, "error": error, "late": late}
    return json.dumps({"target": "b", **facts})


def loaded(code: int, *said: str) -> str:
    return end(code, "welcome to b", "__FDL_LOAD__", *said, f"__FDL_LOADED__ {code}")


def heard(*lines: str) -> Answer:
    answer = Answer()
    for line in lines:
        answer.take(line)
    return answer


END = '{"end": true, "error": null}'
GOOD = loaded(0, "Loaded image: app:1")
NO_KEY = "Warning: Identity file /root/.ssh/id not accessible: No such file or directory."
DROPPED = "kex_exchange_identification: Connection closed by remote host"


@pytest.mark.parametrize(
    ("turn", "lines", "error", "retry"),
    [
        (FULL, [GOOD, END], None, "no"),
        (DELTA, [GOOD, END], None, "no"),
        (FULL, [GOOD], None, "no"),  # the source was lost afterwards
        (FULL, [loaded(1, "Cannot connect"), END], "docker load failed: Cannot connect", "no"),
        (DELTA, [loaded(1, "Cannot connect"), END], "docker load failed: Cannot connect", "full"),
        (DELTA, [loaded(255, "odd"), END], "docker load failed: odd", "full"),  # the load's own 255
        (
            DELTA,
            [loaded(1, "write /layers/0: no space left on device"), END],
            "no room: write /layers/0: no space left on device",
            "no",
        ),
        (
            DELTA,
            [loaded(0, "Loaded image: app:1", "Error unpacking image app:1: not there"), END],
            "it could not be unpacked: Error unpacking image app:1: not there",
            "full",
        ),
        (FULL, [end(255, "ssh: connect: timed out"), END], "ssh ended with 255: ssh: connect: timed out", "way"),
        (DELTA, [end(255, "__FDL_LOAD__", "lost"), END], "ssh ended with 255: lost", "way"),
        (FULL, [end(255, DROPPED), END], f"ssh ended with 255: {DROPPED}", "drop"),
        (FULL, [end(255, "__FDL_LOAD__", DROPPED), END], f"ssh ended with 255: {DROPPED}", "way"),  # it had begun
        (FULL, [end(255, "welcome", "Connection reset by 10.0.0.2 port 22"), END],
         "ssh ended with 255: welcome; Connection reset by 10.0.0.2 port 22", "drop"),
        (FULL, [end(255, NO_KEY, "ssh: timed out"), END], "ssh ended with 255: ssh: timed out", "way"),
        (FULL, [end(255, NO_KEY, DROPPED, "a", "b", "c"), END], "ssh ended with 255: a; b; c", "drop"),
        (FULL, [end(255, NO_KEY), END], "ssh ended with 255: without a word", "way"),
        (FULL, [end(127, "sh: not found"), END], "ssh ended with 127: sh: not found", "no"),
        (FULL, [end(137), END], "ssh ended with 137: without a word", "no"),
        (FULL, [end(None, "__FDL_LOAD__", error="it took no byte for 120 s"), END],
         f"it took no byte for 120 s ({STALE})", "no"),
        (FULL, [end(None, error="it took no byte for 120 s"), END], "it took no byte for 120 s", "no"),
        (FULL, [end(None, "__FDL_LOAD__", error="they waited", late=True), END], "they waited", "late"),
        (FULL, [end(None, "__FDL_LOAD__", error="the source failed: cut"), END], "the source failed: cut", "no"),
        (FULL, ['{"end": true, "error": "no docker"}'], "the source failed: no docker", "no"),
        (FULL, [], CUT, "no"),
        (FULL, ['{"target": "b", "bytes": 3}', "noise", "[1]", "{}"], CUT, "no"),
    ],
)  # fmt: skip
def test_what_became_of_a_target(turn: Turn, lines: list[str], error: str | None, retry: str) -> None:
    sent = judged(turn, heard(*lines))
    assert (sent.error, sent.retry, sent.mode, sent.address) == (error, retry, turn.step.mode, "10.0.0.2")


def test_a_script_that_did_not_end_tells_why() -> None:
    assert judged(FULL, heard(), "the source was lost").error == "the source was lost"
    assert judged(FULL, heard(GOOD), "the source was lost").error is None


def test_of_a_good_load_its_own_lines_bytes_and_seconds_are_kept() -> None:
    sent = judged(DELTA, heard('{"targets": ["b", "c"], "note": "no base"}', GOOD, END))
    assert (sent.said, sent.bytes, sent.seconds) == (("Loaded image: app:1",), 7, 1.5)
    assert sent.notes == ("no base",)


@pytest.mark.parametrize("case", sorted(CASES.glob("*.txt")), ids=lambda path: path.stem)
def test_the_output_of_real_engines_is_judged(case: Path) -> None:
    code = json.loads(case.with_suffix(".json").read_text())["code"]
    sent = judged(DELTA, heard(loaded(code, *case.read_text().splitlines()), END))
    what = case.stem.split("-", 2)[2]
    good = what in ("delta", "id", "rename", "tag")
    assert (sent.error is None) == good
    assert sent.retry == ("no" if good or what == "full-disk" else "full")


def after(turn: Turn, retry: Any) -> Turn | None:
    return again(turn, Sent("b", 0, 0, "", error="it went wrong", retry=retry), 100 << 20)


def test_a_failed_delta_is_followed_by_all_of_it() -> None:
    found = after(DELTA, "full")
    assert found and found.step == replace(FULL.step, why=DELTA.step.why) and found.ways == DELTA.ways
    assert found.notes == ("the delta failed (it went wrong), so all of it was sent",)


def test_a_load_whose_old_layers_were_collected_is_repeated_with_everything_once() -> None:
    sent = judged(FULL, heard(loaded(1, (CASES / "containerd-26-collected.txt").read_text().strip()), END))
    found = again(FULL, sent, 100 << 20)
    assert found and found.step == FULL.step and found.ways == FULL.ways
    [note] = found.notes
    assert note.startswith("the load failed (its Docker took the old image's layers away while it unpacked: failed to")
    assert note.endswith("), so all of it was sent again")
    assert again(found, sent, 100 << 20) is None
    delta = again(DELTA, replace(sent, mode="delta"), 100 << 20)
    assert delta and again(delta, sent, 100 << 20) is None


def test_one_that_was_too_slow_is_sent_to_alone() -> None:
    found = after(FULL, "late")
    assert found and found.alone and found.step == FULL.step
    assert found.notes == ("it went wrong, so it got a pass of its own after them",)


def test_after_a_transport_failure_comes_the_next_address_then_a_pass_of_its_own_and_then_nothing() -> None:
    found = after(DELTA, "way")
    assert found and (found.step, found.ways) == (DELTA.step, (MANAGEMENT,))
    assert found.notes == (
        "fabric address 10.0.0.2 failed (it went wrong), so management address 192.168.0.2 was taken",
    )
    last = after(found, "way")
    assert last and (last.alone, last.ways) == (True, (MANAGEMENT,))
    assert last.notes[1] == "its connection failed (it went wrong), so it got a pass of its own after the others"
    assert after(last, "way") is None


def test_a_login_that_was_dropped_is_tried_again_at_the_same_address_before_the_next_one() -> None:
    turn, ways = FULL, []
    while found := after(turn, "drop"):
        turn = found
        ways.append(turn.ways[0])
    assert ways == [*[FABRIC] * (DROPS - 1), *[MANAGEMENT] * DROPS]
    assert len(turn.notes) == 3, "repeated ones are told once"


def test_what_nothing_cures_is_not_tried_again() -> None:
    assert after(FULL, "no") is None


def test_progress_is_said_every_tenth() -> None:
    meter = Meter({"b": FULL})
    counts = [n * (1 << 20) for n in (1, 9, 10, 15, 35, 36, 100)]
    assert [meter.due("b", count) for count in counts] == [False, False, True, False, True, False, True]
    assert meter.sentence("b", 10 << 20, 2.0) == "10.0 MiB of ~100.0 MiB, 5.0 MiB/s, by the fabric address 10.0.0.2"


def test_progress_without_a_total_says_no_total() -> None:
    meter = Meter({"b": replace(FULL, step=replace(FULL.step, bytes=0))})
    assert meter.sentence("b", 10 << 20, 0.0) == "10.0 MiB, by the fabric address 10.0.0.2"
    assert [meter.due("b", 9 << 30), meter.due("b", 11 << 30)] == [False, True]
