from __future__ import annotations

from dataclasses import replace

import pytest

from fdl_tasks.arch import Vendor
from fdl_tasks.boxes.gpu.gpus import Gpu, Survey, masked, usable
from fdl_tasks.errors import PermanentError

CUDA, HIP, ROCR = "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"
NVIDIA = tuple(Gpu(Vendor.NVIDIA, n, "Card", "8.6", 1, f"GPU-{n}abcdef0-1111-4222-8333-944455556666") for n in range(3))
AMD = tuple(Gpu(Vendor.AMD, n, "AMD gfx90a", "gfx90a", 1, f"GPU-18f525a5ac6e5b9{n}") for n in range(2))
EVERY = [0, 1, 2]


def left(env: dict[str, str], gpus: tuple[Gpu, ...] = (*NVIDIA, *AMD)) -> tuple[list[int], list[int], list[str]]:
    seen = masked(Survey(gpus, ()), env)
    by = {vendor: [gpu.index for gpu in seen.gpus if gpu.vendor is vendor] for vendor in Vendor}
    return by[Vendor.NVIDIA], by[Vendor.AMD], [one.kind for one in seen.findings]


@pytest.mark.parametrize(
    ("mask", "devices"),
    [
        ("0", [0]),
        ("2,0", [0, 2]),
        (" 1 , 2 ", [1, 2]),
        ("", []),
        (" ", []),
        ("-1", []),
        ("0,-1,1", [0]),
        ("7", []),
        ("9" * 5000, []),
        ("01", [1]),
        ("00", [0]),
        ("0,7,1", [0]),  # what follows a number without a device is hidden
        ("GPU-1abcdef0-1111-4222-8333-944455556666", [1]),
        ("gpu-1ABCDEF0-1111-4222-8333-944455556666", [1]),
        ("GPU-2", [2]),
        ("GPU-2,0", [0, 2]),
    ],
)
def test_a_mask_of_nvidia_leaves_what_it_selects(mask: str, devices: list[int]) -> None:
    assert left({CUDA: mask}, NVIDIA) == (devices, [], ["mask_applied"])


@pytest.mark.parametrize(
    "mask",
    ["GPU-", "GPU-99", "MIG-5b1c4f0e-1111-5222-8333-944455556666", "MIG-GPU-0abcdef0/1/0", "nope", "0,GPU-99",
     "NoDevFiles"],
)  # fmt: skip
def test_an_entry_that_cannot_be_resolved_keeps_the_devices_with_a_note(mask: str) -> None:
    assert left({CUDA: mask}, NVIDIA) == (EVERY, [], ["mask_unresolved"])


def test_a_uuid_that_several_devices_could_have_is_not_resolved() -> None:
    assert left({CUDA: "GPU-18f525"}, AMD) == ([], [0, 1], ["mask_unresolved"])


def test_a_mask_that_hides_nothing_is_not_told() -> None:
    assert left({CUDA: "0,1,2"}, NVIDIA) == (EVERY, [], [])
    assert left({}) == (EVERY, [0, 1], [])


@pytest.mark.parametrize(
    ("env", "amd"),
    [
        ({HIP: "1"}, [1]),
        ({ROCR: "0"}, [0]),
        ({HIP: "", ROCR: "0", CUDA: "0"}, []),  # set and empty counts
        ({HIP: "0", ROCR: "1"}, [0]),
        ({ROCR: "1", CUDA: "0"}, [1]),
        ({CUDA: "1"}, [1]),
        ({ROCR: "GPU-18f525a5ac6e5b91"}, [1]),
    ],
)
def test_amds_mask_is_the_first_variable_that_is_set(env: dict[str, str], amd: list[int]) -> None:
    assert left(env, AMD)[1] == amd


def test_each_vendor_has_its_own_mask() -> None:
    assert left({HIP: "", ROCR: "0"})[:2] == (EVERY, [])
    assert left({CUDA: ""})[:2] == ([], [])
    assert left({CUDA: "", HIP: "0"})[:2] == ([], [0])


def test_the_message_names_variable_value_and_devices() -> None:
    [hidden] = masked(Survey(NVIDIA, ()), {CUDA: "1"}).findings
    assert (hidden.vendor, hidden.message) == (Vendor.NVIDIA, "CUDA_VISIBLE_DEVICES=1 hides NVIDIA 0, 2")
    [unknown] = masked(Survey(NVIDIA, ()), {CUDA: "0,MIG-7"}).findings
    assert unknown.message.startswith("CUDA_VISIBLE_DEVICES=0,MIG-7: 'MIG-7' names no NVIDIA device")


def test_numbers_of_unlike_cards_are_said_to_be_the_drivers() -> None:
    unlike = (NVIDIA[0], replace(NVIDIA[1], arch="6.0"))
    [told] = masked(Survey(unlike, ()), {CUDA: "0"}).findings
    assert told.message.endswith("hides NVIDIA 1 by the driver's numbers, which are CUDA's with "
                                 "CUDA_DEVICE_ORDER=PCI_BUS_ID only")  # fmt: skip
    [told] = masked(Survey(unlike, ()), {CUDA: "0", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}).findings
    assert told.message.endswith("hides NVIDIA 1")


def test_a_box_that_is_masked_whole_is_refused_and_says_by_what() -> None:
    with pytest.raises(PermanentError, match="CUDA_VISIBLE_DEVICES= hides NVIDIA 0, 1, 2"):
        usable(masked(Survey(NVIDIA, ()), {CUDA: ""}), None)


def test_devices_that_a_mask_hides_cannot_be_offered() -> None:
    with pytest.raises(PermanentError, match="--devices: 0 is not usable here; CUDA_VISIBLE_DEVICES=1 hides"):
        usable(masked(Survey(NVIDIA, ()), {CUDA: "1"}), (0, 1))
