"""Preflight as a whole: the controller here, every worker at once, all verdicts of all hosts."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from platform import machine

from ..cluster.model import Cluster, Command, Controller, Worker
from ..errors import Cancelled, PreflightError, TransportError
from ..hosts.base import Completed
from ..hosts.connect import Connect, connect
from ..hosts.fanout import WIDTH, Cancel, fan_out
from ..hosts.local import Local
from ..outcome import Attempt, Event, Kind, Level, Progress, Verdict, silent, worst
from ..scripts import Script, Scripts
from . import controller as own
from . import shared, verdicts
from .probe import Facts, Fresh, parse, render

LIMIT = 60.0  # seconds for one probe


@dataclass(frozen=True)
class HostChecks:
    """What is known of one host; ``status`` is ``ok``, ``warning``, ``error`` or ``unreachable``.

    ``facts`` is None when the host gave no answer.
    """

    host: str
    status: str
    verdicts: tuple[Verdict, ...]
    facts: Facts | None


@dataclass(frozen=True)
class PreflightReport:
    """Every host's checks, the controller's first, then the workers' in the order of the file."""

    hosts: Mapping[str, HostChecks]

    @property
    def errors(self) -> tuple[Verdict, ...]:
        return self._of(Level.ERROR)

    @property
    def warnings(self) -> tuple[Verdict, ...]:
        return self._of(Level.WARNING)

    @property
    def ok(self) -> bool:
        """Whether nothing stands against a build. There may be warnings."""
        return not self.errors

    @property
    def failure(self) -> PreflightError | None:
        """One error that counts and lists every failing host; None when ``ok``."""
        failing = [checks for checks in self.hosts.values() if checks.status == "error"]
        if not failing:
            return None
        hosts = "1 host" if len(failing) == 1 else f"{len(failing)} hosts"
        messages = [verdict.message for verdict in self.errors]
        return PreflightError("\n  ".join([f"preflight failed on {hosts}:", *messages]))

    def as_json(self) -> dict[str, object]:
        """The report for ``--json``."""
        return {"ok": self.ok, "hosts": {host: _json(checks) for host, checks in self.hosts.items()}}

    def _of(self, level: Level) -> tuple[Verdict, ...]:
        return tuple(v for checks in self.hosts.values() for v in checks.verdicts if v.level is level)


@dataclass(frozen=True)
class _Answer:
    """What a host's scripts said: the probe's output, and on the controller a verdict on its toolchain."""

    probe: Completed
    toolchain: Verdict | None = None


def preflight(
    cluster: Cluster,
    *,
    hosts: Sequence[str] = (),
    mounts_only: bool = False,
    shared_check: bool = True,
    width: int = WIDTH,
    scripts: Scripts | None = None,
    connect: Connect = connect,
    progress: Progress = silent,
    cmd: Command | None = None,
    building: bool = False,
) -> PreflightReport:
    """Check the controller and the workers (all, or those that ``hosts`` names) before anything is built.

    Args:
        mounts_only: leave out what only matters for binaries: CPU, C library, pkill, toolchain, libtorch.
        shared_check: whether each worker's path must show what the controller has just written.
        cmd: the command that is about to be built.
        building: a build comes next: workers with ``build: false`` are left out.

    Raises:
        ConfigError, UsageError: the cluster has no controller or workers, or ``hosts`` names an unknown one.
        KeyboardInterrupt: the user ended it; nothing is left behind.
    """
    controller, scripts = cluster.need_controller(), scripts or Scripts()
    workers = [w for w in _to_probe(cluster, hosts, progress) if w.build or not building]
    sweep = _Sweep(controller, scripts, mounts_only, connect, progress)
    with contextlib.ExitStack() as stack:
        fresh, trouble = _fresh(stack, controller, shared_check and bool(workers))
        cargo = own.cargo_due(cluster, workers, cmd)
        jobs = {controller.host: sweep.controller_job(cargo)} | {w.host: sweep.job(w, fresh) for w in workers}
        mine, *theirs = fan_out(jobs, width=width)
    checks = [sweep.judge_controller(mine, trouble)]
    checks += [sweep.judge(worker, attempt, fresh) for worker, attempt in zip(workers, theirs, strict=True)]
    for one in checks:
        progress(Event(one.host, Kind.DONE, one.status))
    return PreflightReport({one.host: one for one in checks})


def _to_probe(cluster: Cluster, hosts: Sequence[str], progress: Progress) -> list[Worker]:
    """The workers to ask; the one that is the controller is not asked a second time."""
    selected = cluster.select(hosts)
    for one in selected:
        if cluster.is_controller(one.host):
            progress(Event(one.host, Kind.NOTE, "is the controller: checked as such, not as a worker"))
    return [one for one in selected if not cluster.is_controller(one.host)]


def _fresh(stack: contextlib.ExitStack, controller: Controller, due: bool) -> tuple[Fresh | None, Verdict | None]:
    """The fresh files, or the controller's error that they can't be written."""
    if not due:
        return None, None
    try:
        return stack.enter_context(shared.fresh_files(controller.path, shared.LOOKS)), None
    except PreflightError as error:
        message = f"{controller.host}: {error.where}: {error.what}: {error.hint}"
        return None, verdicts.error("shared-mount", message)


@dataclass(frozen=True)
class _Sweep:
    controller: Controller
    scripts: Scripts
    mounts_only: bool
    connect: Connect
    progress: Progress

    def _binaries(self, worker: Worker) -> bool:
        return worker.build and not self.mounts_only

    def controller_job(self, cargo: bool) -> partial[_Answer]:
        one = self.controller
        script = None if self.mounts_only else own.toolchain(self.scripts, one, cargo=cargo)
        probe = self._probe(one.data_path, str(one.path), not self.mounts_only, None)
        return partial(self._look_here, probe, script)

    def job(self, worker: Worker, fresh: Fresh | None) -> partial[_Answer]:
        probe = self._probe(worker.data_path, worker.path, self._binaries(worker), fresh)
        return partial(self._look_there, worker, probe)

    def _probe(self, data_path: str, root: str, abi: bool, fresh: Fresh | None) -> Script:
        names = list(fresh.written) if fresh else []
        return render(self.scripts, data_path, root, abi=abi, fresh=names, pause=shared.PAUSE)

    def _look_here(self, probe: Script, toolchain: Script | None, cancel: Cancel) -> _Answer:
        label = self.controller.host
        self.progress(Event(label, Kind.STATE, "probing"))
        with Local(label, cancel) as host:
            answer = host.run(probe, limit=LIMIT)
            return _Answer(answer, own.look(host, toolchain, self.controller) if toolchain else None)

    def _look_there(self, worker: Worker, probe: Script, cancel: Cancel) -> _Answer:
        self.progress(Event(worker.host, Kind.STATE, "probing"))

        def note(text: str) -> None:
            self.progress(Event(worker.host, Kind.NOTE, text))

        with self.connect(worker, cancel, note) as host:
            return _Answer(host.run(probe, limit=LIMIT))

    def judge_controller(self, attempt: Attempt[_Answer], trouble: Verdict | None) -> HostChecks:
        one, answer = self.controller, attempt.value
        if answer is None:
            return _unanswered(attempt, [trouble])
        facts = parse(answer.probe.out)
        found = _places(one.host, one.data_path, one.data_path_declared, str(one.path), facts, answer.probe)
        return _checks(one.host, [*found, trouble, answer.toolchain], facts)

    def judge(self, worker: Worker, attempt: Attempt[_Answer], fresh: Fresh | None) -> HostChecks:
        needs = [own.precondition(self.controller, worker)] if self._binaries(worker) else []
        if attempt.value is None:
            return _unanswered(attempt, needs)
        answer = attempt.value.probe
        facts = parse(answer.out)
        found = _places(worker.host, worker.data_path, worker.data_path_declared, worker.path, facts, answer)
        if fresh and facts.root is not False:
            facts = replace(facts, mtime_skew_s=verdicts.skew(facts.shared, fresh))
            found += self._mount(worker, facts, fresh)
        if self._binaries(worker):
            found += verdicts.abi(worker.host, machine(), facts)
        return _checks(worker.host, [*found, *needs], facts)

    def _mount(self, worker: Worker, facts: Facts, fresh: Fresh) -> list[Verdict]:
        home = str(self.controller.path)
        shown = verdicts.shared_mount(worker.host, worker.path, home, facts.shared, fresh)
        seen = shown.level is Level.OK
        return [shown, verdicts.file_time(worker.host, worker.path, facts)] if seen else [shown]


def _places(
    host: str, data_path: str, declared: bool, root: str, facts: Facts, answer: Completed
) -> list[Verdict | None]:
    return [
        verdicts.ended(host, facts, answer.code, answer.err),
        verdicts.data_path(host, data_path, declared, facts),
        verdicts.root(host, root, facts),
        verdicts.space(host, root, facts),
    ]


def _unanswered(attempt: Attempt[_Answer], others: Sequence[Verdict | None]) -> HostChecks:
    """The checks of a host whose script gave no answer."""
    if isinstance(attempt.error, Cancelled) or attempt.error is None:
        raise attempt.error or AssertionError("an attempt has a value or an error")
    checks = _checks(attempt.host, [verdicts.unanswered(attempt.host, attempt.error), *others], None)
    away = isinstance(attempt.error, TransportError) and checks.status == "warning"
    return replace(checks, status="unreachable") if away else checks


def _checks(host: str, found: Sequence[Verdict | None], facts: Facts | None) -> HostChecks:
    said = tuple(verdict for verdict in found if verdict)
    return HostChecks(host, str(worst(said)), said, facts)


def _json(checks: HostChecks) -> dict[str, object]:
    return {
        "status": checks.status,
        "verdicts": [{"rule": v.rule, "level": str(v.level), "message": v.message} for v in checks.verdicts],
        "facts": checks.facts.as_json() if checks.facts else {},
    }
