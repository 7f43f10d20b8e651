from __future__ import annotations

from pathlib import Path

import pytest

from fdl_tasks.builds.clean import CleanReport, Item, State
from fdl_tasks.report.masking import Masker
from fdl_tasks.report.removals import human_age, removal_failures, removals_count, removals_table

REPORT = CleanReport(
    Path("/srv/mono/target/cluster"),
    (
        Item("target/cluster/a/x", "a", 5 << 30, 90.0, State.FAILED, "permission denied: …"),
        Item("target/cluster/b/x", "b", 1 << 20, 86400.0, State.REMOVED),
        Item("target/cluster/c/x", "c", 3 << 20, 7200.0, State.IN_USE),
        Item("target/cluster/.fdl-probe-1-0", "", 4096, 7200.0, State.REMOVED),
    ),
)


def test_failures_stand_last_and_are_counted() -> None:
    table = removals_table(REPORT, Masker(), None).splitlines()
    assert [line.split()[0] for line in table[1:5]] == [
        "target/cluster/b/x",
        "target/cluster/.fdl-probe-1-0",
        "target/cluster/c/x",
        "target/cluster/a/x",
    ]
    assert table[-1] == "2 removed, 1 in use, 1 failed, 1.0 MiB freed"


def test_every_failure_has_its_reason() -> None:
    assert removal_failures(REPORT) == (
        "target/cluster/a/x: permission denied: …\nprebuild-clean: 1 of 4 left-overs could not be removed"
    )


def test_a_dry_run_counts_what_would_be_freed() -> None:
    report = CleanReport(Path("/x"), (Item("target/cluster/a/x", "a", 5 << 30, 90.0),))
    assert removals_count(report) == "1 to remove, 5.0 GiB to be freed"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "just now"), (59, "just now"), (60, "1 minute ago"), (7200, "2 hours ago"), (41 * 86400, "41 days ago")],
)
def test_ages_for_people(seconds: float, text: str) -> None:
    assert human_age(seconds) == text
