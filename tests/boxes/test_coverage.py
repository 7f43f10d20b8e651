from __future__ import annotations

import pytest

from fdl_tasks.arch import Vendor
from fdl_tasks.boxes.gpu.coverage import covered, covers
from fdl_tasks.boxes.gpu.gpus import Gpu
from fdl_tasks.errors import PermanentError

CU126 = "5.0 5.2 6.0 6.1 7.0 7.5 8.0 8.6 8.9 9.0"
CU128 = "7.0 7.5 8.0 8.6 8.9 9.0 12.0"
ROCM70 = "gfx908 gfx90a gfx942 gfx950 gfx1030 gfx1100"


def nvidia(arch: str, index: int = 0) -> Gpu:
    return Gpu(Vendor.NVIDIA, index, f"Card {index}", arch, None)


def amd(arch: str, index: int = 0) -> Gpu:
    return Gpu(Vendor.AMD, index, f"AMD {arch}", arch, None)


@pytest.mark.parametrize(
    ("archs", "arch", "expected"),
    [
        (CU128, "8.6", True),
        (CU128, "8.7", True),  # the same major
        (CU128, "12.1", True),
        (CU128, "6.0", False),
        (CU126, "6.0", True),
        (CU126, "12.0", False),
        ("7.5", "5.2", False),  # whole tokens: no 5 in 7.5
        ("5", "7.5", False),
        ("5", "5.2", False),
        ("0.0", "8.6", False),
        ("120", "12.0", True),
        ("12.0", "1.2", False),
        ("sm_86", "8.0", True),
        ("sm86", "8.6", True),
        ("SM_86;sm_90a", "9.0", True),
        ("sm_100f", "10.0", True),
        ("8.6+PTX", "8.9", True),
        ("7.5;8.6", "8.6", True),
        ("7.5,8.6", "8.6", True),
        ("7.5; 8.6", "8.6", True),
        ("8.6x", "8.6", False),
        ("compute", "8.6", False),
        ("", "8.6", False),
        (CU128, "unknown", False),
        ("gfx90a", "9.0", False),
    ],
)
def test_a_card_of_nvidia_is_covered_by_its_major(archs: str, arch: str, expected: bool) -> None:
    assert covered(archs, nvidia(arch)) is expected


@pytest.mark.parametrize(
    ("archs", "arch", "expected"),
    [
        (ROCM70, "gfx90a", True),
        (ROCM70, "gfx1036", False),
        (ROCM70, "gfx900", False),
        (ROCM70, "gfx90", False),
        ("gfx90 gfx110", "gfx90a", False),
        (ROCM70, "gfx110", False),
        ("gfx90a:sramecc+:xnack-", "gfx90a", True),
        ("gfx90a", "gfx90a:xnack+", True),
        ("GFX90A;gfx942", "gfx90a", True),
        ("9.0", "gfx900", False),
    ],
)
def test_a_card_of_amd_is_covered_by_its_exact_token(archs: str, arch: str, expected: bool) -> None:
    assert covered(archs, amd(arch)) is expected


@pytest.mark.parametrize(
    ("variant", "archs", "gpus"),
    [
        ("precompiled/cu128", CU128, [nvidia("8.6"), nvidia("9.0", 1)]),
        ("precompiled/cu128", CU128, [nvidia("8.6"), amd("gfx1036")]),  # the other vendor's card is no question
        ("precompiled/rocm70", ROCM70, [amd("gfx90a"), nvidia("5.0")]),
        ("precompiled/cu128", CU128, [amd("gfx1036")]),
        ("precompiled/cpu", "0.0", [nvidia("8.6")]),
        ("precompiled/cu128", None, [nvidia("8.6")]),
        ("precompiled/cu128", " ", [nvidia("8.6")]),
        ("builds/mine", "0.0", [nvidia("8.6")]),
        ("precompiled/cu128", "0.0", []),
        ("builds/gfx90a", "gfx90a", [amd("gfx90a")]),
    ],
)
def test_what_is_covered_or_none_of_its_business_passes(variant: str, archs: str | None, gpus: list[Gpu]) -> None:
    covers(variant, archs, gpus)


@pytest.mark.parametrize(
    ("variant", "archs", "gpus", "named"),
    [
        ("precompiled/cu128", "0.0", [nvidia("8.6")], ["NVIDIA 0 (Card 0, 8.6)"]),
        ("precompiled/cu128", CU128, [nvidia("6.0"), nvidia("8.6", 1)], ["NVIDIA 0 (Card 0, 6.0)"]),
        ("builds/sm86", "8.6", [nvidia("6.0"), nvidia("7.5", 1)], ["NVIDIA 0 (Card 0, 6.0)", "NVIDIA 1 (Card 1, 7.5)"]),
        ("precompiled/rocm70", ROCM70, [amd("gfx1036"), nvidia("8.6")], ["AMD 0 (AMD gfx1036, gfx1036)"]),
    ],
)  # fmt: skip
def test_what_is_not_covered_never_will_be(variant: str, archs: str, gpus: list[Gpu], named: list[str]) -> None:
    with pytest.raises(PermanentError) as caught:
        covers(variant, archs, gpus)
    error = caught.value
    for part in (variant, archs, ", ".join(named) + ":", "no kernel image"):
        assert part in error.what
    assert "--libtorch auto" in error.hint
    assert "--devices" in error.hint


def test_a_box_can_offer_its_covered_card_alone() -> None:
    old, new = nvidia("6.0"), nvidia("8.6", 1)
    with pytest.raises(PermanentError):
        covers("precompiled/cu128", CU128, [old, new])
    covers("precompiled/cu128", CU128, [new])
