"""Many jobs at once: nothing lost, nothing out of order, nobody stops anybody."""

import select
import signal
import threading
import time

import pytest

from fdl_tasks.errors import Cancelled
from fdl_tasks.hosts import fanout
from fdl_tasks.hosts.fanout import Cancel, fan_out


def test_every_label_has_one_outcome_in_the_order_given() -> None:
    delays = {"slow": 0.05, "quick": 0.0, "middle": 0.02}

    def job(label: str) -> str:
        time.sleep(delays[label])
        return label.upper()

    done = fan_out({label: lambda _, label=label: job(label) for label in delays})  # type: ignore[misc]
    assert [(attempt.host, attempt.value, attempt.error) for attempt in done] == [
        ("slow", "SLOW", None),
        ("quick", "QUICK", None),
        ("middle", "MIDDLE", None),
    ]


def test_one_failure_is_that_hosts_outcome_only() -> None:
    def fail(_: Cancel) -> int:
        raise ValueError("broken")

    bad, good = fan_out({"bad": fail, "good": lambda _: 1})
    assert isinstance(bad.error, ValueError)
    assert (good.value, good.error) == (1, None)


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()])
def test_a_job_that_ends_its_thread_has_an_outcome_too(error: BaseException) -> None:
    def leave(_: Cancel) -> int:
        raise error

    bad, good = fan_out({"bad": leave, "good": lambda _: 1}, width=1)
    assert type(error).__name__ in str(bad.error)
    assert good.value == 1


def test_ctrl_c_while_jobs_are_being_started_tells_those_that_run(monkeypatch: pytest.MonkeyPatch) -> None:
    start, ended = threading.Thread.start, threading.Event()

    def interrupted(thread: threading.Thread) -> None:
        if thread.name == "fdl-1":
            raise KeyboardInterrupt
        start(thread)

    def job(cancel: Cancel) -> None:
        if select.select([cancel.fd], [], [], 5)[0]:
            ended.set()

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fan_out({"a": job, "b": job})
    assert ended.wait(1)


@pytest.mark.parametrize("width", [1, 3])
def test_no_more_than_width_jobs_run_at_once(width: int) -> None:
    running, most, lock = 0, 0, threading.Lock()

    def job(_: Cancel) -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.01)
        with lock:
            running -= 1

    fan_out({str(n): job for n in range(9)}, width=width)
    assert most == width


def test_no_jobs_no_outcomes() -> None:
    assert fan_out({}) == []


def test_cancel_is_seen_by_whoever_waits_on_it() -> None:

    cancel = Cancel()
    cancel.check()
    assert select.select([cancel.fd], [], [], 0)[0] == []
    cancel.set()
    assert select.select([cancel.fd], [], [], 0)[0] == [cancel.fd]
    with pytest.raises(Cancelled):
        cancel.check()


def test_ctrl_c_tells_every_job_to_end_and_waits_for_it() -> None:
    ended: list[str] = []

    def job(cancel: Cancel, label: str) -> None:
        select.select([cancel.fd], [], [], 10)
        time.sleep(0.1)  # what a job needs to end what it started
        ended.append(label)

    threading.Timer(0.2, lambda: signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        fan_out({label: lambda cancel, label=label: job(cancel, label) for label in "abc"}, width=2)  # type: ignore[misc]
    assert sorted(ended) == ["a", "b"]


def test_a_job_that_does_not_end_does_not_hold_ctrl_c(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fanout, "LEAVE", 0.2)
    threading.Timer(0.1, lambda: signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)).start()
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        fan_out({"deaf": lambda _: time.sleep(3)})
    assert time.monotonic() - began < 1.5
