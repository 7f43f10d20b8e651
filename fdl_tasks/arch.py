"""What the name of a libtorch variant says: vendor, cargo feature, CUDA version, loader path (pure).

The rules and their reasons: seeds/000, ``features_from_arch``, ``cuda_version_from_arch``,
``runtime_ld_library_path``; facts/upstream.md, section 4.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

SYSTEM_ROCM = "/opt/rocm/lib"


class Vendor(StrEnum):
    """Whose devices a variant is for; the value is the cargo feature (none for the CPU)."""

    NVIDIA = "cuda"
    AMD = "rocm"
    CPU = ""


@dataclass(frozen=True)
class Cuda:
    """A CUDA release as images are tagged (``12.8``) and as toolkits are versioned (``12.8.0``)."""

    tag: str
    version: str


def slug(arch: str) -> str:
    """The variant as one path segment: ``precompiled-cu128``."""
    return arch.replace("/", "-").replace("\\", "-")


def vendor(arch: str) -> Vendor | None:
    """By the last path segment, ``cu128`` of ``precompiled/cu128``; None when the name follows no rule."""
    name = _name(arch)
    if name == "cpu" or name.startswith("cpu-"):
        return Vendor.CPU
    if re.match("(cu|sm)[0-9]", name):
        return Vendor.NVIDIA
    return Vendor.AMD if re.match("(rocm|gfx)[0-9]", name) else None


def feature(arch: str) -> str:
    """The cargo feature: ``cuda``, ``rocm`` or none (``""``). An unknown name is taken for NVIDIA's."""
    known = vendor(arch)
    return Vendor.NVIDIA.value if known is None else known.value


def cuda(arch: str) -> Cuda | None:
    """The CUDA release that the name states; None for every name that is not ``cu`` and digits only."""
    if not (found := re.fullmatch("cu([0-9]+)([0-9])", _name(arch))):
        return None
    tag = f"{found[1]}.{found[2]}"
    return Cuda(tag, f"{tag}.0")


def loader_path(worker_path: str, arch: str) -> str:
    """The worker's ``LD_LIBRARY_PATH`` for a binary built against ``arch``.

    AMD's libtorch bundles a ROCm of its own; where that wins over the system's, which belongs to
    the kernel's driver, the first call to the GPU crashes. So the system's stands first there.
    """
    own = f"{worker_path.rstrip('/')}/libtorch/{arch}/lib"
    return f"{SYSTEM_ROCM}:{own}" if vendor(arch) is Vendor.AMD else own


def _name(arch: str) -> str:
    return arch.rstrip("/").rpartition("/")[2]
