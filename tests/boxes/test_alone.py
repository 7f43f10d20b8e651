"""One ``prepare`` at a time on a box."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from fdl_tasks.boxes.pipeline import alone_on_box
from fdl_tasks.errors import Cancelled
from fdl_tasks.hosts.fanout import Cancel

HOLD = """
import sys
from pathlib import Path
from fdl_tasks.boxes.pipeline import alone_on_box
from fdl_tasks.hosts.fanout import Cancel
with alone_on_box(Path(sys.argv[1]), Cancel(), print):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def other(tmp_path: Path) -> "subprocess.Popen[str]":
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, tmp_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout and process.stdout.readline() == "held\n"
    return process


@pytest.mark.subprocess
@pytest.mark.parametrize("end", ["in order", "killed"])
def test_a_second_run_waits_and_says_for_what(tmp_path: Path, other: "subprocess.Popen[str]", end: str) -> None:
    notes: list[str] = []

    def note(text: str) -> None:
        notes.append(text)
        other.kill() if end == "killed" else other.communicate()

    with alone_on_box(tmp_path, Cancel(), note):
        assert (tmp_path / ".prepare.lock-holder").exists()
    assert notes == [
        f"waiting for process {other.pid} on {socket.gethostname()}, which prepares this box ({tmp_path}/.prepare.lock)"
    ]
    assert not (tmp_path / ".prepare.lock-holder").exists()
    other.communicate()


@pytest.mark.subprocess
def test_waiting_ends_with_the_run(tmp_path: Path, other: "subprocess.Popen[str]") -> None:
    cancel = Cancel()
    with pytest.raises(Cancelled), alone_on_box(tmp_path, cancel, lambda text: cancel.set()):
        raise AssertionError("the other one still has it")
    other.communicate()


def test_a_box_without_a_place_for_the_lock_goes_on(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    entered = list[str]()
    for root in (None, tmp_path / "file" / "below"):
        with alone_on_box(root, Cancel(), entered.append):
            entered.append("inside")
    assert entered == ["inside", "inside"]
