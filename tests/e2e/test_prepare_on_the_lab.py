"""``fdl-tasks prepare`` as a box runs it: a published tree over rsync, libtorch over HTTP, a real cargo build."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.boxes.server import Answer, Member, Server, archive, serving
from tests.e2e.box import BLACKWELL, PASCAL, RUN, Box, left_of, put_up, stand_in
from tests.e2e.site import PROGRAM, copy_example, eventually
from tests.lab.lab import Lab
from tests.lab.node import Node


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_example(tmp_path_factory.mktemp("run"))


@pytest.fixture(scope="module")
def published(lab: Lab, project: Path) -> Node:
    """The controller's node, which serves the example as a published run."""
    put_up(project)
    return lab.node("ctrl-of-boxes", share={"/srv/run/tree": project})


@pytest.fixture
def mirror(monkeypatch: pytest.MonkeyPatch, project: Path) -> Iterator[Server]:
    """A mirror that has a small, real libtorch."""
    variant = project / "libtorch/precompiled/cu128"
    members = {
        f"libtorch/{path.relative_to(variant)}": Member(path.read_bytes(), path.stat().st_mode)
        for path in sorted(variant.rglob("*"))
        if path.is_file() and path.name != ".arch"
    }
    with serving(monkeypatch, Answer(archive(members))) as server:
        yield server


@pytest.fixture
def box(lab: Lab, published: Node, mirror: Server, tmp_path: Path) -> Iterator[Box]:
    ssh = {"target": published.address, "identity_file": str(lab.client_key), "options": lab.ssh_options()}
    source = {"from": f"rsync://root@{published.address}:{published.port}/srv/run/tree"}
    env = {"FLODL_TESTING_GPU_JSON": BLACKWELL, "INVOKE_FDL_LIBTORCH_BASE_URL": mirror.url}
    made = Box(tmp_path, {"ssh": ssh, "source": source, "libtorch": "auto"}, env)
    yield made
    made.stop()


def test_a_bare_box_becomes_ready_and_its_binary_runs(box: Box) -> None:
    found = box.ready()
    assert found["libtorch"] == {
        "dir": str(box.root / "libtorch/precompiled/cu128"),
        "variant": "precompiled/cu128",
    }
    built = found["bin"]
    assert built["path"] == str(box.root / "source/ddp-bench/target/release/ddp-bench")
    assert (found["args"], found["run_id"], found["data_path"]) == (RUN["args"], RUN["run"], None)
    assert [note for note in found["notes"] if "01234567" in note and "ddp-bench" in note]
    env = {"LD_LIBRARY_PATH": f"{found['libtorch']['dir']}/lib"}
    ran = subprocess.run([built["path"]], cwd=built["cwd"], env=env, capture_output=True, text=True, check=True)
    assert ran.stdout == "ddp-bench: libtorch cu128 (build 2.10.0+cu128), feature cuda\n"


def test_a_second_run_changes_nothing_and_asks_no_mirror(box: Box, mirror: Server) -> None:
    first = box.ready()
    binary, asked = Path(first["bin"]["path"]), len(mirror.paths)
    before = binary.stat()
    assert box.ready()["bin"] == first["bin"]
    assert (binary.stat().st_mtime_ns, binary.stat().st_ino) == (before.st_mtime_ns, before.st_ino)
    assert asked == len(mirror.paths) == 1


def test_a_new_publish_is_taken_up_and_built_by_the_next_run(box: Box, project: Path) -> None:
    before = Path(box.ready()["bin"]["path"]).read_bytes()
    main = project / "ddp-bench/src/main.rs"
    text = main.read_text()
    try:
        main.write_text(text.replace("ddp-bench: libtorch", "ddp-bench 2: libtorch"))
        put_up(project, run="f" * 32, args=[])
        found = box.ready()
    finally:
        main.write_text(text)
        put_up(project)
    assert (found["run_id"], found["args"]) == ("f" * 32, [])
    assert Path(found["bin"]["path"]).read_bytes() != before


def test_stdout_is_a_table_for_people_and_notes_go_to_stderr(box: Box) -> None:
    done = box.run()
    assert done.returncode == 0
    assert "precompiled/cu128" in done.stdout and done.stdout.rstrip().endswith("ready")
    lines = done.stderr.splitlines()
    assert lines and all(line.startswith("prepare: ") for line in lines)
    assert [line for line in lines if "run 01234567" in line]


@pytest.mark.parametrize(
    ("changes", "env", "code", "names"),
    [
        ({}, {"FLODL_TESTING_GPU_JSON": "[]"}, 2, ["no"]),
        ({}, {"CUDA_VISIBLE_DEVICES": ""}, 2, ["CUDA_VISIBLE_DEVICES"]),
        ({"devices": [1]}, {}, 2, ["1"]),
        ({"data_path": "/nowhere/at/all"}, {}, 2, ["/nowhere/at/all", "data_source"]),
        ({"data_source": "smb://x/y"}, {}, 2, ["data_source", "sshfs://"]),
        ({}, {"TMPDIR": "/nowhere"}, 2, ["/nowhere", "TMPDIR"]),
        ({}, {"HOME": ""}, 2, ["HOME", "FLODL_HOME"]),
        ({"source": {"from": "git+https://host/x"}}, {}, 2, ["#"]),
        ({"source": {"from": "file:///nowhere/at/all"}}, {}, 2, ["/nowhere/at/all"]),
        ({"libtorch": "cu999"}, {}, 2, ["cu999", "auto"]),
        ({"libtorch": "cu128"}, {"FLODL_TESTING_GPU_JSON": PASCAL}, 2, ["Tesla P100", "6.0", "auto", "devices"]),
    ],
)
def test_every_step_says_again_or_never(
    box: Box, changes: dict[str, Any], env: dict[str, str], code: int, names: list[str]
) -> None:
    box.join |= changes
    said = box.refused(code, **env)
    assert [name for name in names if name not in said] == []


def test_a_run_that_nobody_has_published_yet_is_waited_for(box: Box, project: Path) -> None:
    (project / ".fdl-run.yml").unlink()
    try:
        assert "no run is published" in box.refused(1)
    finally:
        put_up(project)


def test_a_manifest_whose_binary_leaves_the_tree_is_refused(box: Box, project: Path) -> None:
    put_up(project, bin="../../../.ssh/authorized_keys")
    try:
        assert "leaves the source tree" in box.refused(2)
    finally:
        put_up(project)


def test_source_that_does_not_compile_may_do_so_tomorrow(box: Box, project: Path) -> None:
    put_up(project, build="cargo build --release --features nonsense")
    try:
        box.join["libtorch"] = "cu128"
        said = box.refused(1 if toolkit() else 2)
        assert "nonsense" in said
    finally:
        put_up(project)


def toolkit() -> bool:
    """Whether this machine has CUDA's headers: without them a failed build for its cards is permanent."""
    return any(Path(place, "nccl.h").exists() for place in ("/usr/include", "/usr/local/cuda/include"))


def test_a_controller_that_is_gone_is_waited_for(box: Box, published: Node) -> None:
    published.stop_sshd()
    try:
        assert "refused" in box.refused(1)
    finally:
        published.start_sshd()


def test_a_cluster_file_that_is_wrong_is_permanent_and_says_where(box: Box) -> None:
    box.join["sauce"] = "x"
    assert "cluster.yml:" in box.refused(2) and "source" in box.refused(2)


def test_a_mistyped_flag_is_never_taken_for_a_transient_failure(box: Box) -> None:
    assert box.run("--sauce").returncode == 2


def test_flags_say_everything_without_a_file(box: Box, project: Path) -> None:
    box.argv()
    (box.folder / "cluster.yml").unlink()
    words = ["--json", "--libtorch", "cu128", "--source", f"file://{project}"]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, "prepare", *words], capture_output=True, timeout=100, **box.options()
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["run_id"] == RUN["run"]


def test_a_second_prepare_waits_for_the_first_and_says_for_what(box: Box, project: Path) -> None:
    put_up(project, build=f"sleep 1; {RUN['build']}")
    try:
        first, second = box.start(), None
        assert eventually(lambda: (box.root / ".prepare.lock-holder").exists(), 10)
        second = box.start()
        said = [process.communicate(timeout=60) for process in (first, second)]
    finally:
        put_up(project)
    assert (first.returncode, second.returncode) == (0, 0), said
    assert f"waiting for process {first.pid}" in said[1][1]
    assert "waiting" not in said[0][1]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(
    ("step", "hold"), [("fetching the source", "rsync"), ("getting libtorch", "mirror"), ("building", "build")]
)
def test_ctrl_c_in_a_step_leaves_nothing_half_done(
    box: Box, mirror: Server, project: Path, step: str, hold: str, number: signal.Signals
) -> None:
    whole, env = mirror.answers[0], dict[str, str]()
    if hold == "mirror":
        mirror.answers[:] = [Answer(whole.body, stop=len(whole.body) // 2, length=len(whole.body), stall=8)]
    elif hold == "build":
        put_up(project, build="sleep 1000")
    else:
        env = stand_in(box.folder / "bin", "rsync", "exec sleep 1000")
    try:
        process = box.start(**env)
        assert process.stderr
        while f"prepare: {step}" not in process.stderr.readline():
            assert process.poll() is None
        time.sleep(0.3)
        process.send_signal(number)
        process.communicate(timeout=10)
    finally:
        mirror.answers[:] = [whole]
        put_up(project)
    assert process.returncode == 130
    assert eventually(lambda: left_of(box) == []), left_of(box)
    installed = sorted(path.name for path in box.root.glob("libtorch/precompiled/[!.]*"))
    staged = list(box.root.glob("libtorch/precompiled/.fdl-staging*"))
    assert (installed, staged) == (["cu128"] if hold == "build" else [], [])
    assert box.ready()["run_id"] == RUN["run"]
