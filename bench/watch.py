"""What goes on on a node while something is measured: memory of the processes there, disk in its own folders."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from tests.lab.node import Node

EVERY = 0.1  # seconds
FOLDERS = ("/tmp", "/root", "/home", "/srv")  # noqa: S108 - the node's own
# theirs is the engine's and the login's own; a dockerd that starts itself again is called exe
ENGINE = ("dockerd", "exe", "containerd", "runc", "sshd", "docker-init")


@dataclass
class Footprint:
    """The most at any one time, in bytes: memory of all processes, resident memory of Python's, growth of the disk."""

    memory: int = 0
    python: int = 0
    disk: int = 0


class Resident(NamedTuple):
    """A process's resident bytes: those of its own, and those of files that all who run the program share."""

    name: str = ""
    own: int = 0
    mapped: int = 0


class Watch:
    """Looks at a node every tenth of a second, as long as its block runs; then ``seen`` is whole."""

    def __init__(self, node: Node):
        self.seen, self._network = Footprint(), _network(node.init_pid())
        self._folders = [node.path(folder) for folder in FOLDERS]
        self._ended, self._thread = threading.Event(), threading.Thread(target=self._look)

    def __enter__(self) -> Watch:
        self._before, self._idle = self._disk(), set(self._pids())
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._ended.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._ended.wait(EVERY):
            found = [_resident(pid) for pid in set(self._pids()) - self._idle]
            pythons = [one.own + one.mapped for one in found if one.name.startswith("python")]
            self.seen.memory = max(self.seen.memory, _together(found))
            self.seen.python = max(self.seen.python, sum(pythons))
            self.seen.disk = max(self.seen.disk, self._disk() - self._before)

    def _pids(self) -> Iterable[int]:
        for pid in [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()]:
            with contextlib.suppress(OSError):
                if _network(pid) == self._network:
                    yield pid

    def _disk(self) -> int:
        found = [Path(at, name) for top in self._folders for at, _, names in os.walk(top) for name in names]
        return sum(map(_allocated, found))


def _network(pid: int) -> int:
    return Path(f"/proc/{pid}/ns/net").stat().st_ino


def _together(found: Sequence[Resident]) -> int:
    """What processes take of a machine: each its own, and the files that they map once a program."""
    mapped = dict(sorted((one.name, one.mapped) for one in found))  # of one name the largest is the last
    return sum(one.own for one in found) + sum(mapped.values())


def _resident(pid: int) -> Resident:
    """Nothing of what is the engine's own, or gone."""
    with contextlib.suppress(OSError):
        lines = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
        sizes = {key: int(lines.get(f"Rss{key}", "0 kB").split()[0]) << 10 for key in ("Anon", "Shmem", "File")}
        name = lines["Name"].strip()
        if not name.startswith(ENGINE):
            return Resident(name, sizes["Anon"] + sizes["Shmem"], sizes["File"])
    return Resident()


def _allocated(path: Path) -> int:
    with contextlib.suppress(OSError):
        return path.lstat().st_blocks * 512
    return 0
