"""Who sends to whom: a table."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fdl_tasks.images.plan import Step
from fdl_tasks.images.tree import WIDTH, WORTH, later, sends, wave
from tests.images.making import make_node


def steps(count: int, archive: int = 0, size: int = 1000) -> list[Step]:
    """``r1 r2 …`` by the relay, ``a1 a2 …`` by the archive; ``size`` bytes each."""
    names = [(f"r{n}", "relay") for n in range(1, count + 1)] + [(f"a{n}", "archive") for n in range(1, archive + 1)]
    return [Step(name, "full", transport=way, bytes=size) for name, way in names]


def shown(**how: object) -> dict[str, str]:
    count, archive = how.pop("count"), how.pop("archive", 0)
    found = wave(steps(count, archive), "s", **{"width": WIDTH, **how})  # type: ignore[arg-type]
    return {label: " ".join(step.target for step in share) for label, share in found.items()}


@pytest.mark.parametrize(
    ("how", "found"),
    [
        ({"count": 1}, {"s": "r1"}),
        ({"count": 3, "width": 3}, {"s": "r1 r2 r3"}),
        ({"count": 3, "archive": 2, "width": 3}, {"s": "r1 r2 r3 a1 a2"}),
        ({"count": 0, "archive": 5, "width": 3}, {"s": "a1 a2 a3 a4 a5"}),
        ({"count": 3, "width": 3, "others": ["x"]}, {"s": "r1 r2 r3"}),
        ({"count": 5, "width": 3}, {"s": "r1 r2 r3"}),
        ({"count": 5, "width": 3, "worth": 2000}, {"s": "r1 r2 r3"}),
        ({"count": 5, "width": 3, "worth": 2001}, {"s": "r1 r2 r3 r4 r5"}),
        ({"count": 5, "width": 3, "others": ["x"], "worth": 2001}, {"s": "r1 r2 r3 r4 r5"}),
        ({"count": 5, "archive": 1, "width": 3}, {"s": "r1 r2 r3"}),
        ({"count": 5, "width": 3, "others": ["x"]}, {"s": "r1 r3 r5", "x": "r2 r4"}),
        ({"count": 5, "archive": 1, "width": 3, "others": ["x", "y"]}, {"s": "a1", "x": "r1 r3 r5", "y": "r2 r4"}),
    ],
)
def test_up_to_the_width_the_source_serves_all_in_one_wave_and_with_more_the_first(
    how: dict[str, object], found: dict[str, str]
) -> None:
    assert shown(**how) == found


@pytest.mark.parametrize(
    ("how", "found"),
    [
        ({"count": 1, "others": ["x", "y"]}, {"s": "r1"}),
        ({"count": 4, "others": ["x", "y"]}, {"s": "r1 r4", "x": "r2", "y": "r3"}),
        ({"count": 7, "others": ["x", "y"], "width": 2}, {"s": "r1 r4", "x": "r2 r5", "y": "r3 r6"}),
        ({"count": 3, "archive": 1, "others": ["x", "y"]}, {"s": "a1", "x": "r1 r3", "y": "r2"}),
        ({"count": 4, "others": ["x", "y"], "alone": ["r2"]}, {"s": "r2", "x": "r1 r4", "y": "r3"}),
        ({"count": 2, "others": ["x"], "alone": ["r1", "r2"]}, {"s": "r1 r2"}),
        ({"count": 5, "archive": 1, "width": 2}, {"s": "r1 r2 r3 r4 r5 a1"}),
        ({"count": 5, "width": 2, "alone": ["r4"]}, {"s": "r1 r2 r3 r4 r5"}),
    ],
)
def test_later_all_who_have_it_share_the_rest_and_the_source_does_what_only_it_can(
    how: dict[str, object], found: dict[str, str]
) -> None:
    assert shown(first=False, **how) == found


@given(count=st.integers(0, 90), archive=st.integers(0, 3), width=st.integers(1, 9), others=st.integers(0, 20))
def test_every_step_is_sent_once_and_the_shares_are_even(count: int, archive: int, width: int, others: int) -> None:
    """Wave after wave, with so many of the served as senders as ``others`` allows."""
    rest, have, first, waves = steps(count, archive), list[str](), True, 0
    while rest:
        senders = have[:others]
        shares = wave(rest, "s", senders, first=first, width=width)
        served = [step.target for share in shares.values() for step in share]
        assert served and len(served) == len(set(served))
        sizes = sorted(len(share) for label, share in shares.items() if label != "s")
        assert not senders or (all(b - a <= 1 for a, b in pairwise(sizes)) and max(sizes, default=0) <= width)
        have += [name for name in served if name.startswith("r")]
        rest, first, waves = [step for step in rest if step.target not in served], False, waves + 1
    assert len(have) == count
    if others == 20 and not archive and width == 8:
        assert waves <= (count > 0) + (count > 8) + (count > 80)


@pytest.mark.parametrize(
    ("store", "python", "found"),
    [("containerd", (3, 8), True), ("containerd", (3, 7), False), ("containerd", None, False),
     ("graphdriver", (3, 11), False)],
)  # fmt: skip
def test_who_can_send_on_has_a_containerd_store_and_python(
    store: str, python: tuple[int, int] | None, found: bool
) -> None:
    assert sends(make_node("n", store=store, python=python)) is found


def test_a_plan_says_who_gets_it_later() -> None:
    planned = [Step("i", "in-sync"), *steps(WIDTH + 2, size=WORTH // 2), Step("t", "tag")]
    notes = {step.target: step.notes for step in later(planned, "s")}
    waits = "gets it after the first nodes, from one of these or from s"
    assert {label for label, said in notes.items() if said == (waits,)} == {"r9", "r10"}
    assert all(not said for label, said in notes.items() if label not in ("r9", "r10"))
    assert later(planned[:-2], "s") == planned[:-2], "one more is not worth it"
