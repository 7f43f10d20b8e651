"""What is mounted on this box, and where."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Mount:
    """One file system: ``source`` as its mounter named it, ``kind`` as the kernel does (``fuse.sshfs``)."""

    source: str
    kind: str
    at: Path


def mounts() -> tuple[Mount, ...]:
    """Every mount that this process sees, in the order of mounting; none of them is touched."""
    import psutil

    return tuple(Mount(part.device, part.fstype, Path(part.mountpoint)) for part in psutil.disk_partitions(all=True))


def mounted_at(path: Path, table: Iterable[Mount]) -> Mount | None:
    """What is mounted exactly there, the topmost where several are. ``path`` is without symlinks."""
    return next((mount for mount in reversed(tuple(table)) if mount.at == path), None)


def mounted_over(path: Path, table: Iterable[Mount]) -> Mount | None:
    """The mount that ``path`` lies on. ``path`` is without symlinks."""
    table = tuple(table)
    return next(filter(None, (mounted_at(place, table) for place in (path, *path.parents))), None)
