"""The run manifest: what the controller published beside the source, as typed values (pure).

Form: spec/prepare.md, 4; seeds/001. Keys that are not known here are a newer publisher's: ignored, with a note.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from ...cluster import names
from ...cluster.load import read_document
from ...cluster.scalars import Whole
from ...errors import ConfigError, PermanentError

FILE = ".fdl-run.yml"  # at the root of the tree; its presence says that a run is published
LONGEST = 4096  # characters of a path or a name: longer ones are printed to nobody's use
SIDECAR = ".fdl-run.sha256"  # beside it: the list of files that `digest` is the hash of

T = TypeVar("T")


@dataclass(frozen=True)
class Digest:
    """What the tree must hold: the hash of the sidecar, and how many files and bytes that lists."""

    sha256: str
    files: int | None = None
    bytes: int | None = None


@dataclass(frozen=True)
class Manifest:
    """One published run. ``bin`` is relative to ``cwd``, that to the tree; ``published_epoch`` in Unix seconds."""

    bin: str
    cwd: str | None = None
    build: str | None = None
    args: tuple[str, ...] = ()
    origin: str | None = None
    rustc: str | None = None
    published_epoch: int | None = None
    run: str | None = None
    built: bool = False
    digest: Digest | None = None


def parse(raw: bytes, file: str) -> tuple[Manifest, tuple[str, ...]]:
    """The manifest that ``file`` holds, and notes on what in it was ignored.

    Raises:
        PermanentError: it is malformed; the message names the key and its line.
    """
    try:
        document = read_document(raw, file)
    except ConfigError as error:
        raise _malformed(error.faults[0].message if error.faults else error.what, file) from None
    if document.faults:
        raise _malformed(str(document.faults[0]), file)
    value = document.value
    try:
        manifest = _manifest(value)
    except _WrongError as error:
        line = document.lines.get(error.place, 0)
        raise _malformed(f"`{'.'.join(error.place)}`: {error}", f"{file}:{line}" if line else file) from None
    return manifest, _unknown(value, file)


def told(manifest: Manifest, now: float, rustc: str | None) -> list[str]:
    """What a person wants to know of a run; ``now`` in Unix seconds, ``rustc`` as ``rustc -V`` says here."""
    run = f"run {manifest.run[:8]}: " if manifest.run else ""
    where = f" in {manifest.cwd}" if manifest.cwd else ""
    age = _age(now - manifest.published_epoch) if manifest.published_epoch is not None else ""
    built = "built by its publisher" if manifest.built else "NOT built by its publisher"
    notes = [", ".join(part for part in (f"{run}{manifest.bin}{where}", age, built) if part)]
    if rustc and manifest.rustc and rustc != manifest.rustc:
        notes.append(f"the publisher has {manifest.rustc}, this box {rustc}: of no matter unless the build fails")
    return notes


def _age(seconds: float) -> str:
    """Nothing where the two clocks disagree."""
    if seconds < 0:
        return ""
    if seconds <= 90:
        return "published just now"
    for limit, unit, name in ((5400, 60, "min"), (172_800, 3600, "h"), (float("inf"), 86_400, "d")):
        if seconds < limit:
            return f"published {int(seconds // unit)} {name} ago"
    raise AssertionError("no age is longer than for ever")


class _WrongError(ValueError):
    """A value that is not what its key takes; ``place`` is the key."""

    def __init__(self, place: tuple[str, ...], message: str):
        super().__init__(message)
        self.place = place


def _malformed(what: str, where: str) -> PermanentError:
    return PermanentError(f"the run manifest is malformed: {what}", where=where, hint="publish the run again")


def _manifest(value: Mapping[str, Any]) -> Manifest:
    def get(key: str, read: Callable[[Any], T]) -> T | None:
        return _read(value, (key,), read)

    binary = get("bin", _text)
    if binary is None:
        raise _WrongError(("bin",), "is missing: it names what the build makes, relative to `cwd`")
    return Manifest(
        bin=binary,
        cwd=get("cwd", _text),
        build=get("build", _shell),
        args=get("args", _words) or (),
        origin=get("origin", _text),
        rustc=get("rustc", _text),
        published_epoch=get("published_epoch", _count),
        run=get("run", _text),
        built=get("built", _flag) or False,
        digest=get("digest", _digest),
    )


def _read(value: Mapping[str, Any], place: tuple[str, ...], read: Callable[[Any], T]) -> T | None:
    """What stands at the key, read; None where the key is missing or empty."""
    found = value.get(place[-1])
    try:
        return None if found is None else read(found)
    except _WrongError as error:
        raise _WrongError((*place, *error.place), str(error)) from None
    except ValueError as error:
        raise _WrongError(place, str(error)) from None


def _string(value: Any) -> str:
    """Text; a whole number as it is written, since a run's identity may look like one."""
    if isinstance(value, Whole):
        return value.written
    if not isinstance(value, str):
        raise ValueError("expected text: put it in quotes")
    return value


def _text(value: Any) -> str:
    text = names.filled(_string(value))
    if len(text) > LONGEST:
        raise ValueError(f"expected at most {LONGEST} characters, found {len(text)}")
    return text


def _shell(value: Any) -> str:
    return names.shell_lines(_string(value))


def _words(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise ValueError("expected a list")
    words = tuple(_string(word) for word in value)
    if any("\0" in word for word in words):
        raise ValueError("no program takes an argument with a NUL in it")
    return words


def _count(value: Any) -> int:
    if not isinstance(value, Whole) or value < 0:
        raise ValueError("expected a whole number")
    return int(value)


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError("expected true or false")
    return value


def _digest(value: Any) -> Digest:
    if not isinstance(value, dict):
        raise ValueError("expected a mapping")
    sha256 = _read(value, ("sha256",), _hash)
    if sha256 is None:
        raise _WrongError(("sha256",), "is missing")
    return Digest(sha256, _read(value, ("files",), _count), _read(value, ("bytes",), _count))


def _hash(value: Any) -> str:
    if not re.fullmatch("[0-9a-f]{64}", text := _string(value).lower()):
        raise ValueError("expected 64 hexadecimal digits")
    return text


def _unknown(value: Mapping[str, Any], file: str) -> tuple[str, ...]:
    """A note where there are keys of a newer publisher."""
    known = {*Manifest.__dataclass_fields__}
    inner = value.get("digest") or {}
    keys = [*(key for key in value if key not in known)]
    keys += [f"digest.{key}" for key in inner if key not in Digest.__dataclass_fields__]
    shown = ", ".join(key if key.isprintable() else ascii(key) for key in keys)
    return (f"{file}: ignored, since it is not known here: {shown}",) if keys else ()
