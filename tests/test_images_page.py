"""docs/images.md names tests as its witnesses: each of them is there."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).resolve().parent
PAGE = (TESTS.parent / "docs/images.md").read_text()
CASES = [1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 12, 14, 18, 19, 20, 22, 23, 24, 25, 27, 28, 29, 31, 32, 33, 35, 36, 38]


def test_every_case_that_others_met_is_answered() -> None:
    assert [int(number) for number in re.findall(r"^\| (\d+) \|", PAGE, re.MULTILINE)] == CASES


def test_every_test_that_the_page_names_is_there() -> None:
    there = {
        name for file in TESTS.rglob("test_*.py") for name in re.findall(r"^def (test_\w+)", file.read_text(), re.M)
    }
    named = re.findall(r"`(test_\w+)`", PAGE)
    assert len(named) > 20
    assert [name for name in named if name not in there] == []
