"""The data step with real mounts: sshfs from a node's sshd, its troubles, and what stays of it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from fdl_tasks.boxes.data import dataset as data
from fdl_tasks.boxes.data.dataset import prepare_data
from fdl_tasks.boxes.data.mounts import mounted_at, mounts
from fdl_tasks.boxes.tools import Tools
from fdl_tasks.cluster.model import Ssh
from fdl_tasks.errors import PermanentError, PrepareError, TransientError
from tests.boxes.one_step import ROOT, UNABLE_TO_MOUNT, command, outcome
from tests.lab.lab import Lab
from tests.lab.node import Node
from tests.lab.system import alive, run, wait_until


@pytest.fixture(scope="module")
def far(lab: Lab) -> Node:
    """The machine that has the data."""
    node = lab.node("far-data")
    node.write("/srv/data/part-0", "numbers")
    return node


@pytest.fixture
def ssh(lab: Lab) -> Ssh:
    return Ssh("", identity_file=str(lab.client_key), options=tuple(lab.ssh_options()))


@pytest.fixture
def at(tmp_path: Path) -> Iterator[Path]:
    """A mountpoint; whatever is mounted there goes with the test."""
    place = tmp_path / "data"
    yield place
    while mounted_at(place, mounts()):
        run("umount", "-l", place)
    for pid in holders(place):  # one whose mount was copied into somebody's mount namespace would stay
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def holders(at: Path) -> list[int]:
    """Every sshfs that serves ``at``, and its ssh."""
    mine = []
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            words = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
            if alive(int(folder.name)) and words[0] == "sshfs" and str(at) in words:
                mine.append(int(folder.name))
    return mine


def lookers(at: Path) -> str:
    """The processes that list ``at`` for a step."""
    return run("pgrep", "-f", f"listing.py {at}$", check=False).stdout


def readable(at: Path) -> bool:
    """Whether the data can be read: the first to ask after a connection was lost may get EIO."""
    with contextlib.suppress(OSError):
        return (at / "part-0").read_text() == "numbers"
    return False


def connections(node: Node) -> list[int]:
    """Every ssh of this machine that speaks sftp to the node."""
    found = run("pgrep", "-f", f"^ssh .*{node.address} sftp", check=False).stdout.split()
    return [int(pid) for pid in found]


def prepare(far: Node, ssh: Ssh, at: Path, path: str = "/srv/data") -> list[str]:
    notes: list[str] = []
    assert prepare_data(str(at), f"sshfs://root@{far.address}{path}", ssh, Tools("box"), notes.append) == at
    return notes


def failing(far: Node, ssh: Ssh, at: Path, path: str = "/srv/data") -> PrepareError:
    with pytest.raises(PrepareError) as caught:
        prepare(far, ssh, at, path)
    return caught.value


def call(far: Node, ssh: Ssh, at: Path, **more: object) -> dict[str, object]:
    """The same for a process of its own."""
    block = {"identity_file": ssh.identity_file, "options": list(ssh.options)}
    return {"path": str(at), "source": f"sshfs://root@{far.address}/srv/data", "ssh": block, **more}


@contextlib.contextmanager
def forced(far: Node, lab: Lab, command: str) -> Iterator[None]:
    """The key is good for one command only."""
    file = far.sshd.folder / "authorized_keys"
    before = file.read_text()
    file.write_text(f'command="{command}" {lab.client_key.with_suffix(".pub").read_text()}')
    try:
        yield
    finally:
        file.write_text(before)


def test_it_mounts_once_read_only_and_the_second_run_uses_that(far: Node, ssh: Ssh, at: Path) -> None:
    source = f"root@{far.address}:/srv/data"
    assert prepare(far, ssh, at) == [f"mounted {source} read-only at {at}"]
    assert (at / "part-0").read_text() == "numbers"
    with pytest.raises(OSError, match="Read-only file system"):
        (at / "new").write_text("x")
    first = holders(at)
    assert prepare(far, ssh, at) == [f"{at} is mounted already, from {source} (fuse.sshfs)"]
    assert holders(at) == first
    assert len(first) == 1


def test_the_daemon_has_a_session_of_its_own_and_holds_no_pipe(far: Node, ssh: Ssh, at: Path) -> None:
    prepare(far, ssh, at)
    (daemon,) = holders(at)
    assert os.getsid(daemon) == daemon
    for pid in (daemon, *connections(far)):
        held = [os.readlink(file) for file in Path(f"/proc/{pid}/fd").iterdir()]  # noqa: PTH115
        assert [name for name in held if name.startswith("pipe:")] == []


def test_it_finds_the_far_side_again_after_the_connection_was_lost(far: Node, ssh: Ssh, at: Path) -> None:
    prepare(far, ssh, at)
    far.kill_sessions()
    wait_until(lambda: readable(at), "sshfs reconnects")


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_the_mount_outlives_a_prepare_that_ends_badly_later(far: Node, ssh: Ssh, at: Path, end: signal.Signals) -> None:
    prepared = subprocess.Popen(
        command(**call(far, ssh, at, stay=True)),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        start_new_session=True,
    )
    assert prepared.stdout
    assert json.loads(prepared.stdout.readline())["class"] == ""
    os.killpg(prepared.pid, end)
    prepared.wait(10)
    assert prepared.stdout.read() == b""
    prepared.stdout.close()
    assert (at / "part-0").read_text() == "numbers"


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGKILL])
def test_an_end_while_sshfs_waits_leaves_no_process_and_no_half_mount(
    lab: Lab, ssh: Ssh, at: Path, far: Node, end: signal.Signals
) -> None:
    wanted = call(far, ssh, at) | {"source": f"sshfs://root@{lab.black_hole}/srv/data"}
    waiting = subprocess.Popen(
        command(**wanted),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    wait_until(lambda: bool(mounted_at(at, mounts())), "sshfs waits for the black hole", limit=20)
    time.sleep(0.3)
    began = time.monotonic()
    waiting.send_signal(end)
    waiting.wait(10)
    assert time.monotonic() - began < 2
    wait_until(lambda: not holders(at) and not mounted_at(at, mounts()), "all of it is gone", limit=3)
    assert run("pgrep", "-f", f"{lab.black_hole} sftp", check=False).stdout == ""


def test_a_foreign_mount_is_kept_with_two_notes(lab: Lab, far: Node, ssh: Ssh, at: Path) -> None:
    with lab.small_disk(at):
        first, second = prepare(far, ssh, at)
        assert holders(at) == []
    assert "from fdl-small (tmpfs)" in first
    assert f"not the configured root@{far.address}:/srv/data" in second
    assert "fusermount -u" in second


def test_another_directory_of_the_same_host_is_foreign_and_a_slash_at_the_end_is_not(
    far: Node, ssh: Ssh, at: Path
) -> None:
    prepare(far, ssh, at, "/srv/data/")
    assert len(prepare(far, ssh, at)) == 1
    assert "fusermount -u" in prepare(far, ssh, at, "/srv")[1]


def test_a_far_side_that_is_gone_is_transient_within_the_limit_and_the_stuck_child_ends_by_itself(
    far: Node, ssh: Ssh, at: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(far, replace(ssh, options=(*ssh.options, "ServerAliveInterval=2", "ServerAliveCountMax=1")), at)
    monkeypatch.setattr(data, "LISTING", 1.0)
    far.cut()
    try:
        began = time.monotonic()
        error = failing(far, ssh, at)
        assert time.monotonic() - began < 2.5
    finally:
        far.mend()
    assert isinstance(error, TransientError)
    assert "does not list within 1 s" in str(error)
    assert f"fusermount -u -z {at}" in str(error)
    wait_until(lambda: not lookers(at), "the child that was given up ends", limit=20)
    monkeypatch.setattr(data, "LISTING", 10.0)
    assert len(prepare(far, ssh, at)) == 1


def test_an_end_while_a_dead_mount_is_looked_at_takes_no_longer_than_any_other(far: Node, ssh: Ssh, at: Path) -> None:
    prepare(far, replace(ssh, options=(*ssh.options, "ServerAliveInterval=3", "ServerAliveCountMax=1")), at)
    far.cut()
    try:
        looking = subprocess.Popen(
            command(**call(far, ssh, at)),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        wait_until(lambda: bool(lookers(at)), "it looks")
        time.sleep(0.3)
        began = time.monotonic()
        looking.send_signal(signal.SIGINT)
        looking.wait(10)
        assert time.monotonic() - began < 2
    finally:
        far.mend()
    wait_until(lambda: not lookers(at), "the child that was given up ends", limit=20)


def test_a_daemon_that_was_killed_is_transient_until_its_mount_is_ended_as_told(far: Node, ssh: Ssh, at: Path) -> None:
    prepare(far, ssh, at)
    for pid in holders(at):
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not holders(at), "the daemon is gone")
    error = failing(far, ssh, at)
    assert isinstance(error, TransientError)
    assert "Transport endpoint is not connected" in str(error)
    told = str(error).rpartition("ended with: ")[2]
    assert told == f"fusermount -u {at}"
    run(*told.split())
    assert "mounted" in prepare(far, ssh, at)[0]


@pytest.mark.parametrize("command", ["/usr/sbin/nologin", "/bin/false", "rrsync -ro /srv"])
def test_a_key_that_may_not_use_sftp_is_transient_and_told_what_it_needs(
    lab: Lab, far: Node, ssh: Ssh, at: Path, command: str
) -> None:
    with forced(far, lab, command):
        error = failing(far, ssh, at)
    assert isinstance(error, TransientError)
    assert "internal-sftp -R" in str(error)
    assert "name only `data_path:`" in str(error)
    assert not mounted_at(at, mounts())


def test_a_key_that_is_guarded_as_told_mounts(lab: Lab, far: Node, ssh: Ssh, at: Path) -> None:
    with forced(far, lab, "internal-sftp -R"):
        assert len(prepare(far, ssh, at)) == 1
        assert (at / "part-0").read_text() == "numbers"


def test_a_forced_command_that_says_nothing_is_ended_in_time(
    lab: Lab, far: Node, ssh: Ssh, at: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data, "MOUNTING", 2.0)
    with forced(far, lab, "cat"):
        error = failing(far, ssh, at)
    assert isinstance(error, TransientError)
    assert "within 2 s" in str(error)
    wait_until(lambda: not holders(at) and not mounted_at(at, mounts()), "nothing is left")


def test_a_wrong_key_is_transient_with_sshs_own_words(lab: Lab, far: Node, ssh: Ssh, at: Path) -> None:
    error = failing(far, replace(ssh, identity_file=str(lab.stranger_key)), at)
    assert isinstance(error, TransientError)
    assert "Permission denied (publickey)" in str(error)
    assert not mounted_at(at, mounts())


def test_nobody_listening_is_transient(far: Node, ssh: Ssh, at: Path) -> None:
    far.stop_sshd()
    try:
        error = failing(far, ssh, at)
    finally:
        far.start_sshd()
    assert isinstance(error, TransientError)
    assert "Connection refused" in str(error)


@pytest.mark.parametrize(
    ("path", "words"), [("/srv/none", "No such file or directory"), ("/srv/data/part-0", "Not a directory")]
)
def test_a_far_directory_that_is_not_there_yet_is_transient(
    far: Node, ssh: Ssh, at: Path, path: str, words: str
) -> None:
    error = failing(far, ssh, at, path)
    assert isinstance(error, TransientError)
    assert f"{path}: {words}" in str(error)


def test_a_box_that_may_not_mount_is_permanent(far: Node, ssh: Ssh, at: Path) -> None:
    answer = outcome(*UNABLE_TO_MOUNT, **call(far, ssh, at))
    assert answer["class"] == "permanent"
    assert "Operation not permitted" in answer["message"]
    assert "--device /dev/fuse" in answer["message"]


def test_names_and_keys_and_options_of_any_shape_travel(
    lab: Lab, far: Node, ssh: Ssh, tmp_path: Path, at: Path
) -> None:
    key = tmp_path / "a key, of\\mine"
    key.write_bytes(lab.client_key.read_bytes())
    key.chmod(0o600)
    far.write("/srv/a, b c/x", "odd")
    options = (*ssh.options, "Ciphers=aes128-ctr,aes256-ctr", "HashKnownHosts no", "SendEnv A B")
    odd = replace(ssh, identity_file=str(key), options=options)
    place = at / "m, 'n"
    try:
        assert len(prepare(far, odd, place, "/srv/a, b c")) == 1
        assert len(prepare(far, odd, place, "/srv/a, b c")) == 1
        assert (place / "x").read_text() == "odd"
    finally:
        run("umount", "-l", place)
        for pid in holders(place):
            os.kill(pid, signal.SIGTERM)


def test_what_the_mount_hides_is_a_note(far: Node, ssh: Ssh, at: Path) -> None:
    at.mkdir()
    (at / "own").write_text("x")
    assert "is not empty" in prepare(far, ssh, at)[0]
    assert sorted(os.listdir(at)) == ["part-0"]  # noqa: PTH208


def test_a_pinned_host_key_holds_also_when_the_mount_reconnects(lab: Lab, far: Node, ssh: Ssh, at: Path) -> None:
    options = [option for option in ssh.options if "KnownHosts" not in option]
    pinned = replace(ssh, options=tuple(options), host_keys=(far.host_key_fingerprint,))
    prepare(far, pinned, at)
    far.kill_sessions()
    wait_until(lambda: readable(at), "sshfs reconnects")


def test_another_host_key_than_the_pinned_is_permanent_and_nothing_is_mounted(far: Node, ssh: Ssh, at: Path) -> None:
    error = failing(far, replace(ssh, host_keys=("SHA256:" + "A" * 43,)), at)
    assert isinstance(error, PermanentError)
    assert far.host_key_fingerprint in str(error)
    assert not mounted_at(at, mounts())
