"""Which image a run is about, and what must run in a container of it (pure)."""

from __future__ import annotations

from ..cluster.image import ImageRef
from ..cluster.model import Cluster
from ..errors import UsageError
from . import judge


def wanted(cluster: Cluster, image: str | None, recipe: str | None) -> tuple[ImageRef, tuple[str, ...]]:
    """The image that was asked for, and the command that must run in a container of it.

    Raises:
        UsageError, ConfigError: neither or both were named, or there is no such recipe.
    """
    if bool(image) == bool(recipe):
        raise UsageError("name the image by --recipe or by --image, one of them", hint="inv sync-image --recipe x")
    if image:
        return ImageRef.parse(image), judge.SHELL
    found = cluster.recipe(recipe or "")
    return found.image, found.exec_probe or judge.SHELL
