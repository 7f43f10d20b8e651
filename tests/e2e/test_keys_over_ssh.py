"""Logging in to real sshds with keys in every place where OpenSSH finds them, and the way there through jumps."""

import contextlib
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fdl_tasks.cluster.model import Ssh
from fdl_tasks.errors import Stage, TransportError
from fdl_tasks.hosts import ssh
from fdl_tasks.hosts.base import Completed
from fdl_tasks.hosts.fanout import Cancel
from fdl_tasks.hosts.ssh import SshHost
from fdl_tasks.scripts import Script
from tests.lab.lab import Lab
from tests.lab.node import Node

HELLO = Script("hello.sh", "echo hello\n#fdl\n")


@pytest.fixture
def node(lab: Lab) -> Node:
    return lab.nodes.get("keys") or lab.node("keys")


def options(lab: Lab, *own: str, but: tuple[str, ...] = ()) -> tuple[str, ...]:
    return (*own, *(option for option in lab.ssh_options() if not option.startswith(but)))


def run(lab: Lab, node: Node, notes: list[str] | None = None, **changes: Any) -> Completed:
    given = {"target": node.address, "port": node.port, "user": "root", "identity_file": str(lab.client_key)}
    how = Ssh(**{**given, "options": options(lab), **changes})
    with SshHost("w", how, Cancel(), (notes if notes is not None else []).append) as host:
        return host.run(HELLO, limit=20)


def fails(lab: Lab, node: Node, **changes: Any) -> TransportError:
    with pytest.raises(TransportError) as caught:
        run(lab, node, **changes)
    return caught.value


def copied(key: Path, to: Path, *, public: bool = True) -> Path:
    shutil.copy2(key, to)
    if public:
        shutil.copy2(f"{key}.pub", f"{to}.pub")
    return to


def test_a_certificate_beside_the_key_does_not_stop_the_key(lab: Lab, node: Node, tmp_path: Path) -> None:
    key, authority = copied(lab.client_key, tmp_path / "id"), tmp_path / "ca"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", authority], check=True)
    subprocess.run(["ssh-keygen", "-q", "-s", authority, "-I", "me", "-n", "root", f"{key}.pub"], check=True)
    assert run(lab, node, identity_file=str(key)).code == 0
    (tmp_path / "id-cert.pub").write_text("rubbish\n")
    assert run(lab, node, identity_file=str(key)).code == 0


def test_a_certificate_beside_the_key_is_used(lab: Lab, tmp_path: Path) -> None:
    key, authority = copied(lab.stranger_key, tmp_path / "id"), tmp_path / "ca"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", authority], check=True)
    subprocess.run(["ssh-keygen", "-q", "-s", authority, "-I", "me", "-n", "root", f"{key}.pub"], check=True)
    node = lab.node("certified", sshd={"TrustedUserCAKeys": "/lab/ca.pub"})
    node.write("/lab/ca.pub", Path(f"{authority}.pub").read_text())
    assert run(lab, node, identity_file=str(key)).code == 0


def test_the_agents_copy_is_found_by_whatever_half_of_the_key_is_here(lab: Lab, node: Node, tmp_path: Path) -> None:
    encrypted = copied(lab.encrypted_key, tmp_path / "encrypted", public=False)
    public = shutil.copy2(f"{lab.encrypted_key}.pub", tmp_path / "only.pub")
    with lab.agent() as agent:
        how = options(lab, f"IdentityAgent={agent}", but=("IdentityAgent",))
        assert run(lab, node, identity_file=str(encrypted), options=how).code == 0
        assert run(lab, node, identity_file=str(public), options=how).code == 0


def test_a_key_that_others_may_read_is_refused_as_ssh_does(lab: Lab, node: Node, tmp_path: Path) -> None:
    key = copied(lab.client_key, tmp_path / "id")
    key.chmod(0o644)
    error = fails(lab, node, identity_file=str(key))
    assert error.stage is Stage.AUTH
    assert f"{key}: others may read it" in str(error)


def test_tokens_and_variables_in_the_name_of_a_key(
    lab: Lab, node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied(lab.client_key, tmp_path / f"100% {node.address}")
    monkeypatch.setenv("KEYS_OF_MINE", str(tmp_path))
    named = 'IdentityFile="${KEYS_OF_MINE}/100%% %h"'
    assert run(lab, node, identity_file=None, options=options(lab, named)).code == 0


@contextlib.contextmanager
def agent_that_lists_and_never_signs(real: str, at: Path) -> Iterator[None]:
    def serve() -> None:
        with contextlib.suppress(OSError), listener.accept()[0] as asker, socket.socket(socket.AF_UNIX) as agent:
            agent.connect(real)
            while (asked := asker.recv(65536)) and asked[4] != 13:  # SSH2_AGENTC_SIGN_REQUEST
                agent.sendall(asked)
                asker.sendall(agent.recv(65536))
            time.sleep(5)

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(at))
        listener.listen()
        threading.Thread(target=serve, daemon=True).start()
        yield


@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_agent_that_does_not_sign_is_named(
    lab: Lab, node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ssh, "AUTH_LIMIT", 1.0)
    with lab.agent(lab.client_key) as real, agent_that_lists_and_never_signs(real, tmp_path / "agent"):
        error = fails(lab, node, options=options(lab, f"IdentityAgent={tmp_path}/agent", but=("IdentityAgent",)))
    assert error.stage is Stage.AUTH
    assert "by the agent: the agent gave no answer" in str(error)


def test_blanks_in_the_path_of_known_hosts(lab: Lab, node: Node, tmp_path: Path) -> None:
    (tmp_path / "a b").mkdir()
    (tmp_path / "a b" / "known").write_text(f"{node.known_hosts_line}\n")
    how = options(lab, f'UserKnownHostsFile="{tmp_path}/a b/known"', but=("UserKnownHostsFile",))
    assert run(lab, node, options=how).code == 0


def test_a_new_key_that_cannot_be_noted_down_is_told(lab: Lab, node: Node, tmp_path: Path) -> None:
    own = (f"UserKnownHostsFile={tmp_path}", "StrictHostKeyChecking=accept-new")
    notes: list[str] = []
    assert run(lab, node, notes, options=options(lab, *own, but=("UserKnownHostsFile",))).code == 0
    assert f"can't add it to {tmp_path}: Is a directory" in notes[0]


def test_a_short_rsa_host_key_is_refused_where_the_settings_ask_for_a_longer_one(lab: Lab) -> None:
    node = lab.node("short-rsa", host_key_types=("rsa",))
    assert run(lab, node).code == 0
    error = fails(lab, node, options=options(lab, "RequiredRSASize=8192"))
    assert (error.stage, "RequiredRSASize is 8192" in str(error)) == (Stage.HANDSHAKE, True)


def test_two_hops_in_order_each_with_the_users_options_and_no_question(
    lab: Lab, node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = lab.node("hop-1"), lab.node("hop-2")
    ask = tmp_path / "ask"
    ask.write_text(f"#!/bin/sh\necho \"$1\" >>'{tmp_path}/asked'\n")
    ask.chmod(0o700)
    monkeypatch.setenv("SSH_ASKPASS", str(ask))
    monkeypatch.setenv("DISPLAY", ":99")
    through = f"ProxyJump=root@{first.address},root@{second.address}"
    assert run(lab, node, options=options(lab, through)).code == 0
    first.swap_host_key()
    assert fails(lab, node, options=options(lab, through)).stage is Stage.CONNECT
    own = f"ProxyCommand=ssh -F /dev/null -o UserKnownHostsFile={tmp_path}/none -W %h:%p root@{second.address}"
    assert fails(lab, node, options=options(lab, own)).stage is Stage.CONNECT
    assert not (tmp_path / "asked").exists()


def test_a_jump_or_a_target_that_does_not_answer_is_a_failed_connect(
    lab: Lab, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    jump = lab.nodes.get("hop-3") or lab.node("hop-3")
    hole = fails(lab, node, options=options(lab, f"ProxyJump=root@{lab.black_hole}", "ConnectTimeout=1"))
    assert (hole.stage, "Connection timed out" in str(hole)) == (Stage.CONNECT, True)
    monkeypatch.setattr(ssh, "BANNER_LIMIT", 1.0)
    lost = fails(lab, node, target=lab.black_hole, options=options(lab, f"ProxyJump=root@{jump.address}"))
    assert (lost.stage, "through the proxy" in str(lost)) == (Stage.CONNECT, True)
