"""The lab's engines are real ones of both stores, and of a lab nothing is left."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.lab import runs
from tests.lab.compose import write_compose
from tests.lab.engine import Engine, Store
from tests.lab.lab import Lab
from tests.lab.node import ENGINE_SOCKET, Node
from tests.lab.system import alive, run, wait_until

pytestmark = pytest.mark.docker


def ssh(lab: Lab, node: Node, command: str, *, user: str = "root") -> str:
    return run("ssh", *lab.ssh_argv(node, user=user), command).stdout


@pytest.fixture(scope="module", params=list(Store), ids=str)
def engine(request: pytest.FixtureRequest, lab: Lab) -> Engine:
    made = lab.engine(f"itself-{request.param}", store=request.param)
    made.load_tiny()
    return made


def test_engines_of_both_stores_run_a_container(engine: Engine) -> None:
    ran = engine.docker("run", "--rm", "--network", "none", "tiny:1", "sh", "-c", "echo from $(id -un)")
    assert ran.stdout == "from root\n"
    status = engine.docker("info", "--format", "{{.DriverStatus}}").stdout
    assert ("io.containerd.snapshotter.v1" in status) == (engine.store is Store.CONTAINERD)


def test_a_node_has_an_engine_that_sees_the_node(lab: Lab) -> None:
    node = lab.node("engined", env={"DOCKER_HOST": f"unix://{ENGINE_SOCKET}"})
    engine = lab.engine("engined", node=node)
    engine.load_tiny()
    node.write("/srv/data/mark", "the node's own")
    ran = ssh(lab, node, "docker run --rm --network none -v /srv/data:/data:ro tiny:1 cat /data/mark")
    assert ran == "the node's own"
    assert "permission denied" in ssh(lab, node, "docker ps 2>&1 || :", user="lab").lower()
    assert node.processes() == []
    ssh(lab, node, "docker run -d --name stays --network none tiny:1 sleep 1000")
    assert engine.containers() == ["stays"]
    assert node.processes() == ["sleep 1000"]


def test_a_dockerfile_is_built_without_a_network(engine: Engine, tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text("FROM tiny:1\nRUN echo built >/etc/built\n")
    engine.docker("build", "--network=none", "-q", "-t", "built:1", tmp_path)
    assert engine.docker("run", "--rm", "--network", "none", "built:1", "cat", "/etc/built").stdout == "built\n"


def test_a_compose_service_compiles(engine: Engine, tmp_path: Path) -> None:
    crate = tmp_path / "probe" / "src"
    crate.mkdir(parents=True)
    (crate.parent / "Cargo.toml").write_text('[package]\nname = "probe"\nversion = "0.1.0"\nedition = "2021"\n')
    (crate / "main.rs").write_text('fn main() { println!("compiled"); }\n')
    (tmp_path / "libtorch").mkdir()
    (tmp_path / "libtorch" / "mark").write_text("seen")
    write_compose(tmp_path)
    inner = "cd /workspace/probe && CARGO_TARGET_DIR=/workspace/out cargo build --release -q && cat /opt/libtorch/mark"
    ran = engine.docker("compose", "run", "--rm", "-T", "cuda", "bash", "-c", inner, cwd=tmp_path)
    assert ran.stdout == "seen"
    assert run(tmp_path / "out" / "release" / "probe").stdout == "compiled\n"


def _left_of(run_id: str, folder: Path) -> list[str]:
    links = [link.name for link in Path("/sys/class/net").iterdir() if run_id in link.name]
    mounts = [line for line in Path("/proc/mounts").read_text().splitlines() if str(folder) in line]
    groups = map(str, runs.control_groups(run_id))
    return [*runs.spaces(run_id), *links, *mounts, *groups, *(["folder"] if folder.exists() else [])]


def test_after_close_nothing_is_left() -> None:
    with Lab() as lab:
        node, engine = lab.node("a"), lab.engine("a")
        engine.load_tiny()
        engine.docker("run", "-d", "--network", "none", "tiny:1", "sleep", "1000")
        with subprocess.Popen(["ssh", *lab.ssh_argv(node), "sleep 1000"], stderr=subprocess.DEVNULL):
            wait_until(lambda: "sleep 1000" in node.processes(), "the session runs")
            pids = [pid for space in runs.spaces(lab.run_id) for pid in runs.processes(space)]
            assert len(pids) > 4
            assert _left_of(lab.run_id, lab.dir)
            lab.close()
    assert [pid for pid in pids if alive(pid)] == []
    assert _left_of(lab.run_id, lab.dir) == []


DYING = """
from tests.lab.lab import Lab
lab = Lab()
lab.node("a"), lab.engine("a")
print(lab.run_id, lab.dir, flush=True)
input()
"""


def test_what_a_killed_run_left_goes_when_the_next_one_starts() -> None:
    root = Path(__file__).resolve().parents[2]
    with subprocess.Popen(
        [sys.executable, "-c", DYING], cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as dying:
        assert dying.stdout
        run_id, folder = dying.stdout.readline().decode().split()
        assert run_id not in runs.remove_dead() and Path(folder).is_dir()  # it lives
        dying.send_signal(signal.SIGKILL)
    pids = [pid for space in runs.spaces(run_id) for pid in runs.processes(space)]
    assert pids and all(alive(pid) for pid in pids)
    assert run_id in runs.remove_dead()
    assert [pid for pid in pids if alive(pid)] == []
    assert _left_of(run_id, Path(folder)) == []
