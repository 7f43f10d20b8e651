"""What ``prepare`` answers, field by field: by ``fdl-tasks``, under ``inv``, and as functions."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import fdl_tasks
from fdl_tasks import Join, PermanentError, Source, TransientError, UsageError
from tests.boxes.server import Answer, archive, serving, sound
from tests.e2e.box import BLACKWELL, MAKE, PASCAL, Box, installed, publish

pytestmark = pytest.mark.subprocess
ODD = ["two\nlines", "\x1b[31m", "\x9b", "\u202e", "\x7f"]  # arguments, and commands of a terminal
MIXED = json.dumps([*json.loads(PASCAL), {"index": 1, "name": "RTX 3090", "arch": "8.6", "vram_mb": 24576}])


def amd(arch: str) -> str:
    return json.dumps([{"index": 0, "vendor": "amd", "name": "Instinct", "arch": arch, "vram_mb": 65536}])


@pytest.fixture
def box(tmp_path: Path) -> Box:
    source = {"from": publish(tmp_path / "published", run="0123456789abcdef")}
    return Box(tmp_path, {"source": source}, {"FLODL_TESTING_GPU_JSON": BLACKWELL})


def test_the_answer_has_the_fields_of_the_contract(box: Box, tmp_path: Path) -> None:
    libtorch = installed(box.root)
    box.join["data_path"] = str(tmp_path / "published")
    found = box.ready()
    notes = found.pop("notes")
    assert found == {
        "ok": True,
        "data_path": str(tmp_path / "published"),
        "libtorch": {"dir": str(libtorch), "variant": "precompiled/cu128"},
        "bin": {"path": str(box.root / "source/x"), "cwd": str(box.root / "source")},
        "args": [],
        "run_id": "0123456789abcdef",
    }
    assert [note for note in notes if note.startswith("run 01234567: x")]


@pytest.mark.parametrize(
    ("manifest", "args"),
    [
        ({}, None),
        ({"run": "r"}, []),
        ({"args": None}, []),
        ({"args": []}, []),
        (
            {"args": ["--a", "b c", "two\nlines", "\x1b[31m", "\x9b", 7]},
            ["--a", "b c", "two\nlines", "\x1b[31m", "\x9b", "7"],
        ),
    ],
)
def test_arguments_are_handed_on_as_published_and_null_where_nobody_published(
    box: Box, tmp_path: Path, manifest: dict[str, Any], args: list[str] | None
) -> None:
    box.join["source"] = {"from": publish(tmp_path / "other", **manifest), "build": MAKE, "bin": "x"}
    done = box.run("--json")
    assert json.loads(done.stdout)["args"] == args
    assert [mark for mark in "\x1b\x9b\u202e\x7f" if mark in done.stdout] == []


def test_without_a_source_there_is_no_binary_and_nothing_is_made(box: Box) -> None:
    box.join = {"bin": "/opt/train"}
    found = box.ready()
    assert (found["bin"], found["args"], found["run_id"]) == (None, None, None)
    assert not (box.root / "source").exists()


def test_a_binary_and_a_source_are_a_contradiction(box: Box) -> None:
    box.join = {"bin": "/opt/train"}
    assert "`bin` and a source are both given" in box.refused(2, "--source", "file:///srv/tree")


def test_unknown_keys_of_a_newer_publisher_are_a_note(box: Box, tmp_path: Path) -> None:
    publish(tmp_path / "published", colour="red", digits=[1])
    assert [note for note in box.ready()["notes"] if "colour, digits" in note]


def test_of_many_faults_the_cheapest_is_told_first(box: Box, tmp_path: Path) -> None:
    """The order of the steps is part of the contract: what is looked at early costs little."""
    libtorch = installed(box.root, archs="9.0")
    tree = tmp_path / "other"
    box.join = {"data_path": "/nowhere", "source": {"from": f"file://{tree}", "bin": "x", "build": "exit 3"}}
    box.join["libtorch"] = "cu999"
    box.env |= {"FLODL_TESTING_GPU_JSON": "[]", "TMPDIR": "/nowhere/else"}
    steps: list[tuple[str, Callable[[], object]]] = [
        ("no usable GPU", lambda: box.env.update(FLODL_TESTING_GPU_JSON=BLACKWELL)),
        ("data_path can't be read", lambda: box.join.pop("data_path")),
        ("the temp directory", lambda: box.env.pop("TMPDIR")),
        ("source: is no directory", lambda: publish(tree)),
        ("no variant is called 'cu999'", lambda: box.join.pop("libtorch")),
        ("none for NVIDIA 0", lambda: (libtorch / ".arch").unlink()),
    ]
    for words, mend in steps:
        assert words in box.refused(2)
        mend()
    done = box.run("--json")
    answer = json.loads(done.stdout)
    assert list(answer) == ["ok", "class", "error", "notes"] and "ended with 3" in answer["error"]


@pytest.mark.parametrize(
    ("field", "own", "flags", "code", "named"),
    [
        ("data_path", "/nowhere/own", ("--data-path", "/nowhere/flag"), 2, "/nowhere/flag"),
        ("data_source", "own://x/y", ("--data-source", "flag://x/y"), 2, "flag://"),
        ("libtorch", "own", ("--libtorch", "flag"), 2, "'flag'"),
        ("devices", [0], ("--devices", "7"), 2, "--devices: 7 is not usable"),
        ("source", {"from": "own://x/y"}, ("--source", "flag://x/y"), 2, "flag://"),
        ("source", {"cwd": "own"}, ("--source-cwd", "flag"), 2, "/flag: there is no such directory"),
        ("source", {"build": "exit 7"}, ("--source-build", "exit 8"), 1, "ended with 8"),
        ("source", {"build": "true", "bin": "own"}, ("--source-bin", "flag"), 2, "/flag: the build 'true' ended well"),
    ],
)
def test_a_flag_wins_over_the_files_field(
    box: Box, tmp_path: Path, field: str, own: Any, flags: tuple[str, ...], code: int, named: str
) -> None:
    bare = {"from": publish(tmp_path / "other"), "bin": "x"}
    box.join[field] = {**bare, **own} if field == "source" else own
    said = box.refused(code, *flags)
    assert named in said and "own" not in said


def test_a_flag_of_a_source_needs_a_source(box: Box) -> None:
    box.join = {}
    assert "--source-bin without a source" in box.refused(2, "--source-bin", "x")


def test_a_box_that_is_half_covered_is_ready_with_the_covered_card_only(box: Box) -> None:
    installed(box.root)
    box.env["FLODL_TESTING_GPU_JSON"] = MIXED
    said = box.refused(2)
    assert "Tesla P100" in said and "--devices" in said and "RTX 3090" not in said
    assert box.ready("--devices", "1")["libtorch"]["variant"] == "precompiled/cu128"


@pytest.mark.parametrize(
    ("arch", "bucket", "variant"),
    [("gfx90a:sramecc+:xnack-", "rocm7.0", "precompiled/rocm70"), ("gfx803", "cpu", "precompiled/cpu")],
)
def test_auto_takes_rocm_where_it_has_kernels_for_a_card(
    box: Box, monkeypatch: pytest.MonkeyPatch, arch: str, bucket: str, variant: str
) -> None:
    with serving(monkeypatch, Answer(archive(sound(bucket)))) as mirror:
        found = box.ready(
            "--libtorch", "auto", FLODL_TESTING_GPU_JSON=amd(arch), INVOKE_FDL_LIBTORCH_BASE_URL=mirror.url
        )
    assert found["libtorch"]["variant"] == variant
    assert mirror.paths == [f"/{bucket}/libtorch-shared-with-deps-2.10.0%2B{bucket}.zip"]


def test_a_card_of_amd_that_rocm_has_no_kernels_for_is_never(box: Box) -> None:
    installed(box.root, "precompiled/rocm70", "gfx90a gfx1100")
    assert "gfx1030" in box.refused(2, FLODL_TESTING_GPU_JSON=amd("gfx1030"))


def test_a_mirror_without_the_file_is_again(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(monkeypatch, Answer(status=404)) as mirror:
        assert mirror.url in box.refused(1, "--libtorch", "cpu", INVOKE_FDL_LIBTORCH_BASE_URL=mirror.url)


TASKS = """
from invoke import Collection, task
import fdl_tasks

@task
def boot(c):
    found = fdl_tasks.tasks.prepare(c, source_cwd=".")
    print("boot has", found.bin.path, found.run_id)

ns = Collection(boot)
ns.add_collection(fdl_tasks.collection(), "fdl")
"""


@pytest.mark.parametrize(
    ("build", "words", "code", "out"),
    [
        (MAKE, ("fdl.prepare",), 0, "ready\n"),
        (MAKE, ("boot",), 0, "boot has {root}/source/x 0123456789abcdef\n"),
        ("exit 3", ("fdl.prepare",), 1, ""),
        ("exit 3", ("boot",), 1, ""),
        ("true", ("fdl.prepare",), 2, ""),
        ("true", ("boot",), 2, ""),
    ],
)
def test_under_inv_the_exit_codes_are_the_same(
    box: Box, tmp_path: Path, build: str, words: tuple[str, ...], code: int, out: str
) -> None:
    (tmp_path / "tasks.py").write_text(TASKS)
    box.argv()
    publish(tmp_path / "published", run="0123456789abcdef", build=build)
    done = subprocess.run([sys.executable, "-m", "invoke", *words], capture_output=True, timeout=60, **box.options())
    assert (done.returncode, done.stdout.endswith(out.format(root=box.root))) == (code, True), done.stderr


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("FLODL_TESTING_GPU_JSON", BLACKWELL)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_as_a_function_the_result_is_typed(home: Path) -> None:
    found = fdl_tasks.prepare(source=publish(home / "published", args=["a"], run="r"))
    assert isinstance(found, fdl_tasks.Prepared) and found.bin
    assert (found.bin.path, found.args, found.run_id) == (home / ".flodl/source/x", ("a",), "r")
    assert [gpu.arch for gpu in found.gpus] == ["12.0"] and found.libtorch is None and found.notes
    assert fdl_tasks.prepare_box(Join(source=Source(publish(home / "published", args=["a"], run="r")))) == found


@pytest.mark.parametrize(
    ("manifest", "kind"),
    [({"build": "exit 3"}, TransientError), ({"build": "true"}, PermanentError), ({}, TransientError)],
)
def test_as_a_function_a_failure_is_one_of_two_with_the_notes_before_it(
    home: Path, manifest: dict[str, Any], kind: type[fdl_tasks.PrepareError]
) -> None:
    spec = publish(home / "published", **manifest)
    with pytest.raises(kind) as caught:
        fdl_tasks.prepare_box(Join(source=Source(spec), data_path=str(home)))
    assert bool([note for note in caught.value.notes if "no libtorch" in note]) is bool(manifest)


def test_a_wrong_call_is_neither(home: Path) -> None:
    with pytest.raises(UsageError):
        fdl_tasks.prepare(source_bin="x")
