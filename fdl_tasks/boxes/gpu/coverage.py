"""Whether a libtorch variant has kernels for the cards that a box offers (pure).

Without them everything goes well until the first operation on the GPU, which is after the box was counted into a
run. The rules: spec/prepare.md, step 6; seeds/001, ``check_arch_coverage``; facts/upstream.md, section 4.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from ...arch import Vendor, vendor
from ...errors import PermanentError
from .gpus import Gpu


def covers(variant: str, archs: str | None, gpus: Sequence[Gpu]) -> None:
    """Raise PermanentError when ``variant`` lacks kernels for one of ``gpus`` that is of its vendor.

    Nothing is asked of a variant for the CPU or of an unknown name, nor of one whose ``.arch`` lists no ``archs``.
    """
    kind = vendor(variant)
    if kind not in (Vendor.NVIDIA, Vendor.AMD) or not (archs or "").strip():
        return
    if lacking := [gpu for gpu in gpus if gpu.vendor is kind and not covered(str(archs), gpu)]:
        raise PermanentError(
            f"libtorch {variant} has kernels for {str(archs).strip()} and none for {', '.join(map(str, lacking))}: "
            "its first operation there would die of `no kernel image is available`",
            hint="take a variant that has them (--libtorch auto chooses one), or offer only other cards (--devices)",
        )


def covered(archs: str, gpu: Gpu) -> bool:
    """Whether ``archs`` (separated by ``;``, ``,`` or spaces) names kernels for it, by whole tokens.

    NVIDIA's run on cards of the same compute major, AMD's on the very one.
    """
    tokens = re.split(r"[;,\s]+", archs.strip())
    if gpu.vendor is Vendor.NVIDIA:
        major = _major(gpu.arch)
        return major is not None and major in map(_major, tokens)
    return _bare(gpu.arch) in map(_bare, tokens)


def _major(token: str) -> int | None:
    """Of ``8.6``, ``sm_86``, ``sm86``, ``120`` (the last digit is the minor), also with ``+PTX`` or as ``90a``."""
    token = token.lower().removesuffix("+ptx")
    found = re.fullmatch(r"(?:sm_?)?([0-9]{1,3})(?:\.[0-9]{1,2}|[0-9])[af]?", token)
    return int(found[1]) if found else None


def _bare(token: str) -> str:
    """``gfx90a`` of ``gfx90a:sramecc+:xnack-``."""
    return token.lower().partition(":")[0]
