"""Which cluster.yml is meant: a flag, else the environment, else the nearest one upwards."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path

from ..errors import ConfigError

NAMES = ("cluster.yml", "fdl.cluster.yml")
VARIABLE = "FDL_CLUSTER"


def find(cluster: str | Path | None, *, start: Path, env: Mapping[str, str]) -> Path:
    """The file to read: ``cluster`` (a flag), else ``FDL_CLUSTER``, else the nearest from ``start`` upwards.

    Raises:
        ConfigError: there is none; the one named is no file; or the one found by walking belongs to
            neither this user nor root (it names commands that would be run).
    """
    if found := search(cluster, start=start, env=env):
        return found
    raise ConfigError(
        f"no {NAMES[0]} and no {NAMES[1]} in this directory or above it",
        where=str(start),
        hint=f"write one (docs/configuration.md), or name it with --cluster or {VARIABLE}",
    )


def search(cluster: str | Path | None, *, start: Path, env: Mapping[str, str]) -> Path | None:
    """As ``find``, with None where no file is named and none is found (``inv prepare`` can do without)."""
    if cluster:
        return _named(cluster, start, "--cluster")
    if named := env.get(VARIABLE, "").strip():
        return _named(named, start, VARIABLE)
    return _nearest(start.absolute())


def _named(name: str | Path, start: Path, source: str) -> Path:
    path = Path(os.path.normpath(start.absolute() / _expanded(Path(name))))
    if stat.S_ISDIR(_mode(path, source)):
        raise ConfigError("is a directory", where=str(path), hint=f"{source} names the file itself")
    return path


def _expanded(path: Path) -> Path:
    try:
        return path.expanduser()
    except RuntimeError as error:  # no such user, or no home
        raise ConfigError(str(error), where=str(path)) from None


def _mode(path: Path, source: str) -> int:
    try:
        return path.stat().st_mode
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError(f"can't be read: {reason}", where=str(path), hint=f"look at {source}") from None


def _nearest(start: Path) -> Path | None:
    candidates = (folder / name for folder in (start, *start.parents) for name in NAMES)
    found = next((path for path in candidates if is_file(path)), None)
    if found:
        _refuse_foreign(found)
    return found


def is_file(path: Path) -> bool:
    """Whether a file is there to be seen; a directory that may not be searched shows none."""
    try:
        return path.is_file()
    except OSError:
        return False


def foreign(path: Path) -> bool:
    """Whether a file, or the link that leads to it, belongs to neither this user nor root."""
    return not {path.stat().st_uid, path.lstat().st_uid} <= {os.getuid(), 0}


def _refuse_foreign(path: Path) -> None:
    """A file that somebody else put above our directory must not name commands for us."""
    if foreign(path):
        raise ConfigError(
            "belongs to another user, and names commands that would be run",
            where=str(path),
            hint=f"when you trust it, name it: --cluster {path}",
        )
