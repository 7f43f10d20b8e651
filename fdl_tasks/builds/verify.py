"""Reads every binary back from its worker: the file, its loader's findings, a first start."""

from __future__ import annotations

import secrets
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from ..checks.probe import Facts
from ..cluster.model import Worker
from ..errors import BuildError, ScriptError, Stage, TransportError
from ..hosts.base import Host
from ..hosts.connect import Connect
from ..hosts.fanout import Cancel, fan_out
from ..outcome import Attempt, Event, Kind, Level, Progress, Status, Verdict, worst
from ..scripts import Script, Scripts
from . import artifact, judge
from .plan import Job
from .readback import Artifact, merged, parse, variables

LIMIT = 180.0  # seconds to read one back: most of it goes into the hash of a large file on a slow mount
CHECK_LIMIT = 60.0  # seconds for a start with check arguments
LOOKS, PAUSE = 11, "0.5"  # looks at a file that is not yet the right one, seconds between them: 5 s
TAIL = 10  # last lines of a failed start
UNKNOWN = "-"  # size, hash and loader in a script that is only shown: nothing is built yet


@dataclass(frozen=True)
class Subject:
    """A built binary and its worker: ``path`` is relative to the project root, ``facts`` are preflight's."""

    job: Job
    worker: Worker
    path: str
    facts: Facts | None = None

    @property
    def there(self) -> str:
        """The file as the worker sees it."""
        return f"{self.worker.path.rstrip('/')}/{self.path}"

    @property
    def directory(self) -> str:
        return f"{self.worker.path.rstrip('/')}/{self.job.cwd_subpath}"

    @property
    def variables(self) -> dict[str, str]:
        return variables(self.worker.env, self.job.loader_path)


def script(
    subject: Subject,
    scripts: Scripts,
    mark: str,
    size: int | str = UNKNOWN,
    sha256: str = UNKNOWN,
    loader: str = UNKNOWN,
) -> Script:
    """What reads a binary of that size, hash and loader back from its worker."""
    pairs = _assignments(subject.variables | {"LC_ALL": "C"})
    return scripts.render(
        "builds/verify.sh",
        mark=mark,
        file=subject.there,
        directory=subject.directory,
        loader=loader,
        size=size,
        sha256=sha256,
        looks=LOOKS,
        pause=PAUSE,
        variables=pairs,
    )


def check_script(subject: Subject, scripts: Scripts) -> Script:
    """What starts it with the command's ``check`` arguments."""
    words = [*_assignments(subject.variables), "--", subject.there, *subject.job.command.check]
    return scripts.render("builds/check.sh", directory=subject.directory, words=words)


def _assignments(values: Mapping[str, str]) -> list[str]:
    return [f"{name}={value}" for name, value in values.items()]


def verify_all(
    subjects: Mapping[str, Subject], scripts: Scripts, width: int, connect: Connect, progress: Progress, *, there: bool
) -> dict[str, Attempt[tuple[Verdict, ...]]]:
    """Every worker's verdicts; trouble with one stops no other.

    Args:
        there: look on the workers too, not only at the files here.

    Raises:
        KeyboardInterrupt: the user ended it; nothing is left on the workers.
    """
    one = _Verification(scripts, connect, progress, there)
    return {a.host: a for a in fan_out({host: partial(one.run, s) for host, s in subjects.items()}, width=width)}


@dataclass(frozen=True)
class _Verification:
    scripts: Scripts
    connect: Connect
    progress: Progress
    there: bool

    def run(self, subject: Subject, cancel: Cancel) -> tuple[Verdict, ...]:
        host, status = subject.job.host, Status.UNVERIFIED
        try:
            found = self._look(subject, cancel)
            status = judge.status(found)
            return tuple(found)
        finally:
            self.progress(Event(host, Kind.DONE, str(status)))

    def _look(self, subject: Subject, cancel: Cancel) -> list[Verdict]:
        try:
            made = artifact.read(subject.job.root / subject.path, subject.job.libtorch / "lib")
        except BuildError as error:
            return [Verdict("artifact", Level.ERROR, str(error))]
        if not self.there:
            return judge.fits(made, merged(None, subject.facts))
        self.progress(Event(subject.job.host, Kind.STATE, "reading back"))
        try:
            with self.connect(subject.worker, cancel, partial(self._note, subject.job.host)) as host:
                return self._ask(subject, made, host)
        except (TransportError, ScriptError) as error:
            return [*judge.fits(made, merged(None, subject.facts)), judge.unanswered(error)]

    def _note(self, host: str, text: str) -> None:
        self.progress(Event(host, Kind.NOTE, text))

    def _ask(self, subject: Subject, made: Artifact, host: Host) -> list[Verdict]:
        mark = f"fdl-{secrets.token_hex(8)}"
        done = host.run(script(subject, self.scripts, mark, made.size, made.sha256, made.loader), limit=LIMIT)
        answer = parse(mark, done.out)
        found = judge.fits(made, merged(answer.facts, subject.facts))
        if worst(found) is not Level.ERROR:
            found += judge.read_back(subject.there, made, answer)
        if subject.job.command.check and worst(found) is not Level.ERROR:
            found.append(self._start(subject, host))
        return found

    def _start(self, subject: Subject, host: Host) -> Verdict:
        arguments, tail, began = subject.job.command.check, deque[str](maxlen=TAIL), time.monotonic()
        try:
            done = host.run(
                check_script(subject, self.scripts), limit=CHECK_LIMIT, on_line=lambda _, line: tail.append(line)
            )
        except TransportError as error:
            if error.stage is Stage.DEADLINE and time.monotonic() - began >= CHECK_LIMIT:
                return judge.hung(arguments, CHECK_LIMIT, tail)
            return judge.unanswered(error)
        return judge.started(arguments, done.code, tail)
