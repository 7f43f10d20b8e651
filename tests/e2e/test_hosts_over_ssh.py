"""Scripts on real nodes over real sshd: every way in, every way it can fail, and nothing left behind."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from fdl_tasks.cluster.model import Ssh
from fdl_tasks.errors import Cancelled, ScriptError, Stage, TransportError
from fdl_tasks.hosts import follow, ssh
from fdl_tasks.hosts.base import Completed
from fdl_tasks.hosts.fanout import Cancel, fan_out
from fdl_tasks.hosts.ssh import SshHost
from fdl_tasks.scripts import Script
from tests.e2e.site import eventually
from tests.lab.lab import Lab
from tests.lab.node import Node

ROOT = Path(__file__).parents[2]
HELLO = Script("hello.sh", "echo hello; echo to-err >&2; exit 3\n#fdl\n")
MARK = Script("mark.sh", "touch /root/ran\n#fdl\n")


@pytest.fixture
def node(lab: Lab) -> Node:
    return lab.node(f"h{len(lab.nodes)}")


def settings(lab: Lab, node: Node, **changes: Any) -> Ssh:
    given: dict[str, Any] = {
        "target": node.address,
        "port": node.port,
        "user": "root",
        "identity_file": str(lab.client_key),
        "options": tuple(lab.ssh_options()),
    }
    return Ssh(**given | changes)


def run(how: Ssh, script: Script = HELLO, *, limit: float = 20, notes: list[str] | None = None) -> Completed:
    said = notes if notes is not None else []
    with SshHost("w", how, Cancel(), said.append) as host:
        return host.run(script, limit=limit)


def fails(how: Ssh, script: Script = MARK, *, limit: float = 20) -> TransportError:
    with pytest.raises(TransportError) as caught:
        run(how, script, limit=limit)
    assert caught.value.where == "w"
    return caught.value


def once(node: Node, runs: str, then: Callable[[], object]) -> None:
    """Does it as soon as that runs on the node."""

    def wait() -> None:
        if eventually(lambda: runs in node.processes(), 30):
            then()

    threading.Thread(target=wait).start()


def without(lab: Lab, *starts: str) -> tuple[str, ...]:
    return tuple(option for option in lab.ssh_options() if not option.startswith(starts))


def test_output_and_exit_code_come_back(lab: Lab, node: Node) -> None:
    done = run(settings(lab, node))
    assert (done.code, done.out, done.err) == (3, "hello\n", "to-err\n")
    assert eventually(lambda: node.processes() == [])


@pytest.mark.parametrize("user", ["lab", "lab-dash", "lab-zsh", "lab-fish", "lab-tcsh", "lab-busybox"])
def test_any_login_shell_runs_the_same_script(lab: Lab, user: str) -> None:
    node = lab.nodes.get("shells") or lab.node("shells")
    text = 'it\'s $HOME \\ "x" `id` !! é\ttab'
    script = Script("t.sh", f"cat <<'E'\n{text}\nE\n[ -t 0 ] || echo no-tty; exit 5\n#fdl\n")
    done = run(settings(lab, node, user=user), script)
    assert (done.code, done.out, done.err) == (5, f"{text}\nno-tty\n", "")
    assert eventually(lambda: node.processes() == [])


@pytest.mark.parametrize("user", ["lab", "lab-fish", "lab-tcsh"])
def test_what_is_left_running_dies_with_the_limit(lab: Lab, user: str) -> None:
    node = lab.nodes.get("shells") or lab.node("shells")
    script = Script("t.sh", "sleep 7401 & trap '' TERM; sleep 7401; sleep 7401\n#fdl\n")
    error = fails(settings(lab, node, user=user), script, limit=1)
    assert error.stage is Stage.DEADLINE
    assert eventually(lambda: node.processes() == [])


def test_banner_and_noisy_start_up_files_do_not_show(lab: Lab) -> None:
    node = lab.node("noisy", banner="AUTHORISED USE ONLY\n")
    node.write("/root/.bashrc", "echo noise; echo noise >&2; printf 'no newline'\n")
    done = run(settings(lab, node))
    assert (done.out, done.err) == ("hello\n", "to-err\n")


def test_a_bashrc_that_reads_a_line_of_stdin_is_an_error_and_nothing_runs(lab: Lab, node: Node) -> None:
    node.write("/root/.bashrc", "read -r line\n")
    with pytest.raises(ScriptError, match="reads stdin"):
        run(settings(lab, node), MARK)
    assert node.exec("ls", "/root").stdout.split() == []


def test_a_bashrc_that_swallows_stdin_is_named_after_its_own_limit(
    lab: Lab, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow, "START_LIMIT", 1.5)
    node.write("/root/.bashrc", "cat >/dev/null\n")
    error = fails(settings(lab, node), limit=60)
    assert "had not started the script" in str(error)
    assert eventually(lambda: node.processes() == [])


def test_a_login_that_is_not_allowed_shows_what_it_said(lab: Lab) -> None:
    node = lab.node("nologin", shell="/usr/sbin/nologin")
    with pytest.raises(ScriptError, match=r"before it started the script\n.*not available"):
        run(settings(lab, node))


def test_an_unknown_key_is_refused_by_default_and_nothing_runs(lab: Lab, node: Node, tmp_path: Path) -> None:
    options = (f"UserKnownHostsFile={tmp_path}/none", *without(lab, "UserKnownHostsFile"))
    error = fails(settings(lab, node, options=options))
    assert error.stage is Stage.KEY_UNKNOWN
    assert node.host_key_fingerprint in str(error)
    assert node.exec("ls", "/root").stdout.split() == []


def test_accept_new_adds_the_key_and_then_refuses_another(lab: Lab, node: Node, tmp_path: Path) -> None:
    known = tmp_path / "dir" / "known_hosts"
    options = (
        f"UserKnownHostsFile={known}",
        "StrictHostKeyChecking=accept-new",
        "HashKnownHosts=no",
        *without(lab, "UserKnownHostsFile"),
    )
    notes: list[str] = []
    assert run(settings(lab, node, options=options), notes=notes).code == 3
    assert known.stat().st_mode & 0o777 == 0o600
    assert node.address in known.read_text()
    assert len(notes) == 1
    notes.clear()
    run(settings(lab, node, options=options), notes=notes)
    assert notes == []
    node.swap_host_key()
    assert fails(settings(lab, node, options=options)).stage is Stage.KEY_CHANGED
    assert node.exec("ls", "/root").stdout.split() == []


def test_a_changed_key_is_an_error_and_nothing_runs(lab: Lab, node: Node) -> None:
    node.swap_host_key()
    error = fails(settings(lab, node))
    assert error.stage is Stage.KEY_CHANGED
    assert "ssh-keygen -R" in str(error)
    assert node.exec("ls", "/root").stdout.split() == []


def test_a_pin_decides_alone(lab: Lab, node: Node, tmp_path: Path) -> None:
    no_files = (f"UserKnownHostsFile={tmp_path}/none", *without(lab, "UserKnownHostsFile"))
    pinned = settings(lab, node, options=no_files, host_keys=("SHA256:" + "A" * 43, node.host_key_fingerprint))
    assert run(pinned).code == 3
    wrong = settings(lab, node, host_keys=("SHA256:" + "A" * 43,))
    error = fails(wrong)
    assert error.stage is Stage.KEY_CHANGED
    assert node.exec("ls", "/root").stdout.split() == []


def test_checking_turned_off_is_honoured_with_a_loud_note(lab: Lab, node: Node) -> None:
    node.swap_host_key()
    notes: list[str] = []
    done = run(settings(lab, node, options=("StrictHostKeyChecking=no", *lab.ssh_options())), notes=notes)
    assert done.code == 3
    assert "NOT checked" in notes[0]


def test_a_revoked_key_or_an_authority_is_named(lab: Lab, node: Node, tmp_path: Path) -> None:
    known = tmp_path / "known_hosts"
    for marker in ("@revoked", "@cert-authority"):
        known.write_text(f"{marker} {node.known_hosts_line}\n")
        options = (f"UserKnownHostsFile={known}", *without(lab, "UserKnownHostsFile"))
        error = fails(settings(lab, node, options=options))
        assert error.stage is Stage.SETTINGS
        assert f"{known}:1 has {marker}" in str(error)


def test_the_type_of_the_known_key_is_asked_for(lab: Lab, tmp_path: Path) -> None:
    node = lab.node("two-keys", host_key_types=("ed25519", "rsa"))
    rsa = next((node.dir).rglob("*rsa*.pub"), None)
    assert rsa
    known = tmp_path / "known_hosts"
    known.write_text(f"{node.address} {' '.join(rsa.read_text().split()[:2])}\n")
    options = (f"UserKnownHostsFile={known}", *without(lab, "UserKnownHostsFile"))
    assert run(settings(lab, node, options=options)).code == 3


def test_hashed_and_wildcard_lines_of_known_hosts_count(lab: Lab, node: Node, tmp_path: Path) -> None:
    key = " ".join(node.known_hosts_line.split()[1:3])
    for name, hashed in ((node.address, True), (f"{node.address[:-1]}?", False)):
        known = tmp_path / "known_hosts"
        known.write_text(f"{name} {key}\n")
        if hashed:
            subprocess.run(["ssh-keygen", "-H", "-f", known], check=True, capture_output=True)
        options = (f"UserKnownHostsFile={known}", *without(lab, "UserKnownHostsFile"))
        assert run(settings(lab, node, options=options)).code == 3


def test_a_refused_key_and_an_encrypted_one_are_named(lab: Lab, node: Node) -> None:
    refused = fails(settings(lab, node, identity_file=str(lab.stranger_key)))
    assert refused.stage is Stage.AUTH
    assert f"{lab.stranger_key}: refused" in str(refused)
    missing = fails(settings(lab, node, identity_file=f"{lab.stranger_key}-not"))
    assert f"identity_file {lab.stranger_key}-not is not there" in str(missing)
    locked = fails(settings(lab, node, identity_file=str(lab.encrypted_key)))
    assert locked.stage is Stage.AUTH
    assert f"{lab.encrypted_key}: is encrypted, and no agent holds it" in str(locked)


def test_an_encrypted_key_works_through_the_agent(lab: Lab, node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    with lab.agent() as socket_path:
        how = settings(lab, node, identity_file=str(lab.encrypted_key), options=without(lab, "IdentityAgent"))
        monkeypatch.setenv("SSH_AUTH_SOCK", str(socket_path))
        assert run(how).code == 3
        named = (f"IdentityAgent={socket_path}", *without(lab, "IdentityAgent"))
        monkeypatch.delenv("SSH_AUTH_SOCK")
        assert run(settings(lab, node, identity_file=str(lab.encrypted_key), options=named)).code == 3


def test_connection_refused_and_a_name_that_does_not_exist(lab: Lab, node: Node) -> None:
    node.stop_sshd()
    refused = fails(settings(lab, node))
    assert (refused.stage, "Connection refused" in str(refused)) == (Stage.CONNECT, True)
    nowhere = fails(settings(lab, node, target="no-such-host.invalid"))
    assert (nowhere.stage, "no-such-host.invalid" in str(nowhere)) == (Stage.CONNECT, True)


def test_a_black_hole_ends_with_the_connect_limit(lab: Lab, node: Node) -> None:
    began = time.monotonic()
    error = fails(settings(lab, node, target=lab.black_hole, options=("ConnectTimeout=1", *lab.ssh_options())))
    assert error.stage is Stage.CONNECT
    assert "no answer in 1 s" in str(error)
    assert time.monotonic() - began < 3


def test_a_listener_that_never_speaks_ends_with_the_banner_limit(
    lab: Lab, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ssh, "BANNER_LIMIT", 1.0)
    with lab.listener() as (address, port):
        error = fails(settings(lab, node, target=address, port=port))
    assert error.stage is Stage.BANNER
    assert "said nothing of ssh for 1 s" in str(error)


def test_something_that_is_no_sshd_is_not_taken_for_one(lab: Lab, node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ssh, "BANNER_LIMIT", 1.0)
    with lab.listener(says=b"HTTP/1.1 400 Bad Request\r\n\r\n") as (address, port):
        error = fails(settings(lab, node, target=address, port=port))
    assert error.stage in (Stage.BANNER, Stage.HANDSHAKE)


def test_a_node_lost_in_the_middle_is_lost_and_not_an_exit_code(lab: Lab, node: Node) -> None:
    once(node, "sleep 7402", node.kill_sessions)
    error = fails(settings(lab, node), Script("t.sh", "sleep 7402\n#fdl\n"))
    assert error.stage is Stage.LOST
    assert eventually(lambda: node.processes() == [])


def test_output_that_is_cut_off_is_lost_too(lab: Lab, node: Node) -> None:
    once(node, "sleep 7403", node.kill_sessions)
    error = fails(settings(lab, node), Script("t.sh", "echo __FLODL_DP_DIR__=1; sleep 7403; echo never\n#fdl\n"))
    assert error.stage is Stage.LOST


def test_a_node_whose_cable_is_out_is_noticed(lab: Lab, node: Node) -> None:
    once(node, "sleep 7404", node.cut)
    options = ("ServerAliveInterval=1", "ServerAliveCountMax=2", *lab.ssh_options())
    began = time.monotonic()
    error = fails(settings(lab, node, options=options), Script("t.sh", "sleep 7404\n#fdl\n"), limit=60)
    assert error.stage is Stage.LOST
    assert time.monotonic() - began < 15


def test_a_jump_is_openssh_s_own(lab: Lab, tmp_path: Path) -> None:
    jump, inner = lab.node("jump"), lab.node("inner")
    options = (f"ProxyJump=root@{jump.address}:{jump.port}", *lab.ssh_options())
    done = run(settings(lab, inner, options=options), Script("t.sh", "echo $SSH_CLIENT\n#fdl\n"))
    assert done.out.split()[0] == jump.address
    assert eventually(lambda: jump.processes() == [] and inner.processes() == [])
    jump.swap_host_key()
    error = fails(settings(lab, inner, options=options))
    assert error.stage is Stage.CONNECT
    assert "Host key verification failed" in str(error)


def test_many_labels_behind_an_sshd_that_drops_connections(lab: Lab) -> None:
    node = lab.node("dropping", sshd={"MaxStartups": "2:100:2"})

    def job(cancel: Cancel) -> int:
        with SshHost("w", settings(lab, node), cancel, print) as host:
            return host.run(HELLO, limit=20).code

    done = fan_out({str(n): job for n in range(16)})
    assert [attempt.value for attempt in done] == [3] * 16, [str(a.error) for a in done if a.error]


@pytest.mark.parametrize(("sessions", "overlap"), [("1", False), ("2", True), ("10", True)])
def test_scripts_run_side_by_side_where_sshd_grants_it_and_else_in_turn(lab: Lab, sessions: str, overlap: bool) -> None:
    node = lab.node(f"sessions-{sessions}", sshd={"MaxSessions": sessions})
    script = Script("span.sh", "date +%s%N; sleep 0.3; date +%s%N\n#fdl\n")
    with SshHost("w", settings(lab, node), Cancel(), print) as host:
        done = fan_out({str(n): lambda cancel: host.run(script, limit=20).out.split() for n in range(8)})
    spans = sorted(attempt.value for attempt in done if attempt.value)
    assert len(spans) == 8, [str(attempt.error) for attempt in done]
    assert any(after[0] < before[1] for before, after in pairwise(spans)) is overlap


def test_one_that_waits_for_its_turn_ends_with_the_run(lab: Lab) -> None:
    node, cancel = lab.node("sessions-none", sshd={"MaxSessions": "1"}), Cancel()
    with SshHost("w", settings(lab, node), cancel, print) as host:

        def job(cancel: Cancel) -> Completed:
            return host.run(Script("t.sh", "sleep 7411\n#fdl\n"), limit=60)

        threading.Timer(2, cancel.set).start()
        began = time.monotonic()
        done = fan_out({"first": job, "second": job}, cancel=cancel)
    assert [type(attempt.error) for attempt in done] == [Cancelled, Cancelled]
    assert time.monotonic() - began < 5
    assert eventually(lambda: node.processes() == [])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_nothing_runs_on_after_this_process_is_gone(lab: Lab, node: Node, number: signal.Signals) -> None:
    code = f"""
from fdl_tasks.cluster.model import Ssh
from fdl_tasks.hosts.fanout import fan_out
from fdl_tasks.hosts.ssh import SshHost
from fdl_tasks.scripts import Script
def job(cancel):
    with SshHost("w", {settings(lab, node)!r}, cancel, print) as host:
        host.run(Script("t", "echo up; sleep 7405\\n#fdl\\n"), limit=60, on_line=lambda s, l: print(l, flush=True))
fan_out({{str(n): job for n in range(3)}})
"""
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    ) as process:
        assert process.stdout
        assert [process.stdout.readline() for _ in range(3)] == [b"up\n"] * 3
        began = time.monotonic()
        process.send_signal(number)
        process.wait(5)
        assert time.monotonic() - began < 2
    assert eventually(lambda: node.processes() == [])
