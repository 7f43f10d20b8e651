"""Sizes in messages and tables."""

from __future__ import annotations

import pytest

from fdl_tasks.sizes import human_size


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 KiB"),
        (4096, "4 KiB"),
        (300 << 10, "300 KiB"),
        (1 << 20, "1.0 MiB"),
        ((1 << 30) - 1, "1024.0 MiB"),
        (3 << 29, "1.5 GiB"),
        (35 << 30, "35.0 GiB"),
    ],
)
def test_sizes_are_written_for_people(size: int, text: str) -> None:
    assert human_size(size) == text
