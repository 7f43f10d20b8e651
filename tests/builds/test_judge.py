"""Each rule of a binary's verification, over what it may find."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fdl_tasks.builds import judge
from fdl_tasks.builds.readback import Artifact, Loaded, Readback, Seen, Start
from fdl_tasks.checks.probe import Facts
from fdl_tasks.errors import Cancelled, FdlError, Stage, TransportError
from fdl_tasks.outcome import Attempt, Level, Status, Verdict

OK, WARNING, ERROR = Level
HASH, OTHER = "ab" * 32, "cd" * 32
BUILT = Artifact(10, HASH, "x86_64", (2, 38), "libtorch_cpu.so", ("libtorch_cpu.so",), ("libc.so.6",))
STATIC = Artifact(10, HASH, "x86_64")
PATH = "/srv/mono/target/cluster/a/cu128/release/bench"


@pytest.mark.parametrize(
    ("said", "level", "words"),
    [
        ("x86_64", OK, "for x86_64"),
        ("amd64", OK, "for x86_64"),
        ("aarch64", ERROR, "for x86_64, and the worker is aarch64"),
        ("arm64", ERROR, "aarch64"),
        (None, WARNING, "could not read its CPU"),
        ("", WARNING, "could not read its CPU"),
    ],
)
def test_the_cpu(said: str | None, level: Level, words: str) -> None:
    found = judge.machine(BUILT, Facts(machine=said))
    assert (found.level, words in found.message) == (level, True)


@pytest.mark.parametrize(
    ("ldd", "level", "words"),
    [
        ("ldd (GNU libc) 2.38", OK, "glibc 2.38"),
        ("ldd (GNU libc) 2.40", OK, "glibc 2.40"),
        ("ldd (Debian GLIBC 2.36-9) 2.36", ERROR, "libtorch_cpu.so demands GLIBC_2.38, and the worker has glibc 2.36"),
        ("ldd (GNU libc) 2.4", ERROR, "glibc 2.4"),  # by number, not by text
        ("musl libc (x86_64)", ERROR, "musl"),
        ("something", WARNING, "could not be read"),
        ("", WARNING, "could not be read"),
        (None, WARNING, "could not be read"),
    ],
)
def test_the_c_library(ldd: str | None, level: Level, words: str) -> None:
    found = judge.glibc(BUILT, Facts(ldd=ldd))
    assert found and (found.level, words in found.message) == (level, True)


def test_a_binary_that_demands_no_glibc_is_not_judged_by_it() -> None:
    assert judge.glibc(STATIC, Facts(ldd="ldd (GNU libc) 2.0")) is None


def test_a_micro_version_is_newer_than_none() -> None:
    found = judge.glibc(Artifact(1, HASH, "x86_64", (2, 2, 5), "x"), Facts(ldd="ldd (GNU libc) 2.3"))
    assert found and found.level is OK


@pytest.mark.parametrize(
    ("seen", "level", "words"),
    [
        (Seen(True, 10, True, HASH), OK, "is the file just built"),
        (Seen(False), ERROR, "is not there on the worker: mount there"),
        (Seen(True, 9, True), ERROR, "not the file just built (9 bytes, not 10"),
        (Seen(True, 10, True, OTHER), ERROR, "other content; read again for 5 s"),
        (Seen(True, 9, False), ERROR, "not the file just built"),
        (Seen(True, 10, False, HASH), ERROR, "may not be executed"),
        (Seen(True, 10, False), ERROR, "may not be executed"),
        (Seen(True, 10, True), WARNING, "nothing that makes a SHA-256"),
        (Seen(True), WARNING, "may not read it"),
        (None, WARNING, "could not read"),
    ],
)
def test_the_file_on_the_worker(seen: Seen | None, level: Level, words: str) -> None:
    found = judge.file(PATH, BUILT, seen)
    assert (found.level, words in found.message, PATH in found.message) == (level, True, True)


@pytest.mark.parametrize(
    ("seen", "level", "words"),
    [
        (Start(True, True), OK, "are there"),
        (Start(False, True), ERROR, "the directory to start it in is not there"),
        (Start(True, False), ERROR, "its loader /nix/ld.so is not there on the worker"),
        (None, WARNING, "could not read"),
    ],
)
def test_what_the_kernel_needs_to_start_it(seen: Start | None, level: Level, words: str) -> None:
    found = judge.start(replace(BUILT, loader="/nix/ld.so"), seen)
    assert (found.level, words in found.message) == (level, True), found.message


def loaded(code: int = 0, found: str = "libtorch_cpu.so libc.so.6", *troubles: str, static: bool = False) -> Loaded:
    return Loaded(code, frozenset(found.split()), troubles, ("a last word",) if code else (), static)


@pytest.mark.parametrize(
    ("built", "ldd", "said", "level", "words"),
    [
        (BUILT, "x", loaded(), OK, "all 2 libraries and every symbol"),
        (BUILT, "x", loaded(0, "", "library libx.so"), ERROR, "does not find library libx.so: its libtorch ships"),
        (BUILT, "x", loaded(0, "", *"abcdefg"), ERROR, "does not find a, b, c, d and 3 more"),
        (BUILT, "x", loaded(1), WARNING, "exit code 1 (a last word)"),
        (BUILT, "x", replace(loaded(), rest=("what?",)), WARNING, "not understood here (what?)"),
        (BUILT, "x", loaded(0, "libtorch_cpu.so"), WARNING, "did not name libc.so.6"),
        (BUILT, "x", loaded(0, ""), WARNING, "did not name libtorch_cpu.so, libc.so.6"),
        (BUILT, "x", loaded(1, "", static=True), ERROR, "no dynamic program"),
        (BUILT, "x", None, WARNING, "could not read what the loader"),
        (BUILT, "", None, WARNING, "no ldd"),
        (replace(BUILT, system=("/opt/x/libc.so.6",)), "x", loaded(), OK, "all 2 libraries"),
        (STATIC, "x", loaded(1, "", static=True), OK, "no libraries"),
        (STATIC, "", None, OK, "no libraries"),
        (STATIC, "x", loaded(0, "", "symbol x"), ERROR, "symbol x"),
    ],
)
def test_what_the_loader_finds(built: Artifact, ldd: str, said: Loaded | None, level: Level, words: str) -> None:
    found = judge.libraries(built, Readback(Facts(ldd=ldd), None, None, said, True))
    assert (found.level, words in found.message) == (level, True), found.message


def test_of_another_file_nothing_more_is_asked() -> None:
    answer = Readback(Facts(), Seen(False), Start(False, False), loaded(0, "", "library x"), True)
    assert [v.rule for v in judge.read_back(PATH, BUILT, answer)] == ["file", "answer"]


def test_a_foreign_cpu_is_the_only_thing_said() -> None:
    assert [v.rule for v in judge.fits(BUILT, Facts(machine="aarch64", ldd="ldd (GNU libc) 2.1"))] == ["machine"]


PROVEN = [Verdict(rule, OK, "") for rule in judge.PROOFS]


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (PROVEN, Status.OK),
        ([*PROVEN, Verdict("glibc", WARNING, "")], Status.OK),
        ([*PROVEN, Verdict("check", WARNING, "")], Status.UNVERIFIED),
        ([*PROVEN, Verdict("reach", WARNING, "")], Status.UNVERIFIED),
        ([*PROVEN, Verdict("check", ERROR, "")], Status.FAILED),
        ([*PROVEN[:-1]], Status.UNVERIFIED),
        ([], Status.UNVERIFIED),
        ([Verdict("machine", OK, ""), Verdict("glibc", ERROR, "")], Status.FAILED),
    ],
)
def test_ok_is_only_what_every_proof_has_shown(found: list[Verdict], expected: Status) -> None:
    assert judge.status(found) is expected


@pytest.mark.parametrize("lost", sorted(judge.PROOFS))
def test_without_one_of_the_proofs_nothing_is_ok(lost: str) -> None:
    assert judge.status([v for v in PROVEN if v.rule != lost]) is Status.UNVERIFIED


@pytest.mark.parametrize(
    ("code", "words"),
    [(3, "it ended with exit code 3"), (139, "it was ended by signal 11"), (255, "it ended with exit code 255")],
)
def test_a_start_that_fails_carries_its_last_lines(code: int, words: str) -> None:
    found = judge.started(("--version", "-v"), code, ["no GPU", "bye"])
    assert found.level is ERROR
    assert found.message == f"started with --version -v (check), {words}\n  | no GPU\n  | bye"


def test_a_start_that_ends_well_is_ok_and_one_that_never_ends_is_not() -> None:
    assert judge.started(("-v",), 0, []).level is OK
    assert judge.hung(("-v",), 60, ["x"]) == Verdict(
        "check", ERROR, "started with -v (check), it had not ended after 60 s\n  | x"
    )


@pytest.mark.parametrize("stage", Stage)
def test_a_worker_that_gives_no_answer_is_unverified_unless_it_is_another_machine(stage: Stage) -> None:
    found = judge.unanswered(TransportError(stage, "why", hint="what next"))
    expected = Status.FAILED if stage is Stage.KEY_CHANGED else Status.UNVERIFIED
    assert judge.status([found]) is expected
    assert str(stage) in found.message and "why" in found.message and "what next" in found.message


def test_a_bug_of_a_verification_is_a_warning_and_the_users_ctrl_c_is_not() -> None:
    [found] = judge.outcome(Attempt("a", None, ZeroDivisionError("oops"), 1.0))
    assert (found.level, "ZeroDivisionError('oops')" in found.message) == (WARNING, True)
    with pytest.raises(Cancelled):
        judge.outcome(Attempt("a", None, Cancelled("x"), 1.0))
    assert judge.outcome(Attempt("a", (found,), None, 1.0)) == (found,)
    assert isinstance(Cancelled("x"), FdlError)
