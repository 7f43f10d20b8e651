"""Messages that are longer than the terminal is wide."""

import io

import pytest

from fdl_tasks.report.wrap import wrapped


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


LONG = (
    "warning: node-a: data path /mnt/a-long-name is not a directory\n  | error: a line of a compiler that stays whole"
)


def test_a_terminal_gets_lines_broken_between_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    assert wrapped(LONG, Terminal()).split("\n") == [
        "warning: node-a: data path",
        "  /mnt/a-long-name is not a directory",
        "  | error: a line of a compiler that stays whole",
    ]


@pytest.mark.parametrize("stream", [io.StringIO(), None])
def test_a_pipe_gets_whole_lines(stream: io.StringIO | None) -> None:
    assert wrapped(LONG, stream) == LONG
