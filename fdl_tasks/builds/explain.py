"""Why a build failed, as an error for a person: the source's fault, or the machine's."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from shlex import quote

from ..errors import BuildError
from .cargo import Trouble
from .plan import WORKSPACE, Job
from .watch import Watch

_FULL = (errno.ENOSPC, errno.EDQUOT)
SCANT = 64 << 10  # bytes: with less than this free, a file system is full for any build
LOW = 1 << 30  # bytes: with less than this free, it is what a linker's bus error comes from


def failed(job: Job, code: int, watch: Watch) -> BuildError:
    """The error of a build that ended with ``code``."""
    tail = tuple(watch.tail)
    if _ran_full(job, watch):
        return disk_full(job, tail)
    if Trouble.DENIED in watch.troubles and (path := foreign(job.target)):
        return denied(job, path, tail)
    return BuildError(_ending(job, code), hint=_hint(job, code, watch), tail=tail)


def _ran_full(job: Job, watch: Watch) -> bool:
    room = free(job.target)
    if watch.troubles & {Trouble.DISK_FULL, Trouble.QUOTA} or room < SCANT:
        return True
    return Trouble.BUS_ERROR in watch.troubles and room < LOW


def _ending(job: Job, code: int) -> str:
    what = "the custom build line" if job.command.build else "cargo build"
    where = f" in service {job.service}" if job.service else ""
    if 128 < code <= 192:  # above are exit codes of programs again, such as -1
        return f"{what}{where} was ended by signal {code - 128}"
    return f"{what}{where} ended with exit code {code}"


def _hint(job: Job, code: int, watch: Watch) -> str:
    if code == 127 or Trouble.NO_BASH in watch.troubles:
        where = f"the image of service {job.service} needs bash and" if job.service else "the PATH of this shell needs"
        return f"{where} {'what the line calls' if job.command.build else 'cargo'}"
    if code == 137:
        return f"SIGKILL often means that memory ran out: try `--jobs 1`; the whole output is in {job.log}"
    return f"the whole output is in {job.log}"


def unwritable(job: Job, error: OSError) -> BuildError:
    """The error of a target directory, or a log in it, that could not be made."""
    if error.errno in _FULL:
        return disk_full(job, ())
    if isinstance(error, PermissionError):
        return denied(job, foreign(job.target) or Path(error.filename or job.target), ())
    return BuildError(f"the target directory can't be used: {error}", where=str(job.target))


def disk_full(job: Job, tail: tuple[str, ...]) -> BuildError:
    """No space left while building."""
    size = free(job.target)
    own = "" if size < SCANT or not job.service else " (so it may be the Docker engine's own storage that is full)"
    return BuildError(
        f"no space left on device: {size / (1 << 20):.1f} MiB free at {job.target}{own}",
        hint="make room, then build again",
        tail=tail,
    )


def denied(job: Job, path: Path, tail: tuple[str, ...]) -> BuildError:
    """Somebody else's file is in the way, most often root's: a container's user is root by default."""
    by = f"owned by uid {path.lstat().st_uid}" if os.path.lexists(path) else "not to be made"
    what = f"permission denied: {path} is {by}, this is uid {os.geteuid()}"
    if not path.is_relative_to(job.root / "target"):
        return BuildError(what, hint=f"builds need to write below {job.root / 'target'}", tail=tail)
    here, inside = quote(str(job.target)), quote(str(WORKSPACE / job.target_dir))
    return BuildError(
        f"{what}; an earlier build in a container may have written it as the container's user",
        hint=f"sudo chown -R {os.geteuid()}:{os.getegid()} {here}, or remove what was built: "
        f"docker compose run --rm --no-deps {quote(job.service or 'SERVICE')} rm -rf {inside}",
        tail=tail,
    )


def free(path: Path) -> int:
    """Bytes that this user can still write at ``path``, or at its nearest parent that is there."""
    there = next(place for place in (path, *path.parents) if place.is_dir())
    return shutil.disk_usage(there).free


def foreign(top: Path) -> Path | None:
    """The first path at or below ``top``, or the nearest above it, that is another user's and closed to this one."""
    there = next(place for place in (top, *top.parents) if os.path.lexists(place))
    below = (Path(folder) / name for folder, folders, files in os.walk(there) for name in (*folders, *files))
    return next((path for path in (there, *below) if _closed(path)), None)


def _closed(path: Path) -> bool:
    return path.lstat().st_uid != os.geteuid() and not os.access(path, os.W_OK)
