from __future__ import annotations

import io

import pytest

from fdl_tasks.builds.run import Built, PrebuildReport
from fdl_tasks.checks.sweep import HostChecks, PreflightReport
from fdl_tasks.outcome import Level, Status, Verdict
from fdl_tasks.report.masking import Masker, clean
from fdl_tasks.report.table import prebuild_count, prebuild_failures, prebuild_table, preflight_table, render

PLAIN = Masker()
REASON = "the data path /mnt/nas/a/rather/long/place is not a directory: mount it there, or mend data_path"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def checks(host: str, status: str, *verdicts: Verdict) -> HostChecks:
    return HostChecks(host, status, verdicts, None)


def bad(host: str, level: Level, message: str = REASON) -> Verdict:
    return Verdict("data-path", level, f"{host}: {message}")


FINE = Verdict("path", Level.OK, "fine")
PREFLIGHT = PreflightReport(
    {
        "b": checks("b", "error", bad("b", Level.ERROR), FINE, bad("b", Level.WARNING, "no pkill")),
        "d": checks("d", "unreachable", bad("d", Level.WARNING, "not checked (connect: refused)")),
        "a": checks("a", "ok", FINE, FINE),
        "c": checks("c", "warning", FINE, bad("c", Level.WARNING, "3 MiB free")),
    }
)


def test_preflight_shows_errors_last_and_counts() -> None:
    assert preflight_table(PREFLIGHT, PLAIN, io.StringIO()) == (
        "host  status       rule       message\n"
        "a     ok                      2 checks passed\n"
        "c     warning      data-path  3 MiB free\n"
        "d     unreachable  data-path  not checked (connect: refused)\n"
        "b     warning      data-path  no pkill\n"
        f"b     error        data-path  {REASON}\n"
        "\n"
        "4 hosts: 1 ok, 1 with warnings, 1 not reached, 1 failed"
    )


def test_preflight_of_nobody_says_so() -> None:
    assert preflight_table(PreflightReport({}), PLAIN, None) == "nothing to check: cluster.yml names no worker"


def built(host: str, status: Status, **fields: object) -> Built:
    return Built(host, status, 12.34, "precompiled/cu128", "cuda", f"target/cluster/{host}", **fields)  # type: ignore[arg-type]


PREBUILD = PrebuildReport(
    "bench",
    {
        "c": built("c", Status.FAILED, error="error[E0425]: no such name\n  | tail\n  next: x"),
        "a": built("a", Status.UNVERIFIED, bin="target/cluster/a/bench", warnings=("odd variant name",)),
        "b": built("b", Status.OK, bin="target/cluster/b/bench", shared_with="a"),
        "d": built("d", Status.SKIPPED, warnings=("build: false in cluster.yml",)),
    },
    {},
)


def test_prebuild_shows_failures_last_and_counts_what_was_read_back() -> None:
    assert prebuild_table(PREBUILD, PLAIN, io.StringIO()) == (
        "worker  status      seconds  arch               artifact\n"
        "d       skipped              precompiled/cu128  build: false in cluster.yml\n"
        "b       ok             12.3  precompiled/cu128  target/cluster/b/bench\n"
        "                                                the same build as a\n"
        "a       unverified     12.3  precompiled/cu128  target/cluster/a/bench\n"
        "                                                warning: odd variant name\n"
        "c       failed         12.3  precompiled/cu128  error[E0425]: no such name\n"
        "\n"
        "bench: 2 workers built, 1 read back, 1 unverified, 1 failed, 1 skipped"
    )


def test_a_failure_shows_the_reason_and_the_tail() -> None:
    assert prebuild_failures(PREBUILD) == (
        "c: error[E0425]: no such name\n  | tail\n  next: x\nprebuild bench: 1 of 4 workers failed: c"
    )


@pytest.mark.parametrize(
    ("statuses", "line"),
    [
        ([Status.UNVERIFIED], "bench: 1 worker built, 1 unverified"),
        ([Status.OK], "bench: 1 worker built, read back"),
        ([Status.OK, Status.OK], "bench: 2 workers built, all read back"),
        ([Status.OK, Status.UNVERIFIED, Status.OK], "bench: 3 workers built, 2 read back, 1 unverified"),
        ([Status.OK, Status.FAILED, Status.OK], "bench: 2 workers built, all read back, 1 failed"),
        ([Status.SKIPPED], "bench: nothing built, 1 skipped"),
        ([Status.FAILED, Status.FAILED], "bench: nothing built, 2 failed"),
    ],
)
def test_the_last_line_counts(statuses: list[Status], line: str) -> None:
    hosts = {f"h{n}": built(f"h{n}", status) for n, status in enumerate(statuses)}
    assert prebuild_count(PrebuildReport("bench", hosts, {})) == line


def test_a_prebuild_of_nobody_says_so() -> None:
    said = prebuild_table(PrebuildReport("bench", {}, {}), PLAIN, None)
    assert said == "bench: nothing to build: cluster.yml names no worker but the controller"


@pytest.mark.parametrize("width", [40, 80, 200])
def test_on_a_terminal_a_reason_wraps_and_loses_nothing(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    text = clean(render(("host", "message"), [("node-a", REASON)], Terminal()))
    assert max(map(len, text.splitlines())) <= width
    message = " ".join(line[8:].strip() for line in text.splitlines()[1:])
    assert message.replace(" ", "") == REASON.replace(" ", "")


def test_a_pipe_gets_no_colour_and_no_wrapping() -> None:
    text = render(("host", "status"), [("a", "error"), ("x" * 300, "ok")], io.StringIO())
    assert "\x1b" not in text
    assert text.splitlines()[2] == "x" * 300 + "  ok"


@pytest.mark.parametrize(("no_color", "coloured"), [("", True), ("1", False)])
def test_colour_is_for_terminals_that_want_it(monkeypatch: pytest.MonkeyPatch, no_color: str, coloured: bool) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", no_color)
    text = render(("host", "status"), [("a", "error")], Terminal())
    assert ("\x1b[1;31m" in text) is coloured


def test_markup_in_a_reason_is_text() -> None:
    assert "[red]x[/red] :smile:" in render(("message",), [("[red]x[/red] :smile:",)], io.StringIO())
