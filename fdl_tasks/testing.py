"""For tests of your own task files: a cluster without a file, and hosts without a machine.

::

    cluster = make_cluster(tmp_path, node="precompiled/cu128")
    node = FakeHost("node", Completed(0, "…", "", 0.1))
    report = fdl_tasks.preflight(cluster, connect=fake_connect(node), shared_check=False)
    assert node.scripts[0].name == "checks/probe.sh"
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

from .cluster.model import Cluster, Controller, Ssh, Worker
from .hosts.base import Completed, OnLine
from .hosts.connect import Connect
from .hosts.fanout import Cancel
from .scripts import Script

__all__ = ["Answer", "Completed", "FakeHost", "fake_connect", "make_cluster"]

Answer = Completed | Exception | Callable[[Script], Completed]


class FakeHost:
    """A host that answers from a list and remembers, in ``scripts``, what it was asked to run.

    Each answer serves one script: a ``Completed`` is returned, an exception is raised, and a callable is
    called with the script. The last answer serves every further script too. Lines of the output are
    passed on as those of a real host.
    """

    def __init__(self, label: str, *answers: Answer):
        self.label, self.scripts, self.closed = label, list[Script](), False
        self._answers: Sequence[Answer] = answers or (Completed(0, "", "", 0.0),)
        self._turn = threading.Lock()  # scripts may run side by side

    def run(self, script: Script, *, limit: float, on_line: OnLine | None = None) -> Completed:
        """See ``hosts.base.Host.run``."""
        with self._turn:
            answer = self._answers[min(len(self.scripts), len(self._answers) - 1)]
            self.scripts.append(script)
        if isinstance(answer, Exception):
            raise answer
        done = answer if isinstance(answer, Completed) else answer(script)
        for stream, text in (("out", done.out), ("err", done.err)) if on_line else ():
            for line in text.splitlines():
                on_line(stream, line)  # type: ignore[misc]
        return done

    def close(self) -> None:
        """Remembered in ``closed``."""
        self.closed = True

    def __enter__(self) -> FakeHost:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


def fake_connect(*hosts: FakeHost) -> Connect:
    """What to pass as ``connect``: each worker is the fake of its label. Raises KeyError for any other."""
    known = {host.label: host for host in hosts}

    def connect(worker: Worker, cancel: Cancel, note: Callable[[str], None]) -> FakeHost:
        return known[worker.host]

    return connect


def make_cluster(root: Path, *, controller: str = "controller", changes: Any = None, **arch_of: str | None) -> Cluster:
    """A cluster on this machine whose project root is ``root``: a local worker for each ``label="variant"``.

    Args:
        root: project root, for the controller and for every worker.
        controller: the controller's label.
        changes: fields of ``Worker`` to set otherwise, by label: ``{"node": {"transport": "ssh"}}``.
        arch_of: the workers' labels and libtorch variants; None for a worker without one.
    """
    own = dict(changes or {})
    workers = tuple(
        replace(
            Worker(label, str(root), Ssh(label), arch, data_path=str(root), transport="local"), **own.pop(label, {})
        )
        for label, arch in arch_of.items()
    )
    if own:
        raise ValueError(f"changes for no worker: {', '.join(own)}")
    lead = Controller(controller, root, data_path=str(root))
    return Cluster(root / "cluster.yml", controller, lead, workers)
