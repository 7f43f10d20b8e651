"""Which node is the source, in what order, and why."""

from __future__ import annotations

from typing import Any

import pytest

from fdl_tasks.errors import UsageError
from fdl_tasks.images.facts import NodeFacts, failed
from fdl_tasks.images.source import SourceError, choose
from tests.images.making import make_image, make_node, sha

OLD, NEW = "2026-10-01T00:00:00Z", "2026-11-30T12:45:05.563331359Z"


def node(label: str, content: str = "", created: str = OLD, **fields: Any) -> NodeFacts:
    """A node with an image of that content (a letter a layer), or without."""
    image = make_image(f"{label}{content}", content, created=created) if content else None
    return make_node(label, image, **fields)


BROKEN: dict[str, Any] = {"complete": False, "flaw": "its store lacks content"}


@pytest.mark.parametrize(
    ("nodes", "labels", "reason"),
    [
        ([node("a"), node("b", "x"), node("c")], "b", "the only node that has it"),
        ([node("a", "x"), node("b", "x")], "ab", "every copy has the same content"),
        ([node("a", "x", NEW), node("b", "x", OLD)], "ab", "every copy has the same content"),
        ([node("a", "x", "1970-01-01T00:00:00Z"), node("b", "x", "")], "ab", "every copy has the same content"),
        ([node("a", "x"), node("b", "y", NEW), node("c", "y", NEW)], "bc", "the newest of 2 different images (created "
         "2026-11-30 12:45:05 UTC)"),
        ([node("a", "x", "2026-11-30T13:00:00+02:00"), node("b", "y", "2026-11-30T12:00:00Z")], "b", "the newest of 2 "
         "different images (created 2026-11-30 12:00:00 UTC)"),
        ([node("a", "x", "2026-11-30T13:00:00+02:00"), node("b", "y", "2026-11-30T10:00:00Z")], "a", "the newest of 2 "
         "different images (created 2026-11-30 11:00:00 UTC)"),
        ([failed("a", "no route to host"), node("b", "x")], "b", "the only node that has it"),
        ([node("a", "x", complete=None), node("b", "x")], "ba", "every copy has the same content"),
        ([node("a", "x"), node("b", "x", store="containerd"), node("c", store="containerd")], "ba",
         "every copy has the same content"),
    ],
)  # fmt: skip
def test_the_candidates_and_the_reason(nodes: list[NodeFacts], labels: str, reason: str) -> None:
    choice = choose(nodes)
    assert ("".join(choice.labels), choice.reason, choice.refused) == (labels, reason, {})


def test_a_broken_copy_is_refused_and_the_next_taken() -> None:
    choice = choose([node("a", "x", **BROKEN), node("b", "x"), node("c", "x", startable=False, flaw="no space")])
    assert choice.labels == ("b",)
    assert choice.refused == {"a": "its store lacks content", "c": "no space"}


def test_an_older_image_never_replaces_the_newest_whose_copy_is_broken() -> None:
    with pytest.raises(SourceError) as caught:
        choose([node("a", "x", OLD), node("b", "y", NEW, **BROKEN)])
    assert "no node has a whole copy" in caught.value.what and "b: its store lacks content" in caught.value.what
    assert "--source" in caught.value.hint


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (NEW, NEW),
        ("1970-01-01T00:00:00Z", "1970-01-01T00:00:00Z"),
        ("1980-01-01T00:00:01Z", NEW),
        ("0001-01-01T00:00:00Z", NEW),
        ("", NEW),
        ("yesterday", NEW),
        ("9999-12-31T23:59:59-14:00", NEW),
    ],
)
def test_different_contents_whose_dates_do_not_tell_are_an_error_that_names_them(one: str, other: str) -> None:
    with pytest.raises(SourceError) as caught:
        choose([node("a", "x", one), node("b", "y", other), node("c")])
    told = str(caught.value)
    assert f"a has {sha('ax')} created {one or 'at an unknown time'}" in told and f"b has {sha('by')}" in told
    assert "--source a" in told


def test_no_image_anywhere_tells_each_node_s_state() -> None:
    with pytest.raises(SourceError) as caught:
        choose([node("a"), failed("b", "docker says: EOF")])
    assert caught.value.what == (
        "no node has the image: a does not have the image; b can't be asked (docker says: EOF)"
    )
    assert caught.value.hint


def test_the_named_source_is_taken_although_another_is_newer() -> None:
    choice = choose([node("a", "x", OLD), node("b", "y", NEW)], "a")
    assert (choice.labels, choice.reason) == (("a",), "named as the source")


@pytest.mark.parametrize(
    ("wanted", "says"),
    [
        ("z", "the source 'z' is none of the nodes"),
        ("a", "the source a does not have the image"),
        ("b", "the source b can't be asked (down)"),
        ("c", "but its store lacks content"),
    ],
)
def test_a_named_source_that_cannot_be_one_is_an_error(wanted: str, says: str) -> None:
    nodes = [node("a"), failed("b", "down"), node("c", "x", **BROKEN), node("d", "x")]
    with pytest.raises(UsageError if wanted == "z" else SourceError) as caught:
        choose(nodes, wanted)
    assert says in str(caught.value)
