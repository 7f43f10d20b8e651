"""Which runs of the lab live, and the removal of what dead ones left.

A live run holds a lock on its record; the lock goes with the process, however that ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from .network import interface, namespace
from .system import alive, run, wait_until

RECORDS = Path("/run/fdl-lab")


class Run:
    """One run's name, record and private folder (0700)."""

    def __init__(self, run_id: str, record: IO[str], folder: Path):
        self.id, self._record, self.dir = run_id, record, folder

    def end(self) -> None:
        """Remove everything of this run, then its record."""
        remove(self.id, self.dir)
        (RECORDS / self.id).unlink(missing_ok=True)
        self._record.close()


def begin() -> Run:
    """Start a run under a new name, after removing what dead runs left."""
    RECORDS.mkdir(mode=0o700, parents=True, exist_ok=True)
    with one_at_a_time():
        remove_dead()
        run_id = secrets.token_hex(2)
        while (RECORDS / run_id).exists():
            run_id = secrets.token_hex(2)
        folder = Path(tempfile.mkdtemp(prefix=f"fdl-lab-{run_id}-", dir="/tmp"))  # short: sockets live there
        record = (RECORDS / run_id).open("w+")
        fcntl.flock(record, fcntl.LOCK_EX)
        record.write(str(folder))
        record.flush()
    return Run(run_id, record, folder)


def remove_dead() -> list[str]:
    """Remove what runs left whose process is gone; the names of those runs."""
    dead = [path for path in sorted(RECORDS.iterdir()) if path.name != "lock" and _unlocked(path)]
    for path in dead:
        folder = path.read_text().strip()
        remove(path.name, Path(folder) if folder.startswith("/tmp/fdl-lab-") else None)
        path.unlink(missing_ok=True)
    return [path.name for path in dead]


def remove(run_id: str, folder: Path | None) -> None:
    """Kill the processes of a run's namespaces, remove those, its mounts and its folder."""
    for space in spaces(run_id):
        kill_all(space)
        run("ip", "netns", "del", space, check=False)
    run("ip", "link", "del", interface(run_id), check=False)  # else it goes some time after its namespace
    _remove_groups(run_id)
    if folder is None:
        return
    for mount in mounts_under(folder):
        run("umount", "-l", mount, check=False)
    shutil.rmtree(folder, ignore_errors=True)


def spaces(run_id: str) -> list[str]:
    """The network namespaces that carry a run's name."""
    names = [line.split()[0] for line in run("ip", "netns", "list").stdout.splitlines() if line.strip()]
    return [name for name in names if name.startswith(namespace(run_id, ""))]


def kill_all(space: str) -> None:
    """SIGKILL everything in a network namespace, and wait until it is gone."""
    pids = processes(space)
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    # One that ends leaves the namespace before it is gone.
    wait_until(lambda: not processes(space) and not any(map(alive, pids)), f"the processes of {space} end")


def processes(space: str) -> list[int]:
    return [int(pid) for pid in run("ip", "netns", "pids", space, check=False).stdout.split()]


def mounts_under(folder: Path) -> list[str]:
    """Mount points in a folder, the innermost first."""
    points = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
    return sorted((point for point in points if point.startswith(f"{folder}/")), reverse=True)


def control_groups(run_id: str) -> list[Path]:
    """The control groups of a run's engines, wherever this machine's hierarchies have them."""
    name = namespace(run_id, "").rstrip("-")
    return [Path(at) / name for at, folders, _ in os.walk("/sys/fs/cgroup") if name in folders]


def _remove_groups(run_id: str) -> None:
    for top in control_groups(run_id):
        for folder, _, _ in os.walk(top, topdown=False):
            with contextlib.suppress(OSError):
                Path(folder).rmdir()


def _unlocked(path: Path) -> bool:
    with path.open() as record:
        try:
            fcntl.flock(record, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


@contextlib.contextmanager
def one_at_a_time() -> Iterator[None]:
    """Held by a run while it takes names or addresses that another might take too."""
    with (RECORDS / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
