"""The source on this box's own disk: fetched, its run manifest read, its digest checked.

Rules: spec/prepare.md, 4; seeds/001. File times are kept, so the next build is incremental; what a build made
(``target/`` at any depth) survives; what is gone at the source goes here too.

Which class a failure has: what only a hand on this box can mend is permanent, what the far side can mend, or will
when it is up again, is transient. So a far side without rsync is transient, and a host key that is not the known
one is permanent: this box keeps the old key, however long it waits.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from ...cluster.model import Ssh
from ...errors import PermanentError, PrepareError, TransientError, TransportError
from ...hosts.base import Completed
from ..room import full, is_full
from ..specs import FileSource, GitSource, RsyncSource, Source
from ..ssh.pins import STRANGER, STRANGER_HINT, STRANGER_WHAT, pinned
from ..ssh.shell import overruled, remote_shell, spelled
from ..tools import Note, Tools
from .digest import read_plain, verify
from .manifest import FILE, Manifest, parse, told
from .repository import Repository

LOOK_LIMIT = 15.0  # seconds for a look at a directory, which may be on a mount that hangs
SILENCE = 600  # seconds after which rsync gives a far side up that sends nothing
MOST_BYTES = 1 << 20  # of a manifest
TAIL = 6  # lines of a failed program that its error shows
FAR_HINT = "see to the far side, then try again"
LEFT_OUT = ("--exclude=target/", "--exclude=/libtorch/", "--exclude=.git/")

_OWN_FAULT = re.compile(  # of the half of rsync that writes; before 3.2 it does not say which half speaks
    r"(?:\[(?:receiver|generator)\] |^rsync: (?:recv_generator: )?(?:mkstemp|mkdir|failed to set) )"
    r".*(?:Permission denied|Read-only file system|Operation not permitted)",
    re.MULTILINE,
)
_NO_RSYNC = re.compile("rsync: (?:command )?not found|not found: rsync|unknown command:? '?rsync", re.IGNORECASE)
_GONE = re.compile("Transport endpoint is not connected|Stale file handle|Input/output error")

Pull = Callable[[bool], None]  # with True, compares the content of every file


def fetch(source: Source, tree: Path, ssh: Ssh | None, tools: Tools, note: Note) -> Manifest | None:
    """Make ``tree`` what the source is now, and read what is published with it; None where nothing is.

    Args:
        ssh: the key, the options and the pin of ``join.ssh``.

    Raises:
        TransientError: the source can't be had now, or is not what was published.
        PermanentError: waiting can't help.
    """
    if asked := overruled(ssh):
        note(f"{asked} is left out: nobody is here to answer a prompt")
    _make(tree)
    try:
        pull = _pull(source, tree, ssh, tools, note)
        pull(False)
        manifest = _checked(source, tree, pull, note)
    except TransportError as error:
        hint = "a mount or a far side that hangs may be back for the next try"
        raise TransientError(f"source: {error.what}", where=str(source), hint=hint) from None
    if manifest:
        for text in told(manifest, time.time(), _rustc(manifest, tools)):
            note(text)
    return manifest


def _make(tree: Path) -> None:
    """The tree may be a link to a directory on a larger disk, but not to one that it would empty."""
    try:
        tree.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        if is_full(error):
            raise full(tree.parent, "making the directory of the source") from None
        what = "is no directory" if isinstance(error, FileExistsError) else f"can't be made: {error.strerror}"
        raise PermanentError(what, where=str(tree), hint="the source is fetched to there: make room for it") from None
    if tree.parent.resolve().is_relative_to(tree.resolve()):
        raise PermanentError(
            "is a link to a directory around it, which the fetch would empty", where=str(tree), hint="remove the link"
        )


def _pull(source: Source, tree: Path, ssh: Ssh | None, tools: Tools, note: Note) -> Pull:
    """What brings the source here, after everything that it needs was looked at."""
    if isinstance(source, FileSource):
        tools.need("rsync")
        _check_directory(source.path, tree, tools)
        return lambda content: _rsync([f"{source.path}/"], source, tree, tools, content)
    target = source.target
    tools.need("rsync" if isinstance(source, RsyncSource) else "git", *(["ssh"] if target else []))
    known = pinned(ssh, target, tools, tree.with_name(f"{tree.name}.known_hosts")) if target else None
    if isinstance(source, GitSource):
        shell = spelled(remote_shell(ssh, None, known))  # git adds the port of its URL
        return lambda _: Repository(source, tree, tools, note, shell, os.environ).pull()
    shell = spelled(remote_shell(ssh, source.target.port, known))
    far = ["-e", shell, f"--timeout={SILENCE}", "--", f"{source.target.remote}/"]
    return lambda content: _rsync(far, source, tree, tools, content)


def _check_directory(path: Path, tree: Path, tools: Tools) -> None:
    done = tools.run(["ls", "-d", "--", f"{path}/."], limit=LOOK_LIMIT)
    if done.code != 0:
        kind: type[PrepareError] = TransientError if _GONE.search(done.err) else PermanentError
        hint = "the source must be on this box, or mounted, before `inv prepare` runs"
        raise kind("source: is no directory that can be read", where=str(path), hint=hint, tail=_tail(done))
    ours, theirs = tree.resolve(), path.resolve()
    if ours.is_relative_to(theirs) or theirs.is_relative_to(ours):
        raise PermanentError(
            "source: lies around or inside of the directory that it is fetched to",
            where=f"{path} and {tree}",
            hint="name the directory of the source itself",
        )


def _rsync(operands: list[str], source: FileSource | RsyncSource, tree: Path, tools: Tools, content: bool) -> None:
    rest = operands if "--" in operands else ["--", *operands]
    argv = ["rsync", "-a", "--delete", *LEFT_OUT, *(["--checksum"] if content else []), *rest, f"{tree}/"]
    done = tools.run(argv, directory=tree, env={"RSYNC_OLD_ARGS": "", "RSYNC_PROTECT_ARGS": ""})
    if done.code == 0:
        return
    if is_full(done.err):
        raise full(tree, "fetching the source", _needed(tree))
    raise rsync_failure(source, done)


def _needed(tree: Path) -> int | None:
    """Bytes of the whole tree, where the manifest has come before the disk was full."""
    try:
        manifest = _read(tree, lambda _: None)
    except PrepareError:
        return None
    return manifest.digest.bytes if manifest and manifest.digest else None


def rsync_failure(source: FileSource | RsyncSource, done: Completed) -> PrepareError:
    """What an rsync that failed means (pure)."""
    kind: type[PrepareError] = TransientError
    what, hint = f"rsync failed (exit code {done.code})", FAR_HINT
    if STRANGER.search(done.err):
        kind, what, hint = PermanentError, STRANGER_WHAT, STRANGER_HINT
    elif _OWN_FAULT.search(done.err):
        kind, hint = PermanentError, "this user must be able to write everything in the fetched tree"
    elif done.code == 24:
        what = "files vanished while they were fetched"
        hint = "a publish was under way: the next try gets the new tree"
    elif isinstance(source, FileSource):
        kind = TransientError if done.code == 20 or done.code > 128 or _GONE.search(done.err) else PermanentError
        hint = "this user must be able to read everything in it"
    elif done.code == 127 or _NO_RSYNC.search(done.err):
        what, hint = "the far side has no rsync", "install it there; it is no matter of this box"
    elif "Permission denied (" in done.err:
        hint = "the far side must know the key of `join: {ssh: {identity_file: …}}`"
    elif any(words in done.err for words in ("change_dir", "link_stat", "rrsync")):
        hint = "is the path there? behind a key that rrsync guards, paths begin at its directory: rsync://host:/tree"
    return kind(f"source: {what}", where=str(source), hint=hint, tail=_tail(done))


def _tail(done: Completed) -> list[str]:
    return [line for line in done.err.splitlines() if line.strip()][-TAIL:]


def _checked(source: Source, tree: Path, pull: Pull, note: Note) -> Manifest | None:
    """The manifest of a tree that holds what was published.

    A file whose size and time are right and whose content is not would stay for ever: rsync passes it by. So a tree
    that differs is fetched once more, by content, before it is given up.
    """
    manifest, git = _read(tree, note), isinstance(source, GitSource)
    try:
        if manifest:
            verify(tree, manifest, extra=not git)
        return manifest
    except TransientError:
        if git:
            raise
    note("the fetched source was not what was published: fetched again, comparing every file")
    pull(True)
    if manifest := _read(tree, lambda _: None):
        verify(tree, manifest)
    return manifest


def _read(tree: Path, note: Note) -> Manifest | None:
    raw = read_plain(tree / FILE, MOST_BYTES)
    if raw is None:
        return None
    manifest, notes = parse(raw, str(tree / FILE))
    for text in notes:
        note(text)
    return manifest


def _rustc(manifest: Manifest, tools: Tools) -> str | None:
    """What ``rustc -V`` says here, where the publisher says what it has; it is advice, so nothing fails over it."""
    if not manifest.rustc or not shutil.which("rustc"):
        return None
    try:
        done = tools.run(["rustc", "-V"], limit=LOOK_LIMIT)
    except TransportError:
        return None
    return done.out.strip() or None if done.code == 0 else None
