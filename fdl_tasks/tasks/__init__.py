"""The Invoke tasks themselves: ``call(fdl_tasks.tasks.prebuild, cmd=["train"])`` and the like."""

from .boxes import prepare
from .builds import prebuild
from .checks import preflight
from .clean import prebuild_clean
from .clusters import cluster_schema, cluster_show
from .gpu_survey import gpus
from .image_sync import ensure_image, images, sync_image
from .libtorch import libtorch_get, libtorch_list, libtorch_use

__all__ = [
    "cluster_schema",
    "cluster_show",
    "ensure_image",
    "gpus",
    "images",
    "libtorch_get",
    "libtorch_list",
    "libtorch_use",
    "prebuild",
    "prebuild_clean",
    "preflight",
    "prepare",
    "sync_image",
]
