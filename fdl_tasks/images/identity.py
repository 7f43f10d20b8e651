"""Whether two nodes have the same image, and what proves it (pure).

An id is a config's digest in a graphdriver store and a manifest's in a containerd store, and two builds of the
same content differ by their attestations: so content decides where ids differ (facts/images.md, item 1).
"""

from __future__ import annotations

import hashlib
from enum import StrEnum

from .facts import ImageFacts


class Proof(StrEnum):
    """How the sameness was shown; the value is how it is printed."""

    ID = "same id"
    CONTENT = "same content"


def same(a: ImageFacts, b: ImageFacts) -> Proof | None:
    """The proof that both are one image: equal full ids, else equal content; None when they differ.

    Says nothing of whether a copy is complete: a failed load leaves a record with the right id behind
    (``NodeFacts.broken``).
    """
    if a.id == b.id:
        return Proof.ID
    return Proof.CONTENT if _content(a) == _content(b) else None


def fingerprint(image: ImageFacts) -> str:
    """Twelve digits that are equal where the content is, whatever the ids: for people and programs to compare by."""
    return hashlib.sha256(repr(_content(image)).encode("utf-8", "backslashreplace")).hexdigest()[:12]


def _content(image: ImageFacts) -> tuple[object, ...]:
    arm64_v8 = image.architecture == "arm64" and image.variant == "v8"  # the only one there is; not always written
    return image.layers, image.os, image.architecture, "" if arm64_v8 else image.variant, image.config
