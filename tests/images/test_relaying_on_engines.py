"""The pull of a target, through ssh, on real engines: what it shows the relay, and what it leaves."""

from __future__ import annotations

import base64
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from fdl_tasks.images import relaying, transfer
from fdl_tasks.images.archive import Sending
from fdl_tasks.scripts import Script, Scripts
from fdl_tasks.testing import Completed, FakeHost
from tests.e2e.site import eventually
from tests.images.making import make_node
from tests.images.registry import Registry, registry
from tests.lab.engine import Engine, Store
from tests.lab.lab import Lab
from tests.lab.node import ENGINE
from tests.lab.node import Node as LabNode
from tests.lab.releases import Release

pytestmark = pytest.mark.docker
PASSWORD = "a-password-of-one-run"
THERE = 24567


class Pulls:
    """A node with an engine, a registry in the relay's place, and the ssh between them."""

    def __init__(self, lab: Lab, release: Release):
        self.lab, self.release = lab, release
        self.node: LabNode = lab.node(f"pulls-{release}")
        kind = {"store": Store.CONTAINERD, "release": release, "node": self.node}
        self.engine: Engine = lab.start_engines({f"pulls-{release}": kind})[f"pulls-{release}"]

    def words(self, served: Registry, user: str = "root") -> list[str]:
        script = Scripts().render("images/pull-relay.sh", name="app:1", format=relaying.HOST, docker=["docker"])
        forward = ["-o", "ExitOnForwardFailure=yes", "-R", f"127.0.0.1:{THERE}:127.0.0.1:{served.port}"]
        return ["ssh", *forward, *self.lab.ssh_argv(self.node, user=user), shlex.join(["sh", "-c", script.text])]

    def lines(self, served: Registry, password: str = PASSWORD) -> str:
        return f"{password}\n127.0.0.1:{THERE}/fdl-7/app@{served.digest}\n"

    def pull(self, served: Registry, password: str = PASSWORD, **who: str) -> subprocess.CompletedProcess[str]:
        text = self.lines(served, password)
        return subprocess.run(self.words(served, **who), input=text, capture_output=True, text=True, timeout=60)

    def names(self) -> list[str]:
        """Without those that its images have by themselves."""
        names = self.engine.names()
        return [name for name in names if "/fdl-" in name or not ("@" in name or name.startswith("tiny:"))]

    def nothing_left(self) -> bool:
        def left() -> list[str]:
            return [*self.node.find("/tmp", "-mindepth", "1"), *self.node.processes()]

        assert eventually(lambda: not left() and not any("/fdl-" in name for name in self.names()), 8), left()
        return True


@pytest.fixture(scope="module", params=Release, ids=str)
def pulls(lab: Lab, request: pytest.FixtureRequest) -> Iterator[Pulls]:
    yield Pulls(lab, request.param)


@pytest.fixture
def served(pulls: Pulls, tmp_path: Path) -> Iterator[Registry]:
    """What the node's own engine built, and no longer has."""
    pulls.engine.build("app:1", [300_000, 1000], seed=tmp_path.name)
    pulls.engine.docker("save", "-o", str(tmp_path / "saved"), "app:1")
    pulls.engine.docker("image", "rm", "app:1")
    with registry(tmp_path / "saved", PASSWORD) as made:
        yield made


@pytest.mark.parametrize("user", ["root", "lab-docker"])
def test_the_password_of_the_private_configuration_is_what_the_engine_shows(
    pulls: Pulls, served: Registry, user: str
) -> None:
    done = pulls.pull(served, user=user)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("__FDL_LOAD__\n") and done.stdout.endswith("__FDL_LOADED__ 0\n")
    assert pulls.engine.image("app:1")["Id"] == served.digest
    assert pulls.names() == ["app:1"]
    assert served.refused and served.asked
    assert pulls.nothing_left()
    pulls.engine.docker("image", "rm", "app:1")
    wrong = pulls.pull(served, "another", user=user)
    assert wrong.returncode == 1 and "__FDL_LOADED__ 1" in wrong.stdout
    assert (pulls.names(), pulls.nothing_left()) == ([], True)


def test_nobody_else_on_the_node_can_read_the_password_meanwhile(pulls: Pulls, served: Registry) -> None:
    served.stands_still.set()
    with subprocess.Popen(pulls.words(served), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin
        process.stdin.write(pulls.lines(served))
        process.stdin.flush()
        config = "/tmp/fdl-pull.*/config.json"
        assert eventually(lambda: pulls.node.exec("sh", "-c", f"cat {config}", check=False).returncode == 0, 10)
        shown = ["sh", "-c", f"stat -c %a {config} /tmp/fdl-pull.*"]
        assert eventually(lambda: pulls.node.exec(*shown, check=False).stdout.split() == ["600", "700"], 10)
        for user in ("lab", "lab-docker"):
            looked = pulls.node.exec("sh", "-c", f"cat {config}; cat /proc/[0-9]*/cmdline", user=user, check=False)
            assert PASSWORD not in looked.stdout
            assert base64.b64encode(f"fdl:{PASSWORD}".encode()).decode() not in looked.stdout
            assert "docker" in looked.stdout  # it saw the command lines
        served.stands_still.clear()
        assert process.wait(30) == 0
    assert pulls.nothing_left()
    pulls.engine.docker("image", "rm", "app:1")


def test_what_a_stranger_at_the_port_gives_in_its_place_is_refused(pulls: Pulls, served: Registry) -> None:
    served.forge()
    done = pulls.pull(served)
    assert done.returncode == 1
    assert served.asked  # it was asked, and its answer did not fit the digest
    assert (pulls.names(), pulls.nothing_left()) == ([], True)


def test_a_pull_that_loses_its_connection_leaves_nothing(pulls: Pulls, served: Registry) -> None:
    served.replace()
    served.stands_still.set()  # no blob is ever given: it can't have come to its end
    try:
        with subprocess.Popen(pulls.words(served), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdin
            process.stdin.write(pulls.lines(served))
            process.stdin.flush()
            assert eventually(lambda: any("/blobs/" in path for path in served.asked), 10)
            assert pulls.node.processes()
            process.kill()
        assert pulls.nothing_left()
        assert pulls.names() == []
    finally:
        served.stands_still.clear()


def test_a_pull_that_loses_its_connection_at_its_end_leaves_the_name_that_is_wanted_alone(
    pulls: Pulls, served: Registry
) -> None:
    mark, on = pulls.node.path("/run/tags"), f'exec {ENGINE}/docker "$@"\n'
    pulls.node.stand_in("docker", f'#!/bin/sh\ncase " $* " in *" tag "*) touch /run/tags; sleep 2 ;; esac\n{on}')
    try:
        with subprocess.Popen(pulls.words(served), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdin
            process.stdin.write(pulls.lines(served))
            process.stdin.flush()
            assert eventually(mark.exists, 20)
            process.kill()
        assert pulls.nothing_left()
        assert pulls.names() == ["app:1"]
        assert pulls.engine.image("app:1")["Id"] == served.digest
    finally:
        pulls.node.stand_in("docker", f"#!/bin/sh\n{on}")
        mark.unlink(missing_ok=True)
    pulls.engine.docker("image", "rm", "app:1")


def test_a_name_that_a_killed_relay_left_on_the_source_is_removed_and_no_other_runs(pulls: Pulls) -> None:
    for run in "78":
        pulls.engine.docker("tag", "tiny:1", f"127.0.0.1:5000/fdl-{run}/app")

    def ran(script: Script) -> Completed:
        done = pulls.node.exec("sh", "-c", script.text, check=False)
        return Completed(done.returncode, done.stdout, done.stderr, 0.1)

    sending = Sending(make_node("s"), "tiny:1", {}, "", run="7", relays=True)
    assert transfer.clean(FakeHost("s", ran), sending) is None
    assert {name.split("/")[1] for name in pulls.names()} == {"fdl-8"}
    pulls.engine.docker("rmi", "127.0.0.1:5000/fdl-8/app:latest")
    assert pulls.engine.image("tiny:1")
