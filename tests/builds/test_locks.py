"""One run at a time in a target directory: in order, told, and free again however a run ends."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
from filelock import FileLock

from fdl_tasks.builds import locks
from fdl_tasks.builds.plan import Job
from fdl_tasks.cluster.model import Command
from fdl_tasks.outcome import Event, Kind

HOLDER = ".fdl-lock-holder"


@pytest.fixture
def jobs(tmp_path: Path) -> dict[str, Job]:
    one = {host: Job(host, Command("x"), "cpu", tmp_path, "", "/l") for host in ("a", "b", "c")}
    return dict(one)


def some(jobs: dict[str, Job], hosts: str) -> dict[str, Job]:
    return {host: jobs[host] for host in hosts}


def test_a_run_has_its_directories_alone_and_says_who_it_is(jobs: dict[str, Job]) -> None:
    told: list[Event] = []
    with locks.held(jobs, told.append):
        assert (jobs["b"].target / HOLDER).read_text().startswith("process ")
        other = FileLock(jobs["b"].target / locks.LOCK)
        with pytest.raises(TimeoutError):
            other.acquire(timeout=0)
    other.acquire(timeout=0)
    other.release()
    assert told == []
    assert not (jobs["b"].target / HOLDER).exists()


def test_who_waits_says_for_whom_and_goes_on_when_it_is_over(jobs: dict[str, Job]) -> None:
    told: list[Event] = []
    entered = threading.Event()

    def second() -> None:
        with locks.held(some(jobs, "b"), told.append):
            entered.set()

    with locks.held(some(jobs, "ab"), told.append):
        thread = threading.Thread(target=second)
        thread.start()
        assert not entered.wait(0.4)
        (note,) = [event for event in told if event.kind is Kind.NOTE]
        assert note.host == "b"
        assert note.text.startswith("waiting for process ")
        assert note.text.endswith(f", which builds there ({jobs['b'].target}/.fdl-lock)")
    assert entered.wait(2)
    thread.join()


def test_other_hosts_do_not_wait(jobs: dict[str, Job]) -> None:
    told: list[Event] = []
    with locks.held(some(jobs, "a"), told.append), locks.held(some(jobs, "bc"), told.append):
        assert told == []


def test_two_runs_never_wait_for_one_another(jobs: dict[str, Job]) -> None:
    def run(hosts: str) -> None:
        for _ in range(10):
            with locks.held(some(jobs, hosts), lambda event: time.sleep(0.005)):
                pass

    threads = [threading.Thread(target=run, args=(hosts,), daemon=True) for hosts in ("abc", "cba", "bca")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(12)
    assert not any(thread.is_alive() for thread in threads)


def test_a_directory_that_can_not_be_made_is_left_to_its_build(jobs: dict[str, Job]) -> None:
    told: list[Event] = []
    jobs["a"].target.parent.mkdir(parents=True)
    jobs["a"].target.touch()
    with locks.held(jobs, told.append):
        assert told == []
        assert (jobs["b"].target / HOLDER).exists()


@pytest.mark.parametrize("error", [OSError(37, "No locks available"), NotImplementedError("flock")])
def test_a_directory_that_knows_no_locks_is_built_in_with_a_note(
    jobs: dict[str, Job], monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def refuse(*args: object, **options: object) -> None:
        raise error

    told: list[Event] = []
    monkeypatch.setattr(FileLock, "acquire", refuse)
    with locks.held(some(jobs, "a"), told.append):
        (note,) = told
    assert (note.kind, f"{jobs['a'].target}/.fdl-lock can't be locked" in note.text) == (Kind.NOTE, True)
    assert not (jobs["a"].target / HOLDER).exists()
