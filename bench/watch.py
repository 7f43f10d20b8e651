"""What goes on on a node while something is measured: memory of the processes there, disk in its own folders."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from tests.lab.node import Node

EVERY = 0.1  # seconds
FOLDERS = ("/tmp", "/root", "/home", "/srv")  # noqa: S108 - the node's own
# theirs is the engine's and the login's own; a dockerd that starts itself again is called exe
ENGINE = ("dockerd", "exe", "containerd", "runc", "sshd", "docker-init")


@dataclass
class Footprint:
    """The most at any one time, in bytes: resident memory of all processes, of Python's alone, growth of the disk."""

    memory: int = 0
    python: int = 0
    disk: int = 0


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
            self.seen.memory = max(self.seen.memory, sum(size for _, size in found))
            self.seen.python = max(self.seen.python, sum(size for name, size in found if name.startswith("python")))
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


def _resident(pid: int) -> tuple[str, int]:
    """A process's name and its resident bytes; none of what is the engine's own, or gone."""
    with contextlib.suppress(OSError):
        lines = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
        name = lines["Name"].strip()
        if not name.startswith(ENGINE):
            return name, int(lines.get("VmRSS", "0 kB").split()[0]) << 10
    return "", 0


def _allocated(path: Path) -> int:
    with contextlib.suppress(OSError):
        return path.lstat().st_blocks * 512
    return 0
