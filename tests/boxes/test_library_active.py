from __future__ import annotations

from pathlib import Path

import pytest

from fdl_tasks.boxes.torch import library, variants
from fdl_tasks.boxes.torch.library import Libtorch
from fdl_tasks.errors import PermanentError, UsageError
from tests.boxes.server import RELEASE


def variant(place: Path, name: str, arch: str | None = None, version: str | None = None, lib: bool = True) -> Path:
    folder = place / "libtorch" / name
    (folder / "lib" if lib else folder).mkdir(parents=True)
    for file, text in ((".arch", arch), ("build-version", version)):
        if text is not None:
            (folder / file).write_text(text)
    return folder


def activate(place: Path, text: str, file: str = ".active") -> None:
    (place / "libtorch").mkdir(parents=True, exist_ok=True)
    (place / "libtorch" / file).write_text(text)


def test_the_nearest_active_upwards_wins_over_the_roots(tmp_path: Path) -> None:
    project, root = tmp_path / "project", tmp_path / "root"
    deep = project / "a/b"
    deep.mkdir(parents=True)
    own = variant(project, "builds/own", "cuda=12.8\narchs=6.1;12.0\n")
    globally = variant(root, "precompiled/cpu")
    activate(root, "precompiled/cpu\n")
    assert library.active(deep, root) == Libtorch(globally, "precompiled/cpu", None)
    activate(project, "builds/own")
    assert library.active(deep, root) == Libtorch(own, "builds/own", "6.1;12.0")
    activate(deep, "builds/nearer\n")
    nearer = variant(deep, "builds/nearer", "archs=\n")
    assert library.active(deep, root) == Libtorch(nearer, "builds/nearer", None)
    assert library.active(deep, None) == Libtorch(nearer, "builds/nearer", None)


def test_where_nothing_is_active_there_is_none_and_nothing_to_tell(tmp_path: Path) -> None:
    notes = list[str]()
    assert library.active(tmp_path, tmp_path / "root", notes.append) is None
    assert library.active(tmp_path, None, notes.append) is None
    assert notes == []


@pytest.mark.parametrize(
    ("text", "note"),
    [
        ("precompiled/cu128\n", "has no lib/"),
        ("precompiled/cpu\n", "has no lib/"),
        ("", "is empty"),
        (" \n", "is empty"),
    ],
)
def test_an_active_one_that_cannot_be_used_is_none_with_a_note_and_nothing_in_its_stead(
    tmp_path: Path, text: str, note: str
) -> None:
    project, root, notes = tmp_path / "project", tmp_path / "root", list[str]()
    variant(project, "precompiled/cu128", lib=False)
    activate(project, text)
    variant(root, "precompiled/cpu")
    activate(root, "precompiled/cpu\n")
    assert library.active(project, root, notes.append) is None
    assert len(notes) == 1
    assert note in notes[0]
    assert str(project / "libtorch/.active") in notes[0]


@pytest.mark.parametrize(
    "text",
    ["../../etc", "precompiled/../../../etc", "/etc", "etc", "precompiled/cpu\nbuilds/x", "builds/\x1b[2J", "builds/"],
)
def test_an_active_that_leads_elsewhere_is_refused(tmp_path: Path, text: str) -> None:
    activate(tmp_path, text)
    with pytest.raises(PermanentError, match="it names no variant") as told:
        library.active(tmp_path, None)
    assert told.value.where == str(tmp_path / "libtorch/.active")
    assert "\x1b" not in str(told.value)


def test_a_case_reads_its_own_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    variant(tmp_path, "precompiled/cpu")
    wanted = variant(tmp_path, "builds/two")
    activate(tmp_path, "precompiled/cpu")
    activate(tmp_path, "builds/two", ".active.x")
    monkeypatch.setenv("FDL_LIBTORCH_CASE", " x ")
    assert library.active(tmp_path, None) == Libtorch(wanted, "builds/two", None)
    monkeypatch.setenv("FDL_LIBTORCH_CASE", " ")
    found = library.active(tmp_path, None)
    assert found is not None
    assert found.variant == "precompiled/cpu"


def test_a_case_without_its_file_is_none_and_never_the_ordinary_one(  # pain point 44
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes = list[str]()
    variant(tmp_path, "precompiled/cpu")
    activate(tmp_path, "precompiled/cpu")
    monkeypatch.setenv("FDL_LIBTORCH_CASE", "x")
    assert library.active(tmp_path, tmp_path, notes.append) is None
    assert len(notes) == 1
    assert "FDL_LIBTORCH_CASE" in notes[0]
    assert "libtorch/.active.x" in notes[0]


@pytest.mark.parametrize("case", ["../x", "a/b", "..", ".x", "-x", "x\x1b"])
def test_a_case_that_leads_elsewhere_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    monkeypatch.setenv("FDL_LIBTORCH_CASE", case)
    with pytest.raises(UsageError, match="FDL_LIBTORCH_CASE is no name"):
        library.active(tmp_path, None)


def test_all_that_is_installed_is_told(tmp_path: Path) -> None:
    variant(tmp_path, "precompiled/cu128", variants.arch_file(variants.CU128, RELEASE), f"{RELEASE}+cu128\n")
    variant(tmp_path, "precompiled/cpu", lib=False)
    variant(tmp_path, "builds/own", "archs=6.1 12.0\n")
    variant(tmp_path, "precompiled/.fdl-staging-x")
    (tmp_path / "libtorch/precompiled/a file").touch()
    activate(tmp_path, "builds/own\n")
    told = [(one.variant, one.release, one.archs, one.active, one.usable) for one in library.installed(tmp_path)]
    assert told == [
        ("precompiled/cpu", None, None, False, False),
        ("precompiled/cu128", f"{RELEASE}+cu128", variants.CU128.archs, False, True),
        ("builds/own", None, "6.1 12.0", True, True),
    ]
    assert library.installed(tmp_path / "nowhere") == ()


@pytest.mark.parametrize(
    ("said", "meant"), [("cu128", "precompiled/cu128"), ("builds/own", "builds/own"), ("own", "builds/own")]
)
def test_an_installed_one_is_made_active(tmp_path: Path, said: str, meant: str) -> None:
    variant(tmp_path, "precompiled/cu128", "archs=9.0\n")
    variant(tmp_path, "builds/own", "archs=9.0\n")
    activate(tmp_path, "precompiled/other\n")
    assert library.use(tmp_path, said) == Libtorch(tmp_path / "libtorch" / meant, meant, "9.0")
    assert (tmp_path / "libtorch/.active").read_text() == f"{meant}\n"
    assert library.active(tmp_path, None) == library.use(tmp_path, said)


def test_what_is_active_already_needs_no_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    variant(tmp_path, "builds/own")
    activate(tmp_path, "builds/own\n")
    monkeypatch.setattr("tempfile.mkstemp", lambda **how: pytest.fail("it wrote"))
    assert library.use(tmp_path, "own").variant == "builds/own"


@pytest.mark.parametrize("said", ["cpu", "precompiled/broken", "broken", "../../etc", "", "cu126", "odd name"])
def test_what_is_not_installed_cannot_be_made_active(tmp_path: Path, said: str) -> None:
    variant(tmp_path, "precompiled/cu128")
    variant(tmp_path, "precompiled/broken", lib=False)
    variant(tmp_path, "builds/odd name")
    activate(tmp_path, "precompiled/cu128\n")
    with pytest.raises(UsageError) as told:
        library.use(tmp_path, said)
    assert repr(said) in told.value.what
    assert "there are: precompiled/cu128;" in told.value.hint
    assert (tmp_path / "libtorch/.active").read_text() == "precompiled/cu128\n"
