"""The lab's engines are real ones of both releases and both stores, and of a lab nothing is left."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.lab import runs
from tests.lab.compose import write_compose
from tests.lab.engine import Engine, Store
from tests.lab.images import Files
from tests.lab.lab import Lab
from tests.lab.node import ENGINE_SOCKET, Node
from tests.lab.releases import Release
from tests.lab.system import alive, run, wait_until

pytestmark = pytest.mark.docker


def ssh(lab: Lab, node: Node, command: str, *, user: str = "root") -> str:
    return run("ssh", *lab.ssh_argv(node, user=user), command).stdout


def idle(node: Node | None) -> None:
    assert node
    wait_until(lambda: node.processes() == [], "nothing runs on the node")  # a session ends after its client


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
    idle(node)
    ssh(lab, node, "docker run -d --name stays --network none tiny:1 sleep 1000")
    assert engine.containers() == ["stays"]
    wait_until(lambda: node.processes() == ["sleep 1000"], "only the container runs")


@pytest.fixture(scope="module")
def four(lab: Lab) -> dict[str, Engine]:
    """A node each, on both networks."""
    kinds = {f"{release}-{store}": (release, store) for release in Release for store in Store}
    wanted = {
        name: {"node": lab.node(f"docker-{name}", fabric=True), "release": release, "store": store}
        for name, (release, store) in kinds.items()
    }
    return lab.start_engines(wanted)


@pytest.fixture(params=[f"{release}-{store}" for release in Release for store in Store])
def one(request: pytest.FixtureRequest, four: dict[str, Engine]) -> Engine:
    return four[request.param]


def on(lab: Lab, engine: Engine, command: str, user: str = "root") -> str:
    """What a login of the engine's node is told, complaints included."""
    assert engine.node
    return run("ssh", *lab.ssh_argv(engine.node, user=user), f"{command} 2>&1 || :").stdout


def test_a_node_speaks_to_the_engine_it_was_given(lab: Lab, one: Engine) -> None:
    versions = on(lab, one, "docker version -f '{{.Client.Version}} {{.Server.Version}}'").split()
    assert [version.partition(".")[0] for version in versions] == [one.release, one.release]
    driver = on(lab, one, "docker info -f '{{.DriverStatus}}'")
    assert ("io.containerd.snapshotter.v1" in driver) == (one.store is Store.CONTAINERD)
    assert on(lab, one, "docker run --rm --network none tiny:1 echo ran", user="lab-docker") == "ran\n"
    assert "permission denied" in on(lab, one, "docker ps -q", user="lab").lower()
    assert "permission denied" in on(lab, one, "docker ps -q", user="lab-sudo").lower()
    assert on(lab, one, "sudo -n docker ps -q", user="lab-sudo") == ""
    idle(one.node)


def test_images_are_built_as_asked_for(one: Engine) -> None:
    layers: list[int | Files] = [300_000, {"/etc/mark": b"first", "/noise": 100_000}]
    one.build("asked:1", layers, created=1_000_000_000, env={"A": "b c"}, cmd=["cat", "/etc/mark"])
    image = one.image("asked:1")
    assert image["Created"].startswith("2001-09-09T01:46:40") and image["Config"]["Env"][-1] == "A=b c"
    assert one.docker("run", "--rm", "--network", "none", "asked:1").stdout == "first"
    sizes = one.docker("run", "--rm", "--network", "none", "asked:1", "wc", "-c", "/layers/0", "/noise").stdout.split()
    assert sizes[0] == "300000" and sizes[2] == "100000"
    one.build("asked:2", [300_000, {"/etc/mark": b"second"}], created=1_000_000_000)
    below, top = image["RootFS"]["Layers"], one.image("asked:2")["RootFS"]["Layers"]
    assert below[0] == one.image("tiny:1")["RootFS"]["Layers"][0]
    assert (top[:2], top[2] != below[2], len(top)) == (below[:2], True, 3)


def test_an_image_may_have_no_shell(one: Engine) -> None:
    one.build_without_shell("bare:1")
    assert one.docker("run", "--rm", "--network", "none", "bare:1").stdout == "started\n"
    refused = one.docker("run", "--rm", "--network", "none", "--entrypoint", "/bin/sh", "bare:1", check=False)
    assert refused.returncode == 127 and len(one.image("bare:1")["RootFS"]["Layers"]) == 1


def test_an_image_goes_from_engine_to_engine(four: dict[str, Engine]) -> None:
    order = ["26-graphdriver", "28-containerd", "26-containerd", "28-graphdriver"]
    first, *others = [four[name] for name in order]
    first.build("round:1", [200_000, {"/mark": b"kept"}])
    for source, target in zip([first, *others], [*others, first], strict=True):
        target.docker("rmi", "-f", "round:1", check=False)
        source.give(target, "round:1")
        assert target.docker("run", "--rm", "--network", "none", "round:1", "cat", "/mark").stdout == "kept"
    facts = {name: four[name].image("round:1") for name in order}
    assert len({tuple(fact["RootFS"]["Layers"]) for fact in facts.values()}) == 1
    assert [facts[name]["Id"] for name in order[:2]] == [facts[name]["Id"] for name in reversed(order[2:])]


def test_the_base_image_is_the_same_one_everywhere(four: dict[str, Engine]) -> None:
    ids = {(engine.store, engine.image("tiny:1")["Id"]) for engine in four.values()}
    assert len(ids) == 2


@pytest.mark.parametrize(
    ("name", "end"),
    [
        ("26-graphdriver", Engine.kill),
        ("26-containerd", Engine.stop),
        ("28-graphdriver", Engine.stop),
        ("28-containerd", Engine.kill),
    ],
)
def test_an_engine_that_ended_comes_back_with_what_it_had(
    lab: Lab, four: dict[str, Engine], name: str, end: Callable[[Engine], None]
) -> None:
    end(four[name])
    assert "Cannot connect" in on(lab, four[name], "docker ps")
    four[name].start()
    assert on(lab, four[name], "docker run --rm --network none tiny:1 echo back") == "back\n"


@pytest.mark.parametrize(("release", "store"), [(Release.D26, Store.CONTAINERD), (Release.D28, Store.GRAPHDRIVER)])
def test_a_full_disk_refuses_an_image_until_it_grows(
    lab: Lab, four: dict[str, Engine], release: Release, store: Store
) -> None:
    four["28-containerd"].build("big:1", [20_000_000])
    small = lab.engine(f"small-{release}-{store}", release=release, store=store, disk="16m")
    archive = lab.dir / "big.tar"
    four["28-containerd"].docker("save", "-o", archive, "big:1")
    refused = small.docker("load", "-i", archive, check=False)
    assert refused.returncode and "no space left on device" in refused.stderr
    small.grow("200m")
    small.docker("load", "-i", archive)
    assert small.docker("run", "--rm", "--network", "none", "big:1", "wc", "-c", "/layers/0").stdout.startswith("20000")


@pytest.mark.parametrize("release", Release)
def test_an_attested_image_has_one_manifest_more(lab: Lab, four: dict[str, Engine], release: Release) -> None:
    containerd = four[f"{release}-containerd"]
    assert [len(_manifests(lab, containerd, attested)) for attested in (False, True)] == [1, 2]


def _manifests(lab: Lab, engine: Engine, attested: bool) -> list[Any]:
    tag = f"attested:{attested}".lower()
    engine.build(tag, [1000], attested=attested)
    engine.docker("save", "-o", lab.dir / "attested.tar", tag)
    with tarfile.open(lab.dir / "attested.tar") as tar:
        top: list[Any] = _json(tar, "index.json")["manifests"]
        if "index" in top[0]["mediaType"]:
            top = _json(tar, f"blobs/sha256/{top[0]['digest'].partition(':')[2]}")["manifests"]
        return top


def _json(tar: tarfile.TarFile, name: str) -> Any:
    member = tar.extractfile(name)
    assert member
    return json.load(member)


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
    with Lab(lacking=pytest.skip) as lab:
        node = lab.node("a")
        engines: dict[str, dict[str, Any]] = {
            "a": {"disk": "30m"},
            "b": {"node": node, "store": Store.CONTAINERD, "release": Release.D28},
            "c": {"disk": "30m", "release": Release.D28},
        }
        for engine in lab.start_engines(engines).values():
            engine.docker("run", "-d", "--network", "none", "tiny:1", "sleep", "999")
        with subprocess.Popen(["ssh", *lab.ssh_argv(node), "sleep 1000"], stderr=subprocess.DEVNULL):
            wait_until(lambda: "sleep 1000" in node.processes(), "the session runs")
            pids = [pid for space in runs.spaces(lab.run_id) for pid in runs.processes(space)]
            assert len(pids) > 4
            assert _left_of(lab.run_id, lab.dir)
            lab.close()
    assert [pid for pid in pids if alive(pid)] == []
    assert _left_of(lab.run_id, lab.dir) == []


DYING = """
from tests.lab.images import Files
from tests.lab.lab import Lab
lab = Lab()
lab.node("a"), lab.engine("a", disk="30m"), lab.engine("b", node=lab.node("a"))
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
