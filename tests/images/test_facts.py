"""The parser of a node's answer: answers captured from engines of both stores and releases, and properties."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fdl_tasks.images.facts import CUT, NodeFacts, canonical, image, parse

CASES = Path(__file__).parent.parent / "cases/images/probe"
CAPTURED = sorted(CASES.glob("*.txt"))
PRESENT, ABSENT, GHOST, BUILT = (
    (CASES / f"containerd-28-{name}.txt").read_text() for name in ("present", "absent", "after-lacking", "built")
)
DENIED = (CASES / "denied-26.txt").read_text()
ANSWERS = [PRESENT, ABSENT, GHOST, DENIED]
INSPECT = BUILT.partition("__FDL_IMAGE__")[2].partition("\n")[0]
NOISE = st.one_of(
    st.text(st.characters(exclude_characters="\n", exclude_categories=["Cs"])),
    st.sampled_from(
        [
            "Error response from daemon: No such image: app:1",
            "__FDL_NOIMAGE__ 56 Error response from daemon: No such image: nope:1",
            "__FDL_NOIMAGE__ 48 Error response from daemon: No such image: app:1",
            f"__FDL_IMAGE__{INSPECT}",
            "__FDL_END__ 0 ",
            "__FDL_SIZES__ 1 0",
            '{"Id":"sha256:1"}',
            "\r",
        ]
    ),
)


def told(node: NodeFacts) -> dict[str, Any]:
    """A node's facts as JSON; of the other images only the names."""
    shown = asdict(replace(node, others=(), free={}))
    shown |= {"others": [one.repo_tags for one in node.others], "tools": sorted(node.tools)}
    plain: dict[str, Any] = json.loads(json.dumps(shown))
    return plain


@pytest.mark.parametrize("case", CAPTURED, ids=lambda path: path.stem)
def test_a_captured_answer_gives_the_facts_beside_it(case: Path) -> None:
    assert told(parse(case.read_text(), "node")) == json.loads(case.with_suffix(".json").read_text())


@pytest.mark.parametrize("release", ["26", "28"])
@pytest.mark.parametrize("store", ["containerd", "graphdriver"])
def test_both_stores_of_both_releases_are_told_apart(store: str, release: str) -> None:
    node = parse((CASES / f"{store}-{release}-present.txt").read_text(), "node")
    assert (node.store, node.server[:2], node.error) == (store, release, None)
    assert node.api == {"26": (1, 45), "28": (1, 51)}[release]
    known = None if store == "containerd" else True  # of a large image its archive's beginning tells nothing
    assert (node.complete, node.broken, node.flaw) == (known, False, "")
    assert list(node.free) and min(node.free.values()) > 0 and node.tools == {"zstd", "aes"}


@pytest.mark.parametrize("release", ["26", "28"])
def test_a_record_without_its_layers_is_present_but_broken(release: str) -> None:
    node = parse((CASES / f"containerd-{release}-after-lacking.txt").read_text(), "node")
    good = parse((CASES / f"containerd-{release}-present.txt").read_text(), "node")
    assert node.image and good.image and node.image.id == good.image.id  # the id alone would call it in sync
    assert (node.complete, node.broken) == (False, True)
    assert "lacks content" in node.flaw
    healed = parse((CASES / f"containerd-{release}-healed.txt").read_text(), "node")
    assert (healed.complete, healed.broken) == (None, False)


def test_a_failed_load_leaves_nothing_in_a_graphdriver_store() -> None:
    node = parse((CASES / "graphdriver-28-after-lacking.txt").read_text(), "node")
    assert (node.image, node.error) == (None, None)


@pytest.mark.parametrize("name", ["stopped-26", "stopped-28", "denied-26", "denied-28"])
def test_an_engine_that_does_not_answer_is_an_error_and_never_absence(name: str) -> None:
    node = parse((CASES / f"{name}.txt").read_text(), "node")
    assert node.image is None and node.error and "docker says: " in node.error
    assert ("in the group docker" in node.error) is name.startswith("denied")


def test_a_docker_host_that_does_not_answer_is_named() -> None:
    node = parse((CASES / "docker-host-stopped.txt").read_text(), "node", "unix:///run/user/1000/docker.sock")
    assert node.error and node.error.startswith("docker_host is unix:///run/user/1000/docker.sock, and there docker")


def line(name: str, value: str) -> str:
    return f"__FDL_{name}__ {len(value.encode())} {value}\n"


@pytest.mark.parametrize(
    ("said", "error"),
    [
        (line("NODOCKER", "/usr/bin:/bin"), "there is no docker on its PATH (/usr/bin:/bin): install it there"),
        (line("REFUSED", "EOF"), "docker says: EOF"),
        ("", CUT),
    ],
)
def test_why_a_node_cannot_be_asked_is_said(said: str, error: str) -> None:
    assert parse(said + line("END", ""), "node").error == error


@pytest.mark.parametrize(
    ("way", "host", "docker"),
    [
        ("user", None, ("docker",)),
        ("sudo", None, ("sudo", "-n", "docker")),
        ("host", "tcp://x:1", ("docker", "--host", "tcp://x:1")),
    ],
)
def test_the_way_in_begins_every_later_command(way: str, host: str | None, docker: tuple[str, ...]) -> None:
    assert parse(PRESENT.replace("__FDL_WAY__ 4 user", f"__FDL_WAY__ 4 {way}"), "node", host).docker == docker


@pytest.mark.parametrize("name", ["WAY", "VERSION", "INFO", "IMAGE"])
def test_what_is_said_in_two_ways_is_unknown(name: str) -> None:
    other = {
        "WAY": "sudo",
        "VERSION": "{}",
        "INFO": "{}",
        "IMAGE": BUILT.partition("__FDL_IMAGE__ ")[2].partition(" ")[2],
    }
    said = line(name, other[name].partition("\n")[0])
    assert parse(said + PRESENT, "node").error == CUT
    if name != "IMAGE":  # said twice alike it counts
        twice = next(one for one in PRESENT.splitlines(keepends=True) if one.startswith(f"__FDL_{name}__"))
        assert parse(twice + PRESENT, "node") == parse(PRESENT, "node")


@pytest.mark.parametrize(
    "why", ["Error response from daemon: permission denied", "context deadline exceeded", "Error: i/o timeout", ""]
)
def test_an_inspect_that_fails_otherwise_is_no_absence(why: str) -> None:
    lines = [one for one in ABSENT.splitlines(keepends=True) if not one.startswith("__FDL_NOIMAGE__")]
    node = parse("".join([*lines[:-1], line("NOIMAGE", why), lines[-1]]), "node")
    assert node.image is None and node.error and why in node.error


def test_an_engine_whose_info_fails_is_an_error_with_its_words() -> None:
    lines = [one for one in PRESENT.splitlines(keepends=True) if not one.startswith("__FDL_INFO__")]
    node = parse("".join([line("NOINFO", "Error response from daemon: busy"), *lines]), "node")
    assert node.error == "Error response from daemon: busy"


@pytest.mark.parametrize(
    ("archive", "manifest", "complete"),
    [
        ("blobs/ blobs/sha256/ blobs/sha256/aa", None, None),
        ("blobs/ blobs/sha256/", None, None),
        ("", None, None),
        ("Error response from daemon: no suitable export target found for platform linux/amd64", None, False),
        ("Error response from daemon: content digest sha256:1: not found", None, False),
        ("Error response from daemon: i/o timeout", None, None),
        (
            "blobs/sha256/c blobs/sha256/l manifest.json",
            '[{"Config":"blobs/sha256/c","Layers":["blobs/sha256/l"]}]',
            True,
        ),
        ("blobs/sha256/c manifest.json", '[{"Config":"blobs/sha256/c","Layers":["blobs/sha256/l"]}]', False),
        ("blobs/sha256/c manifest.json", '[{"Config":"blobs/sha256/c","Layers":null}]', True),
        ("blobs/sha256/c manifest.json", '[{"Config":', None),
        ("blobs/sha256/c manifest.json", None, None),
    ],
)
def test_completeness_is_read_from_the_beginning_of_the_archive(
    archive: str, manifest: str | None, complete: bool | None
) -> None:
    lines = [one for one in PRESENT.splitlines(keepends=True) if not one.startswith("__FDL_ARCHIVE__")]
    said = line("ARCHIVE", archive) + (line("MANIFEST", manifest) if manifest else "")
    assert parse(said + "".join(lines), "node").complete is complete


def test_a_brief_look_that_found_the_image_knows_no_store_and_any_other_one_must() -> None:
    short = "".join(one for one in PRESENT.splitlines(keepends=True) if re.match("__FDL_(WAY|VERSION|IMAGE|END)", one))
    brief, whole = parse(short, "node", brief=True), parse(PRESENT, "node")
    assert brief.image == whole.image and (brief.error, brief.store, brief.complete) == (None, "", None)
    assert (brief.docker, brief.server, brief.api, brief.arch) == (whole.docker, whole.server, whole.api, whole.arch)
    assert parse(short, "node").error == CUT
    absent = "".join(one for one in ABSENT.splitlines(keepends=True) if not one.startswith("__FDL_INFO__"))
    assert parse(absent, "node", brief=True).error == CUT
    assert parse(ABSENT, "node", brief=True) == parse(ABSENT, "node")


@pytest.mark.parametrize(
    ("shown", "same_as"),
    [
        ({"Env": ["A=1"], "Cmd": None, "Labels": {}, "User": ""}, {"Env": ["A=1"]}),
        ({"Env": ["A=1"], "Hostname": "", "Image": "sha256:aa", "AttachStdin": False}, {"Env": ["A=1"]}),
        ({"Labels": {"b": "1", "a": "é"}}, {"Labels": {"a": "é", "b": "1"}}),
        (None, {}),
    ],
)
def test_what_stores_and_releases_write_differently_is_the_same_config(shown: object, same_as: object) -> None:
    assert canonical(shown) == canonical(same_as)


@pytest.mark.parametrize(
    "other", [{"Env": ["A=2"]}, {"Env": ["A=1"], "User": "lab"}, {"Env": ["B=1", "A=1"]}, {"Entrypoint": ["x"]}]
)
def test_what_makes_a_container_differ_is_another_config(other: object) -> None:
    assert canonical({"Env": ["A=1"]}) != canonical(other)


@pytest.mark.parametrize("shown", [None, {}, {"Id": "b83601", "RootFS": {}}, {"Id": f"sha256:{'a' * 64}"}])
def test_an_inspect_without_a_whole_id_or_layers_is_no_image(shown: dict[str, Any] | None) -> None:
    assert image(shown) is None


def true_or_unknown(found: NodeFacts, truth: NodeFacts) -> None:
    """Nothing false: an image or its absence only where that is so, every other fact true or not known."""
    if found.error is not None:
        assert found.image is None
        return
    assert truth.error is None and found.image == truth.image
    assert set(found.others) <= set(truth.others) and found.free.items() <= truth.free.items()
    for one in fields(NodeFacts):
        if one.name not in ("others", "free", "flaw", "image", "error"):
            value, true = getattr(found, one.name), getattr(truth, one.name)
            assert value == true or not value, one.name


@pytest.mark.parametrize("answer", ANSWERS)
def test_an_answer_cut_anywhere_is_an_error(answer: str) -> None:
    for end in {*range(0, len(answer), 7), *range(len(answer) - 40, len(answer))}:
        assert parse(answer[:end], "node").error


@given(st.sampled_from(ANSWERS), st.integers(0, 30), NOISE)
@example(PRESENT, 3, "__FDL_NOIMAGE__ 48 Error response from daemon: No such image: app:1")
@example(ABSENT, 3, f"__FDL_IMAGE__{INSPECT}")
def test_a_line_of_noise_gives_true_facts_or_an_error(answer: str, place: int, noise: str) -> None:
    lines = answer.splitlines()
    lines.insert(place, noise)
    found = parse("\n".join([*lines, ""]), "node")
    true_or_unknown(found, parse(answer, "node"))


@given(st.sampled_from(ANSWERS), st.integers(0, 20_000), st.text(min_size=1, max_size=9), st.booleans())
def test_characters_lost_or_mixed_in_give_true_facts_or_an_error(answer: str, at: int, noise: str, lost: bool) -> None:
    at %= len(answer)
    mixed = answer[:at] + ("" if lost else noise) + answer[at + len(noise) if lost else at :]
    true_or_unknown(parse(mixed, "node"), parse(answer, "node"))


@given(st.text())
def test_any_text_at_all_is_survived(text: str) -> None:
    assert isinstance(parse(text, "node"), NodeFacts)
