"""An archive of libtorch unpacked so that nothing of it can land anywhere else.

What is wrong with an archive that came whole stays wrong: permanent. One that is torn came badly: transient.
Nothing but directories and ordinary files is taken (the official archives hold nothing else), without setuid and
without write permission for others, and never over something that is there already.
"""

from __future__ import annotations

import contextlib
import stat
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path, PurePosixPath

from ...errors import PermanentError, TransientError
from ...sizes import human_size
from ..room import free, full, is_full
from .download import CHUNK, Progress, silent

MEMBERS = 200_000
SIZE = 128 << 30  # bytes
TORN = (zipfile.BadZipFile, zlib.error, EOFError, struct.error, NotImplementedError, ValueError, OverflowError)
WHAT = "unpacking libtorch"
AGAIN = "run it again; where it stays so, the mirror's file is broken (fdl.libtorch.base_url)"


def unpack(
    archive: Path, into: Path, *, progress: Progress = silent, origin: str = "", disk: Path | None = None
) -> None:
    """Unpack ``archive`` below ``into``, a directory that nobody else writes to.

    Args:
        origin: where the archive came from, for messages.
        disk: what a full disk is named by; default: ``into``.

    Raises:
        TransientError: it is no zip, or a torn one.
        PermanentError: it holds what must not be there, or there is no room for it.
    """
    origin, disk = origin or str(archive), disk or into
    try:
        with zipfile.ZipFile(archive) as opened:
            members = opened.infolist()
            size = _checked(members, origin)
            if size > free(disk):
                raise full(disk, WHAT, size)
            with _written(disk, size):
                _extract(opened, members, into, lambda done: progress(done, size))
    except (*TORN, OSError) as error:  # OSError: it points to places that it does not have
        raise TransientError(f"it is no whole zip: {error}", where=origin, hint=AGAIN) from error


@contextlib.contextmanager
def _written(disk: Path, size: int) -> Iterator[None]:
    """What can't be written, and only that: what can't be read has become a ``BadZipFile`` before."""
    try:
        yield
    except OSError as error:
        if is_full(error):
            raise full(disk, WHAT, size) from error
        why = f"libtorch can't be unpacked: {error.strerror}"
        raise PermanentError(why, where=str(error.filename or disk)) from error


def _checked(members: Sequence[zipfile.ZipInfo], origin: str) -> int:
    """The bytes that all of them make, once every one of them has been looked at."""
    if len(members) > MEMBERS:
        raise refused(origin, f"this is no archive of libtorch: it has {len(members)} members")
    for member in members:
        if why := _fault(member):
            raise refused(origin, f"this is no archive of libtorch: {member.orig_filename!r} {why}")
    if (size := sum(member.file_size for member in members)) > SIZE:
        raise refused(origin, f"this is no archive of libtorch: it would be {human_size(size)}")
    return size


def refused(origin: str, why: str) -> PermanentError:
    """The error of an archive that came whole and is not what it should be."""
    hint = "take the archive of download.pytorch.org or an unchanged copy (fdl.libtorch.base_url)"
    return PermanentError(why, where=origin, hint=hint)


def _fault(member: zipfile.ZipInfo) -> str:
    """Why this member is not taken; empty when it is. The name is the archive's own, before zipfile tidies it."""
    name, kind = member.orig_filename, stat.S_IFMT(member.external_attr >> 16)
    if name.startswith("/") or "\\" in name or ".." in PurePosixPath(name).parts:
        return "leads out of the archive"
    if not name or not name.isprintable():
        return "is no name for a file"
    if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
        return "is neither a file nor a directory (a link?)"
    if member.flag_bits & 1 or member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        return "is encrypted, or compressed in a way that is not known here"
    return ""


def _extract(
    opened: zipfile.ZipFile, members: Sequence[zipfile.ZipInfo], into: Path, progress: Callable[[int], None]
) -> None:
    done = 0
    for member in members:
        target = into / member.filename
        if member.is_dir():
            target.mkdir(parents=True, exist_ok=True)
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("xb") as file:
            for chunk in _chunks(opened, member):
                file.write(chunk)
                done += len(chunk)
                progress(done)
        target.chmod((member.external_attr >> 16) & 0o755 | 0o644)


def _chunks(opened: zipfile.ZipFile, member: zipfile.ZipInfo) -> Iterator[bytes]:
    """The content of a member. What fails in here is the reading of the archive."""
    left = member.file_size
    try:
        with opened.open(member) as source:
            while chunk := source.read(CHUNK):
                left -= len(chunk)
                yield chunk
    except OSError as error:
        raise zipfile.BadZipFile(str(error)) from error
    if left:
        raise zipfile.BadZipFile(f"{member.filename!r} is shorter than it says")
