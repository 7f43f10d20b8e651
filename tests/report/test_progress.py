from __future__ import annotations

import io
import re
import threading
import time
from typing import Any

import pytest

from fdl_tasks.outcome import Event, Kind
from fdl_tasks.report.masking import Masker
from fdl_tasks.report.progress import Lines, Rows, progress_on

PLAIN = Masker()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Gone(io.StringIO):
    def write(self, text: str) -> int:
        raise BrokenPipeError


@pytest.mark.parametrize(
    ("event", "line"),
    [
        (Event("a", Kind.STATE, "probing"), "[a] probing\n"),
        (Event("a", Kind.LINE, "   Compiling x v1.0"), "[a]    Compiling x v1.0\n"),
        (Event("a", Kind.NOTE, "uses no host key"), "[a] note: uses no host key\n"),
        (Event("a", Kind.DONE, "unverified"), "[a] done: unverified\n"),
        (Event("a", Kind.LINE, "\x1b[31mred\x1b[0m\x07 [bold]x[/] :smile:"), "[a] red [bold]x[/] :smile:\n"),
        (Event("a", Kind.LINE, "two\nlines"), "[a] two lines\n"),
        (Event("a", Kind.LINE, "10%\r100%"), "[a] 100%\n"),
        (Event("a", Kind.LINE, "windows\r\n"), "[a] windows\n"),
        (Event("a", Kind.LINE, ""), "[a] \n"),
    ],
)
def test_a_pipe_gets_one_whole_harmless_line_an_event(event: Event, line: str) -> None:
    stream = io.StringIO()
    with progress_on(stream, PLAIN) as progress:
        progress(event)
    assert stream.getvalue() == line


def test_lines_are_masked() -> None:
    stream = io.StringIO()
    Lines(stream, Masker(["hunter2hunter2"]))(Event("a", Kind.LINE, "token hunter2hunter2"))
    assert stream.getvalue() == "[a] token ***\n"


def test_lines_of_many_threads_stay_whole() -> None:
    class Slow(io.StringIO):
        def write(self, text: str) -> int:
            written = super().write(text[:5])
            time.sleep(0)  # lets another thread in
            return written + super().write(text[5:])

    stream = Slow()
    lines = Lines(stream, PLAIN)

    def talk(host: str) -> None:
        for number in range(100):
            lines(Event(host, Kind.LINE, f"line {number} of {host}"))

    threads = [threading.Thread(target=talk, args=(f"h{n}",)) for n in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    written = stream.getvalue().splitlines()
    assert len(written) == 2000
    assert all(re.fullmatch(r"\[(h\d+)\] line \d+ of \1", line) for line in written)


@pytest.mark.parametrize("stream", [Gone(), None])
def test_a_stderr_that_is_gone_ends_nothing(stream: Any) -> None:
    with progress_on(stream, PLAIN) as progress:
        progress(Event("a", Kind.STATE, "probing"))


def test_a_dumb_terminal_gets_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    stream = Terminal()
    with progress_on(stream, PLAIN) as progress:
        progress(Event("a", Kind.STATE, "probing"))
    assert stream.getvalue() == "[a] probing\n"


def shown(rows: Rows, width: int = 60) -> list[str]:
    from rich.console import Console

    out = io.StringIO()
    Console(file=out, width=width).print(rows)
    return [re.sub(r" +", " ", line).strip() for line in out.getvalue().splitlines()]


def test_a_live_row_shows_state_and_last_line_and_who_is_done_sinks() -> None:
    rows = Rows(PLAIN)
    for event in [
        Event("a", Kind.STATE, "building"),
        Event("b", Kind.STATE, "compiling torch-sys"),
        Event("b", Kind.LINE, "Compiling [torch-sys] v1\x1b[2J"),
        Event("a", Kind.DONE, "unverified"),
    ]:
        assert rows.take(event) == ""
    assert shown(rows) == ["b 0 s compiling torch-sys Compiling [torch-sys] v1", "a 0 s unverified"]


def test_a_note_stands_above_the_rows() -> None:
    assert Rows(PLAIN).take(Event("a", Kind.NOTE, "no host-key check")) == "[a] note: no host-key check"


def test_a_long_line_does_not_break_the_rows() -> None:
    rows = Rows(PLAIN)
    rows.take(Event("a", Kind.STATE, "building"))
    rows.take(Event("a", Kind.LINE, "x" * 500))
    assert len(shown(rows)) == 1


def test_a_terminal_gets_live_rows_and_notes_for_good(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    with progress_on(stream, PLAIN) as progress:
        progress(Event("a", Kind.STATE, "probing"))
        progress(Event("a", Kind.NOTE, "[odd] note\x1b]0;x\x07"))
    assert "[a] note: [odd] note\n" in stream.getvalue()
    assert "probing" in stream.getvalue()
    assert "\x1b]0;" not in stream.getvalue()
