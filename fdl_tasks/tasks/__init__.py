"""The Invoke tasks themselves: ``call(fdl_tasks.tasks.prebuild, cmd=["train"])`` and the like."""

from .builds import prebuild
from .checks import preflight
from .clean import prebuild_clean
from .clusters import cluster_schema, cluster_show
from .image_sync import ensure_image, images, sync_image

__all__ = [
    "cluster_schema",
    "cluster_show",
    "ensure_image",
    "images",
    "prebuild",
    "prebuild_clean",
    "preflight",
    "sync_image",
]
