"""What a built binary is and needs, read from its ELF file and from those of the libraries its variant ships."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import BuildError
from .readback import Artifact

_MACHINES = {"X86_64": "x86_64", "AARCH64": "aarch64", "386": "x86", "PPC64": "ppc64le", "S390": "s390x"}
_MACHINES |= {"RISCV": "riscv64", "LOONGARCH": "loongarch64"}
DF_1_PIE = 0x08000000  # elf.h
_GLIBC = re.compile(r"GLIBC_(\d+(?:\.\d+)+)")  # not GLIBC_PRIVATE, not GLIBC_ABI_DT_RELR


@dataclass(frozen=True)
class _Elf:
    """One ELF file: its CPU, its loader, the libraries it needs, (library, version) of the versions it demands."""

    program: bool
    machine: str
    loader: str
    needed: tuple[str, ...]
    demands: tuple[tuple[str, str], ...]


def read(path: Path, lib: Path) -> Artifact:
    """The binary at ``path``, whose variant's libraries are in ``lib``.

    Raises:
        BuildError: it, or a library of the variant that it needs, can't be read or is no ELF file; or it is one
            that can't be started.
    """
    own = _elf(path)
    if not own.program:
        raise BuildError(f"{path} is a library or an object file, so it is no program that can be started")
    files, system, waiting = {path.name: own}, dict[str, None](), list(own.needed)
    shipped = list[str]()
    while waiting:
        name = waiting.pop(0)
        if name in shipped or name in system:
            continue
        if "/" in name or not (lib / name).is_file():
            system[name] = None
            continue
        shipped.append(name)
        files[name] = _elf(lib / name)
        waiting += files[name].needed
    glibc, by = _newest(files, shipped)
    size, digest = _content(path)
    return Artifact(size, digest, own.machine, glibc, by, tuple(shipped), tuple(system), own.loader)


def _newest(files: dict[str, _Elf], shipped: list[str]) -> tuple[tuple[int, ...] | None, str]:
    """The newest GLIBC version demanded of the system, and the first file that demands it."""
    versions = [
        (tuple(int(part) for part in found[1].split(".")), name)
        for name, elf in files.items()
        for library, version in elf.demands
        if library not in shipped and (found := _GLIBC.fullmatch(version))
    ]
    return max(versions, key=lambda pair: pair[0], default=(None, ""))


def _elf(path: Path) -> _Elf:
    from elftools.common.exceptions import ELFError
    from elftools.elf.elffile import ELFFile

    try:
        with path.open("rb") as file:
            if file.read(4) != b"\x7fELF":
                raise BuildError(f"{path} is not an ELF file, so it is no program that a worker's loader starts")
            elf = ELFFile(file)
            loader = _loader(elf)
            return _Elf(_program(elf, loader), _machine(elf), loader, tuple(_needed(elf)), tuple(_demands(elf)))
    except OSError as error:
        raise BuildError(f"the binary can't be read: {error}") from error
    except (ELFError, ValueError, KeyError, AttributeError, TypeError, IndexError) as error:
        # the reader's ways to say that what a header points at is not there
        raise BuildError(f"{path} is a damaged ELF file ({type(error).__name__}: {error})") from error


def _machine(elf: Any) -> str:
    name = str(elf["e_machine"]).removeprefix("EM_")
    return _MACHINES.get(name, name.lower())


def _program(elf: Any, loader: str) -> bool:
    """A static program at any address is like a library, but for a flag."""
    if elf["e_type"] != "ET_DYN" or loader:
        return bool(elf["e_type"] in ("ET_EXEC", "ET_DYN"))
    dynamic = elf.iter_segments("PT_DYNAMIC")
    return any(tag["d_val"] & DF_1_PIE for segment in dynamic for tag in segment.iter_tags("DT_FLAGS_1"))


def _loader(elf: Any) -> str:
    """The program that the kernel starts in its place, and that loads it; none for a static one."""
    return next((str(segment.get_interp_name()) for segment in elf.iter_segments("PT_INTERP")), "")


def _needed(elf: Any) -> Iterator[str]:
    for segment in elf.iter_segments("PT_DYNAMIC"):
        yield from (tag.needed for tag in segment.iter_tags("DT_NEEDED"))


def _demands(elf: Any) -> Iterator[tuple[str, str]]:
    for section in elf.iter_sections("SHT_GNU_verneed"):
        for library, versions in section.iter_versions():
            yield from ((library.name, version.name) for version in versions)


def _content(path: Path) -> tuple[int, str]:
    try:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            return file.tell(), digest
    except OSError as error:
        raise BuildError(f"the binary can't be read: {error}") from error
