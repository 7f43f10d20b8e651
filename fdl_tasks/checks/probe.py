"""The probe: one script a machine, and the one parser of its answer.

The parser never guesses. A value counts only when its line is whole and another sentinel follows,
and when it is the only thing said in that place; everything else is None, which means unknown.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ..scripts import Script, Scripts

_ESCAPES = re.compile(r"\x1b(?:\][^\x07\x1b]*(?:\x07|\x1b\\)|\[[0-?]*[ -/]*[@-~]|[ -/]*[0-~])")
_SENTINEL = re.compile(r"__FLODL_(?:(DP_DIR|DP_READ)__=([01])|(ROOT|SHARED|ABI|LDD|PKILL|END)__)")
_ROOT = re.compile(r"(0|1)(?: (.*))?")
_DF = re.compile(r"\s(?:\d+|-)\s+(?:\d+|-)\s+(-?\d+)\s+(?:\d+%|-)\s+/")  # blocks, used, free, capacity, mount point
_SHARED = re.compile(r"(\.fdl-probe-[0-9a-f]+-\d+) (\d+|-) ([^\ufffd]+)")
_MACHINE = re.compile(  # a list, since a name with noise glued to it must not pass for a foreign CPU
    r"x86_64|amd64|i[3-6]86|aarch64|arm64|armv[5-9][a-z]*|ppc64(?:le)?|s390x|riscv(?:32|64)|loongarch64|mips[a-z0-9]*"
)
_GLIBC = re.compile(r"ldd \(.*(?:GLIBC|GNU libc).*\) (\d+)\.(\d+)(?:\.\d+)?")
_ARCHES = {"arm64": "aarch64", "amd64": "x86_64"} | dict.fromkeys(("i386", "i486", "i586", "i686"), "x86")


@dataclass(frozen=True)
class Seen:
    """One of the controller's fresh files as a worker sees it; ``mtime`` in epoch seconds, None: unknown."""

    name: str
    mtime: int | None
    content: str


ABSENT = Seen("", None, "")


@dataclass(frozen=True)
class Fresh:
    """The controller's fresh files: ``token`` is what each of them holds.

    ``written`` gives each name the controller's clock, in epoch seconds, before and after the writing.
    """

    token: str
    written: Mapping[str, tuple[float, float]]


@dataclass(frozen=True)
class Facts:
    """What one machine said of itself. None is always "unknown".

    ``free_kib`` is the free space at the project root in KiB, ``shared`` may be ``ABSENT``,
    ``machine`` is what ``uname -m`` printed, ``ldd`` the first line of ``ldd --version`` ("" without
    ldd), ``ended`` whether the answer came to its end, ``mtime_skew_s`` how many seconds a fresh
    file's time lies off the controller's clock.
    """

    data_dir: bool | None = None
    data_read: bool | None = None
    root: bool | None = None
    free_kib: int | None = None
    shared: Seen | None = None
    machine: str | None = None
    ldd: str | None = None
    pkill: str | None = None
    ended: bool = False
    mtime_skew_s: int | None = None

    @property
    def arch(self) -> str | None:
        """The CPU architecture in the one spelling that this library compares."""
        return spelling(self.machine) if self.machine else None

    @property
    def libc(self) -> str | None:
        """``glibc``, ``musl``, or None when neither could be told."""
        if self.ldd and "musl" in self.ldd.lower():
            return "musl"
        return "glibc" if self.glibc else None

    @property
    def glibc(self) -> tuple[int, int] | None:
        """The version of glibc, such as (2, 36)."""
        found = _GLIBC.fullmatch(self.ldd or "")
        return (int(found[1]), int(found[2])) if found else None

    def as_json(self) -> dict[str, object]:
        """The facts for ``--json``; null is unknown."""
        return {
            "data_path": {"directory": self.data_dir, "listed": self.data_read},
            "path": self.root,
            "free_kib": self.free_kib,
            "shared": None if self.shared is None else self.shared != ABSENT,
            "mtime_skew_s": self.mtime_skew_s,
            "arch": self.arch,
            "libc": self.libc,
            "glibc": "{}.{}".format(*self.glibc) if self.glibc else None,
            "pkill": self.pkill,
        }


def spelling(machine: str) -> str:
    """Rust's, Python's and ``uname``'s names of a CPU architecture, brought to one."""
    name = machine.strip().lower()
    return _ARCHES.get(name, name)


def render(scripts: Scripts, data_path: str, root: str, *, abi: bool, fresh: Sequence[str], pause: str) -> Script:
    """The probe for one machine.

    Args:
        abi: ask for CPU, C library and pkill too.
        fresh: names of the controller's fresh files, looked for one after another; none: not looked for.
        pause: seconds between two looks.
    """
    return scripts.render(
        "checks/probe.sh", data_path=data_path, root=root, abi=int(abi), fresh=list(fresh), pause=pause
    )


def parse(text: str) -> Facts:
    """The facts in a probe's output, whatever else is in it."""
    said = _said(text)
    value = {name: values[0] for name, values in said.items() if len(set(values)) == 1}
    root, free = _root(value.get("ROOT"))
    flags = {"0": False, "1": True}
    ldd = value.get("LDD")
    return Facts(
        data_dir=flags.get(value.get("DP_DIR") or ""),
        data_read=flags.get(value.get("DP_READ") or ""),
        root=root,
        free_kib=free,
        shared=_shared(value.get("SHARED")),
        machine=_matching(_MACHINE, value.get("ABI")),
        ldd="" if ldd == "-" else _matching(re.compile("[^\ufffd]+"), ldd),
        pkill=_matching(re.compile("present|absent"), value.get("PKILL")),
        ended="END" in said,
    )


def _said(text: str) -> dict[str, list[str | None]]:
    """Every value each sentinel was followed by; None where it was cut off, blank or not alone."""
    said: dict[str, list[str | None]] = defaultdict(list)
    name, lines = "", list[str]()
    for line in _lines(text):
        if not (sentinel := _SENTINEL.fullmatch(line)):
            lines.append(line)
            continue
        said[name].append(_alone(name, lines))
        name = sentinel[1] or sentinel[3]
        lines = [sentinel[2]] if sentinel[1] else []
    said[name].append(None)
    return said


def _lines(text: str) -> Iterator[str]:
    """The whole lines that say something; colours, blanks and the echoes of ``set -x`` left out."""
    for line in text.split("\n")[:-1]:
        bare = _ESCAPES.sub("", line).strip()
        if bare and not bare.startswith("+"):
            yield bare


def _alone(name: str, lines: list[str]) -> str | None:
    if name.startswith("DP_"):  # said on the sentinel's own line: what follows is noise
        return lines[0]
    return lines[0] if len(lines) == 1 else None


def _root(value: str | None) -> tuple[bool | None, int | None]:
    if not (found := _ROOT.fullmatch(value or "")):
        return None, None
    free = _DF.search(found[2] or "")
    return found[1] == "1", int(free[1]) if free else None


def _shared(value: str | None) -> Seen | None:
    if value == "absent":
        return ABSENT
    if not (found := _SHARED.fullmatch(value or "")):
        return None
    return Seen(found[1], None if found[2] == "-" else int(found[2]), found[3])


def _matching(pattern: re.Pattern[str], value: str | None) -> str | None:
    return value if value is not None and pattern.fullmatch(value) else None
