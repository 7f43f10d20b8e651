"""``inv prepare``: this box made ready before it joins a run, or told "again" or "never"."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from invoke.context import Context
from invoke.tasks import task

from ..errors import FdlError, PrepareError
from ..settings import libtorch_settings
from . import flags
from .edge import Edge, edge

if TYPE_CHECKING:
    from ..boxes.pipeline import Prepared
    from ..cluster.model import Cluster

HELP = {
    "data-path": "where the training data is, or is mounted (default with --data-source: /flodl/data)",
    "data-source": "where to mount it from: sshfs://[user@]host[:port]/abs/path",
    "libtorch": "variant to get: auto, cpu, cu126, cu128, rocm7.0, rocm7.1 (default: what is active here)",
    "source": "where the source comes from: file:///abs, rsync://[user@]host/abs, git+https://…#ref, git+ssh://…#ref",
    "source-cwd": "directory of the project in the source; a run's manifest wins",
    "source-build": "shell line that builds it (default: cargo build --release); a run's manifest wins",
    "source-bin": "what the build makes, relative to --source-cwd; a run's manifest wins",
    "devices": "the GPUs that this box offers: all, or the driver's numbers, as 0,1",
    "json": flags.JSON,
    "cluster": "cluster.yml whose `join:` says the rest (default: FDL_CLUSTER, else the nearest upwards, if any)",
}


@task(auto_shortflags=False, help=HELP)
def prepare(
    c: Context,
    data_path: str | None = None,
    data_source: str | None = None,
    libtorch: str | None = None,
    source: str | None = None,
    source_cwd: str | None = None,
    source_build: str | None = None,
    source_bin: str | None = None,
    devices: str | None = None,
    json: bool = False,
    cluster: str | Path | None = None,
) -> Prepared:
    """Make this box ready: GPU, data, directories, source, libtorch, build.

    Run on the box itself, before it joins a run. Every step is cheap the second time, so a loop around it is a
    provisioning loop. Flags win over the `join:` block of cluster.yml; no file is needed when they say everything.

        inv prepare --libtorch auto --source rsync://ctrl/srv/run/tree
        fdl-tasks prepare --json        # in a service unit: a mistyped flag ends with 2 there

    Exit code: 0 ready, 1 not now (transient: try again), 2 never as it is (permanent), 130 Ctrl-C.
    """
    with edge(c) as run:
        given = {
            "data_path": data_path, "data_source": data_source, "libtorch": libtorch, "source": source,
            "source_cwd": source_cwd, "source_build": source_build, "source_bin": source_bin, "devices": devices,
        }  # fmt: skip
        try:
            return _prepared(run, c, run.cluster_if_any(cluster), given, json)
        except (FdlError, OSError) as failed:
            error = failed if isinstance(failed, FdlError) else _unforeseen(failed)
            if json:
                from ..report.prepared import failure_json
                from ..report.stdout import emit_json

                emit_json(run.mask.values(failure_json(error)))
            if isinstance(error, PrepareError):
                end = "try again (transient)" if error.exit_code == 1 else "waiting can't help (permanent)"
                raise run.fail(f"prepare: not ready, {end}: {error}", error.exit_code) from None
            raise


def _unforeseen(error: OSError) -> PrepareError:
    """As the pipeline takes it, for what goes wrong before: the current directory is gone."""
    from ..boxes.pipeline import unforeseen

    return unforeseen(error)


def _prepared(run: Edge, c: Context, cluster: Cluster | None, given: dict[str, Any], json: bool) -> Prepared:
    from ..boxes.pipeline import prepare as make_ready
    from ..report.prepared import prepared_table
    from ..report.stdout import emit, emit_json

    settings = libtorch_settings(c)
    with run.progress("prepare") as progress:
        found = make_ready(cluster, **given, settings=settings, scripts=run.scripts(), progress=progress)
    if json:
        args = None if found.args is None else [run.mask.hide(word) for word in found.args]  # a program gets them
        emit_json({**run.mask.values(found.as_json()), "args": args})
    else:
        emit(prepared_table(found, run.mask, sys.stdout))
    return found
