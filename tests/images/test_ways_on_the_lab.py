"""Ways between real nodes: a fabric that is there, black-holed or taken over, and sshds of every kind."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fdl_tasks.cluster.model import Ssh, Worker
from fdl_tasks.errors import Cancelled
from fdl_tasks.hosts.base import Host
from fdl_tasks.hosts.fanout import Cancel
from fdl_tasks.hosts.local import Local
from fdl_tasks.hosts.ssh import SshHost
from fdl_tasks.images.logins import Route
from fdl_tasks.images.ways import Peer, candidates, find_routes, known_hosts, peer, ssh_argv
from fdl_tasks.scripts import Script
from tests.e2e.site import eventually
from tests.lab.lab import Lab
from tests.lab.node import Node

HELLO = Script("hello.sh", "echo hello\n#fdl\n")
TIMES = 12  # seconds: the connect limit of one way, and a moment


def worker(lab: Lab, node: Node, **fields: Any) -> Worker:
    ssh = Ssh(
        node.address,
        node.port,
        "root",
        identity_file=str(lab.client_key),
        node_identity_file="~/.ssh/id_ed25519",
        options=tuple(lab.ssh_options()),
    )
    return Worker(node.name, "/srv", **{"ssh": ssh, "fabric_ip": node.fabric_address, **fields})


def met(lab: Lab, node: Node, **fields: Any) -> Peer:
    """The node as the controller's own connection saw it."""
    how = worker(lab, node, **fields)
    with SshHost(node.name, how.ssh, Cancel(), lambda _: None) as host:
        assert host.settings is None and host.host_key is None
        host.run(HELLO, limit=20)
    return peer(how, host)


class Ways:
    """A source that may log in to every node, and the routes from it."""

    def __init__(self, lab: Lab, source: Node):
        self.lab, self.source, self.peer = lab, source, met(lab, source)

    def host(self, cancel: Cancel | None = None) -> Host:
        return SshHost(self.source.name, self.peer.worker.ssh, cancel or Cancel(), lambda _: None)

    def find(self, *targets: Peer, cancel: Cancel | None = None, require_fabric: bool = False) -> dict[str, Route]:
        asked = [candidates(self.peer, target, require_fabric=require_fabric) for target in targets]
        with self.host(cancel) as host:
            return find_routes(host, asked, known_hosts(targets), cancel or Cancel())

    def left(self) -> list[str]:
        """Processes of this run and files in /tmp of the source."""
        return [*self.source.processes(), *self.source.exec("ls", "-A", "/tmp").stdout.split()]


@pytest.fixture(scope="module")
def ways(lab: Lab) -> Ways:
    node = lab.node("ways-source", fabric=True)
    lab.give_key(node)
    return Ways(lab, node)


@pytest.fixture(scope="module")
def target(lab: Lab) -> Node:
    return lab.node("ways-target", fabric=True)


@pytest.fixture(autouse=True)
def _nothing_is_left(ways: Ways) -> Iterator[None]:
    yield
    assert eventually(lambda: ways.left() == [], 5), ways.left()


def addresses(route: Route) -> list[str]:
    return [way.address for way in route.ways]


def test_a_host_keeps_the_key_it_verified_and_its_settings(lab: Lab, target: Node) -> None:
    seen = met(lab, target)
    assert " ".join(seen.host_keys[0]) == target.known_hosts_line.split(" ", 1)[1]
    assert seen.settings and (seen.settings.hostname, seen.settings.user) == (target.address, "root")


def test_fabric_and_management_address_both_answer(lab: Lab, ways: Ways, target: Node) -> None:
    found = ways.find(met(lab, target))[target.name]
    assert (addresses(found), found.notes, found.error) == ([target.fabric_address, target.address], (), None)


def test_the_command_line_of_a_way_runs_a_command_and_takes_an_aes_cipher(lab: Lab, ways: Ways, target: Node) -> None:
    seen = met(lab, target)
    seen = Peer(seen.worker, seen.settings, seen.host_keys, aes=True)
    fast = Peer(ways.peer.worker, ways.peer.settings, ways.peer.host_keys, aes=True)
    [way, _] = candidates(fast, seen).ways
    ways.source.write("/root/x/known_hosts", known_hosts([seen]))
    argv = [*ssh_argv(way, "/root/x"), "hostname"]
    assert ways.source.exec(*argv).stdout == f"{target.name}\n"
    said = ways.source.exec("ssh", "-v", "-o", "LogLevel=DEBUG", *argv[1:]).stderr
    assert "cipher: aes128-gcm@openssh.com" in said and "compression: none" in said


def test_a_black_holed_fabric_yields_to_the_management_address_in_time(lab: Lab, ways: Ways, target: Node) -> None:
    seen, other = met(lab, target), met(lab, ways.source)  # the source itself stands for a good target
    target.black_hole_fabric()
    try:
        began = time.monotonic()
        found = ways.find(seen, other)
        assert time.monotonic() - began < TIMES
    finally:
        target.black_hole_fabric(on=False)
    assert addresses(found[target.name]) == [target.address]
    [note] = found[target.name].notes
    assert f"fabric address {target.fabric_address} port 22 failed" in note and "timed out" in note
    assert len(found[other.worker.host].ways) == 2


def test_an_impostor_at_the_fabric_address_is_refused_before_it_is_logged_in_to(
    lab: Lab, ways: Ways, target: Node
) -> None:
    seen = met(lab, target)
    with lab.fabric_impostor(target) as impostor:
        impostor.configure(LogLevel="DEBUG1")
        found = ways.find(seen)[target.name]
        strict = ways.find(seen, require_fabric=True)[target.name]
        log, fingerprint = impostor.sshd.log.read_text(), impostor.host_key_fingerprint
    [note] = found.notes
    assert "ANOTHER machine" in note and fingerprint in note
    assert addresses(found) == [target.address]
    assert strict.ways == () and strict.error and str(target.fabric_address) in strict.error
    assert "Connection from" in log and "userauth-request for user" not in log


def test_a_node_without_the_key_says_which_file_is_missing(lab: Lab, ways: Ways, target: Node) -> None:
    ways.source.exec("mv", "/root/.ssh/id_ed25519", "/root/.ssh/kept")
    try:
        found = ways.find(met(lab, target))[target.name]
    finally:
        ways.source.exec("mv", "/root/.ssh/kept", "/root/.ssh/id_ed25519")
    assert found.error and "Permission denied" in found.error and "/root/.ssh/id_ed25519 not accessible" in found.error


def test_a_key_has_the_name_of_the_controllers(lab: Lab, ways: Ways, target: Node) -> None:
    name = lab.client_key.name
    plain = Peer(Worker("s", "/", Ssh("s")), ways.peer.settings, ways.peer.host_keys)
    seen = met(lab, target)
    ways.source.exec("mv", "/root/.ssh/id_ed25519", f"/root/.ssh/{name}")
    try:
        asked = candidates(plain, seen)
        with ways.host() as host:
            found = find_routes(host, [asked], known_hosts([seen]), Cancel())[target.name]
    finally:
        ways.source.exec("mv", f"/root/.ssh/{name}", "/root/.ssh/id_ed25519")
    assert asked.ways[0].key_file == f"~/.ssh/{name}" and found.error is None


@pytest.mark.parametrize("shell", ["/usr/bin/fish", "/bin/tcsh"])
def test_any_login_shell_on_both_sides(lab: Lab, shell: str) -> None:
    if not Path(shell).exists():
        pytest.skip(f"{shell} is not installed")
    name = Path(shell).name
    source, there = (lab.node(f"ways-{name}-{end}", fabric=True, shell=shell) for end in "st")
    lab.give_key(source)
    for each in (source, there):
        each.write("/root/.config/fish/config.fish", "echo noise\n")
    found = Ways(lab, source).find(met(lab, there))[there.name]
    assert len(found.ways) == 2 and not found.error and not found.notes


def test_a_port_of_its_own_holds_for_both_addresses(lab: Lab, ways: Ways) -> None:
    there = lab.node("ways-port", fabric=True, port=2222, host_key_types=("ed25519", "rsa"), banner="hello\n")
    found = ways.find(met(lab, there))[there.name]
    assert [(way.address, way.port) for way in found.ways] == [(there.fabric_address, 2222), (there.address, 2222)]


def test_a_login_that_ends_otherwise_is_an_error_of_that_target_alone(lab: Lab, ways: Ways, target: Node) -> None:
    there = lab.node("ways-forced", fabric=True)
    seen = met(lab, there)
    there.configure(ForceCommand="/bin/false")
    found = ways.find(seen, met(lab, target))
    assert found[there.name].error and "`true` ended with 1" in str(found[there.name].error)
    assert len(found[target.name].ways) == 2


def test_an_sshd_that_drops_logins_is_asked_again(lab: Lab, ways: Ways) -> None:
    there = lab.node("ways-busy", fabric=True, sshd={"MaxStartups": "2:100:2"})
    seen = met(lab, there)
    crowd = [socket.create_connection((there.address, 22)) for _ in range(2)]
    for each in crowd:
        each.recv(64)  # it counts against the limit now
    timer = threading.Timer(1.5, lambda: list(map(socket.socket.close, crowd)))
    timer.start()
    found = ways.find(seen)[there.name]
    timer.join()
    assert found.error is None and len(found.ways) == 2


def test_an_sshd_that_takes_two_logins_at_once_is_enough_for_many_targets(lab: Lab, ways: Ways) -> None:
    there = lab.node("ways-few", fabric=True, sshd={"MaxStartups": "2:100:2"})
    seen = met(lab, there)
    labels = [f"few-{number}" for number in range(8)]  # all of them are this node
    found = ways.find(*(replace(seen, worker=replace(seen.worker, host=label)) for label in labels))
    assert {label: (len(found[label].ways), found[label].error) for label in labels} == dict.fromkeys(labels, (2, None))
    assert "drop connection" in there.sshd.log.read_text() or "MaxStartups" in there.sshd.log.read_text()


def test_this_machine_is_a_source_with_the_key_that_it_logs_in_with(
    lab: Lab, target: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = Peer(Worker("ctrl", "/", Ssh("ctrl"), transport="local"))
    seen = met(lab, target, fabric_ip=None)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    [route] = find_routes(Local("ctrl", Cancel()), [candidates(here, seen)], known_hosts([seen]), Cancel()).values()
    assert addresses(route) == [target.address] and route.ways[0].key_file == str(lab.client_key)
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_while_a_way_hangs_leaves_nothing(lab: Lab, ways: Ways, target: Node) -> None:
    seen, cancel = met(lab, target), Cancel()
    target.black_hole_fabric()
    timer = threading.Timer(1.0, cancel.set)
    timer.start()
    try:
        began = time.monotonic()
        with pytest.raises(Cancelled):
            ways.find(seen, cancel=cancel)
        assert time.monotonic() - began < 3
        assert eventually(lambda: ways.left() == [], 5), ways.left()
    finally:
        timer.join()
        target.black_hole_fabric(on=False)
