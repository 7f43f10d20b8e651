"""The table of verdicts, row by row; the rows of the origin's unit tests (seeds/000) are marked so."""

from __future__ import annotations

import pytest

from fdl_tasks.checks import verdicts
from fdl_tasks.checks.probe import ABSENT, Facts, Fresh, Seen
from fdl_tasks.errors import ScriptError, Stage, TransportError
from fdl_tasks.outcome import Level, Verdict

OK, WARNING, ERROR = Level.OK, Level.WARNING, Level.ERROR
FRESH = Fresh("token", {".fdl-probe-ab-0": (1000.2, 1000.9), ".fdl-probe-ab-1": (1000.9, 1003.1)})


def abi(controller: str, uname: str | None, ldd: str | None, pkill: str | None = None) -> list[Verdict]:
    return verdicts.abi("w", controller, Facts(machine=uname, ldd=ldd, pkill=pkill))


def bad(found: list[Verdict]) -> list[tuple[str, Level]]:
    return [(verdict.rule, verdict.level) for verdict in found if verdict.level is not OK]


@pytest.mark.parametrize(
    ("declared", "directory", "listed", "level", "told"),
    [
        (True, True, True, OK, "can be listed"),  # seed: present and readable is clean
        (True, False, False, ERROR, "/mnt/nas is not a directory"),  # seed: missing and declared
        (False, False, False, WARNING, "default"),  # seed: missing and only the convention
        (False, True, False, ERROR, "can't be listed"),  # seed: unreadable, declared or not
        (True, True, False, ERROR, "can't be listed"),
        (True, None, None, WARNING, "could not read whether"),
        (True, True, None, WARNING, "could not read whether"),
        (True, False, None, ERROR, "is not a directory"),
        (True, None, False, WARNING, "could not read whether"),
    ],
)
def test_data_path(declared: bool, directory: bool | None, listed: bool | None, level: Level, told: str) -> None:
    found = verdicts.data_path("h", "/mnt/nas", declared, Facts(data_dir=directory, data_read=listed))
    assert (found.rule, found.level) == ("data-path", level)
    assert "h: " in found.message and "/mnt/nas" in found.message and told in found.message


@pytest.mark.parametrize(
    ("controller", "uname", "ldd", "expected"),
    [
        ("x86_64", "aarch64", "ldd (GNU libc) 2.31", [("cpu", ERROR)]),  # seed: another CPU
        ("x86_64", "x86_64", "musl libc (x86_64)\nVersion 1.2.4", [("libc", ERROR)]),  # seed: musl
        ("x86_64", "x86_64", "ldd (Ubuntu GLIBC 2.35-0ubuntu3.4) 2.35", []),  # seed: glibc; a note there, kept here
        ("x86_64", "", "", [("cpu", WARNING)]),  # seed: blank uname is not a mismatch
        ("x86_64", "aarch64", "musl libc", [("cpu", ERROR)]),  # seed: CPU before musl
        ("x86_64", "x86_64", "", []),  # seed: no ldd says nothing
        ("x86_64", None, "MUSL libc", [("cpu", WARNING), ("libc", ERROR)]),
        ("x86_64", "x86_64", None, [("libc", WARNING)]),
        ("x86_64", None, None, [("cpu", WARNING), ("libc", WARNING)]),
        ("x86_64", "x86_64", "something else 1.0", [("libc", WARNING)]),
        ("arm64", "aarch64", "ldd (GNU libc) 2.39", []),
        ("x86_64", "amd64", "ldd (GNU libc) 2.39", []),
        ("x86_64", "i686", "ldd (GNU libc) 2.39", [("cpu", ERROR)]),
        ("x86", "i686", "ldd (GNU libc) 2.39", []),
    ],
)
def test_cpu_and_c_library(
    controller: str, uname: str | None, ldd: str | None, expected: list[tuple[str, Level]]
) -> None:
    assert bad(abi(controller, uname, ldd)) == expected


def test_a_cpu_mismatch_names_both_and_a_way_out() -> None:
    (told,) = [v.message for v in abi("x86_64", "arm64", "")]
    assert told.startswith("w: ") and "aarch64" in told and "x86_64" in told and "build: false" in told


def test_the_version_of_glibc_is_told_as_ok_and_quoted() -> None:
    assert [(v.level, "2.35" in v.message) for v in abi("x86_64", "x86_64", "ldd (Ubuntu GLIBC 2.35-0) 2.35")[1:]] == [
        (OK, True)
    ]


@pytest.mark.parametrize(("said", "level"), [("absent", WARNING), ("present", OK), (None, None), ("", None)])
def test_pkill_is_a_warning_only_when_it_is_said_to_be_absent(said: str | None, level: Level | None) -> None:
    found = verdicts.pkill("w", Facts(pkill=said))
    assert (found.level if found else None) is level


@pytest.mark.parametrize(("there", "level"), [(True, OK), (False, ERROR), (None, WARNING)])
def test_the_workers_path(there: bool | None, level: Level) -> None:
    found = verdicts.root("w", "/srv/mono", Facts(root=there))
    assert (found.rule, found.level) == ("path", level) and "/srv/mono" in found.message


@pytest.mark.parametrize(
    ("root", "free", "level"),
    [
        (True, 1 << 20, OK),
        (True, (1 << 20) - 1, WARNING),
        (True, 0, WARNING),
        (True, None, WARNING),
        (False, None, None),
    ],
)
def test_free_space(root: bool, free: int | None, level: Level | None) -> None:
    found = verdicts.space("w", "/srv/mono", Facts(root=root, free_kib=free))
    assert (found.level if found else None) is level


@pytest.mark.parametrize(
    ("seen", "level", "told"),
    [
        (Seen(".fdl-probe-ab-1", 1001, "token"), OK, "shows what was just written"),
        (ABSENT, ERROR, "caches"),
        (Seen(".fdl-probe-ab-1", 1001, "other"), ERROR, "old"),
        (Seen(".fdl-probe-cd-0", 1001, "token"), ERROR, "old"),
        (None, WARNING, "could not read"),
    ],
)
def test_the_shared_mount(seen: Seen | None, level: Level, told: str) -> None:
    found = verdicts.shared_mount("w", "/srv/there", "/srv/here", seen, FRESH)
    assert found.level is level and told in found.message
    assert "/srv/there/target/cluster" in found.message and "/srv/here/target/cluster" in found.message
    assert ("--no-shared-check" in found.message) is (level is ERROR)


@pytest.mark.parametrize(
    ("mtime", "off"),
    [(1000, 0), (1001, 0), (1003, 0), (1004, 1), (1005, 2), (1006, 3), (999, -1), (998, -2), (997, -3), (None, None)],
)
def test_a_files_time_is_compared_with_the_span_of_its_writing(mtime: int | None, off: int | None) -> None:
    assert (
        verdicts.skew(Seen(".fdl-probe-ab-1", mtime, "token"), Fresh("token", {".fdl-probe-ab-1": (1000.9, 1003.1)}))
        == off
    )


@pytest.mark.parametrize(("off", "level"), [(0, OK), (2, OK), (-2, OK), (3, WARNING), (-3, WARNING), (None, WARNING)])
def test_more_than_two_seconds_off_is_a_warning(off: int | None, level: Level) -> None:
    found = verdicts.file_time("w", "/srv/mono", Facts(mtime_skew_s=off))
    assert found.level is level and (off is None or abs(off) <= 2 or f"{off:+d} s" in found.message)


CERTAIN = {Stage.KEY_CHANGED: ("host-key", ERROR), Stage.SETTINGS: ("ssh", ERROR)}


@pytest.mark.parametrize("stage", Stage)
def test_every_stage_of_the_transport_is_a_warning_but_a_wrong_key_and_unusable_settings(stage: Stage) -> None:
    found = verdicts.unanswered("w", TransportError(stage, "it went wrong", hint="do that"))
    assert (found.rule, found.level) == CERTAIN.get(stage, ("reach", WARNING))
    assert stage in found.message
    assert found.message.endswith("it went wrong; do that")


@pytest.mark.parametrize("failure", [ScriptError("did not arrive whole"), OSError(24, "Too many open files")])
def test_a_probe_that_failed_is_a_warning_with_the_reason(failure: Exception) -> None:
    found = verdicts.unanswered("w", failure)
    assert (found.rule, found.level) == ("probe", WARNING) and str(failure) in found.message


def test_an_answer_without_end_tells_the_exit_code_and_the_last_error() -> None:
    found = verdicts.ended("w", Facts(), 127, "sh: not found\n\n")
    assert (
        found
        and found.level is WARNING
        and "exit code 127" in found.message
        and found.message.endswith("sh: not found")
    )
    assert verdicts.ended("w", Facts(ended=True), 1, "") is None
