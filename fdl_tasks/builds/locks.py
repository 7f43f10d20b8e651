"""One run at a time in a target directory: a second one waits, and says for what."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext

from ..alone import alone
from ..outcome import Event, Kind, Progress
from .plan import Job

LOCK = ".fdl-lock"


@contextlib.contextmanager
def held(jobs: Mapping[str, Job], progress: Progress) -> Iterator[None]:
    """Hold the target directories of all these jobs; wait for other runs, as long as it takes.

    Always taken in the order of their paths, so that two runs never wait for one another. A directory that can't be
    locked is built in without, with a note.
    """
    with contextlib.ExitStack() as stack:
        for job in sorted(jobs.values(), key=lambda job: job.target.resolve()):
            stack.enter_context(_held(job, progress))
        yield


def _held(job: Job, progress: Progress) -> AbstractContextManager[bool]:
    def tell(text: str, kind: Kind = Kind.NOTE) -> None:
        progress(Event(job.host, kind, text))

    try:
        job.target.mkdir(parents=True, exist_ok=True)
    except OSError:
        return nullcontext(False)  # nobody can build there: the build itself says why
    return alone(job.target / LOCK, "builds there", tell, waits=lambda: tell("waiting for another run", Kind.STATE))
