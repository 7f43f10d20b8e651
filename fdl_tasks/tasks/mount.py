"""The tasks as an Invoke collection, for a task file to mount or to be."""

from __future__ import annotations

from pathlib import Path

from invoke.collection import Collection

from ..settings import DEFAULTS
from .builds import prebuild
from .checks import preflight
from .clean import prebuild_clean
from .clusters import cluster_schema, cluster_show
from .image_sync import ensure_image, images, sync_image


def collection(
    name: str = "fdl",
    *,
    cluster: str | Path | None = None,
    width: int | None = None,
    templates: str | Path | None = None,
) -> Collection:
    """A new collection of every task, to mount under ``name`` or to use as a task file's own ``ns``.

    Args:
        cluster: the cluster.yml to use when neither ``--cluster`` nor ``FDL_CLUSTER`` names one.
        width: hosts at once, when ``--width`` says nothing.
        templates: a folder whose scripts stand in for the library's of the same name.

    The same settings may stand in Invoke's configuration files as ``fdl.cluster`` and so on, and in the
    environment as ``INVOKE_FDL_CLUSTER``; both stand above what is given here.
    """
    given = {"cluster": cluster, "width": width, "templates": templates}
    ns = Collection(name)
    ns.add_task(prebuild)
    ns.add_task(prebuild_clean)
    ns.add_task(preflight)
    ns.add_task(sync_image)
    ns.add_task(ensure_image)
    ns.add_task(images)
    inner = Collection("cluster")
    inner.add_task(cluster_show, name="show")
    inner.add_task(cluster_schema, name="schema")
    ns.add_collection(inner)
    ns.configure({"fdl": {**DEFAULTS, **{key: str(value) for key, value in given.items() if value is not None}}})
    return ns
