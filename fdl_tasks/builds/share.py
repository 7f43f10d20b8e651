"""Built once for several workers: whose build serves whom, and the artifact copied from one to the other."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from ..errors import BuildError, FdlError
from ..outcome import Attempt
from ..stamp import STAMP
from .plan import Job

FICLONE = 0x40049409  # linux/fs.h: the target's extents become the source's own, copied when one is written


def leaders(jobs: Mapping[str, Job]) -> dict[str, str]:
    """For each host the host whose build serves it: the first, in the jobs' order, with the same inputs.

    libtorch's stamp is among them by ``arch``, the environment since it is this process's for all of them.
    """
    first: dict[Job, str] = {}
    return {host: first.setdefault(replace(job, host="", loader_path=""), host) for host, job in jobs.items()}


def leading(jobs: Mapping[str, Job]) -> dict[str, Job]:
    """The jobs that are really built."""
    leader_of = leaders(jobs)
    return {host: job for host, job in jobs.items() if leader_of[host] == host}


def take(leader: Job, made: Attempt[str], job: Job) -> str:
    """What the leader's build gave, as the job's own: the artifact's copy below the job's target directory.

    Returns:
        The copy's path, relative to the project root.

    Raises:
        BuildError: the leader's build failed.
        OSError: it could not be copied.
    """
    with contextlib.suppress(OSError):  # a log too little is no failure; what is wrong shows with the copy
        job.target.mkdir(parents=True, exist_ok=True)
        job.log.write_text(_log(leader, job), encoding="utf-8", errors="replace")
    if made.value is None:
        raise _failed(leader, made.error)
    path = f"{job.target_dir}/{PurePosixPath(made.value).relative_to(leader.target_dir)}"
    _distrust(job.target / STAMP, leader.target / STAMP)
    copy(job.root / made.value, job.root / path)
    return path


def _distrust(own: Path, leaders: Path) -> None:
    """Let the job's next own build begin anew when its directory was filled against another libtorch.

    Should that one come back, make would take the copy, the newest file there, for up to date.
    """
    if own.exists() and not (leaders.exists() and leaders.read_bytes() == own.read_bytes()):
        own.unlink()


def _log(leader: Job, job: Job) -> str:
    about = f"# {job.command.name} for {job.host}, linked against {job.arch}\n"
    return f"{about}# built once, for {leader.host}: the output is in {leader.log}\n"


def _failed(leader: Job, error: Exception | None) -> BuildError:
    """The leader's error without its output, which is shown there."""
    shown = f"{error.where}: {error.what}".removeprefix(": ") if isinstance(error, FdlError) else repr(error)
    hint = error.hint if isinstance(error, FdlError) else ""
    return BuildError(f"{shown} (the build of {leader.host}, which is this worker's too)", hint=hint)


def copy(source: Path, target: Path) -> None:
    """Copy a program in one step, mode and time with it. Raises OSError.

    Never a link: cargo's own copy of a binary is one already, so that writing through one name would change
    what cargo takes for good, while a replaced name leaves the cache beside it as it is. The time is the
    original's: a later ``make`` must not take the copy for newer than a source that changed meanwhile.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    new = target.with_name(f".fdl-{target.name}.new")  # one run at a time writes here, by its lock
    try:
        with open(source, "rb") as old, open(new, "wb") as file:
            _fill(old, file)
            file.flush()
            os.fsync(file.fileno())
        shutil.copystat(source, new)
        new.replace(target)
    finally:
        new.unlink(missing_ok=True)


def _fill(source: BinaryIO, target: BinaryIO) -> None:
    """A clone where the file system can, else a copy within the kernel or by a file server, else a plain one."""
    try:
        fcntl.ioctl(target, FICLONE, source.fileno())
    except OSError:
        try:
            while os.copy_file_range(source.fileno(), target.fileno(), 1 << 30):
                pass
            if os.fstat(target.fileno()).st_size != os.fstat(source.fileno()).st_size:
                raise OSError("some file servers end it early")
        except OSError:  # not for these two file systems; what is really wrong shows again below
            source.seek(0)
            target.seek(0)
            shutil.copyfileobj(source, target)
