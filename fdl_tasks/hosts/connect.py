"""The host behind a worker: this machine, or another one over ssh."""

from __future__ import annotations

from collections.abc import Callable

from ..cluster.model import Worker
from .base import Host
from .fanout import Cancel
from .local import Local

Note = Callable[[str], None]  # takes what is worth telling of a connection, such as a relaxed host-key check
Connect = Callable[[Worker, Cancel, Note], Host]


def connect(worker: Worker, cancel: Cancel, note: Note) -> Host:
    """The host of ``worker``; nothing is contacted before its first ``run``."""
    if worker.transport == "local":
        return Local(worker.host, cancel)
    from .ssh import SshHost

    return SshHost(worker.host, worker.ssh, cancel, note)
