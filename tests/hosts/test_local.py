"""Scripts on this machine, through the real bootstrap and a real shell."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fdl_tasks.errors import Cancelled, ScriptError, Stage, TransportError
from fdl_tasks.hosts import follow
from fdl_tasks.hosts.base import Completed
from fdl_tasks.hosts.fanout import Cancel
from fdl_tasks.hosts.local import Local, bootstrap
from fdl_tasks.scripts import Script

pytestmark = pytest.mark.subprocess


def run(text: str, *, limit: float = 10, cancel: Cancel | None = None) -> Completed:
    return Local("here", cancel or Cancel()).run(Script("t.sh", f"{text}\n#fdl\n"), limit=limit)


def alive(mark: str) -> bool:
    return any(mark in _command(pid) for pid in Path("/proc").iterdir() if pid.name.isdigit())


def _command(pid: Path) -> str:
    try:
        return (pid / "cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


def gone(mark: str, seconds: float = 2.5) -> bool:
    end = time.monotonic() + seconds
    while alive(mark) and time.monotonic() < end:
        time.sleep(0.05)
    return not alive(mark)


def test_both_streams_and_the_exit_code_come_back() -> None:
    done = run("echo out; echo err >&2; exit 3")
    assert (done.code, done.out, done.err) == (3, "out\n", "err\n")


def test_stdin_is_at_its_end() -> None:
    assert run("read -r x || echo eof").out == "eof\n"


def test_a_signal_inside_is_a_code_over_128() -> None:
    assert run("sh -c 'kill -9 $$'").code == 137


@pytest.mark.parametrize("size", [100, 70_000, 1_500_000])
def test_a_script_of_any_size_arrives_whole(size: int) -> None:
    assert run(f"x={'a' * size}\necho ${{#x}}").out == f"{size}\n"


def test_output_of_any_size_on_both_streams_at_once() -> None:
    done = run("head -c 3000000 /dev/zero | tr '\\0' x & head -c 3000000 /dev/zero | tr '\\0' y >&2; wait")
    assert (len(done.out), len(done.err)) == (3_000_000, 3_000_000)


def test_a_script_that_is_cut_is_not_run() -> None:
    cut = subprocess.run(["sh", "-c", bootstrap()], input=b"100\necho ran\n", capture_output=True)
    assert cut.returncode == 97
    assert b"ran" not in cut.stdout


def test_a_script_without_its_last_line_is_refused_with_its_own_error() -> None:
    with pytest.raises(ScriptError, match="did not arrive whole"):
        Local("here", Cancel()).run(Script("t.sh", "echo ran\n"), limit=5)


def test_the_limit_ends_everything_the_script_started() -> None:
    began = time.monotonic()
    with pytest.raises(TransportError) as caught:
        run("sleep 7301 & trap '' TERM; sleep 7301; sleep 7301", limit=0.3)
    assert caught.value.stage is Stage.DEADLINE
    assert time.monotonic() - began < 2
    assert gone("sleep 7301")


def test_the_limit_leaves_time_for_the_scripts_own_traps(tmp_path: Path) -> None:
    made = tmp_path / "made"
    with pytest.raises(TransportError):
        run(
            f"mkdir '{made}'; trap 'sleep 0.2; rmdir \"{made}\"' EXIT; trap 'exit 1' TERM; sleep 7305 & wait", limit=0.3
        )
    assert not made.exists()


def test_a_login_that_never_starts_the_script_has_its_own_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "START_LIMIT", 0.2)
    monkeypatch.setattr("fdl_tasks.hosts.local.bootstrap", lambda: "sleep 7302")
    with pytest.raises(TransportError, match=r"had not started the script after 0\.2 s"):
        run("echo hi")
    assert gone("sleep 7302")


def test_cancel_ends_a_running_script() -> None:
    import threading

    cancel = Cancel()
    threading.Timer(0.2, cancel.set).start()
    with pytest.raises(Cancelled):
        run("sleep 7303", cancel=cancel)
    assert gone("sleep 7303")


def test_a_killed_script_has_the_code_of_its_signal() -> None:
    assert run("kill -KILL 0").code == 137


def test_given_file_descriptors_reach_that_script_and_no_other() -> None:
    reader, writer = os.pipe()
    number = os.dup2(reader, 57, inheritable=False)
    os.write(writer, b"given")
    show = Script("t.sh", f"cat /proc/self/fd/{number} || echo none\n#fdl\n")
    os.close(writer)
    assert Local("other", Cancel()).run(show, limit=10).out == "none\n"
    assert Local("here", Cancel(), fds=(number,)).run(show, limit=10).out == "given"
    for fd in (reader, number):
        os.close(fd)


def test_a_child_left_behind_does_not_hold_the_run() -> None:
    began = time.monotonic()
    assert run("sleep 3 & echo hi").out == "hi\n"
    assert time.monotonic() - began < 2


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_the_script_dies_with_this_process(number: signal.Signals) -> None:
    code = (
        "from fdl_tasks.hosts.local import Local; from fdl_tasks.hosts.fanout import Cancel\n"
        "from fdl_tasks.scripts import Script\n"
        "Local('here', Cancel()).run(Script('t', 'echo up >&2; sleep 7304\\n#fdl\\n'), limit=60,"
        " on_line=lambda s, l: print(l, flush=True))"
    )
    env = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, env=env) as process:
        assert process.stdout
        assert process.stdout.readline() == b"up\n"
        assert alive("sleep 7304")
        process.send_signal(number)
    assert gone("sleep 7304")
