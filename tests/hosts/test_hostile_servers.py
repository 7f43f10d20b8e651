"""Servers that stall, flood or refuse: each ends within its limit, at its own stage, and nothing is left."""

import threading
import time
from pathlib import Path

import pytest

from fdl_tasks.errors import Cancelled, Stage, TransportError
from fdl_tasks.hosts import ssh
from fdl_tasks.hosts.fanout import Cancel
from fdl_tasks.hosts.ssh import SshHost
from fdl_tasks.scripts import Script
from tests.hosts.hostile import hostile

pytestmark = pytest.mark.lab  # a network, be it loopback, and ssh -G
HELLO = Script("hello.sh", "echo hello\n#fdl\n")


@pytest.fixture(autouse=True)
def _short_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("BANNER_LIMIT", "HANDSHAKE_LIMIT", "AUTH_LIMIT", "CHANNEL_LIMIT"):
        monkeypatch.setattr(ssh, name, 0.7)


@pytest.mark.parametrize(
    ("way", "stage", "says"),
    [
        ("greets with a line that never ends", Stage.BANNER, "said nothing of ssh"),
        ("greets with lines without end", Stage.BANNER, ""),
        ("is silent after its greeting", Stage.HANDSHAKE, ""),
        ("never answers a login", Stage.AUTH, "had let nobody in after 0.7 s"),
        ("takes passwords only", Stage.AUTH, "the server takes only password"),
        ("never opens a session", Stage.CHANNEL, "started no script"),
        ("never starts a command", Stage.CHANNEL, "started no script"),
        ("refuses commands", Stage.CHANNEL, "started no script"),
        ("closes without an exit code", Stage.LOST, "without an exit code"),
    ],
)
def test_a_hostile_server_has_its_own_stage_and_a_limit(way: str, stage: Stage, says: str, tmp_path: Path) -> None:
    began = time.monotonic()
    with (
        hostile(way, tmp_path) as how,
        pytest.raises(TransportError) as caught,
        SshHost("w", how, Cancel(), print) as host,
    ):
        host.run(HELLO, limit=30)
    assert caught.value.stage is stage
    assert says in str(caught.value)
    assert time.monotonic() - began < 6


@pytest.mark.parametrize(
    "way", ["greets with a line that never ends", "is silent after its greeting", "never starts a command"]
)
def test_ctrl_c_ends_every_wait(way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("BANNER_LIMIT", "HANDSHAKE_LIMIT", "CHANNEL_LIMIT"):
        monkeypatch.setattr(ssh, name, 20.0)
    cancel = Cancel()
    threading.Timer(0.5, cancel.set).start()
    began = time.monotonic()
    with hostile(way, tmp_path) as how, pytest.raises(Cancelled), SshHost("w", how, cancel, print) as host:
        host.run(HELLO, limit=30)
    assert time.monotonic() - began < 2


def test_a_line_without_end_is_read_and_not_kept(tmp_path: Path) -> None:
    with hostile("prints a line without end", tmp_path) as how, SshHost("w", how, Cancel(), print) as host:
        lines: list[int] = []
        done = host.run(HELLO, limit=30, on_line=lambda _, line: lines.append(len(line)))
    assert (done.code, sum(lines)) == (0, 400 * 32768)
    assert len(done.out) <= 4 << 20


def test_a_listener_of_ours_that_fails_is_not_taken_for_a_lost_link(tmp_path: Path) -> None:
    def broken(stream: str, line: str) -> None:
        raise BrokenPipeError("our own stdout")

    way, ours = "prints a line without end", pytest.raises(BrokenPipeError, match="our own stdout")
    with hostile(way, tmp_path) as how, ours, SshHost("w", how, Cancel(), print) as host:
        host.run(HELLO, limit=30, on_line=broken)


def test_no_thread_outlives_its_host(tmp_path: Path) -> None:
    for way in ("refuses commands", "never answers a login", "is silent after its greeting"):
        before = _threads()
        with hostile(way, tmp_path) as how, pytest.raises(TransportError), SshHost("w", how, Cancel(), print) as host:
            host.run(HELLO, limit=30)
        end = time.monotonic() + 2
        while (left := _threads() - before) and time.monotonic() < end:
            time.sleep(0.05)
        assert left == set()


def _threads() -> set[threading.Thread]:
    """But for Paramiko's clock of the handshake, which runs out by itself."""
    return {thread for thread in threading.enumerate() if not isinstance(thread, threading.Timer)}
