from __future__ import annotations

import pytest

from fdl_tasks.arch import Vendor, vendor
from fdl_tasks.boxes.gpu.gpus import Gpu
from fdl_tasks.boxes.torch import variants
from fdl_tasks.boxes.torch.variants import CPU, CU126, CU128, ROCM70, ROCM71, Variant
from fdl_tasks.errors import PermanentError, UsageError

ALL = [CPU, CU126, CU128, ROCM70, ROCM71]


def gpus(*archs: str) -> list[Gpu]:
    kinds = [Vendor.AMD if arch.startswith("gfx") else Vendor.NVIDIA for arch in archs]
    return [
        Gpu(kind, number, "a card", arch, 8192) for number, (kind, arch) in enumerate(zip(kinds, archs, strict=True))
    ]


@pytest.mark.parametrize(
    ("token", "variant"),
    [
        ("cpu", CPU), ("cu126", CU126), ("12.6", CU126), ("cu128", CU128), ("12.8", CU128), (" cu128\n", CU128),
        ("rocm7.0", ROCM70), ("rocm70", ROCM70), ("7.0", ROCM70),
        ("rocm7.1", ROCM71), ("rocm71", ROCM71), ("7.1", ROCM71), ("auto", None),
    ],
)  # fmt: skip
def test_a_token_names_a_variant(token: str, variant: Variant | None) -> None:
    assert variants.parse_token(token) == variant


@pytest.mark.parametrize("token", ["", "cuda", "cu118", "rocm", "AUTO", "precompiled/cu128", "../x", "cu128\x1b[2J"])
def test_an_unknown_token_is_permanent_and_told_with_those_that_are_known(token: str) -> None:
    with pytest.raises(PermanentError) as told:
        variants.parse_token(token)
    assert repr(token) in told.value.what
    assert "\x1b" not in str(told.value)
    assert all(word in told.value.hint for word in ("auto", "cpu", "cu126", "cu128", "rocm7.0", "rocm7.1"))


@pytest.mark.parametrize(
    ("archs", "variant"),
    [
        ([], CPU),
        (["12.0"], CU128), (["8.6", "12.0"], CU128), (["7.0"], CU128), (["7.5"], CU128), (["10.3"], CU128),
        (["6.1"], CU126), (["6.1", "12.0"], CU126), (["12.0", "5.2"], CU126),
        (["sm_61"], CU126), (["sm86"], CU128), (["120"], CU128), (["61"], CU126), (["9.0a"], CU128),
        (["gfx1100"], ROCM70), (["gfx90a:sramecc+:xnack-"], ROCM70), (["gfx906"], CPU), (["gfx906", "gfx942"], ROCM70),
        (["gfx1100", "6.1"], CU126), (["gfx1100", "8.9"], CU128), (["gfx906", "8.9"], CU128),
    ],
)  # fmt: skip
def test_auto_takes_what_suits_the_devices(archs: list[str], variant: Variant) -> None:
    assert variants.choose(gpus(*archs)) is variant


def test_names_and_kinds_agree() -> None:
    kinds = [Vendor.CPU, Vendor.NVIDIA, Vendor.NVIDIA, Vendor.AMD, Vendor.AMD]
    assert [vendor(variant.name) for variant in ALL] == kinds
    assert all(variants.is_name(variant.name) for variant in ALL)


@pytest.mark.parametrize(
    ("base", "variant", "address"),
    [
        (variants.BASE_URL, CU128, "https://download.pytorch.org/libtorch/cu128/"
         "libtorch-shared-with-deps-2.10.0%2Bcu128.zip"),
        ("http://127.0.0.1:8080/", ROCM70, "http://127.0.0.1:8080/rocm7.0/"
         "libtorch-shared-with-deps-2.10.0%2Brocm7.0.zip"),
    ],
)  # fmt: skip
def test_the_address_is_that_of_the_bucket(base: str, variant: Variant, address: str) -> None:
    assert variants.url(base, variants.RELEASE, variant) == address


@pytest.mark.parametrize(
    "base", ["https://m.example/x", "http://127.0.0.1:1/", "http://user:pw@m.example", "HTTPS://m"]
)
def test_a_mirror_is_an_http_address(base: str) -> None:
    variants.check_base(base)


@pytest.mark.parametrize(
    "base",
    ["", "file:///srv", "/srv", "m.example", "ftp://m", "http://", "http://m:x/", "http://m:99999", "http://m/?a", "http://m/#a",
     "http://m/ x", "http://m/\n", "http://[::1", "http://m\\x", "-o"],
)  # fmt: skip
def test_what_is_no_mirror_is_refused(base: str) -> None:
    with pytest.raises(UsageError, match=r"fdl\.libtorch\.base_url is no address"):
        variants.check_base(base)


@pytest.mark.parametrize(
    ("release", "fine"),
    [("2.10.0", True), ("2.9.1", True), ("2.11.0.dev20260101", True), ("2.1", False), ("", False), ("../x", False),
     ("2.10.0/..", False), ("2.10.0\n", False), ("latest", False)],
)  # fmt: skip
def test_a_release_is_a_whole_version(release: str, fine: bool) -> None:
    if fine:
        variants.check_release(release)
    else:
        with pytest.raises(UsageError, match=r"fdl\.libtorch\.version"):
            variants.check_release(release)


@pytest.mark.parametrize("digest", [None, "0" * 64, "aF" * 32])
def test_a_pin_is_a_sha256(digest: str | None) -> None:
    variants.check_sha256(digest)


@pytest.mark.parametrize("digest", ["", "0" * 63, "g" * 64, "0" * 64 + "\n"])
def test_what_is_no_pin_is_refused(digest: str) -> None:
    with pytest.raises(UsageError, match="is no SHA-256"):
        variants.check_sha256(digest)


def test_arch_tells_what_the_gates_read() -> None:
    text = variants.arch_file(ROCM70, "2.10.0")
    assert text.splitlines() == [
        "cuda=none", "torch=2.10.0", f"archs={ROCM70.archs}", "source=precompiled", "variant=rocm7.0"
    ]  # fmt: skip
    assert variants.archs_of(text) == ROCM70.archs
    assert variants.arch_file(CU128, "2.10.0").startswith("cuda=12.8\ntorch=2.10.0\narchs=7.0 7.5 ")


@pytest.mark.parametrize("text", ["", "cuda=12.8\n", "archs=\n", "archs= \n", "xarchs=8.6\n"])
def test_archs_that_are_not_told_are_none(text: str) -> None:
    assert variants.archs_of(text) is None


@pytest.mark.parametrize(
    ("build_version", "same"),
    [("2.10.0", True), ("2.10.0\n", True), ("2.10.0+cu128\n", True), ("2.10.01", False), ("2.10.0.post1", False),
     ("2.9.0+cu128", False), ("", False)],
)  # fmt: skip
def test_a_release_is_compared_whole(build_version: str, same: bool) -> None:
    assert variants.is_release(build_version, "2.10.0") is same


@pytest.mark.parametrize("name", ["precompiled/cu128", "builds/sm61-sm120", "builds/2.10_x+y", "builds/_x"])
def test_a_name_has_a_kind_and_a_part(name: str) -> None:
    assert variants.is_name(name)


@pytest.mark.parametrize(
    "name",
    ["", "cu128", "../../etc", "precompiled/..", "precompiled/.", "precompiled/../x", "/precompiled/x", "builds/a/b",
     "other/x", "precompiled/", "builds/-x", "builds/a b", "builds/a\n", "builds/\x1b[m", "builds/.hidden"],
)  # fmt: skip
def test_what_leads_elsewhere_is_no_name(name: str) -> None:
    assert not variants.is_name(name)


@pytest.mark.parametrize(
    ("said", "meant"),
    [("precompiled/cu128", "precompiled/cu128"), ("cu128", "precompiled/cu128"), ("rocm7.0", "precompiled/rocm70"),
     ("own", "builds/own"), ("both", None), ("builds/both", "builds/both"), ("cu126", None), ("", None)],
)  # fmt: skip
def test_an_installed_variant_is_named_in_several_ways(said: str, meant: str | None) -> None:
    there = ["precompiled/cu128", "precompiled/rocm70", "precompiled/both", "builds/own", "builds/both"]
    assert variants.named(said, there) == meant
