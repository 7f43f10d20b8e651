"""What goes wrong on a box while it gets ready, by the whole command: its class, its words, and nothing left behind."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.boxes.server import Answer, Member, Server, archive, serving, sound
from tests.e2e.box import BLACKWELL, MAKE, Box, installed, left_of, publish, stand_in
from tests.e2e.site import ROOT, eventually
from tests.lab.lab import Lab

pytestmark = pytest.mark.subprocess


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Box]:
    source = {"from": publish(tmp_path / "published", run="0123456789abcdef")}
    made = Box(tmp_path, {"source": source}, {"FLODL_TESTING_GPU_JSON": BLACKWELL})
    yield made
    made.stop()


@pytest.fixture
def mirror(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    with serving(monkeypatch, Answer(archive(sound("cpu")))) as server:
        yield server


def said_until(process: subprocess.Popen[str], words: str) -> str:
    """What it said on stderr up to the line with these words."""
    assert process.stderr
    lines = []
    for line in process.stderr:
        lines.append(line)
        if words in line:
            return "".join(lines)
    pytest.fail(f"{words!r} never came: {''.join(lines)}")


def ended(box: Box, process: subprocess.Popen[str], words: str, number: signal.Signals = signal.SIGINT) -> str:
    """The rest of what a run said that was ended at these words."""
    before = said_until(process, words)
    time.sleep(0.3)
    began = time.monotonic()
    process.send_signal(number)
    rest = process.communicate(timeout=10)[1]
    assert (process.returncode, time.monotonic() - began < 3) == (130, True), rest
    assert eventually(lambda: left_of(box) == []), left_of(box)
    assert "Traceback" not in rest
    return before + rest


@pytest.mark.parametrize(
    ("tool", "words", "join"),
    [
        ("nvidia-smi", "looking at the GPUs", {}),
        ("sshfs", "looking at the data", {"data_source": "sshfs://far/srv/data", "data_path": "data"}),
        ("git", "fetching the source", {"source": {"from": "git+file:///srv/tree#main"}}),
    ],
)
def test_ctrl_c_while_a_tool_hangs(box: Box, tool: str, words: str, join: dict[str, Any]) -> None:
    env = stand_in(box.folder / "bin", tool, "exec sleep 1000")
    if tool == "nvidia-smi":
        env["FLODL_TESTING_GPU_JSON"] = ""
    box.join |= join
    ended(box, box.start(**env), f"prepare: {words}")


def test_ctrl_c_while_another_run_has_the_box(box: Box) -> None:
    box.root.mkdir()
    with (box.root / ".prepare.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        ended(box, box.start(), "waiting for")
    assert box.ready()["run_id"] == "0123456789abcdef"


def test_ctrl_c_while_libtorch_is_unpacked(box: Box, mirror: Server) -> None:
    large = {**sound("cpu"), "libtorch/lib/large.so": Member(bytes(400 << 20))}
    mirror.answers[:] = [Answer(archive(large))]
    env = {"INVOKE_FDL_LIBTORCH_BASE_URL": mirror.url}
    process = box.start("--libtorch", "cpu", **env)
    said_until(process, "prepare: unpacking")
    process.send_signal(signal.SIGINT)
    assert (process.communicate(timeout=10)[0], process.returncode) == ("", 130)
    assert [path.name for path in (box.root / "libtorch/precompiled").iterdir()] == [".fdl-lock"]


def test_a_killed_run_takes_its_build_along_and_frees_the_box(box: Box) -> None:
    tree = box.folder / "published"
    publish(tree, build="sleep 1000")
    first = box.start()
    said_until(first, "prepare: building")
    publish(tree, run="second")
    second = box.start("--json")
    said_until(second, f"waiting for process {first.pid}")
    first.kill()
    out, _ = second.communicate(timeout=20)
    first.communicate(timeout=10)
    assert json.loads(out)["run_id"] == "second"
    assert eventually(lambda: left_of(box) == []), left_of(box)


@pytest.mark.parametrize(
    ("build", "code", "says"),
    [
        ('read answer; test -z "$answer" && exit 9', 1, "ended with 9"),
        ("kill -KILL $$", 1, "ended by signal 9"),
        ("echo 'no key' >&2; read answer </dev/tty", 1, "no key"),
        (f"{MAKE}; rm x; mkfifo x", 2, "made no such file"),
        (f"{MAKE}; rm x; ln -s /dev/zero x", 2, "made no such file"),
        (f"{MAKE}; rm x; ln -s x x", 2, "made no such file"),
        (f"{MAKE}; rm x; ln -s /bin/true x", 2, "leaves the source tree"),
    ],
)
def test_a_build_that_goes_wrong(box: Box, build: str, code: int, says: str) -> None:
    publish(box.folder / "published", build=build)
    process = subprocess.Popen(
        box.argv("--json"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        **{**box.options(), "stdin": subprocess.PIPE},
    )
    out, err = process.communicate("hunter2\n", timeout=20)
    assert process.returncode == code, err
    assert says in json.loads(out)["error"] and "hunter2" not in out + err


def test_a_binary_in_a_directory_that_became_a_link_is_refused(box: Box) -> None:
    publish(box.folder / "published", build="mkdir out && rmdir out && ln -s /bin out", bin="out/true")
    assert "leaves the source tree" in box.refused(2)


@pytest.mark.parametrize("where", ["fetching", "downloading", "building"])
def test_a_full_disk_is_never_with_path_needed_and_free(box: Box, lab: Lab, mirror: Server, where: str) -> None:
    small = box.folder / "small"
    small.mkdir()
    env = {"FLODL_HOME": str(small), "INVOKE_FDL_LIBTORCH_BASE_URL": mirror.url}
    words: tuple[str, ...] = ()
    if where == "fetching":
        (box.folder / "published/large").write_bytes(os.urandom(3 << 20))
    elif where == "downloading":
        box.join, words = {}, ("--libtorch", "cpu")
        mirror.answers[:] = [Answer(os.urandom(3 << 20))]
    else:
        publish(box.folder / "published", build="head -c 3000000 /dev/urandom >large")
    with lab.small_disk(small, "1m"):
        said = box.refused(2, *words, **env)
        assert re.search(f"^{small}.*no room: .* needed, .* free\n  next: free space there", said), said
        shutil.rmtree(small / "source", ignore_errors=True)
        assert not [path for path in small.rglob("*") if path.is_file() and path.stat().st_size > 1000]


def test_a_disk_that_is_full_before_the_first_byte_is_never(box: Box, lab: Lab) -> None:
    small = box.folder / "small"
    small.mkdir()
    with lab.small_disk(small, "64k"):
        (small / "filler").write_bytes(bytes(48 << 10))
        with pytest.raises(OSError), (small / "filler").open("ab", buffering=0) as filler:
            while filler.write(bytes(512)):
                pass
        assert "no room" in box.refused(2, FLODL_HOME=str(small))


def test_a_temp_directory_on_a_full_disk_is_never(box: Box, lab: Lab) -> None:
    small = box.folder / "small"
    small.mkdir()
    with lab.small_disk(small, "64k"):
        (small / "filler").write_bytes(bytes(64 << 10))
        said = box.refused(2, TMPDIR=str(small))
    assert str(small) in said and "no room" in said


AS_NOBODY = """
import email.parser, encodings.idna, encodings.utf_8_sig, os
import filelock, jinja2, psutil, rich.console, rich.table, rich.text
import fdl_tasks.boxes.pipeline  # what is not in the copy now: where this Python is may be closed to others
from fdl_tasks.tasks.program import main
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
main()
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be somebody else")
def test_a_home_that_is_not_the_users_is_never() -> None:
    with tempfile.TemporaryDirectory() as folder:
        box = Box(Path(folder), {}, {"FLODL_TESTING_GPU_JSON": BLACKWELL, "TMPDIR": "/tmp"})
        *_, task, flag = box.argv("--json")
        library = Path(folder) / "fdl_tasks"
        shutil.copytree(ROOT / "fdl_tasks", library)
        shutil.copytree(ROOT / "templates", library / "templates")
        Path(folder).chmod(0o755)
        argv = [sys.executable, "-c", AS_NOBODY, task, flag]
        done = subprocess.run(argv, capture_output=True, **box.options(PYTHONPATH=folder))
    assert done.returncode == 2, done.stderr
    said = json.loads(done.stdout)["error"]
    assert f"{folder}/.flodl/data: " in said and "Permission denied" in said and "HOME" in said


def test_a_current_directory_that_is_gone_is_never(box: Box) -> None:
    options = box.options()
    (gone := box.folder / "gone").mkdir()
    words = ["sh", "-c", 'rmdir "$PWD" && exec "$@"', "sh", *box.argv("--json")]
    done = subprocess.run(words, capture_output=True, **{**options, "cwd": gone})
    assert done.returncode == 2, done.stderr
    answer = json.loads(done.stdout)
    assert answer["class"] == "permanent" and "No such file or directory" in answer["error"]


def test_data_on_a_mount_that_hangs_is_again(box: Box, lab: Lab, tmp_path: Path) -> None:
    far, at = lab.node("far-and-gone"), tmp_path / "data"
    far.write("/srv/data/part-0", "numbers")
    box.join |= {
        "data_path": str(at),
        "data_source": f"sshfs://root@{far.address}/srv/data",
        "ssh": {"identity_file": str(lab.client_key), "options": lab.ssh_options()},
    }
    try:
        assert box.ready()["data_path"] == str(at)
        assert [note for note in box.ready()["notes"] if "mounted already" in note]
        far.cut()
        began = time.monotonic()
        said = box.refused(1)
        assert 9 < time.monotonic() - began < 20
        assert f"{at}: does not list within 10 s" in said and "fusermount -u" in said
    finally:
        far.mend()
        subprocess.run(["umount", "-l", at], check=False)
        for line in subprocess.run(["pgrep", "-f", f"sshfs .* {at} "], capture_output=True, text=True).stdout.split():
            os.kill(int(line), signal.SIGKILL)


EVIL = "\x1b]0;owned\x07\x1b[2J\x9b31m"


def test_a_hostile_publisher_steers_no_terminal(box: Box) -> None:
    noise = f"printf '{EVIL}' >&2; exit 3"
    (box.folder / "published/build.sh").write_text(noise)
    publish(box.folder / "published", build="sh build.sh", args=[EVIL], origin="o")
    for words in ((), ("--json",)):
        done = box.run(*words)
        assert done.returncode == 1
        assert not re.search("[\x07\x1b\x9b]", done.stdout + done.stderr)
    publish(box.folder / "published", args=[EVIL, "a\nready\nb"])
    done = box.run()
    assert done.returncode == 0 and not re.search("[\x07\x1b\x9b]", done.stdout + done.stderr)
    assert "ready" not in done.stdout.splitlines()[:-1]


@pytest.mark.parametrize("key", ["bin", "cwd", "run", "rustc", "origin"])
def test_a_manifest_with_control_characters_is_refused(box: Box, key: str) -> None:
    publish(box.folder / "published", **{key: f"a{EVIL}"})
    assert f"`{key}`" in box.refused(2)


@pytest.mark.parametrize("name", [".prepare.lock", ".prepare.lock-holder", "source.built-against"])
def test_nothing_is_written_through_a_link_that_lies_in_the_way(box: Box, name: str) -> None:
    precious = box.folder / "precious"
    precious.write_text("precious")
    box.root.mkdir()
    (box.root / name).symlink_to(precious)
    done = box.run()
    assert precious.read_text() == "precious", done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be somebody else")
def test_an_active_libtorch_that_another_user_put_above_is_not_taken(box: Box) -> None:
    below = box.folder / "work"
    installed(below)
    os.chown(below / "libtorch/.active", 65534, 65534)
    argv = box.argv("--json", "--cluster", str(box.folder / "cluster.yml"))
    done = subprocess.run(argv, capture_output=True, **{**box.options(), "cwd": below})
    assert done.returncode == 2, done.stdout
    assert "belongs to another user" in json.loads(done.stdout)["error"]


@pytest.mark.parametrize("name", ["CARGO_TARGET_DIR", "CARGO_BUILD_TARGET_DIR", "CARGO_BUILD_TARGET"])
def test_what_would_send_cargos_output_elsewhere_reaches_no_build(box: Box, name: str) -> None:
    publish(box.folder / "published", build=f'test -z "${{{name}+set}}" && {MAKE}')
    assert box.ready(**{name: "/elsewhere"})["bin"]["path"] == str(box.root / "source/x")
