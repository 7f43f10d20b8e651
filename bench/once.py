"""Eight workers of one variant: built once and copied, beside eight builds of the same thing."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from . import projects
from .compilers import Cold, Compilers
from .measure import alternate
from .projects import CRATES
from .rows import Group, Judged, Row

ARCH = "precompiled/cpu"
WORKERS = {f"w{number}": ARCH for number in range(8)}


def measure(folder: Path, rounds: int) -> Group:
    project, compilers = projects.many_crates(folder / "mono"), Compilers(folder)
    projects.empty_libtorch(project, [ARCH])
    projects.local_workers(project, WORKERS)
    prebuild = partial(projects.ours, project, "prebuild", "--cmd", "app", env=compilers.env)
    compiled = partial(compilers.compiled, "app")
    ours = Cold(project, compilers, compiled, prebuild())
    peer = Cold(project, compilers, compiled, prebuild("--no-dedupe"))
    done = alternate("once per arch", rounds, ours, peer, warm=False)
    return Group(
        f"Once per arch: {len(WORKERS)} local workers of one variant, {CRATES + 1} crates, nothing built yet",
        "`fdl-tasks prebuild`",
        "`fdl-tasks prebuild --no-dedupe`",
        (
            Row("compilations of the command", "", ours.seen, peer.seen, Judged.ITSELF, 1),
            Row("seconds", "s", [a.wall for a, _ in done], [b.wall for _, b in done], Judged.RATIO),
        ),
    )
