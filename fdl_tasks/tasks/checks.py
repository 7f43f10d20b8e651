"""``inv preflight``: is every worker fit to run what would be built for it?"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from invoke.context import Context
from invoke.tasks import task

from ..settings import words
from . import flags
from .edge import edge

if TYPE_CHECKING:
    from ..checks.sweep import PreflightReport

HELP = {
    "host": flags.HOST,
    "mounts-only": "look at data paths and mounts alone, not at CPU architecture and libc",
    "shared-check": flags.SHARED,
    "json": flags.JSON,
    "cluster": flags.CLUSTER,
    "width": flags.WIDTH,
}


@task(auto_shortflags=False, iterable=["host"], help=HELP)
def preflight(
    c: Context,
    host: Sequence[str] | str | None = None,
    mounts_only: bool = False,
    shared_check: bool = True,
    json: bool = False,
    cluster: str | Path | None = None,
    width: int | None = None,
) -> PreflightReport:
    """Check every worker before it gets a build.

    Reachable, data mounted, source shared, CPU and libc fit: all workers are asked at once, and nothing
    is changed on them. What could not be read is a warning that says so; an error would have stopped a
    build.

        inv preflight
        inv preflight --host node-a --host spark --json

    Exit code: 0 no error, 1 some worker has one, 2 usage or configuration, 130 Ctrl-C.
    """
    with edge(c) as run:
        from ..checks.sweep import preflight as check
        from ..report.stdout import emit, emit_json
        from ..report.table import preflight_failures, preflight_table

        found, at_once = run.cluster(cluster), run.width(width)
        with run.progress() as progress:
            report = check(
                found,
                hosts=words(host),
                mounts_only=mounts_only,
                shared_check=shared_check,
                width=at_once,
                scripts=run.scripts(),
                progress=progress,
            )
        if json:
            emit_json(run.mask.values(report.as_json()))
        else:
            emit(preflight_table(report, run.mask, sys.stdout))
        if report.failure:
            raise report.failure if json else run.fail(preflight_failures(report))
        return report
