"""Nodes and images for tests of what is decided about them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fdl_tasks.images.facts import ImageFacts, NodeFacts

MIB = 1 << 20


def sha(word: str) -> str:
    """A whole id or digest for a word: ``a`` gives ``sha256:aaa…``."""
    return f"sha256:{(word.encode().hex() * 64)[:64]}"


def make_image(name: str, layers: str = "abc", **fields: Any) -> ImageFacts:
    """An image whose id is made of its name; a letter a layer."""
    known: dict[str, Any] = {
        "id": sha(name),
        "layers": tuple(sha(letter) for letter in layers),
        "os": "linux",
        "architecture": "amd64",
        "variant": "",
        "config": "{}",
        "created": "2026-11-30T12:00:00Z",
        "repo_tags": (f"{name}:1",),
        "repo_digests": (),
        "size": 100 * MIB,
    }
    return ImageFacts(**known | fields)


def make_node(
    label: str,
    image: ImageFacts | None = None,
    store: str = "graphdriver",
    others: Sequence[ImageFacts] = (),
    **fields: Any,
) -> NodeFacts:
    """A node of Docker 28 with much room, whose copy is whole."""
    known: dict[str, Any] = {
        "server": "28.5.2",
        "api": (1, 51),
        "complete": True if image else None,
        "startable": True if image else None,
        "free": {"/var/lib/docker": 1 << 40},
        "arch": "amd64",
    }
    return NodeFacts(label, store=store, image=image, others=tuple(others), **known | fields)
