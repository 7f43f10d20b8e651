"""``inv libtorch.get``, ``.list`` and ``.use`` as a user calls them; what is downloaded comes from the loopback."""

from __future__ import annotations

import io
import json
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fdl_tasks.boxes.torch.library import Installed, Libtorch
from fdl_tasks.report.libtorch import installed_json, installed_table, libtorch_json
from fdl_tasks.report.masking import clean
from tests.boxes.server import SOUND, Answer, Member, Server, archive, serving, sound
from tests.tasks.project import Project, make_project

HERE = platform.system(), platform.machine()
fetches = pytest.mark.skipif(HERE != ("Linux", "x86_64"), reason=f"there is no libtorch for {' on '.join(HERE)}")
NEW = '[{"index": 0, "name": "RTX 5090", "arch": "12.0"}]'
BOTH = '[{"index": 0, "name": "RTX 5090", "arch": "12.0"}, {"index": 1, "name": "GTX 1060", "arch": "6.1"}]'


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    with serving(monkeypatch, Answer(archive(SOUND))) as made:
        monkeypatch.setenv("INVOKE_FDL_LIBTORCH_BASE_URL", made.url)
        yield made


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FLODL_HOME", str(tmp_path / "global root"))
    return tmp_path / "global root"


@pytest.fixture
def box(tmp_path: Path, root: Path) -> Project:
    made = make_project(tmp_path / "box")
    (made.root / "cluster.yml").unlink()  # a box needs none
    return made


@fetches
@pytest.mark.subprocess
def test_get_installs_and_tells_where(box: Project, root: Path, server: Server) -> None:
    done = box.inv("fdl.libtorch.get", "cpu")
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"precompiled/cpu is active: {root}/libtorch/precompiled/cpu\n"
    lines = done.stderr.splitlines()
    assert lines[0].startswith("libtorch.get: downloading [")
    assert lines[-1] == f"libtorch.get: libtorch: precompiled/cpu at {root}/libtorch/precompiled/cpu"
    assert any(line.startswith("libtorch.get: unpacking [####################] 100%") for line in lines)
    assert len(lines) < 10
    again = box.program("libtorch.get", "cpu", "--json")
    assert json.loads(again.stdout) == {
        "ok": True,
        "dir": f"{root}/libtorch/precompiled/cpu",
        "variant": "precompiled/cpu",
        "notes": [f"libtorch: precompiled/cpu at {root}/libtorch/precompiled/cpu"],
    }
    assert len(server.requests) == 1


@fetches
@pytest.mark.subprocess
@pytest.mark.parametrize(
    ("gpus", "mask", "bucket"), [(NEW, None, "cu128"), (BOTH, None, "cu126"), (BOTH, "0", "cu128"), (BOTH, "", "cpu")]
)
def test_auto_looks_at_the_gpus_that_the_masks_leave(
    box: Project, root: Path, server: Server, gpus: str, mask: str | None, bucket: str
) -> None:
    server.answers[:] = [Answer(archive(sound(bucket)))]
    masks = {} if mask is None else {"CUDA_VISIBLE_DEVICES": mask}
    done = box.inv("fdl.libtorch.get", "auto", FLODL_TESTING_GPU_JSON=gpus, **masks)
    assert done.returncode == 0, done.stderr
    assert server.paths == [f"/{bucket}/libtorch-shared-with-deps-2.10.0%2B{bucket}.zip"]


@fetches
@pytest.mark.subprocess
@pytest.mark.parametrize(
    ("arguments", "environment", "answer", "code", "message"),
    [
        (["cpu"], {}, Answer(status=404), 1, "the download failed: the server answers 404"),
        (["cpu"], {}, Answer(b"no zip"), 1, "it is no whole zip"),
        (["cpu", "--sha256", "0" * 64], {}, Answer(archive(SOUND)), 1, "is pinned"),
        (["cpu", "--sha256", ""], {}, Answer(), 2, "'' is no SHA-256"),
        (["cu999"], {}, Answer(), 2, "no variant is called 'cu999'"),
        (["cpu"], {}, Answer(archive({"libtorch/../../x": Member()})), 2, "leads out of the archive"),
        (["cpu"], {"INVOKE_FDL_LIBTORCH_BASE_URL": "file:///srv"}, Answer(), 2, "is no address of a mirror"),
        (["cpu"], {"INVOKE_FDL_LIBTORCH_VERSION": "2.1"}, Answer(), 2, "is no release of libtorch"),
        (["auto"], {"FLODL_TESTING_GPU_JSON": "["}, Answer(), 2, "FLODL_TESTING_GPU_JSON is malformed"),
        (["cpu"], {"FLODL_HOME": "", "HOME": ""}, Answer(), 2, "HOME and FLODL_HOME are not set"),
        (["cpu"], {"FLODL_HOME": "/dev/null/x"}, Answer(), 2, "can't be installed: Not a directory"),
    ],
)
def test_what_fails_is_told_with_its_class_and_leaves_nothing(
    box: Project,
    root: Path,
    server: Server,
    arguments: list[str],
    environment: dict[str, str],
    answer: Answer,
    code: int,
    message: str,
) -> None:
    server.answers[:] = [answer]
    done = box.inv("fdl.libtorch.get", *arguments, **environment)
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert [path for path in root.rglob("*") if path.name not in ("libtorch", "precompiled", ".fdl-lock")] == []


@fetches
@pytest.mark.subprocess
def test_ctrl_c_ends_it_with_130_and_nothing_is_left(box: Project, root: Path, server: Server) -> None:
    server.answers[:] = [Answer(archive(SOUND), stop=40, stall=20)]
    argv = [sys.executable, "-m", "tests.tasks.as_program", "libtorch.get", "cpu"]
    with subprocess.Popen(argv, cwd=box.root, env=box.environment(), stderr=subprocess.PIPE, text=True) as run:
        deadline = time.monotonic() + 30
        while not server.requests and time.monotonic() < deadline:
            time.sleep(0.02)
        time.sleep(0.3)
        began = time.monotonic()
        run.send_signal(signal.SIGINT)
        _, err = run.communicate(timeout=10)
        took = time.monotonic() - began
    assert run.returncode == 130, err
    assert took < 2
    assert err.endswith("ended by Ctrl-C or a signal\n")
    assert [path.name for path in (root / "libtorch/precompiled").iterdir()] == [".fdl-lock"]


def installed(root: Path) -> None:
    for name in ("precompiled/cu128", "builds/own"):
        (root / "libtorch" / name / "lib").mkdir(parents=True)
    (root / "libtorch/precompiled/cu126").mkdir()
    (root / "libtorch/precompiled/cu128/build-version").write_text("2.10.0+cu128\n")
    (root / "libtorch/precompiled/cu128/.arch").write_text("archs=7.0 12.0\n")
    (root / "libtorch/.active").write_text("precompiled/cu128\n")


@pytest.mark.subprocess
def test_list_shows_what_is_installed_and_what_is_active_here(box: Project, root: Path) -> None:
    installed(root)
    done = box.inv("fdl.libtorch.list")
    assert done.returncode == 0, done.stderr
    assert done.stdout == (
        "variant            status     release       archs\n"
        "precompiled/cu126  broken     unknown\n"
        "precompiled/cu128  active     2.10.0+cu128  7.0 12.0\n"
        "builds/own         installed  unknown\n"
        "\n"
        f"3 variants in {root}/libtorch\n"
        f"active here: precompiled/cu128 ({root}/libtorch/precompiled/cu128)\n"
    )
    (box.root / "libtorch/.active").write_text("precompiled/cu126\n")  # the project's own, nearer
    told = json.loads(box.inv("fdl.libtorch.list", "--json").stdout)
    assert told["active"] == {
        "dir": f"{box.root}/libtorch/precompiled/cu126", "variant": "precompiled/cu126"
    }  # fmt: skip
    assert [one["status"] for one in told["variants"]] == ["broken", "active", "installed"]
    assert told["variants"][1]["archs"] == ["7.0", "12.0"]


@pytest.mark.subprocess
def test_list_of_nothing_says_so(box: Project, root: Path) -> None:
    done = box.inv("fdl.libtorch.list", FDL_LIBTORCH_CASE="x")
    assert (done.returncode, done.stdout) == (0, f"0 variants in {root}/libtorch\nactive here: none\n")
    assert "there is no libtorch/.active.x (FDL_LIBTORCH_CASE)" in done.stderr


@pytest.mark.subprocess
def test_use_makes_another_one_active(box: Project, root: Path) -> None:
    installed(root)
    done = box.inv("fdl.libtorch.use", "own")
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"builds/own is active: {root}/libtorch/builds/own\n"
    assert (root / "libtorch/.active").read_text() == "builds/own\n"
    wrong = box.inv("fdl.libtorch.use", "cu126")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert "'cu126' is not the name of one installed variant" in wrong.stderr
    assert "there are: precompiled/cu128, builds/own;" in wrong.stderr
    assert (root / "libtorch/.active").read_text() == "builds/own\n"


@pytest.mark.subprocess
@pytest.mark.parametrize("task", ["libtorch.get", "libtorch.use"])
def test_without_its_word_it_is_a_wrong_call(box: Project, task: str) -> None:
    assert box.program(task).returncode == 2


def test_what_is_shown_cannot_steer_the_terminal() -> None:
    evil = Installed(Path("/r/libtorch/builds/x"), "builds/x\x1b[2J", "2\x07", "8.6\x1b]0;t\x07", True, True)
    here = Libtorch(Path("/r/\x1b[31mx"), "builds/x", None)
    shown = installed_table([evil], here, Path("/r"), clean, io.StringIO())
    assert shown.splitlines()[1].split() == ["builds/x", "active", "2", "8.6"]
    assert "\x1b" not in shown
    assert installed_json([], None) == {"variants": [], "active": None}
    assert libtorch_json(here, ["told"]) == {
        "ok": True,
        "dir": str(here.dir),
        "variant": "builds/x",
        "notes": ["told"],
    }
