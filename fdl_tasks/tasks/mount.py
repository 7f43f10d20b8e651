"""The tasks as an Invoke collection, for a task file to mount or to be."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from invoke.collection import Collection

from ..settings import DEFAULTS
from .boxes import prepare
from .builds import prebuild
from .checks import preflight
from .clean import prebuild_clean
from .clusters import cluster_schema, cluster_show
from .gpu_survey import gpus
from .image_sync import ensure_image, images, sync_image
from .libtorch import libtorch_get, libtorch_list, libtorch_use

INNER: Mapping[str, Mapping[str, Any]] = {
    "cluster": {"show": cluster_show, "schema": cluster_schema},
    "libtorch": {"get": libtorch_get, "list": libtorch_list, "use": libtorch_use},
}


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
    for one in (prebuild, prebuild_clean, preflight, sync_image, ensure_image, images, prepare, gpus):
        ns.add_task(one)
    for inner, tasks in INNER.items():
        ns.add_collection(Collection(inner, **tasks))
    ns.configure({"fdl": {**DEFAULTS, **{key: str(value) for key, value in given.items() if value is not None}}})
    return ns
