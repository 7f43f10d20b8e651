"""The probe itself: in every shell a node may have, against stand-ins and real engines, and on many nodes at once."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from fdl_tasks.cluster.image import ImageRef
from fdl_tasks.cluster.model import Ssh, Worker
from fdl_tasks.errors import Stage, TransportError
from fdl_tasks.images.facts import NodeFacts, failed, parse
from fdl_tasks.images.identity import Proof, same
from fdl_tasks.images.nodes import Nodes
from fdl_tasks.images.probe import alike, probe, render
from fdl_tasks.scripts import Scripts
from fdl_tasks.testing import Completed, FakeHost, fake_connect
from tests.images.making import make_image, make_node
from tests.lab.engine import Engine, Store
from tests.lab.lab import Lab
from tests.lab.releases import Release

CASES = Path(__file__).parent.parent / "cases/images/probe"
PRESENT = (CASES / "graphdriver-28-present.txt").read_text()
REF = ImageRef.parse("app:1")
SHELLS = [["dash"], ["bash"], ["busybox", "sh"]]
VERSION = '{"Client":{"ApiVersion":"1.51"},"Server":{"ApiVersion":"1.45","Version":"26.1.5","Arch":"amd64"}}'
INFO = '{"Driver":"overlay2","DriverStatus":[["Backing Filesystem","extfs"]],"DockerRootDir":"/"}'
SNAPSHOTTER = INFO.replace('["Backing Filesystem","extfs"]', '["driver-type","io.containerd.snapshotter.v1"]')
IMAGE = f'{{"Id":"sha256:{"a" * 64}","RootFS":{{"Layers":["sha256:1"]}},"Config":{{"Env":["A=é"]}},"Size":7}}'
# The lines that a stand-in for docker is made of: a case of its first words each.
GOOD = {
    "version*": f"echo '{VERSION}'",
    "info*": f"echo '{INFO}'",
    "image?inspect*": f"echo '{IMAGE}'",
    "image?ls*": f"echo sha256:{'a' * 64}",
    "history*": "printf '0\\n7\\n'",
}
DENIED = "echo 'permission denied while trying to connect to the Docker daemon socket' >&2; exit 1"
Look = Callable[..., NodeFacts]


@pytest.fixture(params=SHELLS, ids=lambda shell: shell[0])
def shell(request: pytest.FixtureRequest) -> list[str]:
    if not shutil.which(request.param[0]):
        pytest.skip(f"{request.param[0]} is not installed")
    return list(request.param)


def stand_in(folder: Path, answers: dict[str, str], name: str = "docker") -> None:
    """A program that notes each call in ``calls`` and answers by its first words."""
    cases = "\n".join(f"{words}) {deed} ;;" for words, deed in answers.items())
    body = f"#!/bin/sh\necho \"{name} $*\" >>'{folder}/calls'\ncase $* in\n{cases}\n*) exit 9 ;;\nesac\n"
    (folder / "bin").mkdir(exist_ok=True)
    (folder / "bin" / name).write_text(body)
    (folder / "bin" / name).chmod(0o755)


@pytest.fixture
def look(shell: list[str], tmp_path: Path) -> Look:
    def run(
        answers: dict[str, str], host: str | None = None, *, brief: bool = False, sudo: str = "exit 1"
    ) -> NodeFacts:
        stand_in(tmp_path, answers)
        stand_in(tmp_path, {"*": sudo}, "sudo")
        env = os.environ | {"PATH": f"{tmp_path}/bin:{os.environ['PATH']}"}
        script = render(Scripts(), REF, host, brief=brief).text
        done = subprocess.run([*shell, "-c", script], capture_output=True, text=True, env=env, stdin=subprocess.DEVNULL)
        assert done.returncode == 0, done.stderr
        return parse(done.stdout, "node", host, brief=brief)

    return run


def calls(folder: Path) -> list[str]:
    return (folder / "calls").read_text().splitlines()


pytestmark = pytest.mark.subprocess


def test_all_of_a_node_is_told(look: Look, tmp_path: Path) -> None:
    node = look(GOOD)
    assert (node.error, node.docker, node.server, node.api) == (None, ("docker",), "26.1.5", (1, 45))
    assert node.image and (node.image.id, node.image.config) == (f"sha256:{'a' * 64}", '{"Env": ["A=é"]}')
    assert (node.complete, node.unpacked, len(node.others)) == (True, (0, 7), 1)
    assert list(node.free) == ["/"] and node.free["/"] > 0
    assert node.python and node.python >= (3, 8)
    assert ("aes" in node.tools) == ("aes" in Path("/proc/cpuinfo").read_text().split())
    assert not any(call.startswith("sudo") for call in calls(tmp_path))


@pytest.mark.parametrize(
    "noise", ["WARNING: Error loading config file: permission denied", "sudo: unable to resolve host x"]
)
def test_warnings_beside_an_answer_do_not_spoil_it(look: Look, noise: str) -> None:
    node = look({words: f"echo '{noise}' >&2; {deed}" for words, deed in GOOD.items()})
    assert (node.error, len(node.others)) == (None, 1)
    assert node.image and node.image.layers == ("sha256:1",)


def test_who_may_not_use_docker_gets_in_by_sudo(look: Look, tmp_path: Path) -> None:
    through = 'shift; case $1 in docker) shift; FDL_SUDO=1 docker "$@" ;; *) exit 1 ;; esac'
    node = look({"*": f"[ \"$FDL_SUDO\" ] || {{ {DENIED}; }}; case $* in\n" + "\n".join(
        f"{words}) {deed} ;;" for words, deed in GOOD.items()) + "\nesac"}, sudo=through)  # fmt: skip
    assert (node.error, node.docker) == (None, ("sudo", "-n", "docker"))
    assert node.image and node.others
    assert sum(call.startswith("sudo -n docker image inspect") for call in calls(tmp_path)) == 2


def test_without_sudo_the_error_names_the_group_and_the_setting(look: Look) -> None:
    node = look({"*": DENIED}, sudo="echo 'sudo: a password is required' >&2; exit 1")
    assert node.image is None and node.error
    assert (
        "in the group docker" in node.error and "docker_host" in node.error and "a password is required" in node.error
    )


def test_a_docker_host_is_used_for_every_call_and_sudo_is_not_tried(look: Look, tmp_path: Path) -> None:
    behind = {f"--host?tcp://box:1?{words}": deed for words, deed in GOOD.items()}
    node = look(behind, "tcp://box:1")
    assert (node.error, node.docker) == (None, ("docker", "--host", "tcp://box:1"))
    node = look({"*": DENIED}, "tcp://box:1")
    assert node.error and node.error.startswith("docker_host is tcp://box:1, and there docker says: permission denied")
    assert all(call.startswith("docker --host tcp://box:1 ") for call in calls(tmp_path))


def test_a_stopped_engine_is_an_error_and_sudo_is_not_tried(look: Look, tmp_path: Path) -> None:
    down = "echo 'Cannot connect to the Docker daemon at unix:///var/run/docker.sock.' >&2; exit 1"
    node = look({"version*": f'echo \'{{"Client":{{}},"Server":null}}\'; {down}'})
    assert node.error == "docker says: Cannot connect to the Docker daemon at unix:///var/run/docker.sock."
    assert not any(call.startswith("sudo") for call in calls(tmp_path))


def test_a_node_without_docker_says_so(shell: list[str], tmp_path: Path) -> None:
    script = render(Scripts(), REF, None).text
    cut = script[: script.index("PATH=${PATH")] + script[script.index("export PATH") :]  # as if /usr/bin had none
    for name in ("wc", "tr", "head", "grep", "id"):
        (tmp_path / name).symlink_to(str(shutil.which(name)))
    command = [str(shutil.which(shell[0])), *shell[1:], "-c", cut]
    done = subprocess.run(command, capture_output=True, text=True, env={"PATH": str(tmp_path)})
    node = parse(done.stdout, "node")
    assert node.error == f"there is no docker on its PATH ({tmp_path}): install it there"


@pytest.mark.parametrize(
    ("says", "absent"),
    [
        ("Error response from daemon: No such image: app:1", True),
        ("Error: No such image: app:1", True),
        ("Error response from daemon: layer does not exist", False),
        ("permission denied", False),
        ("", False),
    ],
)
def test_only_no_such_image_is_absence(look: Look, says: str, absent: bool) -> None:
    node = look(GOOD | {"image?inspect*": f"echo; echo '{says}' >&2; exit 1"})
    assert node.image is None
    assert (node.error is None) is absent


def test_a_brief_look_ends_where_the_image_is_there_after_two_calls(look: Look, tmp_path: Path) -> None:
    node = look(GOOD, brief=True)
    assert (node.error, node.store, node.server) == (None, "", "26.1.5") and node.image
    assert [" ".join(call.split()[1:3]) for call in calls(tmp_path)] == ["version --format", "image inspect"]


def test_a_brief_look_tells_all_where_the_image_is_not_there(look: Look) -> None:
    absent = "case $* in *' -- app:1') echo 'No such image' >&2; exit 1 ;; *) echo '" + IMAGE + "' ;; esac"
    node = look(GOOD | {"image?inspect*": absent}, brief=True)
    assert (node.error, node.image, node.store, len(node.others)) == (None, None, "graphdriver", 1)
    assert node.python and node.free


def test_no_look_makes_a_container_or_pulls(look: Look, tmp_path: Path) -> None:
    look(GOOD)
    look(GOOD, brief=True)
    assert not any(call.split()[1] in ("create", "rm", "run", "pull", "load", "tag") for call in calls(tmp_path))


def archive(folder: Path, *names: str, big: bool = False) -> str:
    """A stand-in's `docker save`: a tar file with these entries and a manifest that names c and l."""
    tree = folder / "tree"
    (tree / "blobs/sha256").mkdir(parents=True, exist_ok=True)
    for name in names:
        (tree / "blobs/sha256" / name).write_bytes(os.urandom(200_000 if big else 10))
    (tree / "manifest.json").write_text(
        '[{"Config":"blobs/sha256/c","RepoTags":["app:1"],"Layers":["blobs/sha256/l"]}]'
    )
    listed = " ".join(f"blobs/sha256/{name}" for name in names)
    return f"tar -C '{tree}' -cf - blobs/sha256 {listed} manifest.json"


@pytest.mark.parametrize(
    ("names", "big", "complete"), [("cl", False, True), ("c", False, False), ("", False, False), ("cl", True, None)]
)
def test_in_a_containerd_store_the_beginning_of_the_archive_tells_completeness(
    look: Look, tmp_path: Path, names: str, big: bool, complete: bool | None
) -> None:
    saved = archive(tmp_path, *names, big=big)
    node = look(GOOD | {"info*": f"echo '{SNAPSHOTTER}'", "save?app:1": saved})
    assert (node.store, node.complete) == ("containerd", complete)


def test_a_graphdriver_store_is_never_asked_to_save_since_it_would_write_the_whole_image_first(
    look: Look, tmp_path: Path
) -> None:
    look(GOOD)
    assert not any("save" in call for call in calls(tmp_path))


def test_the_other_images_are_bounded(look: Look, tmp_path: Path) -> None:
    digits = "0 1 2 3 4 5 6 7 8 9"
    many = f"for n in 1 2; do for m in {digits} 0; do for k in {digits}; do echo sha256:$n$m$k; done; done; done"
    look(GOOD | {"image?ls*": many})
    asked = next(call for call in calls(tmp_path) if "image inspect" in call and "sha256:" in call)
    ids = [word for word in asked.split() if word.startswith("sha256:")]
    assert len(ids) == len(set(ids)) == 100 and ids[0] == "sha256:100"  # the newest come first


# -- many nodes -----------------------------------------------------------------------------------


def worker(label: str, **fields: str) -> Worker:
    return Worker(label, "/srv", Ssh(label), **fields)  # type: ignore[arg-type]


def test_every_node_has_an_answer_in_its_order_whatever_becomes_of_the_others() -> None:
    hosts = [
        FakeHost("a", TransportError(Stage.CONNECT, "no route to host")),
        FakeHost("b", Completed(0, PRESENT, "", 0.1)),
        FakeHost("c", Completed(1, PRESENT[:900], "sh: awk: not found\n", 0.1)),
        FakeHost("d", RuntimeError("boom")),
    ]
    nodes = [worker("a"), worker("b", docker_host="tcp://box:1"), worker("c"), worker("d")]
    with Nodes(nodes, connect=fake_connect(*hosts)) as connected:
        a, b, c, d = probe(connected, REF)
    assert [node.label for node in (a, b, c, d)] == ["a", "b", "c", "d"]
    assert a.error == "connect: no route to host" and a.image is None
    assert b.error is None and b.image
    assert c.error == "its answer was cut off or mixed with other output (sh: awk: not found)"
    assert d.error == "RuntimeError: boom"
    assert "ENGINE=tcp://box:1\n" in hosts[1].scripts[0].text and "ENGINE=''\n" in hosts[2].scripts[0].text
    assert "BRIEF=0\n" in hosts[0].scripts[0].text and all(host.closed for host in hosts)


def test_only_those_that_are_named_are_asked() -> None:
    hosts = [FakeHost(label, Completed(0, PRESENT, "", 0.1)) for label in "ab"]
    found = probe(Nodes([worker("a"), worker("b")], connect=fake_connect(*hosts)), REF, ["b"], brief=True)
    assert [node.label for node in found] == ["b"] and hosts[0].scripts == []
    assert "BRIEF=1\n" in hosts[1].scripts[0].text


def test_nodes_are_alike_when_all_that_could_be_asked_have_one_image() -> None:
    app, other = make_image("app"), make_image("other", "xyz")
    has, rebuilt = make_node("a", app), make_node("b", make_image("again", "abc"))
    assert alike([has, rebuilt, failed("c", "gone")])
    assert not alike([has, make_node("b", other)]) and not alike([has, make_node("b")]) and not alike([make_node("b")])


# -- real engines ---------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=[*Release], ids=lambda release: f"docker{release}")
def engine(lab: Lab, request: pytest.FixtureRequest) -> dict[Store, Engine]:
    """An engine of either store that have one image, app:1, from one build."""
    made = {store: lab.engine(f"probed-{store}-{request.param}", store=store, release=request.param) for store in Store}
    first, second = made[Store.GRAPHDRIVER], made[Store.CONTAINERD]
    for one in made.values():
        one.load_tiny()
    first.build("app:1", [1000], env={"A": "1"})
    first.give(second, "app:1")
    return made


def look_at(engine: Engine, shell: list[str], reference: str) -> NodeFacts:
    script = render(Scripts(), ImageRef.parse(reference), engine.host)
    done = subprocess.run([*shell, "-c", script.text], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    return parse(done.stdout, "node", engine.host)


def test_real_engines_of_both_stores_are_read(engine: dict[Store, Engine], shell: list[str]) -> None:
    nodes = {store: look_at(one, shell, "app:1") for store, one in engine.items()}
    for store, node in nodes.items():
        known = True if store is Store.GRAPHDRIVER else None  # its archive is larger than the part that is read
        assert (node.error, node.store, node.complete) == (None, str(store), known)
        assert node.image and node.image.repo_tags == ("app:1",)
        assert {tag for one in node.others for tag in one.repo_tags} == {"app:1", "tiny:1"}
        assert node.free == {f"{engine[store].dir}/data": pytest.approx(shutil.disk_usage("/tmp").free, rel=0.2)}
        assert engine[store].containers() == []
    here, there = (node.image for node in nodes.values())
    assert here and there and here.id != there.id and same(here, there) is Proof.CONTENT


def test_real_engines_say_what_they_do_not_have(engine: dict[Store, Engine]) -> None:
    for one in engine.values():
        for reference in ("nope:1", f"app@sha256:{'0' * 64}", "localhost:5000/x/y:1"):
            node = look_at(one, ["sh"], reference)
            assert (node.error, node.image) == (None, None)
