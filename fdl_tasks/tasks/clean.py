"""``inv prebuild-clean``: what prebuilds left behind for hosts and variants that are no more."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from invoke.context import Context
from invoke.tasks import task

from . import flags
from .edge import edge

if TYPE_CHECKING:
    from ..builds.clean import CleanReport

HELP = {"dry-run": "only list what would be removed", "json": flags.JSON, "cluster": flags.CLUSTER}


@task(name="prebuild-clean", auto_shortflags=False, help=HELP)
def prebuild_clean(
    c: Context, dry_run: bool = False, json: bool = False, cluster: str | Path | None = None
) -> CleanReport:
    """Remove builds that nobody uses any more.

    A prebuild fills target/cluster/<worker>/<variant> under the controller's path. Those of workers and variants
    that cluster.yml no longer names are removed, with old probe files beside them. A directory in which a
    prebuild is running is left, and said. Nothing is asked: look first with --dry-run.

        inv prebuild-clean --dry-run
        inv prebuild-clean

    Exit code: 0 all of it is gone (or in use, or there was nothing), 1 something could not be removed.
    """
    with edge(c) as run:
        from ..builds.clean import prebuild_clean as clean
        from ..report.removals import removal_failures, removals_table
        from ..report.stdout import emit, emit_json

        found = run.cluster(cluster)
        with run.progress() as progress:
            report = clean(found, dry_run=dry_run, progress=progress)
        if json:
            emit_json(run.mask.values(report.as_json()))
        else:
            emit(removals_table(report, run.mask, sys.stdout))
        if not report.ok:
            raise run.fail(removal_failures(report))
        return report
