"""The parser of a worker's answer: captured outputs of loaders, and properties over what can be cut or mixed in."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fdl_tasks.builds.judge import fits, read_back, status
from fdl_tasks.builds.readback import Artifact, Readback, Seen, Start, merged, parse, variables
from fdl_tasks.checks.probe import Facts
from fdl_tasks.outcome import Status

CASES = Path(__file__).parent.parent / "cases/ldd"
MARK, HASH = "fdl-0123456789abcdef", "ab" * 32
BANNER = "ldd (Debian GLIBC 2.36-9+deb12u14) 2.36"
BUILT = Artifact(4096, HASH, "x86_64", (2, 34), "bench", ("libx.so",), ("libc.so.6",))


def answer(
    case: str,
    *more: str,
    file: str = f"4096 x {HASH}",
    start: str = "x x",
    machine: str = "x86_64",
    banner: str = BANNER,
) -> str:
    """What verify.sh prints where ``ldd -r`` says what the case holds, and more; its last line is the exit code."""
    *lines, code = (CASES / f"{case}.txt").read_text().splitlines()
    libs = [f"LIB {line}" for line in [*lines, *more]]
    said = [f"MACHINE {machine}", f"LDD {banner}", f"FILE {file}", f"START {start}", *libs, f"CODE {code}"]
    return marked([*said, f"END {len(said)}"])


def marked(lines: Sequence[str], mark: str = MARK) -> str:
    return "".join(f"{mark} {line} {mark}\n" for line in lines)


def verdict(text: str, built: Artifact = BUILT) -> Status:
    found = parse(MARK, text)
    return status([*fits(built, merged(found.facts, None)), *read_back("/srv/bench", built, found)])


GOOD = answer("glibc-fine")
BAD = [
    answer("missing-library"),
    answer("undefined-symbol"),
    answer("version-not-found"),
    answer("glibc-fine", file="absent"),
    answer("glibc-fine", file=f"4095 x {HASH}"),
    answer("glibc-fine", file=f"4096 x {'cd' * 32}"),
    answer("glibc-fine", file=f"4096 - {HASH}"),
    answer("glibc-fine", start="- x"),
    answer("glibc-fine", start="x -"),
    answer("glibc-fine", machine="aarch64"),
    answer("glibc-fine", banner="ldd (GNU libc) 2.31"),
]
NOISE = st.one_of(
    st.text(st.characters(exclude_characters="\n", exclude_categories=["Cs"])),
    st.sampled_from(
        [
            *GOOD.splitlines(),
            *answer("undefined-symbol").splitlines(),
            f"+ printf '%s %s %s\\n' {MARK} 'FILE absent' {MARK}",
            *(f"{MARK} FILE ab", "FILE absent", "\r", MARK),
        ]
    ),
)


def test_a_whole_answer_is_read_to_the_last_field() -> None:
    found = parse(MARK, GOOD)
    assert found.facts == Facts(machine="x86_64", ldd=BANNER)
    assert (found.file, found.start, found.whole) == (Seen(True, 4096, True, HASH), Start(True, True), True)
    assert found.loaded and found.loaded.found == {
        "linux-vdso.so.1", "libx.so", "libc.so.6", "ld-linux-x86-64.so.2",
    }  # fmt: skip
    assert (found.loaded.code, found.loaded.troubles, found.loaded.rest) == (0, (), ())


@pytest.mark.parametrize(
    ("case", "troubles"),
    [
        ("glibc-fine", ()),
        ("missing-library", ("library libx.so", "symbol only_here")),
        ("undefined-symbol", ("symbol only_here",)),
        ("older-glibc-symbol", ("symbol foo, version V1",)),
        (
            "version-not-found",
            ("version `GLIBC_2.99' not found (required by ./mm)", "symbol newer, version GLIBC_2.99"),
        ),
        (
            "version-of-a-shipped-library",
            ("version `GLIBC_2.99' not found (required by ./mn)", "symbol newer, version GLIBC_2.99"),
        ),
        ("file-too-short", ("/srv/mono/lib/Z/libx.so: file too short",)),
        ("cut-short", ("the loader itself, which exited with unknown exit code (135)",)),
        ("cut-short-library", ()),
        ("nine-symbols", tuple(f"symbol sym{n}" for n in (8, 2, 5, 7, 9, 3, 1, 4, 6))),
        ("musl-missing", ("library libx.so", "symbol only_here")),
        ("musl-symbol", ("symbol only_here",)),
        ("musl-fine", ()),
        ("musl-r", ()),
        ("static", ()),
        ("static-pie", ()),
    ],
)
def test_what_a_loader_does_not_find_is_named(case: str, troubles: tuple[str, ...]) -> None:
    loaded = parse(MARK, answer(case)).loaded
    assert loaded and loaded.troubles == troubles


def test_a_broken_loader_is_trouble_too() -> None:
    loaded = parse(MARK, answer("no-version-information")).loaded
    assert loaded and loaded.troubles[0].startswith("Inconsistency detected by ld.so: dl-lookup.c")


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        ("glibc-fine", Status.OK),
        ("missing-library", Status.FAILED),
        ("undefined-symbol", Status.FAILED),
        ("cut-short-library", Status.UNVERIFIED),  # the loader died without a word
        ("musl-r", Status.UNVERIFIED),
        ("static", Status.FAILED),  # for a binary that is not static: its own loader is missing
    ],
)
def test_a_captured_answer_gives_its_status(case: str, expected: Status) -> None:
    assert verdict(answer(case)) is expected


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("./m: /srv/lib/libtinfo.so.6: no version information available (required by ./m)", Status.OK),
        ("./m: Symbol `stdscr' has different size in shared object, consider re-linking", Status.OK),
        (
            "ERROR: ld.so: object 'libjemalloc.so' from LD_PRELOAD cannot be preloaded (cannot open shared object "
            "file): ignored.",
            Status.OK,
        ),
        ("++ test x = y", Status.OK),
        ("", Status.OK),
        ("./m: a thing that no loader has said until now", Status.UNVERIFIED),
        ("lookup of foo failed (./m)", Status.UNVERIFIED),
    ],
)
def test_ok_is_no_answer_of_which_a_line_is_not_understood(line: str, expected: Status) -> None:
    assert verdict(answer("glibc-fine", line)) is expected


@pytest.mark.parametrize("case", ["static", "static-pie"])
def test_a_static_binary_needs_no_libraries(case: str) -> None:
    static = Artifact(4096, HASH, "x86_64")
    assert verdict(answer(case), static) is Status.OK
    assert verdict(answer(case, file=f"4096 x {'cd' * 32}"), static) is Status.FAILED


@pytest.mark.parametrize("text", [GOOD, *BAD])
def test_an_answer_cut_anywhere_is_never_ok_and_never_a_false_error(text: str) -> None:
    truth = verdict(text)
    assert truth is (Status.OK if text == GOOD else Status.FAILED)
    for end in range(len(text) - 1):
        for tail in ("", "\nlogout\n"):
            assert verdict(text[:end] + tail) in {Status.UNVERIFIED, truth} - {Status.OK}


@pytest.mark.parametrize("text", [GOOD, *BAD])
def test_carriage_returns_change_nothing(text: str) -> None:
    assert verdict(text.replace("\n", "\r\n")) is verdict(text)


@given(st.sampled_from(BAD), st.integers(0, 12), NOISE)
def test_a_line_of_noise_never_makes_an_error_ok(text: str, place: int, noise: str) -> None:
    lines = text.splitlines()
    lines.insert(place, noise)
    assert verdict("\n".join([*lines, ""])) is not Status.OK


@given(st.integers(0, 12), st.text(st.characters(exclude_categories=["Cs"])), st.integers(0, 40))
def test_noise_of_a_login_makes_no_error_of_what_is_right(place: int, noise: str, glued: int) -> None:
    lines = GOOD.splitlines()
    lines.insert(place, noise)
    assert verdict("\n".join([*lines, ""])) is Status.OK  # it is not between the marks
    cut = GOOD.splitlines()
    cut[place % len(cut)] = noise[:glued] + cut[place % len(cut)]
    assert verdict("\n".join([*cut, ""])) in (Status.OK, Status.UNVERIFIED)


@given(st.text())
def test_any_text_at_all_is_survived(text: str) -> None:
    assert parse(MARK, text).whole is False
    assert isinstance(parse(MARK, marked(text.split("\n"))), Readback)


@pytest.mark.parametrize("lost", range(10))
def test_an_answer_that_lacks_a_line_is_not_whole(lost: int) -> None:
    lines = GOOD.splitlines()
    del lines[lost]
    assert not parse(MARK, "\n".join([*lines, ""])).whole
    assert verdict("\n".join([*lines, ""])) is Status.UNVERIFIED


def test_another_runs_answer_is_no_answer() -> None:
    other = GOOD.replace(MARK, "fdl-fedcba9876543210")
    assert parse(MARK, other) == Readback(Facts(), None, None, None, False)


@pytest.mark.parametrize(
    ("now", "before", "expected"),
    [
        (Facts(machine="x86_64", ldd="a"), Facts(machine="aarch64", ldd="b"), ("x86_64", "a")),
        (Facts(), Facts(machine="aarch64", ldd="b"), ("aarch64", "b")),
        (Facts(machine="x86_64", ldd=""), Facts(ldd="b"), ("x86_64", "b")),
        (None, None, (None, None)),
    ],
)
def test_what_the_worker_says_now_counts_before_what_it_said_in_preflight(
    now: Facts | None, before: Facts | None, expected: tuple[str | None, str | None]
) -> None:
    found = merged(now, before)
    assert (found.machine, found.ldd) == expected


def test_a_loader_path_of_the_users_replaces_the_envelopes() -> None:
    assert variables({"A": "1"}, "/lib") == {"LD_LIBRARY_PATH": "/lib", "A": "1"}
    assert variables({"LD_LIBRARY_PATH": "/own"}, "/lib") == {"LD_LIBRARY_PATH": "/own"}
    assert variables({"LD_LIBRARY_PATH": ""}, "/lib") == {"LD_LIBRARY_PATH": ""}
