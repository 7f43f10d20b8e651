"""The tests' own terminal draws as a real one does."""

from __future__ import annotations

import pytest

from tests.terminal import Screen


@pytest.mark.parametrize(
    ("output", "lines"),
    [
        ("one\r\ntwo", ["one", "two"]),
        ("slow\rfast", ["fast"]),
        ("longer\rx", ["xonger"]),
        ("longer\r\x1b[2Kx", ["x"]),
        ("a\r\nb\r\n\x1b[2A\x1b[Kc", ["c", "b"]),
        ("a\r\n\x1b[1A\r\x1b[2K\x1b[1Bb", ["", "b"]),
        ("123456789012", ["1234567890", "12"]),
        ("1234567890\r\nx", ["1234567890", "x"]),
        ("\x1b[1;31mred\x1b[0m\x1b]0;title\x07", ["red"]),
        ("ab\b\bc", ["cb"]),
    ],
)
def test_output_is_drawn(output: str, lines: list[str]) -> None:
    screen = Screen(columns=10, rows=5)
    for char in output:  # one at a time: sequences arrive in pieces
        screen.feed(char)
    assert screen.lines == lines


def test_what_does_not_fit_scrolls_into_the_history() -> None:
    screen = Screen(columns=10, rows=2)
    screen.feed("1\r\n2\r\n3\r\n4")
    assert (screen.history, screen.lines) == (["1", "2"], ["3", "4"])


def test_a_narrower_screen_wraps_and_the_cursor_stays_in_its_line() -> None:
    screen = Screen(columns=10, rows=6)
    screen.feed("12345678\r\nabcdefgh")
    screen.resize(5, 6)
    assert screen.lines == ["12345", "678", "abcde", "fgh"]
    screen.feed("\r\x1b[2K\x1b[1A!")
    assert screen.lines == ["12345", "678", "!bcde"]


def test_colours_are_kept_for_pictures() -> None:
    screen = Screen()
    screen.feed("a\x1b[32mok\x1b[0m.\r\n\x1b[1m\x1b[31mbad")
    assert screen.styled() == "a\x1b[0;32mok\x1b[0m.\n\x1b[0;1;31mbad\x1b[0m"


def test_a_sequence_that_it_does_not_know_is_an_error_not_a_guess() -> None:
    with pytest.raises(AssertionError, match="CSI 2J"):
        Screen().feed("\x1b[2J")
