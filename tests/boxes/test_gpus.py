from __future__ import annotations

import json
from pathlib import Path

import pytest

from fdl_tasks.arch import Vendor
from fdl_tasks.boxes.gpu.gpus import Finding, Gpu, Node, Survey, from_json, gfx, kfd, parse_devices, smi, usable
from fdl_tasks.errors import PermanentError, UsageError

CASES = Path(__file__).resolve().parents[1] / "cases" / "boxes"
NVIDIA, AMD = Vendor.NVIDIA, Vendor.AMD
P100 = Gpu(NVIDIA, 0, "Tesla P100-PCIE-16GB", "6.0", 16384, "GPU-0a1b2c3d-1111-4222-8333-944455556666")
RTX = Gpu(NVIDIA, 1, "NVIDIA GeForce RTX 3090", "8.6", 24576, "GPU-9f8e7d6c-1111-4222-8333-944455556677")
MI250 = Gpu(AMD, 0, "AMD gfx90a", "gfx90a", 65520, None)


@pytest.mark.parametrize(
    ("case", "gpus"),
    [
        ("two-h100", [(0, "9.0", 81559, "NVIDIA H100 80GB HBM3"), (1, "9.0", 81559, "NVIDIA H100 80GB HBM3")]),
        ("p100-3090", [(0, "6.0", 16384, "Tesla P100-PCIE-16GB"), (1, "8.6", 24576, "NVIDIA GeForce RTX 3090")]),
        ("commas", [(0, "7.5", 15360, "NVIDIA Example, Rev. 2, 16GB")]),
        ("gb10", [(0, "12.1", None, "NVIDIA GB10")]),
        ("mig-a100", [(0, "8.0", 40960, "NVIDIA A100-SXM4-40GB")]),
    ],
)
def test_nvidia_smi_is_read_whole(case: str, gpus: list[tuple[int, str, int | None, str]]) -> None:
    seen = smi((CASES / "nvidia" / f"{case}.csv").read_text())
    assert [(gpu.index, gpu.arch, gpu.memory, gpu.name) for gpu in seen.gpus] == gpus
    assert {gpu.vendor for gpu in seen.gpus} == {NVIDIA}
    assert seen.findings == ()


def test_nvidia_smi_tells_uuids() -> None:
    assert smi((CASES / "nvidia" / "p100-3090.csv").read_text()).gpus == (P100, RTX)


@pytest.mark.parametrize(
    ("case", "devices", "found"),
    [("torn", [0], 2), ("lost", [0], 1), ("none", [], 1)],
)
def test_a_row_that_is_no_device_is_a_finding_and_hides_no_other(case: str, devices: list[int], found: int) -> None:
    seen = smi((CASES / "nvidia" / f"{case}.csv").read_text())
    assert [gpu.index for gpu in seen.gpus] == devices
    assert [one.kind for one in seen.findings] == ["unparsable"] * found


@pytest.mark.parametrize("field", ["[N/A]", "[Not Supported]", "[Unknown Error]", ""])
def test_what_the_driver_cannot_tell_is_unknown_and_the_device_counts(field: str) -> None:
    assert smi(f"0, {field}, 9.0, {field}, Card\n").gpus == (Gpu(NVIDIA, 0, "Card", "9.0", None, None),)


def nodes(box: str) -> list[Node]:
    paths = sorted((CASES / "kfd" / box).iterdir(), key=lambda path: int(path.name))
    return [
        Node(
            path.name,
            (path / "properties").read_text(),
            tuple(bank.read_text() for bank in path.glob("mem_banks/*/properties")),
        )
        for path in paths
    ]


@pytest.mark.parametrize(
    ("box", "gpus"),
    [
        ("cpu-only", []),
        ("mi250", [(0, "gfx90a", 65520), (1, "gfx90a", 65520)]),
        ("rx7900-igpu", [(0, "gfx1100", 24560), (1, "gfx1036", 512)]),
        ("order", [(0, "gfx90a", 65520), (1, "gfx1100", 24560), (2, "gfx942", 196592)]),
        ("torn", [(0, "gfx1100", None)]),
    ],
)
def test_amd_nodes_are_numbered_without_the_cpus(box: str, gpus: list[tuple[int, str, int | None]]) -> None:
    assert [(gpu.index, gpu.arch, gpu.memory) for gpu in kfd(nodes(box)).gpus] == gpus


def test_a_torn_node_is_a_finding() -> None:
    assert [one.message.split(" does")[0] for one in kfd(nodes("torn")).findings] == ["KFD node 1", "KFD node 2"]
    assert kfd(nodes("mi250")).findings == ()


def test_an_amd_device_has_the_uuid_that_rocminfo_prints() -> None:
    assert [gpu.uuid for gpu in kfd(nodes("mi250")).gpus] == ["GPU-18f52c07dcc78b95", "GPU-18f52c07dcc78b96"]
    assert kfd(nodes("order")).gpus[0].uuid is None


@pytest.mark.parametrize(
    ("properties", "devices"),
    [
        ("simd_count 8\nvendor_id 4098\ngfx_target_version 90010\n", 1),
        ("simd_count 8\nvendor_id 4318\ngfx_target_version 90010\n", 0),
        ("simd_count 0\nvendor_id 4098\ngfx_target_version 90010\n", 0),
        ("simd_count 8\nvendor_id 4098\ngfx_target_version 0\n", 0),
        ("my.simd_count 8\nmy.vendor_id 4098\nmy.gfx_target_version 90010\n", 0),  # keys are whole words
    ],
)
def test_a_node_is_a_device_when_it_is_amds_and_computes(properties: str, devices: int) -> None:
    assert len(kfd([Node("1", properties, ())]).gpus) == devices


@pytest.mark.parametrize(
    ("version", "arch"),
    [(90010, "gfx90a"), (110000, "gfx1100"), (90402, "gfx942"), (90008, "gfx908"), (100300, "gfx1030"),
     (110501, "gfx1151"), (120001, "gfx1201"), (90012, "gfx90c")],
)  # fmt: skip
def test_a_target_version_is_major_minor_and_a_step_in_hex(version: int, arch: str) -> None:
    assert gfx(version) == arch


@pytest.mark.parametrize(
    ("text", "gpus", "findings"),
    [
        ("[]", [], []),
        ('[{"index": 0, "name": "A", "arch": "8.6"}]', [Gpu(NVIDIA, 0, "A", "8.6", None)], []),
        ('[{"index": 3, "name": "A", "sm": "8.6", "vram_mb": 24576}]', [Gpu(NVIDIA, 3, "A", "8.6", 24576)], []),
        ('[{"index": 0, "vendor": "amd", "name": "A", "arch": "gfx90a", "sm": null, "vram_mb": null}]',
         [Gpu(AMD, 0, "A", "gfx90a", None)], []),
        ('{"gpus": [{"index": 0, "name": "A", "arch": "9.0"}], "notes": [{"vendor": "amd", "message": "no ROCm"}]}',
         [Gpu(NVIDIA, 0, "A", "9.0", None)], [Finding(AMD, "hardware_unusable", "no ROCm")]),
        ('{"gpus": null, "notes": [{"kind": "tool_failed", "message": "broke"}]}',
         [], [Finding(None, "tool_failed", "broke")]),
    ],
)  # fmt: skip
def test_the_testing_variable_is_a_survey(text: str, gpus: list[Gpu], findings: list[Finding]) -> None:
    assert from_json(text) == Survey(tuple(gpus), tuple(findings))


GOOD = {"index": 0, "name": "A", "arch": "8.6"}


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("", "Expecting value"),
        ("{", "Expecting"),
        ("3", "arrays"),
        ('"x"', "arrays"),
        ('{"gpus": {}}', "'gpus' can't be {}"),
        ('{"devices": []}', "unknown key 'devices'"),
        ("[3]", "3 is no object"),
        ("[null]", "null is no object"),
        (json.dumps([{**GOOD, "uuid": "GPU-1"}]), "unknown key 'uuid'"),
        (json.dumps([{**GOOD, "vendor": "intel"}]), "'intel' is none of nvidia, amd"),
        (json.dumps([{**GOOD, "index": 256}]), "0 to 255"),
        (json.dumps([{**GOOD, "index": -1}]), "0 to 255"),
        (json.dumps([{**GOOD, "index": True}]), "'index' can't be true"),
        (json.dumps([{**GOOD, "index": "0"}]), "'index' can't be \"0\""),
        (json.dumps([{**GOOD, "vram_mb": -1}]), "vram_mb"),
        (json.dumps([{"index": 0, "name": "A"}]), "needs index, name and arch"),
        (json.dumps([{"name": "A", "arch": "8.6"}]), "needs index, name and arch"),
        (json.dumps([{**GOOD, "arch": None}]), "needs index, name and arch"),
        ("[" * 100_000, "recursion"),
    ],
)
def test_a_malformed_testing_variable_is_refused_by_name(value: str, why: str) -> None:
    with pytest.raises(PermanentError) as caught:
        from_json(value)
    assert caught.value.what.startswith("FLODL_TESTING_GPU_JSON is malformed: ")
    assert why in caught.value.what


BOTH = Survey((P100, RTX), (Finding(AMD, "hardware_unusable", "AMD GPU without the ROCm runtime"),))


@pytest.mark.parametrize(
    ("devices", "gpus"), [(None, (P100, RTX)), ((0, 1), (P100, RTX)), ((1,), (RTX,)), ((1, 0), (P100, RTX))]
)
def test_a_box_offers_its_devices_whatever_else_is_in_it(devices: tuple[int, ...] | None, gpus: tuple[Gpu]) -> None:
    assert usable(BOTH, devices) == gpus


def test_a_number_names_the_device_of_either_vendor() -> None:
    assert usable(Survey((P100, MI250), ()), (0,)) == (P100, MI250)


@pytest.mark.parametrize(
    ("devices", "named"), [((2,), "--devices: 2 is"), ((0, 7, 9), "--devices: 7, 9 is"), ((9, 7), "--devices: 7, 9 is")]
)
def test_devices_that_are_not_here_are_named_with_those_that_are(devices: tuple[int, ...], named: str) -> None:
    with pytest.raises(PermanentError) as caught:
        usable(BOTH, devices)
    assert caught.value.what == f"{named} not usable here; AMD GPU without the ROCm runtime"
    assert str(RTX) in caught.value.hint


def test_an_empty_offer_is_none() -> None:
    with pytest.raises(PermanentError, match="--devices: it names no device"):
        usable(BOTH, ())


@pytest.mark.parametrize("devices", [None, (0,), ()])
def test_where_nothing_is_usable_what_was_found_says_why(devices: tuple[int, ...] | None) -> None:
    found = [Finding(NVIDIA, "tool_failed", "it broke"), Finding(AMD, "hardware_unusable", "no access")]
    with pytest.raises(PermanentError) as caught:
        usable(Survey((), (*found, found[0])), devices)
    assert caught.value.what == "no usable GPU: it broke; no access"


def test_a_box_without_anything_says_so() -> None:
    with pytest.raises(PermanentError, match="no usable GPU: no driver and no card of NVIDIA or AMD was found"):
        usable(Survey((), ()), None)


@pytest.mark.parametrize(
    ("text", "devices"),
    [(None, None), ("all", None), (" ALL ", None), ("0", (0,)), ("0,1", (0, 1)), (" 1 , 0 ", (1, 0)), ("255", (255,)),
     ("2,2", (2,))],
)  # fmt: skip
def test_devices_are_all_or_numbers(text: str | None, devices: tuple[int, ...] | None) -> None:
    assert parse_devices(text) == devices


@pytest.mark.parametrize("text", ["", "256", "-1", "0,", ",", "0;1", "one", "1.0", "²", "0x1", "9" * 5000, "all,0"])
def test_anything_else_is_a_wrong_call(text: str) -> None:
    with pytest.raises(UsageError, match="--devices takes"):
        parse_devices(text)
