"""A binary here and on its worker, and the one parser of ``verify.sh``'s answer (pure).

Every line of the answer stands between two copies of a mark that is new in each run, and the last one
counts them. So what a login says is never taken for the answer, a line that was cut off is none, and an
answer that lacks a line is known to lack it: what it does say is true, what it does not say is unknown.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from ..checks.probe import Facts

_FILE = re.compile(r"([0-9]{1,18}) ([x-]) ([0-9a-f]{64}|-)")
_START = re.compile("[x-] [x-]")
_CODE = re.compile("[0-9]{1,3}")
_FOUND = re.compile(r"\s*(\S.*?)(?: => .*)? \(0x[0-9a-f]+\)")
_STATIC = re.compile(r"\s*(?:not a dynamic executable|statically linked)")
_HARMLESS = re.compile(  # it starts all the same; the last is an echo of `set -x`
    r".*: no version information available \(required by .+\)|.*: Symbol `.+' has different size in shared object, .*|"
    r"ERROR: ld\.so: object '.+' from .+ cannot be preloaded \(.+\): ignored\.|\++ .*"
)
_TROUBLES = (  # what the loaders of glibc and musl say, and how it is told
    (re.compile(r"\s*(\S.*) => not found"), "library {}"),
    (re.compile(r"undefined symbol: (.+?)\s+\(.*\)"), "symbol {}"),
    (re.compile(r"symbol (.+) not defined in file .+ with link time reference\s+\(.*\)"), "symbol {}"),
    (re.compile(r".*?(version `.+' not found(?: \(required by .+\))?)"), "{}"),
    (re.compile(r"Error loading shared library (.+?)(?:: .*)?(?: \(needed by .*\))?"), "library {}"),
    (re.compile(r"Error relocating .+: (.+): symbol not found"), "symbol {}"),
    (re.compile(r".*(?:error while loading shared libraries|symbol lookup error|relocation error): (.+)"), "{}"),
    (re.compile(r"(Inconsistency detected by ld\.so: .*)"), "{}"),
    (re.compile(r"ldd: (exited with unknown exit code \(\d+\))"), "the loader itself, which {}"),
)


@dataclass(frozen=True)
class Artifact:
    """A built binary, read on the controller. ``size`` is in bytes, ``machine`` as ``checks.probe.spelling`` says.

    ``glibc`` is the newest GLIBC version that the binary, or a library which the variant ships for it,
    demands; ``demanded_by`` is that file's name. ``shipped`` and ``system`` are the libraries it needs, by
    whether the variant has them. ``loader`` is the program that the kernel starts to load it, "" for none.
    """

    size: int
    sha256: str
    machine: str
    glibc: tuple[int, ...] | None = None
    demanded_by: str = ""
    shipped: tuple[str, ...] = ()
    system: tuple[str, ...] = ()
    loader: str = ""

    @property
    def needs(self) -> tuple[str, ...]:
        """Every library it needs; none: it is linked statically."""
        return (*self.shipped, *self.system)


@dataclass(frozen=True)
class Seen:
    """The file as the worker sees it; None is unknown, ``there`` whether there is one at all."""

    there: bool
    size: int | None = None
    executable: bool = False
    sha256: str | None = None


@dataclass(frozen=True)
class Start:
    """Whether the login there may enter the directory to start in, and execute the loader that the file names."""

    directory: bool
    loader: bool


@dataclass(frozen=True)
class Loaded:
    """What ``ldd -r`` said: its exit code, the libraries it found, what it did not find, what else it printed."""

    code: int
    found: frozenset[str]
    troubles: tuple[str, ...]
    rest: tuple[str, ...]
    static: bool = False


@dataclass(frozen=True)
class Readback:
    """A worker's answer. ``facts`` has the machine and ldd's banner; None is unknown; ``whole``: nothing is missing."""

    facts: Facts
    file: Seen | None
    start: Start | None
    loaded: Loaded | None
    whole: bool


def parse(mark: str, text: str) -> Readback:
    """What ``verify.sh`` said under this ``mark``, whatever else is in the text."""
    said, lines = defaultdict[str, list[str]](list), list(_marked(mark, text))
    for key, value in lines:
        said[key].append(value)
    first = {key: values[0] for key, values in said.items()}
    ldd = first.get("LDD")
    return Readback(
        Facts(machine=first.get("MACHINE"), ldd="" if ldd == "-" else ldd),
        _file(first.get("FILE")),
        _start(first.get("START")),
        _loaded(first.get("CODE"), said["LIB"]),
        whole=lines[-1:] == [("END", str(len(lines) - 1))],
    )


def _marked(mark: str, text: str) -> Iterator[tuple[str, str]]:
    for line in text.split("\n")[:-1]:
        bare = line.rstrip("\r")
        inner = bare.removeprefix(f"{mark} ").removesuffix(f" {mark}")
        if len(bare) - len(inner) == 2 * len(mark) + 2 and mark not in inner:
            key, _, value = inner.partition(" ")
            yield key, value


def _file(value: str | None) -> Seen | None:
    if value == "absent":
        return Seen(False)
    if value == "unreadable":
        return Seen(True)
    if not (found := _FILE.fullmatch(value or "")):
        return None
    return Seen(True, int(found[1]), found[2] == "x", None if found[3] == "-" else found[3])


def _start(value: str | None) -> Start | None:
    return Start(value[0] == "x", value[2] == "x") if value and _START.fullmatch(value) else None


def _loaded(code: str | None, lines: Sequence[str]) -> Loaded | None:
    """The loader's answer; one without an exit code counts for what it could not find."""
    troubles = tuple(dict.fromkeys(trouble for line in lines if (trouble := _trouble(line))))
    if not _CODE.fullmatch(code or ""):
        return Loaded(-1, frozenset(), troubles, ()) if troubles else None
    found = {PurePosixPath(match[1]).name for line in lines if (match := _FOUND.fullmatch(line))}
    rest = tuple(line.strip() for line in lines if not _understood(line))
    static = any(_STATIC.fullmatch(line) for line in lines)
    return Loaded(int(code or ""), frozenset(found), troubles, rest, static)


def _understood(line: str) -> bool:
    return bool(not line.strip() or _FOUND.fullmatch(line) or _HARMLESS.fullmatch(line) or _trouble(line))


def _trouble(line: str) -> str | None:
    found = ((shown, match) for pattern, shown in _TROUBLES if (match := pattern.fullmatch(line)))
    return next((shown.format(match[1].replace("\t", " ")) for shown, match in found), None)


def merged(answer: Facts | None, preflight: Facts | None) -> Facts:
    """Machine and C library as the worker says now, else as it said in preflight."""
    now, before = answer or Facts(), preflight or Facts()
    return Facts(machine=now.machine or before.machine, ldd=now.ldd or before.ldd)


def variables(env: Mapping[str, str], loader_path: str) -> dict[str, str]:
    """What the launcher starts the binary with: an ``LD_LIBRARY_PATH`` in ``env`` replaces the envelope's."""
    return {"LD_LIBRARY_PATH": loader_path, **env}
