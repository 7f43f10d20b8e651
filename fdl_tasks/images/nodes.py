"""The nodes of one run: each is connected once, and all are asked at the same time."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import TypeVar

from ..cluster.model import Cluster, Worker
from ..errors import Cancelled
from ..hosts.base import Host
from ..hosts.connect import Connect, connect
from ..hosts.fanout import WIDTH, Cancel, fan_out
from ..outcome import Attempt, Event, Kind, Progress, silent

A = TypeVar("A")
B = TypeVar("B")
T = TypeVar("T")
Deed = Callable[[Worker, Host, Cancel], T]


def members(cluster: Cluster, hosts: Sequence[str]) -> tuple[Worker, ...]:
    """The workers that ``hosts`` names (all without); the one that is this machine is asked without ssh.

    Raises:
        ConfigError, UsageError: no workers in cluster.yml, or an unknown label.
    """
    local = (cluster.own_label,)
    return tuple(
        replace(worker, transport="local") if worker.host in local else worker for worker in cluster.select(hosts)
    )


class Nodes:
    """Hosts that stay connected over several rounds. A context manager: leaving it closes them all."""

    def __init__(
        self,
        workers: Sequence[Worker],
        *,
        connect: Connect = connect,
        progress: Progress = silent,
        width: int = WIDTH,
    ):
        self.cancel, self._width, self._stack = Cancel(), width, contextlib.ExitStack()
        self.workers = {worker.host: worker for worker in workers}
        self.hosts = {worker.host: connect(worker, self.cancel, _noting(worker, progress)) for worker in workers}

    def each(self, deed: Deed[T], labels: Iterable[str] | None = None) -> dict[str, Attempt[T]]:
        """Do it on every node (or on those of ``labels``), at most ``width`` at once; an outcome a node.

        Raises:
            KeyboardInterrupt: the user ended it.
        """
        chosen = list(self.workers if labels is None else labels)
        jobs = {label: partial(self._do, deed, label) for label in chosen}
        attempts = fan_out(jobs, width=self._width, cancel=self.cancel)
        for attempt in attempts:
            if isinstance(attempt.error, Cancelled):
                raise attempt.error
        return {attempt.host: attempt for attempt in attempts}

    def both(self, one: Callable[[], A], other: Callable[[], B]) -> tuple[A, B]:
        """What two things give that are done side by side; both may ask the same node.

        Raises:
            KeyboardInterrupt: the user ended it. An error of either is raised when both have ended.
        """
        found = list[A](), list[B]()
        jobs: dict[str, Callable[[Cancel], None]] = {
            "one": lambda cancel: found[0].append(one()),
            "other": lambda cancel: found[1].append(other()),
        }
        for attempt in fan_out(jobs, cancel=self.cancel):
            if attempt.error:
                raise attempt.error
        return found[0][0], found[1][0]

    def _do(self, deed: Deed[T], label: str, cancel: Cancel) -> T:
        return deed(self.workers[label], self.hosts[label], cancel)

    def __enter__(self) -> Nodes:
        for host in self.hosts.values():
            self._stack.enter_context(host)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._stack.close()


def _noting(worker: Worker, progress: Progress) -> Callable[[str], None]:
    return lambda text: progress(Event(worker.host, Kind.NOTE, text))
