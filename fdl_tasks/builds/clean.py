"""What prebuilds left behind for hosts and variants that cluster.yml names no longer: found, judged, removed.

Only ``target/cluster/<host>/<variant>`` of the project root is ever removed, and old probe files beside
the hosts. Every step down is opened without following a symbolic link.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import stat
import time
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from shlex import quote

from filelock import FileLock, Timeout

from .. import arch as variants
from ..cluster.model import Cluster, Controller, Worker
from ..errors import BuildError
from ..outcome import Event, Kind, Progress, silent
from .locks import LOCK
from .plan import WORKSPACE

PROBE = ".fdl-probe-"
PROBE_AGE = 3600.0  # seconds: a preflight that is still running is younger
GONE = ".fdl-gone-"  # what a directory is called while it is removed
CARGO_PROFILE = frozenset(("build", "deps", "examples", "incremental"))  # of a cargo profile named "cluster"


class State(StrEnum):
    """What becomes of a left-over; the value is how it is printed."""

    FOUND = "to remove"
    REMOVED = "removed"
    IN_USE = "in use"
    FAILED = "failed"


@dataclass(frozen=True)
class Item:
    """One left-over. ``path`` is relative to the project root; ``size`` in bytes on the disk; ``age`` in seconds
    since anything in it was written. ``host`` is empty for a probe file."""

    path: str
    host: str
    size: int
    age: float
    state: State = State.FOUND
    error: str = ""

    def as_json(self) -> dict[str, object]:
        """The item as ``--json`` shows it."""
        shown = {"path": self.path, "host": self.host or None, "size": self.size, "age_s": round(self.age)}
        return {**shown, "status": str(self.state), "error": self.error or None}


@dataclass(frozen=True)
class CleanReport:
    """What was found under ``place``, and what became of it."""

    place: Path
    items: tuple[Item, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing is left that should have gone; what is in use may stay."""
        return not any(item.state is State.FAILED for item in self.items)

    def as_json(self) -> dict[str, object]:
        """``freed`` counts the bytes of what is gone."""
        freed = sum(item.size for item in self.items if item.state is State.REMOVED)
        return {"ok": self.ok, "freed": freed, "items": [item.as_json() for item in self.items]}


def stale(places: Iterable[tuple[str, str]], workers: Collection[Worker]) -> list[tuple[str, str]]:
    """Of (host, variant's slug), those that no worker stands for (pure).

    A worker counts whether it is built for or not. One without ``arch`` keeps everything of its host: which
    variant it will name again is not known.
    """
    kept = {(worker.host, variants.slug(worker.arch)) for worker in workers if worker.arch}
    whole = {worker.host for worker in workers if not worker.arch}
    return [
        (host, slug)
        for host, slug in places
        if slug.startswith(GONE) or not (host in whole or (host, slug) in kept)
    ]  # fmt: skip


def prebuild_clean(cluster: Cluster, *, dry_run: bool = False, progress: Progress = silent) -> CleanReport:
    """Remove the target directories of hosts and variants that cluster.yml names no longer.

    Args:
        dry_run: only say what would be removed.

    Raises:
        ConfigError: cluster.yml has no controller, or no ``workers:`` (``workers: []`` means none).
        BuildError: the directory that holds them is reached through a symbolic link, or can't be read.
    """
    controller, workers = cluster.need_controller(), cluster.need_workers()
    base = _base(controller.path)
    now = time.time()
    try:
        items = [*_directories(base, workers, now), *_probes(base, now)]
        if not dry_run:
            items = [_removed(base, item, controller, progress) for item in items]
            _remove_empty(base, {item.host for item in items if item.state is State.REMOVED}, workers)
        else:
            items = [replace(item, state=State.IN_USE) if _in_use(base, item) else item for item in items]
    except OSError as error:
        raise BuildError(f"what prebuilds left can't be read: {error}", where=str(base)) from error
    return CleanReport(base, tuple(items))


def _base(root: Path) -> Path:
    for place in (root / "target", root / "target" / "cluster"):
        if place.is_symlink():
            raise BuildError(
                f"is a symbolic link, to {place.readlink()}: nothing is removed through one",
                where=str(place),
                hint="remove what you don't need there by hand",
            )
    return root / "target" / "cluster"


def _directories(base: Path, workers: Collection[Worker], now: float) -> Iterator[Item]:
    hosts = [name for name in _names(base) if not name.startswith(".")]
    if (base / ".cargo-lock").exists():
        hosts = [name for name in hosts if name not in CARGO_PROFILE]
    places = [(host, slug) for host in hosts for slug in _names(base / host)]
    for host, slug in stale(places, workers):
        size, written = _measured(base / host / slug)
        yield Item(f"target/cluster/{host}/{slug}", host, size, max(0.0, now - written))


def _names(folder: Path) -> list[str]:
    """The real directories in a real directory, sorted; none when it is not there."""
    if folder.is_symlink() or not folder.is_dir():
        return []
    return sorted(entry.name for entry in os.scandir(folder) if entry.is_dir(follow_symlinks=False))


def _measured(top: Path) -> tuple[int, float]:
    """Bytes on the disk, what is linked twice counted once, and when anything was written last."""
    seen: dict[tuple[int, int], os.stat_result] = {}
    for folder, _, files in os.walk(top):
        for path in (Path(folder), *(Path(folder) / name for name in files)):
            with contextlib.suppress(FileNotFoundError):
                found = path.lstat()
                seen[found.st_dev, found.st_ino] = found
    written = max((found.st_mtime for found in seen.values()), default=0.0)
    return sum(found.st_blocks * 512 for found in seen.values()), written


def _probes(base: Path, now: float) -> Iterator[Item]:
    """Files that a preflight which was killed left behind."""
    for path in sorted(base.glob(f"{PROBE}*")):
        found = path.lstat()
        if stat.S_ISREG(found.st_mode) and now - found.st_mtime > PROBE_AGE:
            yield Item(f"target/cluster/{path.name}", "", found.st_blocks * 512, now - found.st_mtime)


def _removed(base: Path, item: Item, controller: Controller, progress: Progress) -> Item:
    """The item after it was removed, looked for again, or with the reason why it is still there."""
    path = base.parents[1] / item.path
    if item.host:
        progress(Event(item.host, Kind.STATE, f"removing {path.name}"))
    try:
        if not item.host:
            path.unlink(missing_ok=True)
        elif closed := _closed(path):
            return replace(item, state=State.FAILED, error=str(_denied(path, closed, controller)))
        else:
            _remove(base, item.host, path)
    except Timeout:
        return replace(item, state=State.IN_USE)
    except (OSError, NotImplementedError) as error:
        return replace(item, state=State.FAILED, error=f"can't be removed: {error}")
    if os.path.lexists(path):
        if _in_use(base, item):  # by a prebuild that came meanwhile
            return replace(item, state=State.IN_USE)
        return replace(item, state=State.FAILED, error="is there again: something writes to it; end that, then repeat")
    return replace(item, state=State.REMOVED)


def _remove(base: Path, host: str, path: Path) -> None:
    """Moved aside at once, while nobody builds in it: who waits for the lock finds no half of it.

    Held to the end: a lock file that is gone by then is no lock to whoever has it open (filelock looks).
    """
    gone = GONE + secrets.token_hex(4)
    with _opened(base) as top, _opened(host, top) as folder, FileLock(path / LOCK, timeout=0):
        os.rename(path.name, gone, src_dir_fd=folder, dst_dir_fd=folder)
        shutil.rmtree(gone, dir_fd=folder)


@contextlib.contextmanager
def _opened(path: str | Path, within: int | None = None) -> Iterator[int]:
    found = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=within)
    try:
        yield found
    finally:
        os.close(found)


def _in_use(base: Path, item: Item) -> bool:
    lock = base.parents[1] / item.path / LOCK
    if not item.host or not lock.exists():
        return False
    try:
        with FileLock(lock, timeout=0):
            return False
    except Timeout:
        return True
    except (OSError, NotImplementedError):
        return False  # not ours to open: the removal will say so


def _closed(top: Path) -> Path | None:
    """The first directory below, or itself, that this user can't empty."""
    folders = (Path(folder) for folder, _, _ in os.walk(top))
    return next((folder for folder in folders if not os.access(folder, os.W_OK | os.X_OK)), None)


def _denied(path: Path, closed: Path, controller: Controller) -> BuildError:
    inside = WORKSPACE / path.relative_to(controller.path)
    service = quote(controller.docker or "SERVICE")
    return BuildError(
        f"permission denied: {closed} is owned by uid {closed.lstat().st_uid}, this is uid {os.geteuid()}; "
        "a build in a container may have written it as the container's user",
        hint=f"docker compose run --rm --no-deps {service} rm -rf {quote(str(inside))}, "
        f"or sudo chown -R {os.geteuid()}:{os.getegid()} {quote(str(path))} and repeat",
    )


def _remove_empty(base: Path, emptied: Collection[str], workers: Collection[Worker]) -> None:
    """Directories of hosts that hold nothing any more; rmdir itself refuses all others."""
    named = {worker.host for worker in workers}
    for host in _names(base):
        if not host.startswith(".") and (host in emptied or host not in named):
            with contextlib.suppress(OSError), _opened(base) as top:
                os.rmdir(host, dir_fd=top)
