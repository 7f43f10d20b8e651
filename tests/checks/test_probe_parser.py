"""The parser of the probe's answer: captured outputs, and properties over everything that can be cut or mixed in."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fdl_tasks.checks.probe import ABSENT, Facts, Seen, parse, spelling

CASES = Path(__file__).parent.parent / "cases/probe"
ANSWERS = [
    (CASES / name).read_text() for name in ("debian.txt", "mount-absent.txt", "path-not-there.txt", "no-ldd.txt")
]
SENTINELS = [line for line in ANSWERS[0].splitlines() if line.startswith("__")] + ["__FLODL_DP_DIR__=0"]
NOISE = st.one_of(
    st.text(st.characters(exclude_characters="\n", exclude_categories=["Cs"])),
    st.sampled_from(
        [*SENTINELS, "aarch64", "musl libc (x86_64)", "absent", "0", "-", "+ uname -m", "\x1b[31mhi\x1b[0m", "\r"]
    ),
)


@pytest.mark.parametrize("case", sorted(CASES.glob("*.txt")), ids=lambda path: path.stem)
def test_a_captured_answer_gives_the_facts_beside_it(case: Path) -> None:
    facts = parse(case.read_bytes().decode("utf-8", "replace"))
    assert facts.as_json() | {"ended": facts.ended} == json.loads(case.with_suffix(".json").read_text())


def test_a_whole_answer_is_read_to_the_last_field() -> None:
    seen = Seen(".fdl-probe-3f9a0c11d2e4-0", 1796040015, "7d0b6f3a9c5e4d1f8a2b3c4d5e6f7081")
    assert parse(ANSWERS[0]) == Facts(
        data_dir=True,
        data_read=True,
        root=True,
        free_kib=82928900,
        shared=seen,
        machine="x86_64",
        ldd="ldd (Debian GLIBC 2.36-9+deb12u14) 2.36",
        pkill="present",
        ended=True,
    )


def no_fact_differs(found: Facts, truth: Facts) -> None:
    for one in fields(Facts):
        value, true = getattr(found, one.name), getattr(truth, one.name)
        assert value == true or value is None or (one.name == "ended" and not value), (one.name, value, true)


@pytest.mark.parametrize("answer", ANSWERS)
def test_an_answer_cut_anywhere_gives_true_facts_or_unknown_ones(answer: str) -> None:
    for end in range(len(answer)):
        no_fact_differs(parse(answer[:end]), parse(answer))
        assert not parse(answer[:end]).ended


@given(st.sampled_from(ANSWERS), st.integers(0, 20), NOISE)
@example(ANSWERS[0], 5, "__FLODL_LDD__")
@example(ANSWERS[0], 7, "aarch64")
def test_a_line_of_noise_anywhere_gives_true_facts_or_unknown_ones(answer: str, place: int, noise: str) -> None:
    lines = answer.splitlines()
    lines.insert(place, noise)
    no_fact_differs(parse("\n".join([*lines, ""])), parse(answer))


@given(
    st.sampled_from(ANSWERS),
    st.lists(st.tuples(st.integers(0, 20), st.text("abc +#[];\x1b\r\t\x07é\ufffd0"))),
    st.integers(0, 900),
)
def test_much_noise_and_a_cut_give_true_facts_or_unknown_ones(
    answer: str, noise: list[tuple[int, str]], end: int
) -> None:
    lines = answer.splitlines()
    for place, text in noise:
        lines.insert(place, text)
    no_fact_differs(parse("\n".join([*lines, ""])[:end]), parse(answer))


@given(st.text())
def test_any_text_at_all_is_survived(text: str) -> None:
    assert isinstance(parse(text), Facts)


@pytest.mark.parametrize("glued", ["motdx86_64", "x86_64motd", "x86", "Linux", "x86_64 x86_64", "3"])
def test_what_is_no_machine_name_is_unknown_and_never_a_foreign_cpu(glued: str) -> None:
    assert parse(ANSWERS[0].replace("x86_64\n", f"{glued}\n")).machine is None


def test_a_file_that_does_not_show_is_known_to_be_absent() -> None:
    assert parse((CASES / "mount-absent.txt").read_text()).shared == ABSENT


@pytest.mark.parametrize(
    ("name", "one"),
    [
        ("arm64", "aarch64"),
        ("aarch64", "aarch64"),
        ("amd64", "x86_64"),
        ("AMD64", "x86_64"),
        ("x86_64", "x86_64"),
        ("i386", "x86"),
        ("i686", "x86"),
        ("x86", "x86"),
        ("riscv64", "riscv64"),
        (" x86_64\n", "x86_64"),
    ],
)
def test_names_of_a_cpu_have_one_spelling(name: str, one: str) -> None:
    assert spelling(name) == one


@pytest.mark.parametrize(
    ("banner", "version"),
    [
        ("ldd (Debian GLIBC 2.36-9+deb12u10) 2.36", (2, 36)),
        ("ldd (Ubuntu GLIBC 2.35-0ubuntu3.4) 2.35", (2, 35)),
        ("ldd (GNU libc) 2.34", (2, 34)),
        ("ldd (GNU libc) 2.17", (2, 17)),
        ("musl libc (x86_64)", None),
        ("", None),
        ("ldd (Debian GLIBC 2.36-9) 2.36 logged in", None),
    ],
)
def test_the_version_of_glibc_is_read_from_the_banner(banner: str, version: tuple[int, int] | None) -> None:
    assert Facts(ldd=banner).glibc == version
