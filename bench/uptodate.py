"""``prebuild`` when there is nothing to do: what the checks before and after the builds cost."""

from __future__ import annotations

from pathlib import Path

from tests.e2e.site import VARIANTS, copy_example

from . import projects
from .lab import lab_here
from .measure import BenchError, Program, Ran, alternate, run
from .rows import Group, Judged, Row

FEATURES = {"precompiled/cu128": "cuda", "precompiled/cu126": "cuda", "precompiled/cpu": ""}
WORKERS = {f"w{number}": arch for number, arch in enumerate(VARIANTS)}
PEER = "three bare `cargo build`s at once, in the same target directories"
MOUNT = "/srv/mono"


def local(folder: Path, rounds: int) -> Group:
    project = copy_example(folder)
    projects.local_workers(project, WORKERS)
    ours = "`fdl-tasks prebuild` of three local workers: preflight, builds, verification"
    return Group("`prebuild` with everything up to date, local", ours, PEER, (_row(project, "local", rounds, 0.7),))


def over_ssh(folder: Path, rounds: int) -> Group:
    project = copy_example(folder)
    with lab_here() as lab:
        nodes = {host: lab.node(host, share={MOUNT: project}) for host in WORKERS}
        workers = [lab.worker(node, MOUNT, arch=WORKERS[host], data_path=MOUNT) for host, node in nodes.items()]
        projects.write_cluster(project, workers)
        row = _row(project, "over ssh", rounds, 1.5)
    ours = "`fdl-tasks prebuild` of three workers over ssh: preflight, builds, verification on each worker"
    note = "the three sshd run on the same machine"
    return Group("`prebuild` with everything up to date, over ssh", ours, PEER, (row,), note)


def _row(project: Path, where: str, rounds: int, limit: float) -> Row:
    cargos = [_cargo(project, host, arch) for host, arch in WORKERS.items()]
    done = alternate(f"up to date, {where}", rounds, lambda: _ours(project), lambda: _peer(cargos))
    _nothing_compiled([log.read_text() for log in project.glob("target/cluster/*/*/build.log")])
    return Row("seconds", "s", [a.wall for a, _ in done], [b.wall for _, b in done], Judged.DIFFERENCE, limit)


def _ours(project: Path) -> Ran:
    return run(projects.ours(project, "prebuild", "--cmd", "ddp-bench"))


def _cargo(project: Path, host: str, arch: str) -> Program:
    target = project / "target" / "cluster" / host / arch.replace("/", "-")
    return projects.bare_cargo(project, "ddp-bench", target, project / "libtorch" / arch, FEATURES[arch])


def _peer(cargos: list[Program]) -> Ran:
    ran = run(*cargos)
    _nothing_compiled(ran.err)
    return ran


def _nothing_compiled(logs: list[str]) -> None:
    """Both sides must find the other's work done, else one of them is measured building."""
    if len(logs) != len(WORKERS) or any("Compiling" in log or "Finished" not in log for log in logs):
        raise BenchError("something was built that was up to date:\n" + "\n".join(logs))
