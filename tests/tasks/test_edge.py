from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pytest
from invoke.context import Context
from invoke.exceptions import Exit

from fdl_tasks.errors import Cancelled, ConfigError, Fault, FdlError, Stage, TransportError, UsageError
from fdl_tasks.report.masking import Masker
from fdl_tasks.tasks.edge import edge

FAULTS = [Fault("c.yml", 3, "env", "unknown key"), Fault("c.yml", 9, "env", "wrong type")]


def ended(error: BaseException, secret: str = "") -> Exit:
    with pytest.raises(Exit) as caught, edge(Context()) as run:
        run.mask = Masker([secret])
        raise error
    return caught.value


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (FdlError("broke", where="a", hint="mend it", tail=["last"]), 1, "a: broke\n  | last\n  next: mend it"),
        (UsageError("what is that"), 2, "what is that"),
        (ConfigError("faults", faults=FAULTS), 2, "faults\n  c.yml:3: env: unknown key\n  c.yml:9: env: wrong type"),
        (TransportError(Stage.AUTH, "refused", where="node-a"), 1, "node-a: authentication: refused"),
        (Cancelled("ended by the user"), 130, "ended by the user"),
        (KeyboardInterrupt(), 130, "ended by Ctrl-C or a signal"),
        (FileNotFoundError(2, "No such file or directory", "/x/y"), 1, "/x/y: No such file or directory"),
        (Exit("the user's own", code=7), 7, "the user's own"),
    ],
)  # fmt: skip
def test_every_end_is_a_message_and_a_code(error: BaseException, code: int, message: str) -> None:
    exit_ = ended(error)
    assert (exit_.code, exit_.message) == (code, message)


def test_an_unexpected_error_is_one_line_that_says_where() -> None:
    exit_ = ended(ValueError("two\nlines"))
    assert exit_.code == 1
    assert exit_.message is not None
    assert exit_.message.startswith("a bug in fdl-tasks: ValueError: two lines (test_edge.py:")
    assert "\n" not in exit_.message
    assert "FDL_DEBUG=1" in exit_.message


@pytest.mark.parametrize("error", [UsageError("what is that"), ValueError("odd"), KeyboardInterrupt()])
def test_debug_shows_the_traceback(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    monkeypatch.setenv("FDL_DEBUG", "1")
    assert "Traceback (most recent call last)" in str(ended(error).message)


@pytest.mark.parametrize("debug", ["0", "1"])
def test_messages_are_masked_and_harmless(monkeypatch: pytest.MonkeyPatch, debug: str) -> None:
    monkeypatch.setenv("FDL_DEBUG", debug)
    exit_ = ended(FdlError("said hunter2hunter2", tail=["\x1b[2Jhunter2hunter2\x07"]), "hunter2hunter2")
    assert exit_.message is not None
    assert exit_.message.endswith("said ***\n  | ***")
    assert "hunter2" not in exit_.message


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_a_task_as_ctrl_c_does(number: signal.Signals) -> None:
    signal.signal(number, signal.SIG_DFL)  # under nohup, SIGHUP is ignored, and stays so
    with pytest.raises(Exit) as caught, edge(Context()):
        os.kill(os.getpid(), number)
        threading.Event().wait(5)
    assert caught.value.code == 130
    assert signal.getsignal(number) is signal.SIG_DFL


def test_a_handler_of_the_callers_is_left_alone() -> None:
    seen: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: seen.append(number))
    try:
        with edge(Context()):
            os.kill(os.getpid(), signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert seen == [signal.SIGTERM]


def test_a_task_may_run_in_a_thread() -> None:
    done: list[bool] = []

    def work() -> None:
        with edge(Context()):
            done.append(True)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert done == [True]


def test_the_file_is_the_flags_then_the_environments_then_the_configurations(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("flag", "environment", "configuration"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "cluster.yml").write_text("workers: []\n")
    from invoke.config import Config

    c = Context(Config({"fdl": {"cluster": str(tmp_path / "configuration" / "cluster.yml")}}))
    with edge(c) as run:
        assert run.cluster(None).file.parent.name == "configuration"
        monkeypatch.setenv("FDL_CLUSTER", str(tmp_path / "environment" / "cluster.yml"))
        assert run.cluster(None).file.parent.name == "environment"
        assert run.cluster(tmp_path / "flag" / "cluster.yml").file.parent.name == "flag"
