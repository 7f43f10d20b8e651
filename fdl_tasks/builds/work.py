"""One worker's build, from its script to the artifact that is really there."""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path

from ..errors import BuildError, FdlError
from ..hosts.base import Completed
from ..hosts.fanout import Cancel
from ..hosts.local import Local
from ..outcome import Event, Kind, Progress
from ..scripts import Script, Scripts
from ..stamp import identity
from . import cargo, explain, plan
from .jobserver import NO_TOKENS, Tokens
from .plan import Job
from .watch import Watch

LIMIT = 24 * 3600.0  # seconds: only against a build that hangs for ever, a cold one may take hours
REMOVAL_LIMIT = 10.0  # seconds for Docker to answer after a bad end
CACHE = "CACHEDIR.TAG"
NO_RUN = "0" * 8  # stands for a run's nonce in a script that is only shown


class NotStarted(BuildError):
    """The build failed before its script ran: no cargo was started."""


def script(job: Job, scripts: Scripts, compilers: int, *, stamp: str, nonce: str = NO_RUN) -> Script:
    """What the controller runs to build ``job``, with ``compilers`` at once where that is ours to say."""
    inside = job.inside
    inner = scripts.render(
        "builds/build.sh",
        directory=str(inside / job.cwd_subpath),
        target=str(inside / job.target_dir),
        stamp=stamp,
        words=plan.build_words(job),
    )
    if not job.service:
        return inner
    container = plan.container_name(nonce, job.host)
    words = plan.compose_words(job, container, compilers)
    return scripts.render("builds/compose.sh", root=job.root, container=container, inner=inner.text, words=words)


def build(
    job: Job, scripts: Scripts, compilers: int, cancel: Cancel, progress: Progress, tokens: Tokens = NO_TOKENS
) -> str:
    """Build for one worker; the artifact's path relative to the project root.

    A native build runs as many compilers as it gets ``tokens``, and one; in a container it runs ``compilers``.

    Raises:
        NotStarted: libtorch can't be read, or the target directory not be used.
        BuildError: the build failed, or did not produce the binary that was asked for.
    """
    stamp, watch = _prepare(job, progress)
    nonce = secrets.token_hex(4)
    made = script(job, scripts, compilers, stamp=stamp, nonce=nonce)
    with watch:
        progress(Event(job.host, Kind.STATE, "building"))
        done = _run(job, Local(job.host, cancel, tokens.env, tokens.fds), made, nonce, scripts, watch)
        if done.code:
            raise explain.failed(job, done.code, watch)
        if identity(job.libtorch) != stamp:
            raise BuildError(
                f"{job.libtorch} was replaced while it was built against", hint="build again once it is complete"
            )
        return _artifact(job, watch)


def _prepare(job: Job, progress: Progress) -> tuple[str, Watch]:
    try:
        stamp = identity(job.libtorch)
        job.target.mkdir(parents=True, exist_ok=True)
        return stamp, Watch(job, progress)
    except BuildError as error:
        raise NotStarted(error.what, where=error.where, hint=error.hint) from error
    except OSError as error:
        found = explain.unwritable(job, error)
        raise NotStarted(found.what, where=found.where, hint=found.hint) from error


def _run(job: Job, here: Local, made: Script, nonce: str, scripts: Scripts, watch: Watch) -> Completed:
    ended_well = False
    try:
        done = here.run(made, limit=LIMIT, on_line=watch)
        ended_well = done.code == 0
        return done
    finally:
        if job.service and not ended_well:
            _remove(job, plan.container_name(nonce, job.host), scripts, watch)


def _remove(job: Job, container: str, scripts: Scripts, watch: Watch) -> None:
    """Look that the container is gone, also after a Ctrl-C: the script's own removal may have been cut short."""
    try:
        made = scripts.render("builds/remove-container.sh", container=container)
        answer = Local(job.host, Cancel()).run(made, limit=REMOVAL_LIMIT).out.strip()
    except FdlError as error:
        answer = str(error)
    if answer != "gone":
        watch.note(
            f"container {container} may still be there ({answer or 'Docker does not answer'}): docker rm -f {container}"
        )


def _artifact(job: Job, watch: Watch) -> str:
    """The binary, seen by the controller under its own path."""
    path = job.custom_bin if job.command.build else cargo.artifact(watch.executables, job)
    try:
        found = (job.root / path).stat()
    except OSError as error:
        raise BuildError(f"built, but the binary can't be seen: {error}", hint=_where_it_belongs(job)) from error
    if not stat.S_ISREG(found.st_mode) or not found.st_mode & stat.S_IXUSR:
        raise BuildError(f"{job.root / path} is no program", hint=_where_it_belongs(job))
    if job.command.build and found.st_mtime_ns < watch.began_ns and found.st_mtime_ns < newest_source(job):
        raise BuildError(
            f"the custom build line ended well, but {path} is an old one: older than this run and than a source",
            hint=_where_it_belongs(job),
        )
    return path


def _where_it_belongs(job: Job) -> str:
    if job.command.build:
        name = job.command.name
        place = job.command.bin or f"release/{name}"
        return f"commands.{name}.build must write $FDL_TARGET_DIR/{place} (commands.{name}.bin)"
    return f"does the service {job.service} mount the project root at {plan.WORKSPACE}?" if job.service else ""


def newest_source(job: Job) -> int:
    """The latest mtime, in ns, of a file under the command's directory; what is built or fetched apart.

    cargo marks what it builds in: https://bford.info/cachedir/. A directory of sources may be called ``target``, too.
    """
    return max((path.lstat().st_mtime_ns for path in _sources(job)), default=0)


def _sources(job: Job) -> Iterator[Path]:
    for folder, folders, files in os.walk(job.root / job.cwd_subpath):
        apart = {".git", *(("target", "libtorch") if Path(folder) == job.root else ())}
        folders[:] = [name for name in folders if name not in apart and not (Path(folder) / name / CACHE).exists()]
        yield from (Path(folder) / name for name in files)
