"""The identity ladder, on made-up images and on those that real engines of both stores and releases showed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fdl_tasks.images.facts import ImageFacts, parse
from fdl_tasks.images.identity import Proof, fingerprint, same

CASES = Path(__file__).parent.parent / "cases/images/probe"
ENGINES = ("graphdriver-26", "graphdriver-28", "containerd-26", "containerd-28")
IMAGE = ImageFacts(
    id=f"sha256:{'a' * 64}",
    layers=("sha256:1", "sha256:2"),
    os="linux",
    architecture="arm64",
    variant="v8",
    config='{"Env": ["A=1"]}',
    created="2026-11-30T12:00:00Z",
    repo_tags=("app:1",),
    repo_digests=(),
    size=10,
)


def shown(engine: str, name: str) -> ImageFacts:
    image = parse((CASES / f"{engine}-{name}.txt").read_text(), engine).image
    assert image
    return image


@pytest.mark.parametrize(
    ("changes", "proof"),
    [
        ({}, Proof.ID),
        ({"repo_tags": (), "created": "", "size": 0}, Proof.ID),
        ({"id": "sha256:b"}, Proof.CONTENT),
        ({"id": "sha256:b", "created": "1970-01-01T00:00:00Z", "repo_digests": ("x",), "size": 99}, Proof.CONTENT),
        ({"id": "sha256:b", "variant": ""}, Proof.CONTENT),
        ({"id": "sha256:b", "variant": "v7"}, None),
        ({"id": "sha256:b", "layers": ("sha256:2", "sha256:1")}, None),
        ({"id": "sha256:b", "layers": ("sha256:1",)}, None),
        ({"id": "sha256:b", "architecture": "amd64"}, None),
        ({"id": "sha256:b", "os": "windows"}, None),
        ({"id": "sha256:b", "config": '{"Env": ["A=2"]}'}, None),
        ({"id": IMAGE.id[:19]}, Proof.CONTENT),  # a short id never proves an id
    ],
)
def test_the_ladder_is_the_full_id_then_the_content(changes: dict[str, Any], proof: Proof | None) -> None:
    other = replace(IMAGE, **changes)
    assert (same(IMAGE, other), same(other, IMAGE)) == (proof, proof)
    assert (fingerprint(IMAGE) == fingerprint(other)) is (proof is not None)


@pytest.mark.parametrize("there", ENGINES)
@pytest.mark.parametrize("here", ENGINES)
def test_one_image_is_the_same_on_every_engine(here: str, there: str) -> None:
    a, b = shown(here, "present"), shown(there, "present")
    assert same(a, b) is (Proof.ID if here[:5] == there[:5] else Proof.CONTENT)
    assert fingerprint(a) == fingerprint(b)


@pytest.mark.parametrize("engine", ENGINES)
def test_another_image_is_not_the_same_on_any_engine(engine: str) -> None:
    assert all(same(shown(engine, "built"), shown(other, "present")) is None for other in ENGINES)
