"""Prebuild: one build per worker, each against the worker's own libtorch, and the envelope."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from ..cluster.model import Cluster, Command, Worker
from ..errors import BuildError, UsageError
from ..hosts.connect import Connect, connect
from ..hosts.fanout import WIDTH
from ..outcome import Attempt, Progress, Status, silent
from ..scripts import Script, Scripts
from . import libtorch, plan, result, schedule, work
from .envelope import Envelope
from .plan import Job, Site
from .result import Built, PrebuildReport

__all__ = ["Built", "PrebuildReport", "dry_run", "prebuild"]


@dataclass(frozen=True)
class _Plan:
    """Every selected worker, in file order, as the build it gets or as what became of it already."""

    command: Command
    workers: Mapping[str, Job | Built]

    @property
    def jobs(self) -> dict[str, Job]:
        return {host: found for host, found in self.workers.items() if isinstance(found, Job)}

    @property
    def failed(self) -> list[Built]:
        return [one for one in self.workers.values() if isinstance(one, Built) and one.status is Status.FAILED]


def prebuild(
    cluster: Cluster,
    cmd: str,
    *,
    hosts: Sequence[str] = (),
    jobs: int | None = None,
    preflight: bool = True,
    shared_check: bool = True,
    width: int = WIDTH,
    scripts: Scripts | None = None,
    connect: Connect = connect,
    progress: Progress = silent,
    cwd: Path | None = None,
) -> PrebuildReport:
    """Check every worker, then build ``cmd`` for each. Touches no environment variable.

    Args:
        hosts: labels or groups; none for all.
        jobs: builds at once; None for all, 16 at most.
        preflight: check first, and build nothing after an error.
        shared_check: let preflight look whether workers see what the controller writes.
        width: machines spoken to at once.
        connect: how a worker is reached, for preflight.
        progress: takes events from several threads while the work runs.
        cwd: where the command's directory is looked for; the current directory when None.

    Raises:
        UsageError: an unknown host, an unsafe command name, no directory for the command, ``jobs`` below 1.
        ConfigError: cluster.yml has no controller or no workers.
        PreflightError: the checks themselves could not be made.
        KeyboardInterrupt: after every build was ended and its container removed.
    """
    if jobs is not None and jobs < 1:
        raise UsageError(f"--jobs {jobs}: at least one build at a time")
    found, scripts = _plan(cluster, cmd, hosts, cwd), scripts or Scripts()
    checked = None
    if preflight and (found.jobs or found.failed):
        from ..checks import sweep

        checked = sweep.preflight(
            cluster, hosts=hosts, shared_check=shared_check, width=width, scripts=scripts,
            connect=connect, progress=progress, cmd=found.command, building=True,
        )  # fmt: skip
        if not checked.ok:
            return PrebuildReport(cmd, {}, {}, checked)
    attempts = schedule.build_all(found.jobs, scripts, jobs or WIDTH, progress)
    return PrebuildReport(cmd, *_outcomes(found, attempts), checked)


def dry_run(
    cluster: Cluster,
    cmd: str,
    *,
    hosts: Sequence[str] = (),
    shared_check: bool = True,
    scripts: Scripts | None = None,
    cwd: Path | None = None,
) -> list[tuple[str, Script]]:
    """The scripts that ``prebuild`` would run, as (label, script); runs none and contacts nobody.

    Raises:
        BuildError: a worker can't be built for: all of them are in it.
        UsageError, ConfigError: as ``prebuild``.
    """
    found, scripts = _plan(cluster, cmd, hosts, cwd), scripts or Scripts()
    if found.failed:
        raise BuildError("\n".join(f"{one.host}: {one.error}" for one in found.failed))
    probes = [(w.host, _probe(w, scripts, shared_check)) for w in cluster.select(hosts) if w.host in found.jobs]
    alone, shared = schedule.compilers_each(1), schedule.compilers_each(min(len(found.jobs) - 1, WIDTH))
    builds = [
        (job.host, work.script(job, scripts, shared if n else alone, stamp=libtorch.identity(job.libtorch)))
        for n, job in enumerate(found.jobs.values())
    ]
    return [*probes, *builds]


def _probe(worker: Worker, scripts: Scripts, shared_check: bool) -> Script:
    from ..checks import probe, shared

    fresh = [f".fdl-probe-{work.NO_RUN}-{number}" for number in range(shared.LOOKS if shared_check else 0)]
    return probe.render(scripts, worker.data_path, worker.path, abi=True, fresh=fresh, pause=shared.PAUSE)


def _plan(cluster: Cluster, cmd: str, hosts: Sequence[str], cwd: Path | None) -> _Plan:
    controller, command, workers = cluster.need_controller(), cluster.command(cmd), cluster.select(hosts)
    directory = _directory(controller.path, command, cwd)
    usable = {w.arch for w in workers if w.arch and (plan.libtorch_of(controller.path, w.arch) / "lib").is_dir()}

    def one(worker: Worker) -> Job | Built:
        if cluster.is_controller(worker.host):
            return result.skipped(worker.host, "is the controller, which builds for itself")
        if not worker.build:
            return result.skipped(worker.host, "build: false in cluster.yml")
        try:
            return plan.job(worker, command, controller, directory, usable)
        except BuildError as error:
            return result.refused(worker.host, worker.arch, error)

    return _Plan(command, {worker.host: one(worker) for worker in workers})


def _directory(root: Path, command: Command, cwd: Path | None) -> str:
    """Where the command is, below the project root; looked at, not only computed."""
    directory = plan.command_directory(command, _site(root, command.name, cwd))
    place, hint = root / directory, f"mend commands.{command.name}.cwd in cluster.yml"
    if not place.is_dir():
        raise UsageError(f"the directory of command {command.name} is not there: {place}", hint=hint)
    if not place.resolve().is_relative_to(root.resolve()):
        raise UsageError(f"{place} leads out of the project root, to {place.resolve()}", hint=hint)
    return directory


def _site(root: Path, name: str, cwd: Path | None) -> Site:
    real, here = root.resolve(), (cwd or Path.cwd()).resolve()
    below = PurePosixPath(here.relative_to(real)) if here.is_relative_to(real) else None
    return Site(root, below, (root / name / "Cargo.toml").is_file(), (root / "Cargo.toml").is_file())


def _outcomes(found: _Plan, attempts: Mapping[str, Attempt[str]]) -> tuple[dict[str, Built], Envelope]:
    outcomes = {
        host: one if isinstance(one, Built) else result.built(one, attempts[host])
        for host, one in found.workers.items()
    }
    entries = {host: result.entry(job, path) for host, job in found.jobs.items() if (path := attempts[host].value)}
    return outcomes, entries
