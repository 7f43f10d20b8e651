"""Invoke tasks, and plain typed functions, for people who run a monorepo on a few unlike GPU machines.

::

    ns.add_collection(fdl_tasks.collection(), "fdl")                      # inv fdl.prebuild --cmd train
    report = fdl_tasks.prebuild(fdl_tasks.load_cluster(), cmd="train")    # the same, without Invoke

Nothing is imported before it is used: a task file that mounts the library lists its tasks as fast as
one that does not.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import tasks
    from .boxes.build import Binary
    from .boxes.gpu.gpus import Gpu
    from .boxes.pipeline import Prepared, prepare, prepare_box
    from .boxes.torch.library import Libtorch
    from .builds.clean import CleanReport, prebuild_clean
    from .builds.envelope import ENV_NAME, Entry
    from .builds.run import Built, PrebuildReport, prebuild
    from .checks.sweep import HostChecks, PreflightReport, preflight
    from .cluster.load import load_cluster
    from .cluster.model import Cluster, Controller, Join, Source, Ssh, Worker
    from .errors import (
        BuildError,
        Cancelled,
        ConfigError,
        Fault,
        FdlError,
        PermanentError,
        PreflightError,
        PrepareError,
        ScriptError,
        Stage,
        TemplateError,
        TransientError,
        TransportError,
        UsageError,
    )
    from .images.result import Fate, NodeOutcome, SyncReport
    from .images.sync import ensure_image, sync_image
    from .outcome import Event, Kind, Level, Progress, Status, Verdict, silent
    from .scripts import Scripts
    from .tasks.mount import collection

__all__ = [
    "ENV_NAME",
    "Binary",
    "BuildError",
    "Built",
    "Cancelled",
    "CleanReport",
    "Cluster",
    "ConfigError",
    "Controller",
    "Entry",
    "Event",
    "Fate",
    "Fault",
    "FdlError",
    "Gpu",
    "HostChecks",
    "Join",
    "Kind",
    "Level",
    "Libtorch",
    "NodeOutcome",
    "PermanentError",
    "PrebuildReport",
    "PreflightError",
    "PreflightReport",
    "PrepareError",
    "Prepared",
    "Progress",
    "ScriptError",
    "Scripts",
    "Source",
    "Ssh",
    "Stage",
    "Status",
    "SyncReport",
    "TemplateError",
    "TransientError",
    "TransportError",
    "UsageError",
    "Verdict",
    "Worker",
    "collection",
    "ensure_image",
    "load_cluster",
    "prebuild",
    "prebuild_clean",
    "preflight",
    "prepare",
    "prepare_box",
    "silent",
    "sync_image",
    "tasks",
]

_HOMES = {
    "boxes.build": "Binary",
    "boxes.gpu.gpus": "Gpu",
    "boxes.torch.library": "Libtorch",
    "boxes.pipeline": "Prepared prepare prepare_box",
    "builds.clean": "CleanReport prebuild_clean",
    "builds.envelope": "ENV_NAME Entry",
    "builds.run": "Built PrebuildReport prebuild",
    "checks.sweep": "HostChecks PreflightReport preflight",
    "cluster.load": "load_cluster",
    "cluster.model": "Cluster Controller Join Source Ssh Worker",
    "errors": "BuildError Cancelled ConfigError Fault FdlError PermanentError PreflightError "
    "PrepareError ScriptError Stage TemplateError TransientError TransportError UsageError",
    "images.result": "Fate NodeOutcome SyncReport",
    "images.sync": "ensure_image sync_image",
    "outcome": "Event Kind Level Progress Status Verdict silent",
    "scripts": "Scripts",
    "tasks.mount": "collection",
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name == "tasks":
        return import_module(".tasks", __name__)
    if home := _HOME_OF.get(name):
        return getattr(import_module(f".{home}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
