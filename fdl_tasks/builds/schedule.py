"""When each build runs: once for all that need the same, the first alone, the others side by side."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial

from ..errors import Cancelled
from ..hosts.fanout import Cancel, fan_out
from ..outcome import Attempt, Event, Kind, Progress, Status
from ..scripts import Scripts
from . import explain, share, work
from .jobserver import NO_TOKENS, Jobserver
from .plan import Job

Attempts = dict[str, Attempt[str]]


def build_all(
    jobs: Mapping[str, Job], scripts: Scripts, width: int, progress: Progress, *, dedupe: bool = True
) -> tuple[Attempts, Mapping[str, str]]:
    """Build for every host; every build ends by itself.

    Args:
        width: builds at once.
        dedupe: build once for all hosts whose builds have the same inputs.

    Returns:
        What each host's build gave, and the host whose build it was where that is another one.
    """
    with Jobserver(cores()) as jobserver:
        shop = _Shop(scripts, width, progress, jobserver)
        return (shop.build_once(jobs) if dedupe else shop.build_each(jobs)), shop.shared_with


@dataclass
class _Shop:
    """What all builds of one run share."""

    scripts: Scripts
    width: int
    progress: Progress
    jobserver: Jobserver
    shared_with: dict[str, str] = field(default_factory=dict)

    def build_once(self, jobs: Mapping[str, Job]) -> Attempts:
        """One build for all with the same inputs, copied to the others.

        A leader that could not even start says nothing of the others: the next of them then leads.
        """
        if not jobs:
            return {}
        leader_of = share.leaders(jobs)
        followers = {host: leader for host, leader in leader_of.items() if host != leader}
        for host, leader in followers.items():
            self._state(host, f"waiting for {leader}")
        done = self.build_each(share.leading(jobs))
        copies = {
            host: partial(self._follow, jobs[host], jobs[leader], done[leader])
            for host, leader in followers.items()
            if not isinstance(done[leader].error, work.NotStarted)
        }
        done |= self._wave(copies, self.width)
        return done | self.build_once({host: job for host, job in jobs.items() if host not in done})

    def build_each(self, jobs: Mapping[str, Job]) -> Attempts:
        """The first that starts cargo runs alone, then all others.

        Cold builds in parallel race to unpack the same crate into cargo's registry (facts/upstream.md, 9.2).
        """
        waiting, done = dict(jobs), Attempts()
        while waiting:
            first = next(iter(waiting))
            alone = {first: waiting.pop(first)}
            for host in waiting:
                self._state(host, f"waiting for {first}")
            done |= self._builds(alone, 1)
            if not isinstance(done[first].error, work.NotStarted):
                break
        return done | self._builds(waiting, min(self.width, len(waiting)))

    def _builds(self, jobs: Mapping[str, Job], width: int) -> Attempts:
        compilers = compilers_each(width)
        return self._wave({host: partial(self._build, job, compilers) for host, job in jobs.items()}, width)

    def _wave(self, todo: Mapping[str, Callable[[Cancel], str]], width: int) -> Attempts:
        told = {host: partial(self._tell, host, job) for host, job in todo.items()}
        return {attempt.host: attempt for attempt in fan_out(told, width=width)}

    def _tell(self, host: str, job: Callable[[Cancel], str], cancel: Cancel) -> str:
        try:
            path = job(cancel)
        except Cancelled:
            raise  # it did not fail: somebody pressed Ctrl-C
        except BaseException:
            self.progress(Event(host, Kind.DONE, str(Status.FAILED)))
            raise
        leader = self.shared_with.get(host)  # done it is once it was read back
        self._state(host, f"copied from {leader}" if leader else "built")
        return path

    def _build(self, job: Job, compilers: int, cancel: Cancel) -> str:
        with nullcontext(NO_TOKENS) if job.service else self.jobserver.build() as tokens:
            return work.build(job, self.scripts, compilers, cancel, self.progress, tokens)

    def _follow(self, job: Job, leader: Job, made: Attempt[str], cancel: Cancel) -> str:
        """The leader's artifact, or its failure, as this job's."""
        self.shared_with[job.host] = leader.host
        try:
            return share.take(leader, made, job)
        except PermissionError as error:
            if not job.service:
                raise explain.unwritable(job, error) from error
        except OSError as error:
            raise explain.unwritable(job, error) from error
        # A container wrote there as its own user, and it can again.
        del self.shared_with[job.host]
        text = f"built by itself: the binary of {leader.host} can't be copied into another user's {job.target}"
        self.progress(Event(job.host, Kind.NOTE, text))
        return self._build(job, compilers_each(self.width), cancel)

    def _state(self, host: str, text: str) -> None:
        self.progress(Event(host, Kind.STATE, text))


def compilers_each(builds: int) -> int:
    """How many compilers one of so many builds may run at once."""
    return max(1, cores() // max(1, builds))


def cores() -> int:
    """The processors that this process may use."""
    return len(os.sched_getaffinity(0))
