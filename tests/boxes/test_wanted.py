"""Flags over the ``join:`` block, field by field."""

import pytest

from fdl_tasks.boxes.wanted import wanted
from fdl_tasks.cluster.model import Join, Source
from fdl_tasks.errors import UsageError

BLOCK = Join(
    source=Source("rsync://ctrl:/srv/run/tree", cwd="bench", build="make", bin="out/x"),
    libtorch="cu126",
    data_path="/mnt/nas",
    data_source="sshfs://ctrl/data",
    devices=(0,),
)


def test_without_flags_the_block_stands() -> None:
    assert wanted(BLOCK) == BLOCK


@pytest.mark.parametrize(
    ("flag", "value", "field"),
    [("data_path", "/d", "data_path"), ("data_source", "sshfs://h/d", "data_source"), ("libtorch", "auto", "libtorch")],
)
def test_a_flag_wins_over_its_field_and_no_other(flag: str, value: str, field: str) -> None:
    found = wanted(BLOCK, **{flag: value})
    assert getattr(found, field) == value
    assert {k: v for k, v in vars(found).items() if k != field} == {k: v for k, v in vars(BLOCK).items() if k != field}


def test_a_source_given_as_flag_keeps_the_rest_of_the_block() -> None:
    found = wanted(BLOCK, source="file:///srv/mono", source_bin="y")
    assert found.source == Source("file:///srv/mono", cwd="bench", build="make", bin="y")


def test_flags_alone_make_a_source() -> None:
    assert wanted(Join(), source="file:///s", source_cwd="a").source == Source("file:///s", cwd="a")


@pytest.mark.parametrize("part", ["source_cwd", "source_build", "source_bin"])
def test_a_part_of_a_source_without_a_source_is_refused(part: str) -> None:
    with pytest.raises(UsageError, match=f"--{part.replace('_', '-')} without a source"):
        wanted(Join(), **{part: "x"})


def test_a_binary_and_a_source_are_refused_wherever_they_come_from() -> None:
    with pytest.raises(UsageError, match="both given"):
        wanted(Join(bin="/opt/train"), source="file:///s")


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ("all", None),
        ("ALL", None),
        ("0", (0,)),
        ("0,2", (0, 2)),
        (" 1 , 0 ", (1, 0)),
        ([3], (3,)),
        (None, (0,)),
        ("", (0,)),
    ],
)
def test_devices_are_all_or_numbers(given: object, found: tuple[int, ...] | None) -> None:
    assert wanted(BLOCK, devices=given).devices == found  # type: ignore[arg-type]


@pytest.mark.parametrize("given", ["x", "-1", "all,0", [300], ","])
def test_devices_that_are_no_numbers_are_refused(given: object) -> None:
    with pytest.raises(UsageError, match="--devices takes"):
        wanted(BLOCK, devices=given)  # type: ignore[arg-type]
