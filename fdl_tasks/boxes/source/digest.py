"""Whether the tree holds what was published, byte for byte: the sidecar hashes to the manifest's digest, and every
file to its line in the sidecar.

A tree that differs was caught between two publishes, or is not whole: the next fetch brings the rest. Links and
special files are neither hashed nor followed; what the fetch leaves out is left out here.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

from ...errors import PermanentError, TransientError
from .manifest import FILE, SIDECAR, Manifest

NAMED = 5  # files that a message names
CHUNK = 1 << 18
MOST_BYTES = 64 << 20  # of a sidecar: some 500 000 files
_LINE = re.compile(rb"(\\?)([0-9a-fA-F]{64}) [ *](.+)", re.DOTALL)  # DOTALL: a name may hold a carriage return
_ESCAPES = {b"\\\\": b"\\", b"\\n": b"\n", b"\\r": b"\r"}


def verify(tree: Path, manifest: Manifest, *, extra: bool = True) -> None:
    """Compare the tree with the digest of its manifest; without one there is nothing to compare.

    Args:
        extra: whether a file that is not listed is a difference. In a tree of git's it may be the build's, and stays.

    Raises:
        TransientError: something differs; the first five files are named.
        PermanentError: a listed file can never arrive, the sidecar is no list, or a file can't be read.
    """
    if manifest.digest is None:
        return
    raw = read_plain(tree / SIDECAR, MOST_BYTES)
    if raw is None:
        raise _differs(tree, f"its {SIDECAR} is missing")
    if hashlib.sha256(raw).hexdigest() != manifest.digest.sha256:
        raise _differs(tree, f"its {SIDECAR} is that of another publish")
    listed = parse(raw, str(tree / SIDECAR))
    if never := [name for name in listed if left_out(name)]:
        raise PermanentError(
            f"the digest lists what is never fetched: {_named(never)}",
            where=str(tree / SIDECAR),
            hint="target/, .git/ and the tree's libtorch/ stay where they are: give the directory another name",
        )
    if found := [name for name in differences(tree, listed) if extra or name in listed]:
        raise _differs(tree, _named(found))


def _differs(tree: Path, what: str) -> TransientError:
    hint = "a publish was under way, or the source has changed since: the next fetch brings what is missing"
    return TransientError(f"the fetched source is not what was published: {what}", where=str(tree), hint=hint)


def parse(raw: bytes, file: str) -> dict[bytes, str]:
    """The hash of each listed file, by its path (pure). sha256sum's escapes of odd names are read, and ``./`` dropped.

    Raises:
        PermanentError: a line is none, or names what lies outside of the tree.
    """
    listed: dict[bytes, str] = {}
    for number, line in enumerate(raw.split(b"\n"), 1):
        if not line:
            continue
        found = _LINE.fullmatch(line)
        name = _name(found) if found else b""
        if not found or not name or name.startswith(b"/") or b".." in name.split(b"/"):
            raise PermanentError(
                "is no line of a list of hashes below the tree", where=f"{file}:{number}", hint="publish the run again"
            )
        listed[name] = found[2].decode().lower()
    return listed


def _name(line: re.Match[bytes]) -> bytes:
    name = line[3]
    if line[1]:
        name = re.sub(rb"\\[\\nr]", lambda found: _ESCAPES[found[0]], name)
    return name.removeprefix(b"./")


def left_out(name: bytes) -> bool:
    """Whether the fetch leaves a path out: below a ``target/`` or ``.git/``, or the root's ``libtorch/``."""
    *folders, _ = name.split(b"/")
    return b"target" in folders or b".git" in folders or folders[:1] == [b"libtorch"]


def differences(tree: Path, listed: Mapping[bytes, str]) -> list[bytes]:
    """The paths that are missing, that are not listed, or whose content is another; sorted."""
    there = dict(_files(os.fsencode(tree), b""))
    changed = [name for name, wanted in listed.items() if name in there and _hash(there[name]) != wanted]
    return sorted([*changed, *(set(listed) ^ set(there))])


def _files(folder: bytes, below: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Regular files under a folder: the path in the tree, and where that is."""
    try:
        with os.scandir(folder) as entries:
            found = list(entries)
    except OSError as error:
        raise _unreadable(folder, error) from None
    for entry in found:
        name = below + entry.name
        if entry.is_dir(follow_symlinks=False):
            if not left_out(name + b"/"):
                yield from _files(entry.path, name + b"/")
        elif entry.is_file(follow_symlinks=False) and os.fsdecode(name) not in (FILE, SIDECAR):
            yield name, entry.path


def _hash(path: bytes) -> str:
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb", buffering=0) as stream:
            digest = hashlib.sha256()  # hashlib.file_digest makes a quarter of a megabyte ready for each small file
            while data := stream.read(CHUNK):
                digest.update(data)
            return digest.hexdigest()
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise _unreadable(path, error) from None


def read_plain(file: Path, most: int) -> bytes | None:
    """The content of a regular file, never of what a link points at; None where there is none.

    Raises:
        PermanentError: it is something else, it is larger than ``most`` bytes, or can't be read.
    """
    try:
        with open(os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as stream:  # a FIFO would hang
            if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
                raise PermanentError("is no regular file", where=str(file), hint="publish the run again")
            raw = stream.read(most + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _unreadable(os.fsencode(file), error) from None
    if len(raw) > most:
        raise PermanentError(f"is larger than {most >> 20} MiB", where=str(file), hint="publish the run again")
    return raw


def _unreadable(path: bytes, error: OSError) -> PermanentError:
    what = "is a link, which is not followed" if error.errno == errno.ELOOP else f"can't be read: {error.strerror}"
    return PermanentError(what, where=_shown(path), hint="publish the run again, or mend the file on this box")


def _named(names: list[bytes]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(map(_shown, names[:NAMED])) + more


def _shown(name: bytes) -> str:
    text = os.fsdecode(name)
    return text if text.isprintable() else ascii(text)
