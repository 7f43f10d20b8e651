"""Compilers at once in native builds: the shared jobserver beside cargos that know nothing of each other."""

from __future__ import annotations

import os
from pathlib import Path

from . import projects
from .compilers import Cold, Compilers
from .measure import Program, alternate
from .projects import CRATES
from .rows import Group, Judged, Row

VARIANTS = {"precompiled/cu128": "cuda", "precompiled/cu126": "cuda", "precompiled/cpu": "", "builds/gfx1030": "rocm"}
WORKERS = {f"w{number}": arch for number, arch in enumerate(VARIANTS)}


def measure(folder: Path, rounds: int) -> Group:
    project, compilers = projects.many_crates(folder / "mono"), Compilers(folder)
    projects.empty_libtorch(project, list(VARIANTS))
    projects.local_workers(project, WORKERS)
    prebuild = projects.ours(project, "prebuild", "--cmd", "app", env=compilers.env)
    cargos = [_cargo(project, compilers, host, arch) for host, arch in WORKERS.items()]
    ours, peer = Cold(project, compilers, compilers.peak, prebuild), Cold(project, compilers, compilers.peak, *cargos)
    done = alternate("compilers at once", rounds, ours, peer, warm=False)
    cores = len(os.sched_getaffinity(0))
    return Group(
        f"Compilers at once: {len(WORKERS)} native workers, {CRATES + 1} crates, nothing built yet",
        "`fdl-tasks prebuild`: the first build alone, then the others, all on one jobserver",
        f"{len(WORKERS)} bare `cargo build`s at once, each with its own {cores} jobs",
        (
            Row("most `rustc` at once", "", ours.seen, peer.seen, Judged.ITSELF, cores + len(WORKERS)),
            Row("seconds", "s", [a.wall for a, _ in done], [b.wall for _, b in done], Judged.RATIO),
        ),
        f"the target is one compiler a core ({cores}) and one a build ({len(WORKERS)}). It saves memory, not time: "
        "the first build runs alone so that cold caches are filled once",
    )


def _cargo(project: Path, compilers: Compilers, host: str, arch: str) -> Program:
    target = project / "target" / "bare" / host
    return projects.bare_cargo(project, "app", target, project / "libtorch" / arch, VARIANTS[arch], **compilers.env)
