"""Tables for people. On a terminal they fit its width and long reasons wrap; a pipe gets whole lines."""

from __future__ import annotations

import io
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, TextIO

from ..outcome import Level, Status

if TYPE_CHECKING:
    from ..builds.run import Built, PrebuildReport
    from ..checks.sweep import HostChecks, PreflightReport

Mask = Callable[[str], str]
Row = tuple[str, ...]

UNBOUNDED = 100_000  # columns: wide enough that nothing wraps in a file or a pipe
STYLES = {"ok": "green", "warning": "yellow", "unreachable": "yellow", "unverified": "yellow", "error": "bold red"}
STYLES |= {"failed": "bold red", "skipped": "dim"}


def render(columns: Sequence[str], rows: Iterable[Row], stream: TextIO | None) -> str:
    """Rows under their headings. Cells may hold several lines; nothing of a cell is cut off."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    terminal = bool(stream and stream.isatty())
    width = shutil.get_terminal_size().columns if terminal else UNBOUNDED
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold", justify="right" if column == "seconds" else "left")
    for row in rows:
        table.add_row(*(Text(cell, style=STYLES.get(cell, "")) for cell in row))
    out = io.StringIO()
    Console(file=out, force_terminal=terminal, width=width, highlight=False).print(table)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())


def plural(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def counted(pairs: Iterable[tuple[int, str]]) -> str:
    """``2 ok, 1 failed``: what occurs at all, in the order given."""
    return ", ".join(f"{number} {word}" for number, word in pairs if number)


_WORST_LAST = {"ok": "ok", "warning": "with warnings", "unreachable": "not reached", "error": "failed"}


def preflight_rows(hosts: Iterable[HostChecks], mask: Mask) -> list[Row]:
    """One row a verdict that is not ok, one row for a host that has none; errors last."""
    ordered = sorted(hosts, key=lambda host: list(_WORST_LAST).index(host.status))
    return [row for host in ordered for row in _host_rows(host, mask)]


def _host_rows(host: HostChecks, mask: Mask) -> Iterable[Row]:
    told = sorted((v for v in host.verdicts if v.level is not Level.OK), key=lambda v: v.level is Level.ERROR)
    if not told:
        yield host.host, host.status, "", plural(len(host.verdicts), "check") + " passed"
    for verdict in told:
        status = host.status if host.status == "unreachable" else str(verdict.level)
        yield host.host, status, verdict.rule, mask(verdict.message.removeprefix(f"{host.host}: "))


def preflight_table(report: PreflightReport, mask: Mask, stream: TextIO | None) -> str:
    """Every host's verdicts and, as the last line, how many hosts are in which state."""
    hosts = list(report.hosts.values())
    if not hosts:
        return "nothing to check: cluster.yml names no worker"
    statuses = [host.status for host in hosts]
    last = f"{plural(len(hosts), 'host')}: {counted((statuses.count(s), told) for s, told in _WORST_LAST.items())}"
    return f"{render(('host', 'status', 'rule', 'message'), preflight_rows(hosts, mask), stream)}\n\n{last}"


def preflight_failures(report: PreflightReport) -> str:
    """How many hosts failed, and which: the reasons stand in the table."""
    failed = [host.host for host in report.hosts.values() if host.status == "error"]
    return f"preflight failed on {len(failed)} of {plural(len(report.hosts), 'host')}: {', '.join(failed)}"


_BUILT_ORDER = (Status.SKIPPED, Status.OK, Status.UNVERIFIED, Status.FAILED)


def prebuild_table(report: PrebuildReport, mask: Mask, stream: TextIO | None) -> str:
    """One row a worker, failures last; the last line counts, and says what was not read back."""
    built = sorted(report.hosts.values(), key=lambda one: _BUILT_ORDER.index(one.status))
    if not built:
        return f"{report.cmd}: nothing to build: cluster.yml names no worker but the controller"
    columns = ("worker", "status", "seconds", "arch", "artifact")
    return f"{render(columns, [_built_row(one, mask) for one in built], stream)}\n\n{prebuild_count(report)}"


def _built_row(one: Built, mask: Mask) -> Row:
    seconds = "" if one.status is Status.SKIPPED else f"{one.seconds:.1f}"
    return one.host, str(one.status), seconds, one.arch or "", mask("\n".join(_about(one)))


def _about(one: Built) -> Iterable[str]:
    if one.error:
        yield one.error.splitlines()[0]
    elif one.bin:
        yield one.bin
    if one.shared_with:
        yield f"the same build as {one.shared_with}"
    for warning in one.warnings:
        yield warning if one.status is Status.SKIPPED else f"warning: {warning}"


def prebuild_count(report: PrebuildReport) -> str:
    """The outcome of one command in a line. What was not read back is never called ok."""
    number = Counter(one.status for one in report.hosts.values())
    good, rest = number[Status.OK], [Status.UNVERIFIED, Status.FAILED, Status.SKIPPED]
    built = good + number[Status.UNVERIFIED]
    head = f"{plural(built, 'worker')} built" if built else "nothing built"
    back = [] if not good else [f"{good} read back"] if good < built else ["all read back" if good > 1 else "read back"]
    tail = counted((number[status], str(status)) for status in rest)
    return f"{report.cmd}: {', '.join([head, *back, *filter(None, [tail])])}"


def prebuild_failures(report: PrebuildReport) -> str:
    """Every failed worker with its reason and the end of its output; the count last."""
    failed = [one for one in report.hosts.values() if one.status is Status.FAILED]
    texts = [f"{one.host}: {one.error}" for one in failed]
    labels = ", ".join(one.host for one in failed)
    last = f"prebuild {report.cmd}: {len(failed)} of {plural(len(report.hosts), 'worker')} failed: {labels}"
    return "\n".join([*texts, last])
