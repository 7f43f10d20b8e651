"""``inv cluster.show`` and ``inv cluster.schema``: what the configuration says, and what it may say."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from invoke.context import Context
from invoke.tasks import task

from ..errors import TransportError
from . import flags
from .edge import edge

if TYPE_CHECKING:
    from ..cluster.model import Cluster
    from ..cluster.show import Row

RESOLVED = ("hostname", "port", "user", "identity_files", "known_hosts", "strict", "proxy", "connect_limit")


@task(name="cluster-show", auto_shortflags=False, help={"cluster": flags.CLUSTER, "json": flags.JSON})
def cluster_show(c: Context, cluster: str | Path | None = None, json: bool = False) -> None:
    """Print every setting as resolved, and where it came from.

    Defaults are applied, values of env are masked; what is not set is left out (--json has it). The rows
    ssh.resolved are what OpenSSH makes of a worker's ssh settings and the user's own (ssh -G); no host is
    contacted.

        inv cluster.show
    """
    with edge(c) as run:
        from ..cluster.show import describe
        from ..report.stdout import emit, emit_json
        from ..report.table import render

        found = run.cluster(cluster)
        rows = sorted([*describe(found), *_resolved(found)], key=_place)
        if json:
            emit_json({"settings": run.mask.values([vars(row) for row in rows])})
        else:
            told = [row for row in rows if row.value not in (None, ()) or row.origin != "default"]
            cells = [(row.of, row.key, run.mask(_spelled(row.value)), row.origin) for row in told]
            emit(render(("of", "setting", "value", "from"), cells, sys.stdout))


def _place(row: Row) -> tuple[int, str]:
    """Rows of one thing stand together: the controller first, then each worker, then the rest."""
    kinds = ("controller", "worker")
    kind = row.of.partition(" ")[0]
    return (kinds.index(kind), row.of if kind == "worker" else "") if kind in kinds else (len(kinds), "")


def _resolved(cluster: Cluster) -> Iterator[Row]:
    from ..cluster.show import Row
    from ..hosts.settings import resolve

    for worker in cluster.workers or ():
        if worker.transport != "ssh" or cluster.is_controller(worker.host):
            continue
        of = f"worker {worker.host}"
        try:
            settings = vars(resolve(worker.ssh))
        except TransportError as error:
            yield Row(of, "ssh.resolved", f"can't be used: {error}", "ssh -G")
            continue
        for key in RESOLVED:
            value = settings[key]
            plain = tuple(map(str, value)) if isinstance(value, tuple) else value
            yield Row(of, f"ssh.resolved.{key}", plain, "ssh -G")


def _spelled(value: object) -> str:
    """A value as a table shows it: ``-`` for none, a list as words, yes and no."""
    if value is None or value == ():
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)


@task(name="cluster-schema", auto_shortflags=False)
def cluster_schema(c: Context) -> None:
    """Print the JSON Schema of cluster.yml, for editors.

    inv cluster.schema > cluster.schema.json
    """
    with edge(c):
        from ..cluster.schema import schema_text
        from ..report.stdout import emit

        emit(schema_text().rstrip("\n"))
