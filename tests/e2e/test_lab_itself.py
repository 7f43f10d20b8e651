"""The lab keeps its word: what the other tests stand on is tried here with plain programs."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.site import eventually
from tests.lab.lab import Lab
from tests.lab.node import Node
from tests.lab.system import run

pytestmark = pytest.mark.lab


def ssh(lab: Lab, node: Node, command: str, *, user: str = "root", key: Path | None = None, stdin: str = "") -> str:
    return run("ssh", *lab.ssh_argv(node, user=user, key=key), command, stdin=stdin).stdout


def refusal(lab: Lab, node: Node, *, user: str = "root", key: Path | None = None) -> str:
    done = run("ssh", *lab.ssh_argv(node, user=user, key=key), "echo ran", check=False)
    assert done.returncode == 255 and "ran" not in done.stdout
    return done.stderr


@pytest.fixture(scope="module")
def node(lab: Lab) -> Node:
    return lab.node("itself")


def test_three_nodes_answer_with_their_own_names(lab: Lab) -> None:
    three = [lab.node("one"), lab.node("two", port=2222), lab.node("three", fabric=True)]
    assert [ssh(lab, one, "hostname").strip() for one in three] == ["one", "two", "three"]


def test_a_shared_folder_has_another_path_on_each_node_and_one_content(lab: Lab, tmp_path: Path) -> None:
    near = lab.node("near", share={"/srv/mono": tmp_path})
    far = lab.node("far", share={"/mnt/nas/mono": tmp_path})
    ssh(lab, near, "echo hello >/srv/mono/note")
    assert ssh(lab, far, "cat /mnt/nas/mono/note") == "hello\n"
    assert (tmp_path / "note").read_text() == "hello\n"
    far.unmount("/mnt/nas/mono")
    assert ssh(lab, far, "ls /mnt/nas/mono") == ""


def test_a_stale_copy_stands_at_the_same_path(lab: Lab, tmp_path: Path) -> None:
    for name in ("new", "old"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "version").write_text(name)
    stale = lab.node("stale", share={"/srv/mono": tmp_path / "new"})
    stale.mount(tmp_path / "old", "/srv/mono", read_only=True)
    assert ssh(lab, stale, "cat /srv/mono/version") == "old"
    assert "Read-only" in ssh(lab, stale, "touch /srv/mono/x 2>&1 || :")


def test_what_a_node_writes_is_its_own(lab: Lab, node: Node) -> None:
    ssh(lab, node, "touch /tmp/mine /root/mine")
    assert node.path("/root/mine").exists() and node.path("/tmp/mine").exists()
    assert not Path("/root/mine").exists() and not Path("/tmp/mine").exists()
    assert ssh(lab, lab.node("other"), "ls /tmp /root").split() == ["/root:", "/tmp:"]


@pytest.mark.parametrize("user", ["lab", "lab-bash", "lab-dash", "lab-zsh", "lab-fish", "lab-tcsh", "lab-busybox"])
def test_every_login_shell_is_there_and_not_root(lab: Lab, node: Node, user: str) -> None:
    asked = "id -un; pwd; readlink /proc/self/exe; touch /usr/no >&/dev/null" if user == "lab-tcsh" else "id -un; pwd"
    name, home, *_ = ssh(lab, node, f"{asked}; true", user=user).splitlines()
    assert (name, home) == (user, f"/home/{user}")
    shell = node.exec("getent", "passwd", user).stdout.strip().rpartition(":")[2]
    assert shell == node.users[user]
    assert user == "lab" or node.exec("readlink", "-f", shell).stdout.strip().endswith(user.removeprefix("lab-"))


def test_root_may_have_another_login_shell(lab: Lab) -> None:
    fish = lab.node("fish", shell="/usr/bin/fish")
    assert ssh(lab, fish, "echo $FISH_VERSION").startswith("3.")


def test_an_impostor_is_noticed_and_the_true_key_known_again(lab: Lab, node: Node) -> None:
    true_print = node.host_key_fingerprint
    node.swap_host_key()
    try:
        assert "HOST IDENTIFICATION HAS CHANGED" in refusal(lab, node)
        assert node.host_key_fingerprint != true_print
    finally:
        node.restore_host_key()
    assert ssh(lab, node, "echo back") == "back\n"
    assert node.host_key_fingerprint == true_print and true_print.startswith("SHA256:")


def test_a_key_that_nobody_knows_is_refused(lab: Lab, node: Node) -> None:
    assert "Permission denied" in refusal(lab, node, key=lab.stranger_key)


def test_an_encrypted_key_works_only_through_the_agent(lab: Lab, node: Node) -> None:
    assert "Permission denied" in refusal(lab, node, key=lab.encrypted_key)
    with lab.agent() as agent:
        own = [*lab.ssh_argv(node, key=lab.encrypted_key)]
        argv = ["-o", f"IdentityAgent={agent}", *own]
        assert run("ssh", *argv, "echo in").stdout == "in\n"


def test_a_black_hole_keeps_who_connects_waiting(lab: Lab, node: Node) -> None:
    argv = node.enter("timeout", "4", "bash", "-c", f"exec 3<>/dev/tcp/{lab.black_hole}/22")
    with subprocess.Popen(argv) as from_a_node:  # 4 s: an address that merely nobody has fails after 3
        with pytest.raises(TimeoutError):
            socket.create_connection((lab.black_hole, 22), timeout=4)
        assert from_a_node.wait() == 124


def test_a_silent_listener_accepts_and_says_nothing(lab: Lab) -> None:
    with (
        lab.listener() as address,
        socket.create_connection(address, timeout=0.5) as silent,
        pytest.raises(TimeoutError),
    ):
        silent.recv(1)
    with (
        lab.listener(b"HTTP/1.1 400 Bad\r\n\r\n") as address,
        socket.create_connection(address, timeout=2) as connection,
    ):
        assert connection.recv(100).startswith(b"HTTP/1.1")


def test_a_stopped_sshd_refuses_and_starts_again(lab: Lab, node: Node) -> None:
    node.stop_sshd()
    assert "Connection refused" in refusal(lab, node)
    node.start_sshd()
    assert ssh(lab, node, "echo back") == "back\n"


@pytest.mark.parametrize("loss", [Node.kill_sessions, Node.cut])
def test_a_node_can_be_lost_in_the_middle(lab: Lab, loss: Callable[[Node], object]) -> None:
    lost = lab.node(f"lost-{loss.__name__.replace('_', '-')}")
    argv = ["-o", "ServerAliveInterval=1", "-o", "ServerAliveCountMax=1", *lab.ssh_argv(lost)]
    with subprocess.Popen(
        ["ssh", *argv, "echo up; exec sleep 60"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as client:
        assert client.stdout and client.stdout.readline() == b"up\n"
        assert eventually(lambda: "sleep 60" in lost.processes())
        loss(lost)
        assert client.wait(timeout=10) == 255
    lost.mend()
    assert ssh(lab, lost, "echo back") == "back\n"


def test_banner_noise_and_a_login_file_that_reads(lab: Lab) -> None:
    loud = lab.node("loud", banner="== keep out ==\n")
    loud.write("/root/.bashrc", 'echo noise; IFS= read -r eaten; echo "ate $eaten"\n')
    done = run("ssh", *lab.ssh_argv(loud), "cat", stdin="one\ntwo\n")
    assert done.stdout == "noise\nate one\ntwo\n" and "keep out" in done.stderr


def test_a_stand_in_comes_before_the_true_program(lab: Lab) -> None:
    foreign = lab.node("foreign")
    foreign.stand_in("uname", "#!/bin/sh\necho aarch64\n")
    assert ssh(lab, foreign, "uname -m") == ssh(lab, foreign, "uname -m", user="lab") == "aarch64\n"


def test_paths_can_be_unreadable_and_disks_full(lab: Lab, tmp_path: Path) -> None:
    poor = lab.node("poor")
    poor.exec("mkdir", "-m", "700", "/srv/secret")
    assert "Permission denied" in ssh(lab, poor, "ls /srv/secret 2>&1 || :", user="lab")
    poor.tmpfs("/srv/full", "64k")
    assert "No space left" in ssh(lab, poor, "head -c 100000 /dev/zero 2>&1 >/srv/full/x || :")
    with lab.small_disk(tmp_path / "full", "64k") as full, pytest.raises(OSError, match="No space left"):
        (full / "x").write_bytes(bytes(100_000))


def test_a_server_with_few_startups_drops_connections(lab: Lab) -> None:
    busy = lab.node("busy", sshd={"MaxStartups": "1:100:1"})
    with socket.create_connection((busy.address, busy.port)) as waiting:
        assert waiting.recv(4) == b"SSH-"
        assert refusal(lab, busy)


def test_nodes_speak_to_each_other_on_both_networks(lab: Lab) -> None:
    left, right = lab.node("left", fabric=True), lab.node("right", fabric=True)
    reach = ["bash", "-c", 'exec 3<>"/dev/tcp/$1/22" && head -c 4 <&3', "bash"]
    assert right.fabric_address
    for address in (right.address, right.fabric_address):
        assert left.exec("timeout", "5", *reach, address).stdout == "SSH-"
    right.cut_fabric()
    assert left.exec("timeout", "0.5", *reach, right.fabric_address, check=False).returncode == 124
    right.mend_fabric()
    assert left.exec("timeout", "5", *reach, right.fabric_address).stdout == "SSH-"


def test_a_fabric_address_may_hang_or_be_another_nodes(lab: Lab) -> None:
    near, far = lab.node("fabric-near", fabric=True), lab.node("fabric-far", fabric=True)
    lab.give_key(near)
    options = ["-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=accept-new", "-o", "HostKeyAlias=far"]

    def reach(address: str | None) -> str:
        done = near.exec("timeout", "2", "ssh", *options, f"root@{address}", "hostname", check=False)
        return done.stdout.strip() or done.stderr or f"ended with {done.returncode}"

    assert reach(far.fabric_address) == "fabric-far"
    with lab.fabric_impostor(far) as impostor:
        assert impostor.host_key_fingerprint in reach(far.fabric_address)
        assert reach(far.address) == "fabric-far"
    far.black_hole_fabric()
    assert reach(far.fabric_address) == "ended with 124"
    far.black_hole_fabric(on=False)
    assert reach(far.fabric_address) == "fabric-far"


def test_a_node_starts_in_well_under_a_second(lab: Lab) -> None:
    started = time.monotonic()
    lab.node("quick")
    assert time.monotonic() - started < 2
