"""Many jobs at once: nothing lost, nothing out of order, nobody stops anybody."""

import threading
import time

import pytest

from fdl_tasks.errors import Cancelled
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
    import select

    cancel = Cancel()
    cancel.check()
    assert select.select([cancel.fd], [], [], 0)[0] == []
    cancel.set()
    assert select.select([cancel.fd], [], [], 0)[0] == [cancel.fd]
    with pytest.raises(Cancelled):
        cancel.check()
