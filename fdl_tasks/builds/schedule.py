"""When each build runs: the first alone, the others side by side, none ended because another one failed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial

from ..hosts.fanout import Cancel, fan_out
from ..outcome import Attempt, Event, Kind, Progress, Status
from ..scripts import Scripts
from . import work
from .plan import Job


def build_all(jobs: Mapping[str, Job], scripts: Scripts, width: int, progress: Progress) -> dict[str, Attempt[str]]:
    """Every build ends by itself; the first that starts cargo runs alone.

    Cold builds in parallel race to unpack the same crate into cargo's registry (facts/upstream.md, 9.2).
    """
    waiting, done = dict(jobs), dict[str, Attempt[str]]()
    while waiting:
        first = next(iter(waiting))
        alone = {first: waiting.pop(first)}
        for host in waiting:
            progress(Event(host, Kind.STATE, f"waiting for {first}"))
        done |= _wave(alone, scripts, 1, progress)
        if not isinstance(done[first].error, work.NotStarted):
            break
    return done | _wave(waiting, scripts, min(width, len(waiting)), progress)


def _wave(jobs: Mapping[str, Job], scripts: Scripts, width: int, progress: Progress) -> dict[str, Attempt[str]]:
    compilers = compilers_each(width)
    work_of = {host: partial(_work, job, scripts, compilers, progress) for host, job in jobs.items()}
    return {attempt.host: attempt for attempt in fan_out(work_of, width=width)}


def _work(job: Job, scripts: Scripts, compilers: int, progress: Progress, cancel: Cancel) -> str:
    status = Status.FAILED
    try:
        path = work.build(job, scripts, compilers, cancel, progress)
        status = Status.UNVERIFIED
        return path
    finally:
        progress(Event(job.host, Kind.DONE, str(status)))


def compilers_each(builds: int) -> int:
    """How many compilers one of so many builds may run at once."""
    return max(1, len(os.sched_getaffinity(0)) // max(1, builds))
