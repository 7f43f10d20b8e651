from __future__ import annotations

import contextlib
import grp
import json
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fdl_tasks.arch import Vendor
from fdl_tasks.boxes.gpu import survey as looking
from fdl_tasks.boxes.gpu.gpus import Gpu, Survey, masked, usable
from fdl_tasks.boxes.gpu.survey import survey
from fdl_tasks.boxes.tools import Tools
from fdl_tasks.errors import Cancelled, PermanentError, Stage, TransportError
from fdl_tasks.hosts.base import Completed

CASES = Path(__file__).resolve().parents[1] / "cases" / "boxes"
NVIDIA, AMD = Vendor.NVIDIA, Vendor.AMD


class Smi(Tools):
    """This box's tools: an nvidia-smi that prints this, or fails so; None where there is none."""

    def __init__(self, out: str | None = None, code: int = 0, err: str = "", raises: Exception | None = None):
        super().__init__("box")
        self.answer = None if out is None else Completed(code, out, err, 0.1)
        self.raises, self.asked = raises, list[list[str]]()

    def run(self, argv: Sequence[str | Path], **options: Any) -> Completed:
        self.asked.append(list(map(str, argv)))
        if self.raises:
            raise self.raises
        if self.answer is None:
            raise PermanentError(f"{argv[0]} is not installed")
        return self.answer


class NVMLError(Exception):
    """As pynvml's."""


class Nvml:
    """Stands in for pynvml: the values of a case, or what makes it fail."""

    NVMLError = NVMLError
    NVML_COMPUTEMODE_PROHIBITED, NVML_DEVICE_MIG_ENABLE = 2, 1

    def __init__(self, devices: Sequence[dict[str, Any]] = (), broken: Exception | None = None):
        self.devices, self.broken, self.open = devices, broken, 0

    def nvmlInit(self) -> None:  # noqa: N802 - NVML's names
        if self.broken:
            raise self.broken
        self.open += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.open -= 1

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return len(self.devices)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> dict[str, Any]:  # noqa: N802
        if "lost" in self.devices[index]:
            raise NVMLError(self.devices[index]["lost"])
        return self.devices[index]

    def nvmlDeviceGetMigDeviceHandleByIndex(self, device: dict[str, Any], part: int) -> object:  # noqa: N802
        if part >= len(device["mig"]):
            raise NVMLError("Not Found")
        return device["mig"][part]

    def __getattr__(self, name: str) -> Any:
        get = {
            "nvmlDeviceGetName": lambda device: device["name"].encode(),  # as of old versions
            "nvmlDeviceGetUUID": lambda device: device["uuid"],
            "nvmlDeviceGetCudaComputeCapability": lambda device: tuple(device["capability"]),
            "nvmlDeviceGetComputeMode": lambda device: device.get("compute_mode", 0),
            "nvmlDeviceGetMigMode": lambda device: told([1, 1] if "mig" in device else "Not Supported"),
            "nvmlDeviceGetMaxMigDeviceCount": lambda device: 7,
            "nvmlDeviceGetMemoryInfo": lambda device: SimpleNamespace(total=told(device["memory"])),
        }
        return get[name]


def told(value: Any) -> Any:
    if isinstance(value, str):
        raise NVMLError(value)
    return value


def read(case: str) -> str:
    return (CASES / "nvidia" / case).read_text()


def nvml(case: str) -> Nvml:
    return Nvml(json.loads(read(f"{case}.nvml.json")))


ABSENT = Nvml(broken=NVMLError("NVML Shared Library Not Found"))


@pytest.mark.parametrize(
    ("case", "gpus"),
    [
        ("two-h100", [(0, "9.0", 81559, "NVIDIA H100 80GB HBM3"), (1, "9.0", 81559, "NVIDIA H100 80GB HBM3")]),
        ("p100-3090", [(0, "6.0", 16384, "Tesla P100-PCIE-16GB"), (1, "8.6", 24576, "NVIDIA GeForce RTX 3090")]),
        ("gb10", [(0, "12.1", None, "NVIDIA GB10")]),
        ("mig-a100", [(0, "8.0", 40960, "NVIDIA A100-SXM4-40GB")]),
    ],
)
def test_nvidias_devices_are_asked_of_the_driver(tmp_path: Path, case: str, gpus: list[Any]) -> None:
    tools, driver = Smi(), nvml(case)
    seen = survey(tools, {}, tmp_path, driver)
    assert [(gpu.index, gpu.arch, gpu.memory, gpu.name) for gpu in seen.gpus] == gpus
    assert all(gpu.uuid and gpu.uuid.startswith("GPU-") for gpu in seen.gpus)
    assert (seen.findings, tools.asked, driver.open) == ((), [], 0)


@pytest.mark.parametrize("case", ["two-h100", "p100-3090", "gb10", "mig-a100"])
def test_both_ways_tell_the_same(tmp_path: Path, case: str) -> None:
    by_smi = survey(Smi(read(f"{case}.csv")), {}, tmp_path, ABSENT)
    assert by_smi == survey(Smi(), {}, tmp_path, nvml(case))


@pytest.mark.parametrize(
    ("case", "usable_ones", "told"),
    [
        ("one-lost", [0], "NVIDIA 1: GPU is lost"),
        ("mig-a100-empty", [], "NVIDIA 0: MIG is on and has no instance: make one, or turn it off (sudo nvidia-smi"),
        ("prohibited", [], "NVIDIA 0: its compute mode is prohibited: sudo nvidia-smi -i 0 -c DEFAULT"),
    ],
)
def test_a_card_that_no_program_could_use_is_a_finding(
    tmp_path: Path, case: str, usable_ones: list[int], told: str
) -> None:
    seen = survey(Smi(), {}, tmp_path, nvml(case))
    assert [gpu.index for gpu in seen.gpus] == usable_ones
    [finding] = seen.findings
    assert (finding.vendor, finding.kind) == (NVIDIA, "hardware_unusable")
    assert finding.message.startswith(told)


def test_a_driver_without_cards_says_so(tmp_path: Path) -> None:
    assert [one.message[:45] for one in survey(Smi(), {}, tmp_path, Nvml()).findings] == [
        "NVIDIA's driver is there and sees no card: gi"
    ]


@pytest.mark.parametrize(
    "broken", [NVMLError("Driver Not Loaded"), OSError("no"), AttributeError("nvmlInit"), ValueError("bytes")]
)
def test_where_nvml_fails_nvidia_smi_is_asked(tmp_path: Path, broken: Exception) -> None:
    tools = Smi(read("two-h100.csv"))
    assert [gpu.index for gpu in survey(tools, {}, tmp_path, Nvml(broken=broken)).gpus] == [0, 1]
    query = "--query-gpu=index,uuid,compute_cap,memory.total,name"
    assert tools.asked == [["nvidia-smi", query, "--format=csv,noheader,nounits"]]


@pytest.mark.parametrize(
    ("tools", "devices", "told"),
    [
        (Smi("", 9, read("no-driver.err")), [], "nvidia-smi ended with 9: NVIDIA-SMI has failed"),
        (Smi("", 2, read("old.err")), [], 'nvidia-smi ended with 2: Field "compute_cap" is not'),
        (Smi(read("lost.csv"), 15), [0], "nvidia-smi ended with 15: Unable to determine the device handle for GPU1"),
        (Smi("", 139), [], "nvidia-smi ended with 139: NVML: NVML Shared Library Not Found"),
        (Smi(raises=TransportError(Stage.DEADLINE, "60 s passed")), [], "nvidia-smi: time limit: 60 s passed"),
    ],
)  # fmt: skip
def test_a_tool_that_fails_is_a_finding(tmp_path: Path, tools: Smi, devices: list[int], told: str) -> None:
    seen = survey(tools, {}, tmp_path, ABSENT)
    assert [gpu.index for gpu in seen.gpus] == devices
    [finding] = seen.findings
    assert (finding.vendor, finding.kind) == (NVIDIA, "tool_failed")
    assert finding.message.startswith(told)


def test_a_run_that_is_ended_is_no_finding(tmp_path: Path) -> None:
    with pytest.raises(Cancelled):
        survey(Smi(raises=Cancelled("ended by the user")), {}, tmp_path, ABSENT)


def test_a_driver_that_hangs_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(looking, "LIMIT", 0.05)
    hung, driver = threading.Event(), Nvml()
    monkeypatch.setattr(driver, "nvmlInit", hung.wait)
    began, tools = time.monotonic(), Smi("")
    seen = survey(tools, {}, tmp_path, driver)
    hung.set()
    assert time.monotonic() - began < 5
    [finding] = seen.findings
    assert finding.kind == "tool_failed"
    assert finding.message.startswith("NVIDIA's driver gave no answer within 0.05 s")
    assert tools.asked == []  # it would hang too


def pci(root: Path, *cards: tuple[str, str]) -> None:
    for number, (vendor, kind) in enumerate(cards):
        slot = root / "sys/bus/pci/devices" / f"0000:0{number}:00.0"
        slot.mkdir(parents=True)
        (slot / "vendor").write_text(f"{vendor}\n")
        (slot / "class").write_text(f"{kind}\n")


def messages(seen: Survey) -> list[str]:
    return [one.message for one in seen.findings]


def test_a_box_without_a_gpu_has_nothing_to_tell(tmp_path: Path) -> None:
    pci(tmp_path, ("0x8086", "0x030000"), ("0x10de", "0x040300"), ("0x1002", "0x040300"))  # another's, and sound
    assert survey(Smi(), {}, tmp_path, ABSENT) == Survey((), ())


@pytest.mark.parametrize("kind", ["0x030000", "0x030200"])
def test_a_card_of_nvidia_without_a_driver_is_told(tmp_path: Path, kind: str) -> None:
    pci(tmp_path, ("0x10de", kind), ("0x10de", kind))
    [told] = messages(survey(Smi(), {}, tmp_path, ABSENT))
    assert told.startswith("NVIDIA cards on PCI: 2, and no driver (NVML: NVML Shared Library Not Found)")


@pytest.mark.parametrize("sign", ["dev/nvidiactl", "proc/driver/nvidia"])
def test_a_kernel_driver_without_its_library_is_told(tmp_path: Path, sign: str) -> None:
    (tmp_path / sign).mkdir(parents=True)
    [told] = messages(survey(Smi(), {}, tmp_path, ABSENT))
    assert told.startswith("NVIDIA's kernel driver is loaded, and its library and nvidia-smi are missing")


def test_the_real_nvml_module_of_a_box_without_the_library_is_no_error(tmp_path: Path) -> None:
    pytest.importorskip("pynvml")
    if any(Path("/dev").glob("nvidia*")):
        pytest.skip("this machine has an NVIDIA driver")
    pci(tmp_path, ("0x10de", "0x030000"))
    [told] = messages(survey(Smi(), {}, tmp_path))
    assert told.startswith("NVIDIA cards on PCI: 1, and no driver (NVML: NVML Shared Library Not Found)")


def amd_box(root: Path, nodes: str = "mi250", kfd: bool = True, runtime: str = "opt/rocm/lib") -> Path:
    """A box's files, with ROCm, unless something is left out."""
    pci(root, ("0x1002", "0x030000"))
    if nodes:
        shutil.copytree(CASES / "kfd" / nodes, root / "sys/class/kfd/kfd/topology/nodes")
    (root / "dev").mkdir()
    if kfd:
        (root / "dev/kfd").write_text("")
    if runtime:
        (root / runtime).mkdir(parents=True)
        (root / runtime / "libhsa-runtime64.so.1").write_text("")
    return root


@pytest.mark.parametrize(
    ("nodes", "archs"),
    [
        ("mi250", ["gfx90a", "gfx90a"]),
        ("rx7900-igpu", ["gfx1100", "gfx1036"]),
        ("order", ["gfx90a", "gfx1100", "gfx942"]),  # 0, 1, 2, 10, not 0, 1, 10, 2
    ],
)
def test_amds_devices_are_read_in_numeric_order(tmp_path: Path, nodes: str, archs: list[str]) -> None:
    seen = survey(Smi(), {}, amd_box(tmp_path, nodes), ABSENT)
    assert [(gpu.index, gpu.arch) for gpu in seen.gpus] == list(enumerate(archs))
    assert {gpu.vendor for gpu in seen.gpus} == {AMD}
    assert seen.findings == ()


@pytest.mark.parametrize("runtime", ["opt/rocm/lib", "opt/rocm/lib64", "usr/lib64", "usr/lib/x86_64-linux-gnu"])
def test_the_runtime_may_be_the_systems(tmp_path: Path, runtime: str) -> None:
    assert len(survey(Smi(), {}, amd_box(tmp_path, runtime=runtime), ABSENT).gpus) == 2


@pytest.mark.parametrize("variable", ["ROCM_PATH", "HIP_PATH", "HSA_PATH"])
def test_the_runtime_may_be_where_a_variable_says(tmp_path: Path, variable: str) -> None:
    box = amd_box(tmp_path, runtime="srv/rocm-6/lib64")
    assert survey(Smi(), {}, box, ABSENT).gpus == ()
    assert len(survey(Smi(), {variable: "/srv/rocm-6"}, box, ABSENT).gpus) == 2


@pytest.mark.parametrize(
    ("box", "told"),
    [
        ({"nodes": ""}, "AMD cards on PCI: 1, and the kernel's compute driver knows none"),
        ({"nodes": "cpu-only"}, "AMD cards on PCI: 1, and the kernel's compute driver knows none"),
        ({"nodes": "", "kfd": False, "runtime": ""}, "AMD cards on PCI: 1, and the kernel's compute driver knows none"),
        ({"kfd": False}, "/dev/kfd is missing"),
        ({"kfd": False, "runtime": ""}, "/dev/kfd is missing"),
        ({"runtime": ""}, "AMD GPU without the ROCm runtime"),
    ],
)
def test_the_first_thing_that_keeps_amds_devices_is_told(tmp_path: Path, box: dict[str, Any], told: str) -> None:
    seen = survey(Smi(), {}, amd_box(tmp_path, **box), ABSENT)
    assert seen.gpus == ()
    [finding] = seen.findings
    assert (finding.vendor, finding.kind) == (AMD, "hardware_unusable")
    assert finding.message.startswith(told)


@pytest.fixture
def open_to_all() -> Iterator[Path]:
    """A directory that another user may look into, as pytest's own is not."""
    with tempfile.TemporaryDirectory(dir="/tmp") as made:
        Path(made).chmod(0o755)
        yield Path(made)


@contextlib.contextmanager
def as_nobody() -> Iterator[None]:
    """Root's process for a while as user and group 65534."""
    groups = os.getgroups()
    os.setgroups([])
    os.setegid(65534)
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)
        os.setgroups(groups)


@pytest.mark.parametrize(
    ("user", "group", "mode", "allowed"),
    [
        (0, "video", 0o660, False),
        (0, "video", 0o664, False),
        (0, "video", 0o666, True),
        (0, "nogroup", 0o660, True),
        (65534, "video", 0o600, True),
        (65534, "video", 0o066, False),  # the owner's bits beat those of others
        (0, "nogroup", 0o606, False),
    ],
)
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be somebody else")
def test_a_kfd_that_is_closed_to_this_user_is_told_with_the_group_to_join(
    open_to_all: Path, user: int, group: str, mode: int, allowed: bool
) -> None:
    kfd = amd_box(open_to_all) / "dev/kfd"
    os.chown(kfd, user, 65534 if group == "nogroup" else grp.getgrnam(group).gr_gid)
    kfd.chmod(mode)
    smi = Smi()  # now: this checkout may be closed to others
    with as_nobody():
        seen = survey(smi, {}, open_to_all, ABSENT)
    assert bool(seen.gpus) is allowed
    told = f"no access to /dev/kfd: sudo usermod -aG {group} $USER, and log in again"
    assert messages(seen) == ([] if allowed else [told])
    assert len(survey(Smi(), {}, open_to_all, ABSENT).gpus) == 2  # root may


@pytest.mark.parametrize(("gid", "group"), [(0, "render"), (987654, "render")])
def test_a_group_without_a_name_to_join_is_taken_for_render(tmp_path: Path, gid: int, group: str) -> None:
    kfd = tmp_path / "kfd"
    kfd.write_text("")
    if not os.geteuid():
        os.chown(kfd, 0, gid)
    elif gid or os.getegid():
        pytest.skip("needs root, to give a file away")
    assert looking._group(kfd) == group


def test_an_igpu_without_rocm_beside_working_cards_is_a_note(tmp_path: Path) -> None:
    box = amd_box(tmp_path, "igpu", runtime="")
    seen = survey(Smi(), {}, box, nvml("two-h100"))
    assert [str(gpu) for gpu in usable(seen, None)] == [
        "NVIDIA 0 (NVIDIA H100 80GB HBM3, 9.0)",
        "NVIDIA 1 (NVIDIA H100 80GB HBM3, 9.0)",
    ]
    assert [one.vendor for one in seen.findings] == [AMD]


def test_an_igpu_without_rocm_alone_is_refused_and_says_why(tmp_path: Path) -> None:
    box = amd_box(tmp_path, "igpu", runtime="")
    with pytest.raises(PermanentError, match="no usable GPU: AMD GPU without the ROCm runtime"):
        usable(survey(Smi(), {}, box, ABSENT), None)


def test_cards_of_both_vendors_are_one_survey(tmp_path: Path) -> None:
    seen = survey(Smi(), {}, amd_box(tmp_path), nvml("p100-3090"))
    assert [(gpu.vendor, gpu.index) for gpu in seen.gpus] == [(NVIDIA, 0), (NVIDIA, 1), (AMD, 0), (AMD, 1)]


def test_torn_files_hide_no_other_card(tmp_path: Path) -> None:
    box = amd_box(tmp_path, "torn")
    nodes = box / "sys/class/kfd/kfd/topology/nodes"
    (nodes / "notes.txt").write_text("no node")
    (nodes / "3/properties").write_bytes((nodes / "3/properties").read_bytes() + b"\xff\xfe 1\n")
    seen = survey(Smi(), {}, box, ABSENT)
    assert [gpu.arch for gpu in seen.gpus] == ["gfx1100"]
    assert [one.kind for one in seen.findings] == ["unparsable", "unparsable"]


def test_the_testing_variable_stands_for_the_whole_survey_and_masks_still_apply(tmp_path: Path) -> None:
    env = {
        "FLODL_TESTING_GPU_JSON": '[{"index": 1, "name": "B", "arch": "6.1"}, {"index": 0, "name": "A", "sm": "8.6"}]',
        "CUDA_VISIBLE_DEVICES": "1",
    }
    tools = Smi("")
    seen = survey(tools, env, amd_box(tmp_path), nvml("two-h100"))
    assert seen == Survey((Gpu(NVIDIA, 0, "A", "8.6", None), Gpu(NVIDIA, 1, "B", "6.1", None)), ())
    assert [gpu.name for gpu in usable(masked(seen, env), None)] == ["B"]
    assert tools.asked == []


def test_a_blank_testing_variable_is_none(tmp_path: Path) -> None:
    assert len(survey(Smi(), {"FLODL_TESTING_GPU_JSON": " "}, tmp_path, nvml("two-h100")).gpus) == 2


def test_a_malformed_testing_variable_is_never(tmp_path: Path) -> None:
    with pytest.raises(PermanentError, match="FLODL_TESTING_GPU_JSON is malformed"):
        survey(Smi(), {"FLODL_TESTING_GPU_JSON": "{"}, tmp_path, nvml("two-h100"))


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be somebody else")
def test_a_runtime_in_a_directory_that_is_closed_to_this_user_is_none(open_to_all: Path) -> None:
    box = amd_box(open_to_all, runtime="srv/rocm/lib")
    (box / "dev/kfd").chmod(0o666)
    (box / "srv/rocm").chmod(0o700)
    smi = Smi()  # now: this checkout may be closed to others
    with as_nobody():
        seen = survey(smi, {"ROCM_PATH": "/srv/rocm"}, box, ABSENT)
    assert [one.message[:35] for one in seen.findings] == ["AMD GPU without the ROCm runtime (l"]
