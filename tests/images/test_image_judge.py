"""What docker says of loads and containers, captured from engines of both stores and releases, and what it means."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fdl_tasks.cluster.image import ImageRef
from fdl_tasks.errors import ScriptError
from fdl_tasks.images import answer, judge
from fdl_tasks.images.identity import Proof
from fdl_tasks.images.judge import SHELL, UNSURE, Copy, Fault, Ran, Start
from tests.images.making import make_image, sha

CASES = Path(__file__).parent.parent / "cases/images"
LOADS = sorted((CASES / "load").glob("*.txt"))
FAULTS = {
    "collected": Fault.COLLECTED,
    "cut": Fault.CUT,
    "empty": Fault.CUT,
    "full-disk": Fault.DISK,
    "lacking": Fault.LACKING,
}
ENGINES = [f"{store}-{release}" for store in ("containerd", "graphdriver") for release in (26, 28)]
REF = ImageRef.parse("app:1")
DIGEST = ImageRef.parse(f"reg.example:5000/team/app@{sha('d')}")


def said(**values: str) -> str:
    """An answer as the scripts give it."""
    lines = [f"__FDL_{name}__ {len(value.encode())} {value}\n" for name, value in (*values.items(), ("END", ""))]
    return "noise\n" + "".join(lines)


def answered(name: str) -> str:
    """What verify.sh says of a captured `docker run` or `docker create`."""
    case = CASES / "run" / f"{name}.txt"
    code = json.loads(case.with_suffix(".json").read_text())["code"]
    return f"{code} {case.read_text().strip().replace(chr(10), chr(9))}"


def captured(name: str) -> Ran:
    return judge.copy(said(IMAGE=SHOWN, RAN=answered(name)), "node").ran


# -- loads ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", LOADS, ids=lambda path: path.stem)
def test_a_captured_load_is_judged_by_its_words_whatever_its_exit_code(case: Path) -> None:
    code = json.loads(case.with_suffix(".json").read_text())["code"]
    found = judge.loaded(code, case.read_text())
    assert found.fault is FAULTS.get(case.stem.split("-", 2)[2])
    assert (found.error is None) is (found.fault is None)
    assert bool(found.notes) is (case.stem.startswith("graphdriver") and case.stem.endswith("rename"))


def test_a_load_that_ends_with_0_after_a_failed_unpack_is_a_failure_with_dockers_reason() -> None:
    found = judge.loaded(0, "Loaded image: app:1\nError unpacking image app:1: wrong diff id\n")
    assert found.fault is Fault.UNPACK
    assert found.error == "it could not be unpacked: Error unpacking image app:1: wrong diff id"


def test_what_a_loaded_tag_meant_before_is_a_note_with_its_whole_id() -> None:
    [note] = judge.loaded(0, (CASES / "load/graphdriver-28-rename.txt").read_text()).notes
    old = "sha256:927ca46d13a52dfb7987e26a680b6a5dd8720fd490f2f7536cff6e96a716c385"
    assert note == f"app:1 meant {old} there before; that image is still there, without a name"


@pytest.mark.parametrize(
    ("code", "output", "fault"),
    [
        (0, "", Fault.OTHER),  # said nothing of an image: not a success
        (1, "permission denied while trying to connect to the Docker daemon socket", Fault.OTHER),
        (1, "Loaded image: app:1\nwrite /x: no space left on device", Fault.DISK),
        (1, "failed to extract layer sha256:1: operation not permitted", Fault.UNPACK),
        (137, "", Fault.OTHER),
    ],
)
def test_other_ends_of_a_load(code: int, output: str, fault: Fault) -> None:
    found = judge.loaded(code, output)
    assert found.fault is fault and found.said


# -- copies ---------------------------------------------------------------------------------------

SHOWN = json.dumps({"Id": sha("app"), "RootFS": {"Layers": [sha("a")]}, "Os": "linux", "Architecture": "amd64"})
SOURCE = make_image("app", "a")


def test_a_copy_that_is_the_sources_and_whole_is_good() -> None:
    found = judge.copy(said(IMAGE=SHOWN, RAN="0 WARNING: no swap"), "node")
    assert found.created is None and found.image and found.ran == Ran(0, "WARNING: no swap")
    assert judge.compare(found, SOURCE, REF) == judge.Finding(Proof.ID)


@pytest.mark.parametrize("engine", ENGINES)
def test_where_the_program_did_not_start_a_container_that_was_made_proves_the_copy(engine: str) -> None:
    ran = answered(f"{engine}-no-shell")
    found = judge.copy(said(IMAGE=SHOWN, RAN=ran, CREATED=answered(f"{engine}-no-shell-created")), "node")
    assert found.created is None and judge.compare(found, SOURCE, REF) == judge.Finding(Proof.ID)
    assert judge.compare(judge.copy(said(IMAGE=SHOWN, RAN=ran), "node"), SOURCE, REF).error


@pytest.mark.parametrize("engine", ["containerd-26", "containerd-28"])
def test_a_record_whose_content_never_arrived_is_found_by_both(engine: str) -> None:
    ghost = {"RAN": answered(f"{engine}-ghost"), "CREATED": answered(f"{engine}-ghost-created")}
    found = judge.compare(judge.copy(said(IMAGE=SHOWN, **ghost), "node"), SOURCE, REF)
    assert found.error and "not whole" in found.error and found.again


@pytest.mark.parametrize(("code", "made"), [*((n, True) for n in (0, 1, 124, 137)), *((n, False) for n in UNSURE)])
def test_what_ended_by_itself_had_a_container(code: int, made: bool) -> None:
    found = judge.copy(said(IMAGE=SHOWN, RAN=f"{code} boom"), "node")
    assert (found.created is None) is made and found.ran.code == code


def test_equal_content_under_another_id_is_the_same() -> None:
    other = make_image("other", "a")
    assert judge.compare(Copy(other), SOURCE, REF) == judge.Finding(Proof.CONTENT)


def test_a_difference_is_an_error_that_names_both() -> None:
    found = judge.compare(Copy(make_image("other", "ab")), SOURCE, REF)
    assert found.error and not found.again and found.proof is None
    assert sha("other") in found.error and sha("app") in found.error and "2 layers" in found.error


@pytest.mark.parametrize(
    ("words", "again"),
    [
        ("content digest sha256:1: not found", True),
        ("failed to extract layer sha256:1: write /x: no space left on device", False),
    ],
)
def test_a_record_without_its_content_has_the_right_id_and_is_an_error(words: str, again: bool) -> None:
    found = judge.compare(judge.copy(said(IMAGE=SHOWN, RAN=f"125 {words}", CREATED=f"1 {words}"), "node"), SOURCE, REF)
    assert (found.proof, found.again) == (Proof.ID, again)
    assert found.error and found.error.endswith(words)


@pytest.mark.parametrize(
    ("words", "absent"), [("Error response from daemon: No such image: app:1", True), ("Cannot connect", False)]
)
def test_only_no_such_image_is_absence(words: str, absent: bool) -> None:
    missing = judge.copy(said(NOIMAGE=words), "node")
    found = judge.compare(missing, SOURCE, REF)
    assert missing.absent is absent and found.error and words in found.error
    assert ("another engine" in found.error) is absent


@pytest.mark.parametrize("text", ["", "__FDL_END__ 1 \n", "__FDL_RAN__ 1 0\n", "__FDL_END__ 0 "])
def test_an_answer_that_was_cut_off_is_no_answer(text: str) -> None:
    for read in (judge.copy, judge.pulled):
        with pytest.raises(ScriptError, match="cut off"):
            read(text, "node")


def test_an_answer_without_its_fact_is_a_failure() -> None:
    assert judge.copy(said(IMAGE=SHOWN), "node").created == "docker create gave no answer"
    assert judge.copy(said(), "node").image is None
    assert judge.copy(said(), "node").ran.code == 125
    assert judge.pulled(said(), "node") == "docker pull gave no answer"
    assert judge.tagged("", "x:1", said(), "node").error
    two = judge.copy(said(IMAGE=SHOWN, RAN="0 ") + said(RAN="1 boom"), "node")  # two answers are none
    assert two.ran.code == 125 and two.created


# -- starts ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ENGINES)
def test_an_image_without_a_shell_is_told_by_the_source_and_at_once(engine: str) -> None:
    there = captured(f"{engine}-no-shell")
    judged = judge.started(there, SHELL, there)
    assert judged == Start(note=judged.note) and "no /bin/sh" in judged.note
    assert judge.started(there, SHELL, None).error is None  # the source itself
    waiting = judge.started(there, SHELL, captured(f"{engine}-ok"))
    assert waiting.again and waiting.error and "stat /bin/sh: no such file or directory" in waiting.error
    assert "--help" not in waiting.error


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("case", ["exit-3", "exit-127", "absent"])
def test_other_failures_are_final(engine: str, case: str) -> None:
    judged = judge.started(captured(f"{engine}-{case}"), SHELL, Ran(0, ""))
    assert judged.error and not judged.again and not judged.note


@pytest.mark.parametrize("code", [1, 2, 124, 128, 255])
def test_only_dockers_own_exit_codes_tell_of_a_program_that_is_not_there(code: int) -> None:
    judged = judge.started(Ran(code, 'exec: "/bin/sh": not found'), SHELL, Ran(0, ""))
    assert judged.error and not judged.again and not judged.note


@pytest.mark.parametrize("case", ["stopped-28", "denied-26", "containerd-26-ghost", "containerd-28-ghost"])
def test_an_engine_that_will_not_is_no_missing_program(case: str) -> None:
    judged = judge.started(captured(case), SHELL, Ran(0, ""))
    assert judged.error and not judged.again


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("case", "program"), [("relative", "python3"), ("not-executable", "/layers/0")])
def test_a_program_of_the_recipes_that_is_not_there(engine: str, case: str, program: str) -> None:
    there, probe = captured(f"{engine}-{case}"), (program, "-c", "1")
    assert judge.started(there, probe, Ran(0, "")).again  # perhaps not unpacked yet
    for source in (there, None):  # an exec probe that somebody asked for is never waved through
        judged = judge.started(there, probe, source)
        assert judged.error and program in judged.error


def test_a_start_that_went_well() -> None:
    assert judge.started(captured("containerd-28-ok"), SHELL, None) == Start()


# -- names ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reference", "name"),
    [
        ("app", "app:latest"),
        ("app:1", "app:1"),
        (f"app@{sha('d')}", "app:fdl-646464646464"),
        (f"app:2@{sha('d')}", "app:2"),
        (str(DIGEST), "reg.example:5000/team/app:fdl-646464646464"),
    ],
)
def test_the_tag_that_holds_a_digest(reference: str, name: str) -> None:
    assert judge.name_for(ImageRef.parse(reference)) == name
    assert str(ImageRef.parse(name)) == name


def test_what_a_name_meant_before_is_told_unless_it_meant_the_same() -> None:
    assert judge.tagged(sha("a"), "x:1", said(TAGGED="0 ", BEFORE=sha("b")), "n").notes == (
        f"x:1 meant {sha('b')} there before",
    )
    for before in ("", sha("a")):
        assert judge.tagged(sha("a"), "x:1", said(TAGGED="0 ", BEFORE=before), "n") == judge.Tagged(None)
    refused = judge.tagged(sha("a"), "x:1", said(TAGGED="1 Error: No such image: x", BEFORE=""), "n")
    assert refused.error == "docker tag failed: Error: No such image: x"


def test_a_lost_digest_says_how_to_name_the_image() -> None:
    text = judge.no_digest(DIGEST, "graphdriver", "network is unreachable")
    assert "network is unreachable" in text and "reg.example:5000/team/app:TAG" in text


def test_words_are_the_last_three_lines() -> None:
    assert answer.words("a\tb\t\tc \td\t") == "b; c; d"
