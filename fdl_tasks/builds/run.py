"""Prebuild: one build per worker, each against the worker's own libtorch, and the envelope."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from ..cluster.model import Cluster, Command, Worker
from ..errors import BuildError, UsageError
from ..hosts.connect import Connect, connect
from ..hosts.fanout import WIDTH
from ..outcome import Attempt, Progress, Status, silent
from ..scripts import Script, Scripts
from ..stamp import identity
from . import locks, plan, result, schedule, share, work
from . import verify as verification
from .envelope import Envelope
from .plan import Job, Site
from .result import Built, PrebuildReport, Seen
from .verify import Subject

if TYPE_CHECKING:
    from ..checks.sweep import PreflightReport

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
    verify: bool = True,
    dedupe: bool = True,
    width: int = WIDTH,
    scripts: Scripts | None = None,
    connect: Connect = connect,
    progress: Progress = silent,
    cwd: Path | None = None,
) -> PrebuildReport:
    """Check every worker, build ``cmd`` for each, and read each binary back. Touches no environment variable.

    Args:
        hosts: labels or groups; none for all.
        jobs: builds at once; None for all, 16 at most.
        preflight: check first, and build nothing after an error.
        shared_check: let preflight look whether workers see what the controller writes.
        verify: read every binary back from its worker; without, none is better than unverified.
        dedupe: build once for all workers whose builds have the same inputs.
        width: machines spoken to at once.
        connect: how a worker is reached.
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
    with locks.held(found.jobs, progress):
        attempts, shared = schedule.build_all(found.jobs, scripts, jobs or WIDTH, progress, dedupe=dedupe)
        subjects = _subjects(found, attempts, cluster, checked)
        seen = verification.verify_all(subjects, scripts, width, connect, progress, there=verify)
    return PrebuildReport(cmd, *_outcomes(found, attempts, seen, shared), checked)


def dry_run(
    cluster: Cluster,
    cmd: str,
    *,
    hosts: Sequence[str] = (),
    shared_check: bool = True,
    verify: bool = True,
    dedupe: bool = True,
    scripts: Scripts | None = None,
    cwd: Path | None = None,
) -> list[tuple[str, Script]]:
    """The scripts that ``prebuild`` would run, as (label, script); runs none and contacts nobody.

    Where a binary will be is guessed (cargo says it), and ``-`` stands for its size and hash, which nobody
    knows yet.

    Raises:
        BuildError: a worker can't be built for: all of them are in it.
        UsageError, ConfigError: as ``prebuild``.
    """
    found, scripts = _plan(cluster, cmd, hosts, cwd), scripts or Scripts()
    if found.failed:
        raise BuildError("\n".join(f"{one.host}: {one.error}" for one in found.failed))
    probes = [(w.host, _probe(w, scripts, shared_check)) for w in cluster.select(hosts) if w.host in found.jobs]
    built = share.leading(found.jobs) if dedupe else found.jobs
    alone, together = schedule.compilers_each(1), schedule.compilers_each(min(len(built) - 1, WIDTH))
    builds = [
        (job.host, work.script(job, scripts, together if n else alone, stamp=identity(job.libtorch)))
        for n, job in enumerate(built.values())
    ]
    subjects = [
        Subject(job, worker, plan.usual_bin(job))
        for worker in cluster.select(hosts)
        if (job := found.jobs.get(worker.host))
    ]
    return [*probes, *builds, *(one for subject in subjects if verify for one in _verification(subject, scripts))]


def _verification(subject: Subject, scripts: Scripts) -> list[tuple[str, Script]]:
    host, shown = subject.job.host, [verification.script(subject, scripts, f"fdl-{work.NO_RUN}")]
    if subject.job.command.check:
        shown.append(verification.check_script(subject, scripts))
    return [(host, one) for one in shown]


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
    directory = plan.command_directory(command, _site(root, command, cwd))
    place, hint = root / directory, f"mend commands.{command.name}.cwd in cluster.yml"
    if not place.is_dir():
        raise UsageError(f"the directory of command {command.name} is not there: {place}", hint=hint)
    if not place.resolve().is_relative_to(root.resolve()):
        raise UsageError(f"{place} leads out of the project root, to {place.resolve()}", hint=hint)
    return directory


def _site(root: Path, command: Command, cwd: Path | None) -> Site:
    real, here = root.resolve(), (cwd or Path.cwd()).resolve()
    inside = here.is_relative_to(real) and (command.build or _has_manifest(here, real))
    below = PurePosixPath(here.relative_to(real)) if inside else None
    return Site(root, below, (root / command.name / "Cargo.toml").is_file(), (root / "Cargo.toml").is_file())


def _has_manifest(here: Path, root: Path) -> bool:
    """Whether cargo finds a manifest from ``here``, within the project: else a mistyped name would build nothing."""
    between = [place for place in (here, *here.parents) if place.is_relative_to(root)]
    return any((place / "Cargo.toml").is_file() for place in between)


def _subjects(
    found: _Plan, attempts: Mapping[str, Attempt[str]], cluster: Cluster, checked: PreflightReport | None
) -> dict[str, Subject]:
    """What was built, each with its worker and with what preflight learnt of that."""
    workers = {worker.host: worker for worker in cluster.need_workers()}
    known = checked.hosts if checked else {}
    return {
        host: Subject(job, workers[host], path, known[host].facts if host in known else None)
        for host, job in found.jobs.items()
        if (path := attempts[host].value)
    }


def _outcomes(
    found: _Plan, attempts: Mapping[str, Attempt[str]], seen: Mapping[str, Seen], shared: Mapping[str, str]
) -> tuple[dict[str, Built], Envelope]:
    outcomes = {
        host: one if isinstance(one, Built) else result.built(one, attempts[host], seen.get(host), shared.get(host))
        for host, one in found.workers.items()
    }
    entries = {host: result.entry(job, path) for host, job in found.jobs.items() if (path := outcomes[host].bin)}
    return outcomes, entries
