"""The live rows on a real pty, at several sizes, and what is left of them at the end."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.terminal import Screen, Terminal

pytestmark = pytest.mark.subprocess

TOP = Path(__file__).resolve().parents[2]
# Shows the events that it reads as lines of JSON; ends at the end of its input.
PROGRAM = """
import json, sys
from fdl_tasks.outcome import Event, Kind
from fdl_tasks.report.masking import Masker
from fdl_tasks.report.progress import progress_on
try:
    with progress_on(sys.stderr, Masker()) as progress:
        for line in sys.stdin:
            host, kind, text = json.loads(line)
            progress(Event(host, Kind(kind), text))
            print(flush=True)
except KeyboardInterrupt:
    sys.exit(130)
"""


class View:
    """The program on a terminal; ``say`` returns when it has taken the event."""

    def __init__(self, terminal: Terminal):
        self.terminal = terminal

    def say(self, host: str, kind: str, text: str) -> None:
        process = self.terminal.process
        assert process.stdin
        assert process.stdout
        process.stdin.write(json.dumps([host, kind, text]).encode() + b"\n")
        process.stdin.flush()
        process.stdout.readline()

    def workers(self, number: int, *, done: int = 0) -> None:
        for n in range(number):
            self.say(f"node-{n:02}", "state", "compiling torch-sys")
            self.say(f"node-{n:02}", "line", "   Compiling torch-sys v0.17.0 (/srv/mono/torch-sys)")
        for n in range(done):
            self.say(f"node-{n:02}", "done", "ok")

    def shown(self, *needles: str) -> list[str]:
        """The screen once it has all of these."""
        lines = self.terminal.until(lambda screen: all(n in "\n".join(screen.lines) for n in needles))
        return [re.sub(r"\d+ s ", "0 s ", line) for line in lines]

    def end(self) -> Screen:
        assert self.terminal.process.stdin
        self.terminal.process.stdin.close()
        assert self.terminal.ended() == 0
        return self.terminal.screen


@contextmanager
def view(columns: int = 80, rows: int = 24, **env: str) -> Iterator[View]:
    environment = {**os.environ, "PYTHONPATH": str(TOP), "TERM": "xterm-256color", **env}
    with Terminal(
        [sys.executable, "-c", PROGRAM], columns=columns, rows=rows, env=environment, stdin=subprocess.PIPE
    ) as terminal:
        yield View(terminal)


WIDE = "node-{:02}     0 s  compiling torch-sys     Compiling torch-sys v0.17.0 (/srv/mono/torch-sys)"


def cut(text: str, columns: int) -> str:
    return text if len(text) <= columns else text[: columns - 1] + "…"


@pytest.mark.parametrize("columns", [12, 40, 80, 200])
def test_one_row_a_worker_and_no_row_wraps(columns: int) -> None:
    with view(columns) as live:
        live.workers(3)
        live.terminal.until(lambda screen: len(screen.lines) == 3 and "…" in screen.lines[2] + "…" * (columns == 200))
        assert live.shown("node-02") == [cut(WIDE.format(n), columns) for n in range(3)]
        assert live.end().lines == []
        assert live.terminal.screen.history == []


@pytest.mark.parametrize("columns", [40, 80, 200])
def test_five_lines_show_what_fits_and_count_the_rest(columns: int) -> None:
    with view(columns, rows=5) as live:
        live.workers(10, done=4)
        lines = live.shown("4 done")
        assert [line[:7] for line in lines] == ["node-04", "node-05", "node-06", "… and 7"]
        assert lines[-1] == "… and 7 more: 3 at work, 4 done"
        assert live.end().history == []


def test_a_terminal_of_two_lines_still_counts() -> None:
    with view(80, rows=2) as live:
        live.workers(3, done=1)
        assert live.shown("done") == ["2 at work, 1 done"]
        assert live.end().history == []


def test_who_is_done_sinks_and_says_how_it_ended() -> None:
    with view() as live:
        live.workers(2, done=1)
        assert live.shown("ok")[1] == "node-00     0 s  ok"


def test_notes_and_failures_stand_above_the_rows_and_stay() -> None:
    with view(columns=100) as live:
        live.workers(3)
        live.say("node-01", "note", "uses no host key")
        live.say("node-02", "done", "failed")
        above = ["[node-01] note: uses no host key", "[node-02] failed after 0 s"]
        assert [line[:40] for line in live.shown("failed after", "0 s  failed")] == [
            *above,
            WIDE.format(0)[:40],
            WIDE.format(1)[:40],
            "node-02     0 s  failed",
        ]
        assert live.end().lines == above


def test_many_notes_scroll_up_whole_and_the_rows_stay_below() -> None:
    with view(columns=60, rows=8) as live:
        live.workers(3)
        for number in range(20):
            live.say("node-00", "note", f"number {number}")
        live.shown("note: number 19")
        screen = live.end()
        said = [line for line in screen.history + screen.lines if line]
        assert said == [f"[node-00] note: number {number}" for number in range(20)]


@pytest.mark.parametrize("columns", [24, 40, 79, 120])
def test_a_terminal_that_is_resized_shows_every_row_once(columns: int) -> None:
    with view(columns=80) as live:
        live.workers(4)
        live.say("node-00", "note", "stays")
        live.shown("stays", "node-03")
        live.terminal.resize(columns, 24)
        expected = ["[node-00] note: stays", *(cut(WIDE.format(n), columns) for n in range(4))]
        plain = [re.sub(r" \d+ s ", " N s ", line) for line in expected]
        live.terminal.until(lambda s: [re.sub(r" \d+ s ", " N s ", line) for line in s.lines] == plain, seconds=3)
        assert live.end().lines == ["[node-00] note: stays"]


def test_fewer_lines_than_before_are_enough(columns: int = 80) -> None:
    with view(columns, rows=24) as live:
        live.workers(10)
        live.shown("node-09")
        live.terminal.resize(columns, 5)
        live.terminal.until(lambda screen: screen.lines[-1] == "… and 7 more: 7 at work")


def test_ctrl_c_gives_the_cursor_back() -> None:
    with view() as live:
        live.workers(1)
        live.terminal.until(lambda screen: not screen.cursor_shown and bool(screen.lines))
        live.terminal.process.send_signal(signal.SIGINT)
        assert live.terminal.ended() == 130
        assert live.terminal.screen.cursor_shown
        assert live.terminal.screen.lines == []


def test_a_terminal_that_goes_away_ends_nothing() -> None:
    with view() as live:
        live.workers(1)
        live.terminal.hang_up()
        live.workers(2, done=2)
        assert live.terminal.process.stdin
        live.terminal.process.stdin.close()
        assert live.terminal.process.wait(10) == 0


@pytest.mark.parametrize(("no_color", "colours"), [("", True), ("1", False)])
def test_no_color_means_none(no_color: str, colours: bool) -> None:
    with view(NO_COLOR=no_color) as live:
        live.workers(1, done=1)
        live.shown("ok")
        assert bool(re.search(r"\x1b\[[0-9;]*3[0-7]", live.terminal.raw)) is colours


def test_nothing_is_cleared_that_is_not_drawn_again_at_once() -> None:
    """No flicker: a frame erases its own lines only, in the same write that draws them."""
    with view() as live:
        live.workers(5)
        live.shown("node-04")
        assert "\x1b[2J" not in live.terminal.raw
        assert "\x1b[J" not in live.terminal.raw


LINES = [
    "[node-00] compiling torch-sys",
    "[node-00]    Compiling torch-sys v0.17.0 (/srv/mono/torch-sys)",
    "[node-00] done: ok",
]


@pytest.mark.parametrize("term", ["dumb", "unknown", ""])
def test_a_terminal_that_can_nothing_gets_whole_plain_lines(term: str) -> None:
    with view(columns=200, TERM=term) as live:
        live.workers(1, done=1)
        assert live.end().lines == LINES
        assert "\x1b" not in live.terminal.raw


def test_a_pipe_gets_whole_plain_lines() -> None:
    events = [
        ["node-00", "state", "compiling torch-sys"],
        ["node-00", "line", LINES[1][10:]],
        ["node-00", "done", "ok"],
    ]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        input="".join(json.dumps(event) + "\n" for event in events),
        env={**os.environ, "PYTHONPATH": str(TOP), "TERM": "xterm-256color", "FORCE_COLOR": "1"},
        capture_output=True,
        text=True,
    )
    assert done.stderr.splitlines() == LINES
