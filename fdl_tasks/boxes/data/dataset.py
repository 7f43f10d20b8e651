"""Step 2 of ``prepare``: the data where the ranks will look for it (spec/prepare.md, 2).

Declared alone, ``data_path`` is somebody else's work and only looked at. With ``data_source`` it is mounted here, once
and read-only: the mount stays after the run, which makes the next one cheap.
"""

from __future__ import annotations

import errno
import json
import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ...cluster import names
from ...cluster.model import DEFAULT_DATA_PATH, Ssh
from ...errors import PermanentError, PrepareError, TransientError, TransportError
from ..room import full, is_full
from ..specs import Target, parse_data_source
from ..ssh.pins import pinned
from ..ssh.shell import options, overruled
from ..tools import Note, Tools
from .directories import global_root
from .mounts import Mount, mounted_at, mounted_over, mounts
from .sshfs import mount_words, refusal

LISTING = 10.0  # seconds that a directory has to list
MOUNTING = 60.0  # seconds for sshfs; a forced command that is silent would hold it for good
FAR_SIDE = {errno.ENOTCONN, errno.ESTALE, errno.EIO, errno.ETIMEDOUT, errno.EHOSTDOWN, errno.EHOSTUNREACH}


@dataclass(frozen=True)
class Look:
    """A directory, looked at: ``error`` is errno, 0 where it lists; ``real`` is its path without symlinks."""

    real: Path
    error: int = 0
    empty: bool = False


def prepare_data(path: str | None, source: str | None, ssh: Ssh | None, tools: Tools, note: Note) -> Path | None:
    """The directory of the data, listed; None where neither ``data_path`` nor ``data_source`` is given.

    Raises:
        TransientError: the far side of a mount is down, slow or refuses; or nothing got mounted.
        PermanentError: the path or the source is wrong, the box can't mount, the mountpoint can't be made.
    """
    if source is None:
        return None if path is None else _ready(absolute(path), tools, note)
    target, at = parse_data_source(source), absolute(DEFAULT_DATA_PATH if path is None else path)
    seen, table = look(at, tools), mounts()
    there = mounted_at(seen.real if seen else at, table)
    for line in kept(at, there, target) if there else ():
        note(line)
    if there or seen is None or seen.error in FAR_SIDE:
        return _listing(at, seen, table)
    _ensure_mountpoint(at)
    if not seen.error and not seen.empty:
        note(f"{at} is not empty: what is in it is hidden while {target.remote} is mounted there")
    _mount(target, at, ssh, tools, note)
    seen, table = look(at, tools), mounts()
    if not mounted_at(seen.real if seen else at, table):
        raise _nothing_mounted(target, at)
    note(f"mounted {target.remote} read-only at {at}")
    return _listing(at, seen, table)


def absolute(path: str) -> Path:
    """``path`` from the current directory, lexically: symlinks and ``..`` stay, for they are what was declared.

    Raises:
        PermanentError: it is empty, or holds a control character; the current directory is gone.
    """
    try:
        return Path(names.filled(path)).absolute()
    except ValueError as error:
        raise PermanentError(f"data_path: {path!a}: {error}", hint="write an absolute path") from None
    except FileNotFoundError:
        raise PermanentError(
            f"data_path: {path}: the current directory is gone", hint="write an absolute path"
        ) from None


def look(path: Path, tools: Tools) -> Look | None:
    """The directory as a child of ours sees it; None when it does not list within ``LISTING`` seconds.

    A child that a dead FUSE mount holds can't be killed: it is given up, and ends when the mount answers or goes.
    """
    program = Path(__file__).with_name("listing.py")
    try:
        done = tools.run([sys.executable, "-I", "-S", program, path], limit=LISTING)
    except TransportError:
        return None
    try:
        answer = json.loads(done.out)
        return Look(Path(answer["real"]), answer["error"], answer["empty"])
    except (ValueError, TypeError, KeyError):
        raise TransientError(
            f"could not be looked at (exit code {done.code})",
            where=str(path),
            hint="has this box memory and processes left?",
            tail=done.err.splitlines()[-5:],
        ) from None


def kept(at: Path, there: Mount, target: Target) -> list[str]:
    """What to tell of a mount that is there already: it is used as it is."""
    lines = [f"{at} is mounted already, from {there.source} ({there.kind})"]
    if there.source.rstrip("/") != target.remote.rstrip("/"):
        lines.append(
            f"{at} is not the configured {target.remote}, and the ranks read what is there: "
            f"end that mount ({_end_of(there, at)}) to have the configured one"
        )
    return lines


def judge(path: Path, seen: Look | None, table: Sequence[Mount]) -> PrepareError | None:
    """Why a directory can't be read from; None when it can. What a mount's far side may mend is transient."""
    if seen is None:
        lazily = f"fusermount -u -z {shlex.quote(str(path))}"  # a child that was given up may hold it
        return TransientError(f"does not list within {LISTING:g} s", where=str(path), hint=_wait_or_end(lazily))
    if not seen.error:
        return None
    over = mounted_over(seen.real, table)
    if seen.error in FAR_SIDE and over and over.at != Path("/"):
        return TransientError(os.strerror(seen.error), where=str(path), hint=_wait_or_end(_end_of(over, over.at)))
    return PermanentError(
        f"data_path can't be read: {os.strerror(seen.error)}",
        where=str(path),
        hint="mount or make it while the box is set up, point `data_path:` at a directory that this user may list, "
        "or set `data_source:` to have it mounted here",
    )


def _ready(path: Path, tools: Tools, note: Note) -> Path:
    seen = look(path, tools)
    if seen and seen.empty:
        note(f"{path} is empty: is what should be mounted there?")
    return _listing(path, seen, mounts())


def _listing(path: Path, seen: Look | None, table: Sequence[Mount]) -> Path:
    if error := judge(path, seen, table):
        raise error
    return path


def _ensure_mountpoint(at: Path) -> None:
    try:
        at.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        if is_full(error):
            raise full(at, "the mountpoint can't be made") from error
        name = shlex.quote(str(at))
        raise PermanentError(
            f"the mountpoint can't be made: {error.strerror}",
            where=str(at),
            hint=f"make it once while the box is set up (sudo mkdir -p {name} && sudo chown $USER {name}), "
            "or set `data_path:` to a directory of this user's own",
        ) from error


def _mount(target: Target, at: Path, ssh: Ssh | None, tools: Tools, note: Note) -> None:
    tools.need("sshfs", "ssh")
    if asked := overruled(ssh):
        note(f"{asked} is overruled: nobody could answer a prompt here")
    words = mount_words(target, at, options(ssh, target.port, pinned(ssh, target, tools, _pin_file(ssh))))
    try:
        done = tools.run(words, limit=MOUNTING, template="boxes/mount.sh")
    except TransportError as error:
        raise TransientError(
            f"{target.remote} could not be mounted within {MOUNTING:g} s",
            where=str(at),
            hint="the far side accepts the connection and then says nothing: see what the key's forced command does",
        ) from error
    if done.code:
        raise refusal(target, at, done.code, done.err.splitlines())


def _nothing_mounted(target: Target, at: Path) -> TransientError:
    return TransientError(
        f"sshfs reported success, but nothing is mounted from {target.remote}",
        where=str(at),
        hint="the far side may have dropped the connection at once: try again",
    )


def _pin_file(ssh: Ssh | None) -> Path:
    """Where a pinned host key stays, since the mount reconnects long after the run."""
    root = global_root(os.environ)
    if root is None and ssh and ssh.host_keys:
        raise PermanentError(
            "there is no place for the pinned host key: HOME and FLODL_HOME are not set",
            where="join.ssh.host_key",
            hint="set HOME, or FLODL_HOME to a directory on a local disk",
        )
    return (root or Path("/")) / "data.known_hosts"


def _end_of(mount: Mount, at: Path) -> str:
    name = shlex.quote(str(at))
    return f"fusermount -u {name}" if mount.kind.startswith("fuse") else f"sudo umount {name}; fusermount -u is FUSE's"


def _wait_or_end(how: str) -> str:
    return f"see to the far side and try again; a mount that stays dead is ended with: {how}"
