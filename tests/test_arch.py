"""What a variant's name says; the cases of seeds/000 and facts/upstream.md, section 4."""

from __future__ import annotations

import pytest

from fdl_tasks.arch import Cuda, Vendor, cuda, feature, loader_path, slug, vendor


@pytest.mark.parametrize(
    ("arch", "expected"),
    [
        ("precompiled/cu128", "precompiled-cu128"),
        ("precompiled/cu118", "precompiled-cu118"),
        ("builds/sm61-sm120", "builds-sm61-sm120"),
        ("builds\\sm80", "builds-sm80"),
        ("cpu", "cpu"),
    ],
)
def test_a_slug_folds_separators_and_nothing_else(arch: str, expected: str) -> None:
    assert slug(arch) == expected


@pytest.mark.parametrize(
    ("arch", "expected"),
    [
        ("precompiled/cu128", Vendor.NVIDIA),
        ("precompiled/cu126-pt27", Vendor.NVIDIA),
        ("builds/sm61-sm120", Vendor.NVIDIA),
        ("builds/sm80", Vendor.NVIDIA),
        ("precompiled/rocm63", Vendor.AMD),
        ("builds/gfx1030-gfx1100", Vendor.AMD),
        ("precompiled/cpu", Vendor.CPU),
        ("cpu", Vendor.CPU),
        ("precompiled/cpu-aarch64", Vendor.CPU),
        ("precompiled/cu128/", Vendor.NVIDIA),
        ("cu128/mine", None),  # the last segment decides
        ("builds/gfx", None),
        ("builds/cuda", None),
        ("builds/cuda12", None),
        ("builds/cpuid", None),
        ("builds/cu١٢٨", None),
    ],
)
def test_the_last_segment_names_the_vendor(arch: str, expected: Vendor | None) -> None:
    assert vendor(arch) is expected


@pytest.mark.parametrize(
    ("arch", "expected"),
    [
        ("precompiled/cu128", "cuda"),
        ("builds/sm61-sm120", "cuda"),
        ("builds/sm80", "cuda"),
        ("precompiled/cpu", ""),
        ("builds/gfx1030-gfx1100", "rocm"),
        ("precompiled/rocm63", "rocm"),
        ("builds/mine", "cuda"),
    ],
)
def test_the_feature_is_the_vendors(arch: str, expected: str) -> None:
    assert feature(arch) == expected


@pytest.mark.parametrize(
    ("arch", "expected"),
    [
        ("precompiled/cu128", Cuda("12.8", "12.8.0")),
        ("precompiled/cu126", Cuda("12.6", "12.6.0")),
        ("precompiled/cu118", Cuda("11.8", "11.8.0")),
        ("precompiled/cu92", Cuda("9.2", "9.2.0")),
        ("precompiled/cu9", None),
        ("precompiled/cu126-pt27", None),
        ("builds/sm61-sm120", None),
        ("builds/sm80", None),
        ("precompiled/rocm70", None),
        ("precompiled/cpu", None),
    ],
)
def test_only_cu_and_digits_state_a_cuda_release(arch: str, expected: Cuda | None) -> None:
    assert cuda(arch) == expected


@pytest.mark.parametrize(
    ("path", "arch", "expected"),
    [
        ("/home/me/rdl", "precompiled/cu128", "/home/me/rdl/libtorch/precompiled/cu128/lib"),
        ("/home/me/rdl", "builds/sm61-sm120", "/home/me/rdl/libtorch/builds/sm61-sm120/lib"),
        ("/home/me/rdl", "precompiled/cpu", "/home/me/rdl/libtorch/precompiled/cpu/lib"),
        ("/home/me/rdl/", "precompiled/cu128", "/home/me/rdl/libtorch/precompiled/cu128/lib"),
        ("/", "precompiled/cpu", "/libtorch/precompiled/cpu/lib"),
        ("/home/me/rdl", "builds/mine", "/home/me/rdl/libtorch/builds/mine/lib"),
        ("/home/me/rdl", "precompiled/rocm70", "/opt/rocm/lib:/home/me/rdl/libtorch/precompiled/rocm70/lib"),
        (
            "/home/me/rdl",
            "builds/gfx1030-gfx1100",
            "/opt/rocm/lib:/home/me/rdl/libtorch/builds/gfx1030-gfx1100/lib",
        ),
    ],
)
def test_the_systems_rocm_stands_before_libtorch_on_amd_only(path: str, arch: str, expected: str) -> None:
    assert loader_path(path, arch) == expected
