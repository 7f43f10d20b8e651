"""``inv prebuild``: one build per worker, and the envelope that the launcher starts them from."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from invoke.context import Context
from invoke.tasks import task

from ..errors import UsageError
from ..settings import count, words
from . import flags
from .edge import Edge, edge
from .handover import check_file, write_file

if TYPE_CHECKING:
    from ..builds.run import PrebuildReport
    from ..cluster.model import Cluster

HELP = {
    "cmd": "command to build: the name of its binary, and of its directory under the project root; "
    "may be given several times, the envelope is of the last",
    "host": flags.HOST,
    "jobs": "builds at once (default: all of them, --width at most)",
    "preflight": "check every worker first; nothing is built after an error",
    "shared-check": flags.SHARED,
    "dedupe": "build once for workers of one arch, and copy the binary",
    "verify": "read every binary back from its worker; without, workers stay unverified",
    "dry-run": "print the scripts, per worker, and contact nobody",
    "envelope": "write the envelope to this file too, once every worker is built",
    "json": flags.JSON,
    "cluster": flags.CLUSTER,
    "width": flags.WIDTH,
}


@dataclass(frozen=True)
class Options:
    """What the flags say, read and checked."""

    cmds: tuple[str, ...]
    hosts: tuple[str, ...]
    jobs: int | None
    preflight: bool
    shared_check: bool
    verify: bool
    dedupe: bool
    width: int
    json: bool
    file: Path | None


@task(auto_shortflags=False, iterable=["cmd", "host"], help=HELP)
def prebuild(
    c: Context,
    cmd: Sequence[str] | str | None = None,
    host: Sequence[str] | str | None = None,
    jobs: int | None = None,
    preflight: bool = True,
    shared_check: bool = True,
    verify: bool = True,
    dedupe: bool = True,
    dry_run: bool = False,
    envelope: str | Path | None = None,
    json: bool = False,
    cluster: str | Path | None = None,
    width: int | None = None,
) -> tuple[PrebuildReport, ...]:
    """Build a command for every worker.

    Every worker is checked first. Then there is one build per worker, in parallel, each against that
    worker's own libtorch, into target/cluster/<worker>/<variant>; one that fails stops no other. Every
    binary is read back from its worker: ok says that the loader there finds all it needs. When all
    succeeded, FLODL_INTERNAL_PREBUILD_PER_HOST is set for the tasks that follow in the same call.

        inv prebuild --cmd ddp-bench
        inv prebuild --cmd ddp-bench --host spark --envelope target/envelope.json

    Exit code: 0 every worker built, 1 something failed, 2 usage or configuration, 130 Ctrl-C.
    """
    from ..builds.envelope import ENV_NAME

    os.environ.pop(ENV_NAME, None)  # one that was inherited would start old binaries
    with edge(c) as run:
        file = None if envelope is None else check_file(envelope)
        if file and not dry_run:
            file.unlink(missing_ok=True)  # as with the variable
        cmds = words(cmd)
        if not all(cmds) or not cmds:
            raise UsageError("prebuild builds a command, and --cmd names none", hint="inv prebuild --cmd ddp-bench")
        at_once, number = run.width(width), count("--jobs", jobs)
        options = Options(cmds, words(host), number, preflight, shared_check, verify, dedupe, at_once, json, file)
        found = run.cluster(cluster)
        if dry_run:
            _print_scripts(run, found, options)
            return ()
        return _prebuild(run, found, options)


def _print_scripts(run: Edge, cluster: Cluster, options: Options) -> None:
    from ..builds.run import dry_run
    from ..report.stdout import emit, emit_json

    scripts = run.scripts()
    planned = [
        (cmd, label, script)
        for cmd in options.cmds
        for label, script in dry_run(
            cluster,
            cmd,
            hosts=options.hosts,
            shared_check=options.shared_check,
            verify=options.verify,
            dedupe=options.dedupe,
            scripts=scripts,
        )
        if options.preflight or not script.name.startswith("checks/")
    ]
    if options.json:
        rows = [{"cmd": cmd, "host": label, "template": s.name, "script": s.text} for cmd, label, s in planned]
        emit_json({"scripts": run.mask.values(rows)})
    else:
        emit("\n".join(run.mask(f"# --- {label}: {script.name}\n{script.text}") for _, label, script in planned))


def _prebuild(run: Edge, cluster: Cluster, options: Options) -> tuple[PrebuildReport, ...]:
    reports: list[PrebuildReport] = []
    for cmd in options.cmds:
        reports.append(_build(run, cluster, cmd, options))
        if not options.json:
            _show(run, reports[-1])
        if _stopped(reports[-1]):
            break
    if options.json:
        _show_json(run, reports, several=len(options.cmds) > 1)
    if not all(report.ok for report in reports):
        raise run.fail("\n".join(_failure(report, options) for report in reports if not report.ok))
    _hand_over(run, reports[-1], options)
    return tuple(reports)


def _build(run: Edge, cluster: Cluster, cmd: str, options: Options) -> PrebuildReport:
    from ..builds.run import prebuild as build

    with run.progress() as progress:
        report = build(
            cluster,
            cmd,
            hosts=options.hosts,
            jobs=options.jobs,
            preflight=options.preflight,
            shared_check=options.shared_check,
            verify=options.verify,
            dedupe=options.dedupe,
            width=options.width,
            scripts=run.scripts(),
            progress=progress,
        )
    for verdict in report.preflight.warnings if report.preflight and report.preflight.ok else ():
        run.say(f"warning: {verdict.message}")
    return report


def _stopped(report: PrebuildReport) -> bool:
    return report.preflight is not None and not report.preflight.ok


def _show(run: Edge, report: PrebuildReport) -> None:
    from ..report.stdout import emit
    from ..report.table import prebuild_table, preflight_table

    if report.preflight is not None and _stopped(report):
        emit(preflight_table(report.preflight, run.mask, sys.stdout))
    else:
        emit(prebuild_table(report, run.mask, sys.stdout))


def _show_json(run: Edge, reports: Sequence[PrebuildReport], *, several: bool) -> None:
    from ..report.stdout import emit_json

    shown = [_masked(run, report) for report in reports]
    if not several:
        emit_json(shown[0])
        return
    ok = all(report.ok for report in reports)
    emit_json({"ok": ok, "cmds": shown, "envelope": shown[-1].get("envelope", {})})


def _masked(run: Edge, report: PrebuildReport) -> dict[str, object]:
    """The report as JSON. Its envelope is for a program to start binaries from: it stays as it is."""
    plain = report.as_json()
    masked: dict[str, object] = run.mask.values(plain)
    return masked | {key: plain[key] for key in ("envelope",) if key in plain}


def _failure(report: PrebuildReport, options: Options) -> str:
    from ..report.table import prebuild_failures, preflight_failures

    if report.preflight is None or not _stopped(report):
        return prebuild_failures(report)
    said = str(report.preflight.failure) if options.json else preflight_failures(report.preflight)
    return f"{said}\n{report.cmd}: nothing was built"


def _hand_over(run: Edge, report: PrebuildReport, options: Options) -> None:
    from ..builds.envelope import ENV_NAME, to_json

    text = to_json(report.envelope)
    if options.file:
        write_file(options.file, text + "\n")
    os.environ[ENV_NAME] = text
    if options.hosts:
        run.say(f"note: the envelope is partial, with --host: {', '.join(report.envelope) or 'no worker'}")
