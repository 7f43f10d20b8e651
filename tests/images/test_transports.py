"""Which way the image goes to each target."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fdl_tasks.cluster.image import ImageRef
from fdl_tasks.errors import UsageError
from fdl_tasks.images.facts import NodeFacts
from fdl_tasks.images.plan import Step, plan
from fdl_tasks.images.transports import Transport, choose, transport
from tests.images.making import MIB, make_image, make_node, sha

APP = ImageRef.parse("app:1")
IMAGE = make_image("app", "abc", size=60 * MIB)
SOURCE = make_node("s", IMAGE, "containerd", python=(3, 8), unpacked=(20 * MIB, 0, 40 * MIB, 60 * MIB))


def step_of(wanted: Transport, target: NodeFacts, source: NodeFacts = SOURCE, reference: ImageRef = APP) -> Step:
    found = plan(reference, source, [source, target])
    return choose(found, reference, {"s": source, target.label: target}, wanted).steps[0]


NEW = make_node("t", store="containerd")


@pytest.mark.parametrize(
    ("source", "target", "why"),
    [
        (SOURCE, NEW, ""),
        (SOURCE, make_node("t"), "a relay takes containerd stores at both ends, and t has a graphdriver store"),
        (replace(SOURCE, store="graphdriver"), NEW, "both ends, and s has a graphdriver store"),
        (replace(SOURCE, python=(3, 7)), NEW, "s has no python3 3.8 or later, which runs a relay"),
        (replace(SOURCE, python=None), NEW, "s has no python3 3.8 or later, which runs a relay"),
        (SOURCE, make_node("t", IMAGE, "containerd", complete=False, flaw="x"), "its copy there lacks content"),
    ],
)
def test_it_is_a_relay_wherever_that_can_be(source: NodeFacts, target: NodeFacts, why: str) -> None:
    auto, forced, archive = (step_of(wanted, target, source) for wanted in ("auto", "relay", "archive"))
    if why:
        assert (auto.transport, auto.error, auto.instead) == ("archive", None, None)
        assert auto.notes[0].startswith("by the archive, since ") and why in auto.notes[0]
        assert forced.error and forced.error.startswith("no relay can bring it: ") and why in forced.error
    else:
        assert (auto.transport, auto.error, auto.notes) == ("relay", None, ())
        assert auto.instead == archive
        assert forced == replace(auto, instead=None)
    assert (archive.transport, archive.error, archive.notes) == ("archive", None, ())


@pytest.mark.parametrize(
    ("layers", "mode", "sent", "why"),
    [
        ("", "full", 60 * MIB, "no layer of it is there"),
        ("xyz", "full", 60 * MIB, "no layer of it is there"),
        ("ab", "delta", 10 * MIB, "2 of 3 layers are there"),
        ("abx", "delta", 10 * MIB, "2 of 3 layers are there"),
        ("xa", "delta", 30 * MIB, "1 of 3 layers are there"),
    ],
)
def test_about_what_is_sent_is_known_before(layers: str, mode: str, sent: int, why: str) -> None:
    others = [make_image("old", layers)] if layers else []
    step = step_of("auto", make_node("t", store="containerd", others=others))
    assert (step.mode, step.bytes, step.why, step.omit, step.base) == (mode, sent, why, frozenset(), None)


def test_the_room_is_that_of_what_is_missing_and_not_of_the_whole_archive() -> None:
    old = make_image("old", "ab")
    step = step_of("auto", make_node("t", store="containerd", others=[old], free={"/": 40 * MIB}))
    assert (step.error, step.needed) == (None, 30 * MIB)
    assert step.instead and "no room" in (step.instead.error or "")
    assert "no room" in (step_of("auto", make_node("t", store="containerd", free={"/": 40 * MIB})).error or "")


@pytest.mark.parametrize("wanted", ["auto", "relay", "archive"])
def test_a_copy_that_no_transfer_mends_keeps_its_error(wanted: Transport) -> None:
    target = make_node("t", IMAGE, "containerd", startable=False, flaw="exec format error")
    step = step_of(wanted, target)
    assert (step.error, step.notes) == (
        "the image is whole there, so sending it again would not help: exec format error",
        (),
    )


def test_what_needs_no_transfer_has_none() -> None:
    synced = make_node("t", IMAGE, "containerd")
    tagged = make_node("t", store="containerd", others=[IMAGE])
    assert [step_of("relay", target).mode for target in (synced, tagged)] == ["in-sync", "tag"]
    assert not step_of("relay", make_node("t", IMAGE)).error  # in sync, by content


def test_a_digest_is_held_by_a_name_that_is_told() -> None:
    reference = ImageRef.parse(f"app@{sha('app')}")
    step = step_of("auto", NEW, reference=reference)
    assert step.notes == (f"its digest is found there by the tag app:fdl-{sha('app')[7:19]}, which stays",)


@pytest.mark.parametrize("word", ["auto", "relay", "archive"])
def test_the_words_for_it(word: str) -> None:
    assert transport(word) == word


def test_another_word_is_refused() -> None:
    with pytest.raises(UsageError, match="'' is none of auto, relay, archive"):
        transport("")
