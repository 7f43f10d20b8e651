"""What each target needs: tables over made-up nodes, and the names that real archives give their entries."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fdl_tasks.cluster.image import ImageRef
from fdl_tasks.images.facts import ImageFacts, NodeFacts, failed, parse
from fdl_tasks.images.identity import Proof
from fdl_tasks.images.plan import Step, entry, full, plan, rows
from fdl_tasks.images.verify import Checked, flawed
from tests.images.making import MIB, make_image, make_node, sha

CASES = Path(__file__).parent.parent / "cases/images"
REF = ImageRef.parse("app:1")
APP = make_image("app", "abcd")
BASE = make_image("base", "ab", size=60 * MIB)
OLDER = make_image("older", "abcx")
STRANGER = make_image("stranger", "xyz")
SIZES = (0, MIB, 39 * MIB, 0, 40 * MIB, 20 * MIB)  # of d, c, b, a, with two entries that are no layers


def source(store: str = "graphdriver", **fields: Any) -> NodeFacts:
    return make_node("src", APP, store, **{"unpacked": SIZES, "others": (BASE, OLDER)} | fields)


def the_step(target: NodeFacts, src: NodeFacts | None = None, reference: ImageRef = REF) -> Step:
    origin = src or source(target.store)
    found = plan(reference, origin, [origin, target])
    assert [step.target for step in found.steps] == [target.label]
    return found.steps[0]


SAME = replace(APP, id=sha("rebuilt"), repo_tags=("mine:2",))


@pytest.mark.parametrize("store", ["graphdriver", "containerd"])
@pytest.mark.parametrize(
    ("image", "others", "mode", "base", "proof"),
    [
        (APP, (), "in-sync", None, "same id"),
        (SAME, (), "in-sync", None, "same content"),
        (None, (SAME,), "tag", SAME.id, "same content"),
        (None, (SAME, replace(APP, repo_tags=("mine:2",))), "tag", APP.id, "same id"),
        (OLDER, (SAME,), "tag", SAME.id, "same content"),
        (OLDER, (), "delta", OLDER.id, ""),
        (None, (BASE, OLDER, STRANGER), "delta", OLDER.id, ""),
        (None, (BASE,), "delta", BASE.id, ""),
        (STRANGER, (), "full", None, ""),
        (None, (), "full", None, ""),
    ],
)
def test_the_least_that_does_is_chosen(
    store: str, image: ImageFacts | None, others: tuple[ImageFacts, ...], mode: str, base: str | None, proof: str
) -> None:
    step = the_step(make_node("t", image, store, others))
    assert (step.mode, step.base, step.proof, step.error) == (mode, base, proof, None)
    assert (step.bytes > 0) is (mode in ("delta", "full"))


def test_a_graphdriver_delta_leaves_out_the_chain_that_is_there() -> None:
    step = the_step(make_node("t", OLDER))
    assert step.omit == {entry(sha(letter)) for letter in "abc"}
    assert (step.bytes, step.needed) == (MIB, 2 * MIB)
    assert step.why == "3 of 4 layers are there, in older:1"
    assert step.replaces == OLDER.id


@pytest.mark.parametrize(
    ("layers", "there", "omit"),
    [
        ("abcd", "abx", "ab"),
        ("abcd", "xbcd", ""),  # the same layers on another chain
        ("abcd", "bcd", ""),
        ("abad", "abx", "b"),  # what is needed again further up stays in
        ("aab", "a", ""),
        ("abcd", "abcde", "abcd"),
    ],
)
def test_only_a_chain_from_the_bottom_counts_and_what_stands_above_it_again_is_sent(
    layers: str, there: str, omit: str
) -> None:
    src = make_node("src", make_image("app", layers), unpacked=SIZES)
    step = the_step(make_node("t", None, others=(make_image("there", there),)), src)
    assert step.omit == {entry(sha(letter)) for letter in omit}
    assert step.mode == ("delta" if omit else "full")


@pytest.mark.parametrize(
    ("server", "mode"), [("24.0.7", "full"), ("20.10.21", "full"), ("25.0.3", "delta"), ("?", "full")]
)
def test_archives_whose_entries_have_random_names_are_sent_whole(server: str, mode: str) -> None:
    assert the_step(make_node("t", OLDER), source(server=server)).mode == mode


def test_a_containerd_delta_needs_a_base_with_the_same_id_on_both_nodes() -> None:
    rebuilt = replace(BASE, id=sha("another build"))  # the same layers, perhaps in other blobs
    assert the_step(make_node("t", None, "containerd", (rebuilt,))).mode == "full"
    step = the_step(make_node("t", None, "containerd", (rebuilt, BASE)))
    assert (step.mode, step.base, step.omit) == ("delta", BASE.id, frozenset())


def test_a_containerd_delta_that_saves_next_to_nothing_is_not_worth_reading_the_base() -> None:
    src = source("containerd", unpacked=(90 * MIB, 5 * MIB, 3 * MIB, 2 * MIB))
    assert the_step(make_node("t", OLDER, "containerd"), src).mode == "delta"  # all but the top layer
    first = make_image("first", "a")
    src = replace(src, unpacked=(2 * MIB, 3 * MIB, 94 * MIB, MIB), others=(first,))
    assert the_step(make_node("t", None, "containerd", (first,)), src).mode == "full"


@pytest.mark.parametrize(("here", "there"), [("graphdriver", "containerd"), ("containerd", "graphdriver")])
def test_between_unlike_stores_everything_is_sent(here: str, there: str) -> None:
    step = the_step(make_node("t", OLDER, there, (BASE,)), source(here))
    assert (step.mode, step.omit, step.base) == ("full", frozenset(), None)
    assert step.why == f"the stores differ: {here} here, {there} there"


@pytest.mark.parametrize(
    ("here", "there", "api", "platform"),
    [
        ("containerd", "graphdriver", (1, 51), "linux/amd64"),
        ("containerd", "graphdriver", (1, 47), ""),
        ("containerd", "containerd", (1, 51), ""),
        ("graphdriver", "containerd", (1, 51), ""),
    ],
)
def test_one_platform_is_saved_where_attestations_would_break_the_loader(
    here: str, there: str, api: tuple[int, int], platform: str
) -> None:
    assert the_step(make_node("t", None, there), source(here, api=api)).platform == platform


BY_DIGEST = ImageRef.parse(f"app@{APP.id}")


@pytest.mark.parametrize(
    ("store", "there", "mode"),
    [
        ("containerd", APP, "tag"),
        ("containerd", SAME, "delta"),  # a tag on another manifest does not make the digest resolve
        ("graphdriver", SAME, "tag"),  # sending would not bring the digest either: only a pull does
    ],
)
def test_a_digest_in_a_containerd_store_is_that_very_manifest(store: str, there: ImageFacts, mode: str) -> None:
    target = make_node("t", None, store, (replace(there, repo_tags=("mine:2",)), BASE))
    assert the_step(target, reference=BY_DIGEST).mode == mode


@pytest.mark.parametrize("store", ["graphdriver", "containerd"])
def test_a_record_without_content_is_never_in_sync_and_is_sent_whole(store: str) -> None:
    ghost = make_node("t", APP, store, (OLDER,), complete=False, startable=False, flaw="its store lacks content")
    step = the_step(ghost)
    assert (step.mode, step.omit, step.why) == ("full", frozenset(), "same id, but its store lacks content")
    assert step.error is None


def test_a_whole_copy_that_will_not_start_is_an_error_and_is_not_sent_again() -> None:
    step = the_step(make_node("t", APP, complete=True, startable=False, flaw="no space left on device"))
    assert step.error == "the image is whole there, so sending it again would not help: no space left on device"


@pytest.mark.parametrize("release", ["26", "28"])
def test_a_disk_that_was_full_is_an_error_until_it_has_grown(release: str) -> None:
    nodes = {
        name: parse((CASES / f"probe/containerd-{release}-{name}.txt").read_text(), name)
        for name in ("present", "after-full-disk", "after-growth", "after-lacking", "absent")
    }
    no_container = Checked("", Proof.ID, error="no space left on device")  # as verify.sh finds it there
    nodes |= flawed(nodes, {"after-full-disk": no_container}, "present")
    steps = {step.target: step for step in plan(REF, nodes["present"], list(nodes.values())).steps}
    assert (steps["after-full-disk"].error or "").startswith("no room: the image needs about")
    assert (steps["after-growth"].mode, steps["after-growth"].error) == ("in-sync", None)
    assert (steps["after-lacking"].mode, steps["absent"].mode) == (
        "full",
        "tag",
    )  # that node was asked for another name


@pytest.mark.parametrize(
    ("free", "error"),
    [
        ({"/var/lib/docker": 200 * MIB}, None),
        (
            {"/var/lib/docker": 200 * MIB - 1},
            "no room: the image needs about 200.0 MiB in /var/lib/docker, and 200.0 MiB",
        ),
        ({"/var/lib/docker": MIB, "/var/lib/containerd": 1 << 40}, None),  # either may be where the store is
        (
            {"/var/lib/docker": MIB, "/var/lib/containerd": 2 * MIB},
            "about 200.0 MiB in /var/lib/containerd, and 2.0 MiB",
        ),
        ({}, None),
    ],
)
def test_too_little_room_is_an_error_with_needed_and_free(free: dict[str, int], error: str | None) -> None:
    step = the_step(make_node("t", None, free=free))
    assert (error is None and step.error is None) or (error and error in (step.error or ""))


def test_a_delta_needs_room_for_what_it_sends_only() -> None:
    assert the_step(make_node("t", OLDER, free={"/var/lib/docker": 3 * MIB})).error is None
    assert the_step(make_node("t", BASE, free={"/var/lib/docker": 3 * MIB})).error


@pytest.mark.parametrize(
    ("history", "there", "sent"),
    [
        ((0, MIB, 39 * MIB, 0, 40 * MIB, 20 * MIB), "abc", MIB),
        ((0, MIB, 39 * MIB, 0, 40 * MIB, 20 * MIB), "ab", 40 * MIB),
        ((MIB, 79 * MIB, 20 * MIB), "abc", 0),  # one layer has no size, and it may be the top one: at least this
        ((MIB, 79 * MIB, 20 * MIB), "ab", MIB),
        ((), "abc", 100 * MIB),  # nothing is known of the layers: at most this
    ],
)
def test_the_bytes_of_a_delta_come_from_the_history(history: tuple[int, ...], there: str, sent: int) -> None:
    target = make_node("t", None, others=(make_image("there", there),))
    assert the_step(target, source(unpacked=history)).bytes == sent


def test_compressed_blobs_are_counted_as_sent_and_unpacked_as_needed() -> None:
    src = source("containerd", unpacked=(100 * MIB, 100 * MIB, 100 * MIB, 100 * MIB))  # of 100 MiB of blobs
    step = the_step(make_node("t", OLDER, "containerd"), src)
    assert (step.bytes, step.needed) == (25 * MIB, 125 * MIB)
    assert full(src, make_node("t", None, "containerd"), "").needed == 500 * MIB


def test_targets_that_lack_the_same_are_one_group() -> None:
    nodes = [
        make_node("a", OLDER),
        make_node("b", None),
        failed("c", "down"),
        make_node("d", None, others=(replace(OLDER, id=sha("other"), repo_tags=("x:1",)),)),
        make_node("e", STRANGER),
        make_node("f", APP),
        make_node("g", None, free={"/": 1}),
        make_node("h", None, "containerd"),
    ]
    found = plan(REF, source(), nodes)
    assert [group.targets for group in found.groups] == [("a", "d"), ("b", "e", "h")]
    assert [group.bytes for group in found.groups] == [MIB, 100 * MIB]
    assert [step.target for step in found.todo] == ["a", "b", "d", "e", "h"]


def test_containerd_targets_are_grouped_by_their_base() -> None:
    nodes = [
        make_node(label, None, "containerd", (base,)) for label, base in {"a": BASE, "b": OLDER, "c": BASE}.items()
    ]
    groups = plan(REF, source("containerd"), nodes).groups
    assert [(group.targets, group.base) for group in groups] == [(("a", "c"), BASE.id), (("b",), OLDER.id)]


def test_when_all_is_in_sync_the_plan_is_empty() -> None:
    found = plan(REF, source(), [source(), make_node("a", APP), make_node("b", SAME)])
    assert (found.todo, found.groups) == ((), ())
    assert [step.mode for step in found.steps] == ["in-sync", "in-sync"]


def test_an_image_for_another_cpu_is_noted() -> None:
    assert the_step(make_node("t", None, arch="arm64")).notes == ("the image is for amd64, the engine is arm64",)
    assert the_step(make_node("t", None)).notes == ()


def test_a_source_without_the_image_is_refused() -> None:
    with pytest.raises(ValueError, match="src is no source"):
        plan(REF, make_node("src"), [])


def test_the_plan_as_rows_says_what_goes_where_and_why() -> None:
    nodes = [make_node("a", OLDER), make_node("b"), make_node("c", APP), make_node("d", None, others=(SAME,))]
    nodes.append(make_node("e", None, free={"/": MIB}))
    assert rows(plan(REF, source(), nodes)) == (
        ("a", "delta", "archive", "~1.0 MiB", f"3 of 4 layers are there, in older:1; the name now means {OLDER.id}"),
        ("b", "full", "archive", "~100.0 MiB", "no image there has a layer of it to begin with"),
        ("c", "in-sync", "-", "-", "same id"),
        ("d", "tag", "-", "-", "same content; it is there already, mine:2"),
        ("e", "failed", "archive", "~100.0 MiB", "no room: the image needs about 200.0 MiB in /, and 1.0 MiB are free"),
    )


@pytest.mark.parametrize("name", ["app", "built"])
@pytest.mark.parametrize("release", ["26", "28"])
def test_a_graphdriver_archive_names_its_layers_by_diff_id(release: str, name: str) -> None:
    shown = json.loads((CASES / f"save/graphdriver-{release}-{name}.json").read_text())
    listed = {line.split()[1] for line in (CASES / f"save/graphdriver-{release}-{name}.txt").read_text().splitlines()}
    layers = [entry(layer) for layer in shown["inspect"]["RootFS"]["Layers"]]
    assert shown["manifest.json"][0]["Layers"] == layers
    assert {*layers, "manifest.json", "index.json"} <= listed


@pytest.mark.parametrize("release", ["26", "28"])
def test_a_containerd_archive_names_them_by_blob_which_no_inspect_tells(release: str) -> None:
    shown = json.loads((CASES / f"save/containerd-{release}-built.json").read_text())
    layers = [entry(layer) for layer in shown["inspect"]["RootFS"]["Layers"]]
    assert shown["manifest.json"][0]["Layers"] != layers  # why a delta is planned by its base there
