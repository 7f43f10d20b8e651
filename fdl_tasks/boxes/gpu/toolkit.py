"""What a vendor's toolkit lacks on this box for code that uses the GPU to compile.

A build that fails while headers are missing can't be mended by waiting (seeds/001, ``build_source``); the tables:
spec/prepare.md.
"""

from __future__ import annotations

import re
import shlex
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ...arch import Vendor
from ...errors import PermanentError, ScriptError, TransportError
from ..distribution import install_line
from ..tools import Tools

LIMIT = 60.0  # seconds; the compiler only looks for files
HEADERS = {
    Vendor.NVIDIA: {
        **dict.fromkeys(
            ("cuda_runtime.h", "crt/host_config.h", "cublas_v2.h", "cusolverDn.h", "cusparse.h"), "cuda-toolkit"
        ),
        "nccl.h": "libnccl-dev",
    },
    Vendor.AMD: {
        "hip/hip_runtime.h": "hip-dev",
        "rccl/rccl.h": "rccl-dev",
        "hipblas/hipblas.h": "hipblas-dev",
        "hipblas-common/hipblas-common.h": "hipblas-common-dev",
        "hipblaslt/hipblaslt.h": "hipblaslt-dev",
        "hipsolver/hipsolver.h": "hipsolver-dev",
        "hipsparse/hipsparse.h": "hipsparse-dev",
    },
}
_SYSTEM = Path("/usr")  # where distributions put ROCm that they package themselves
_HSA = ("libhsa-runtime64.so", "libhsa-runtime64.so.1")


@dataclass(frozen=True)
class Gap:
    """Headers that are not below ``root``, the toolkit's, nor anywhere else; the packages that have them."""

    root: Path
    headers: tuple[str, ...]
    packages: tuple[str, ...]
    install: str


def toolkit_gap(vendor: Vendor, tools: Tools, env: Mapping[str, str], root: Path = Path("/")) -> Gap | None:
    """What a build for that vendor's devices would miss on this box; None when nothing is missing.

    ``root`` is where the box's files are. A header that only the compiler finds counts as there.
    """
    headers = HEADERS.get(vendor, {})
    toolkit = rocm_root(env, root) if vendor is Vendor.AMD else Path(env.get("CUDA_HOME") or "/usr/local/cuda")
    places = [below(root, folder) for folder in (toolkit / "include", Path("/usr/include"), Path("/usr/local/include"))]
    missing = [header for header in headers if not any(_has(place, header) for place in places)]
    if missing:
        found = set(_compiler_finds(missing, places[0], tools, env))
        missing = [header for header in missing if header not in found]
    packages = tuple(dict.fromkeys(headers[header] for header in missing))
    return Gap(toolkit, tuple(missing), packages, install_line(*packages)) if missing else None


def _compiler_finds(headers: Sequence[str], include: Path, tools: Tools, env: Mapping[str, str]) -> Iterator[str]:
    """Those that the box's C++ compiler resolves; none where there is no compiler."""
    asked = [f"#if __has_include(<{header}>)\nfound {number}\n#endif\n" for number, header in enumerate(headers)]
    try:
        with tempfile.TemporaryDirectory(prefix="fdl-") as private:
            source = Path(private) / "headers.cpp"
            source.write_text("".join(asked))
            compiler = shlex.split(env.get("CXX") or "c++") or ["c++"]
            out = tools.run([*compiler, "-I", include, "-E", "-x", "c++", source], limit=LIMIT).out
    except (PermanentError, TransportError, ScriptError, OSError, ValueError):
        # not installed, hangs or dies, no room to ask, no command line in $CXX
        return
    yield from (headers[int(number)] for number in re.findall("^found ([0-9]+)$", out, re.M))


def rocm_root(env: Mapping[str, str], root: Path = Path("/")) -> Path:
    """Where ROCm is on this box: with its runtime if that has a place of its own, else where it is expected."""
    place, _ = _runtime(env, root) or (_SYSTEM, "")
    return place if place != _SYSTEM else Path(env.get("ROCM_PATH") or "/opt/rocm")


def rocm_runtime(env: Mapping[str, str], root: Path = Path("/")) -> Path | None:
    """The directory of the box's own ``libhsa-runtime64``, without which no AMD device can be used."""
    found = _runtime(env, root)
    return found[0] / found[1] if found else None


def _runtime(env: Mapping[str, str], root: Path) -> tuple[Path, str] | None:
    named = [Path(env[name]) for name in ("ROCM_PATH", "HIP_PATH", "HSA_PATH") if env.get(name)]
    for place in (*named, Path("/opt/rocm"), _SYSTEM):
        for folder in ("lib", "lib64", "lib/x86_64-linux-gnu"):
            if any(_has(below(root, place / folder), name) for name in _HSA):
                return place, folder
    return None


def _has(folder: Path, name: str) -> bool:
    try:
        return (folder / name).is_file()
    except OSError:  # what this user may not look into, or a variable that can be no path
        return False


def below(root: Path, path: Path) -> Path:
    """``path`` of a box whose files are at ``root``."""
    return root / str(path).lstrip("/")
