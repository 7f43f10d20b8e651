"""The Invoke tasks themselves: ``call(fdl_tasks.tasks.prebuild, cmd=["train"])`` and the like."""

from .builds import prebuild
from .checks import preflight
from .clean import prebuild_clean
from .clusters import cluster_schema, cluster_show

__all__ = ["cluster_schema", "cluster_show", "prebuild", "prebuild_clean", "preflight"]
