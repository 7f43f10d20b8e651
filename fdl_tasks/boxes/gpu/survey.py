"""Which GPUs this box has: NVIDIA's asked of their driver, AMD's read from the kernel's files."""

from __future__ import annotations

import contextlib
import grp
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ...arch import Vendor
from ...errors import PermanentError, ScriptError, TransportError
from ...hosts.output import reason
from ..tools import Tools
from . import gpus
from .gpus import Finding, Gpu, Survey
from .toolkit import rocm_runtime

LIMIT = 60.0  # seconds for the driver to answer: loading it for the first time takes some, a lost card hangs it
PCI = {Vendor.NVIDIA: "0x10de", Vendor.AMD: "0x1002"}
TOPOLOGY = "sys/class/kfd/kfd/topology/nodes"


def survey(tools: Tools, env: Mapping[str, str], root: Path = Path("/"), nvml: Any = None) -> Survey:
    """Every device of the box, masks not yet applied, or what ``FLODL_TESTING_GPU_JSON`` says instead.

    Args:
        env: the environment that is looked at.
        root: where the box's files are.
        nvml: stands in for the module ``pynvml``.

    Raises:
        PermanentError: ``FLODL_TESTING_GPU_JSON`` is malformed.
    """
    if env.get(gpus.TESTING, "").strip():
        return gpus.from_json(env[gpus.TESTING])
    both = (_nvidia(tools, root, nvml), _amd(env, root))
    return Survey(both[0].gpus + both[1].gpus, both[0].findings + both[1].findings)


def _nvidia(tools: Tools, root: Path, nvml: Any) -> Survey:
    answer = _within(LIMIT, lambda: _ask(nvml or _pynvml()))
    if answer is None:
        why = f"NVIDIA's driver gave no answer within {LIMIT:g} s: a card may be lost (look at dmesg), reboot"
        return Survey((), (Finding(Vendor.NVIDIA, gpus.TOOL_FAILED, why),))
    if isinstance(answer, Survey):
        return answer
    return _by_smi(tools, root, answer)


def _pynvml() -> Any:
    import pynvml

    return pynvml


def _within(seconds: float, work: Callable[[], Survey | str]) -> Survey | str | None:
    """What ``work`` returns; None when it takes longer. A driver that hangs can't be called off, only left."""
    answers = list[Survey | str]()
    thread = threading.Thread(target=lambda: answers.append(work()), daemon=True)
    thread.start()
    thread.join(seconds)
    return answers[0] if answers else None


def _ask(nvml: Any) -> Survey | str:
    """The devices by NVML; the reason when it can't be spoken to."""
    try:
        nvml.nvmlInit()
        try:
            return _devices(nvml, range(nvml.nvmlDeviceGetCount()))
        finally:
            nvml.nvmlShutdown()
    except (nvml.NVMLError, ValueError, AttributeError, OSError) as error:  # not NVML's: a library unlike its module
        return f"NVML: {error}"


def _devices(nvml: Any, numbers: Sequence[int]) -> Survey:
    found, findings = list[Gpu](), list[Finding]()
    for number in numbers:
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(number)
            flaw, gpu = _flaw(nvml, handle, number), _device(nvml, handle, number)
        except nvml.NVMLError as error:
            flaw, gpu = str(error), None
        if gpu and not flaw:
            found.append(gpu)
        else:
            findings.append(Finding(Vendor.NVIDIA, gpus.UNUSABLE, f"NVIDIA {number}: {flaw}"))
    if not numbers:
        why = "NVIDIA's driver is there and sees no card: give the container its devices (docker run --gpus all)"
        findings.append(Finding(Vendor.NVIDIA, gpus.UNUSABLE, why))
    return Survey(tuple(found), tuple(findings))


def _device(nvml: Any, handle: Any, number: int) -> Gpu:
    major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
    memory, uuid = _told(nvml, nvml.nvmlDeviceGetMemoryInfo, handle), _told(nvml, nvml.nvmlDeviceGetUUID, handle)
    return Gpu(
        Vendor.NVIDIA,
        number,
        _text(nvml.nvmlDeviceGetName(handle)),
        f"{major}.{minor}",
        memory.total // (1 << 20) or None if memory else None,
        _text(uuid) if uuid else None,
    )


def _told(nvml: Any, get: Callable[..., Any], *asked: Any) -> Any:
    """What the driver answers; None where it can't tell, as memory of a device that shares the system's."""
    try:
        return get(*asked)
    except nvml.NVMLError:
        return None


def _flaw(nvml: Any, handle: Any, number: int) -> str:
    """Why no program could use a device that is there."""
    if _told(nvml, nvml.nvmlDeviceGetComputeMode, handle) == nvml.NVML_COMPUTEMODE_PROHIBITED:
        return f"its compute mode is prohibited: sudo nvidia-smi -i {number} -c DEFAULT"
    mode = _told(nvml, nvml.nvmlDeviceGetMigMode, handle)
    if not mode or mode[0] != nvml.NVML_DEVICE_MIG_ENABLE:
        return ""
    room = range(_told(nvml, nvml.nvmlDeviceGetMaxMigDeviceCount, handle) or 0)
    parts = (_told(nvml, nvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, part) for part in room)
    none = f"MIG is on and has no instance: make one, or turn it off (sudo nvidia-smi -i {number} -mig 0)"
    return "" if any(part is not None for part in parts) else none


def _text(value: str | bytes) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _by_smi(tools: Tools, root: Path, why: str) -> Survey:
    """The devices by ``nvidia-smi``, NVML having failed for the reason ``why``."""
    argv = ["nvidia-smi", f"--query-gpu={gpus.QUERY}", "--format=csv,noheader,nounits"]
    try:
        done = tools.run(argv, limit=LIMIT)
    except PermanentError:
        return Survey((), tuple(_no_driver(root, why)))
    except (TransportError, ScriptError) as error:
        return Survey((), (Finding(Vendor.NVIDIA, gpus.TOOL_FAILED, f"nvidia-smi: {error.what}"),))
    seen = gpus.smi(done.out)
    if done.code == 0:
        return seen
    said = reason(line for line in f"{done.out}\n{done.err}".splitlines() if not gpus.smi(line).gpus) or why
    failed = Finding(Vendor.NVIDIA, gpus.TOOL_FAILED, f"nvidia-smi ended with {done.code}: {said}")
    return Survey(seen.gpus, (failed,))


def _no_driver(root: Path, why: str) -> Iterator[Finding]:
    """Neither NVML nor nvidia-smi is there: worth telling where something of NVIDIA's is."""
    signs = ("dev/nvidiactl", "proc/driver/nvidia")
    if cards := _cards(root, Vendor.NVIDIA):
        text = f"NVIDIA cards on PCI: {cards}, and no driver ({why}): install it, or give the container its devices"
        yield Finding(Vendor.NVIDIA, gpus.UNUSABLE, text)
    elif any((root / sign).exists() for sign in signs):
        text = f"NVIDIA's kernel driver is loaded, and its library and nvidia-smi are missing ({why}): install them"
        yield Finding(Vendor.NVIDIA, gpus.UNUSABLE, text)


def _cards(root: Path, vendor: Vendor) -> int:
    """PCI devices of the vendor that are display controllers (class 0x03…)."""
    slots = [(_read(slot / "vendor"), _read(slot / "class")) for slot in (root / "sys/bus/pci/devices").glob("*")]
    return sum(1 for made_by, kind in slots if made_by.strip() == PCI[vendor] and kind.startswith("0x03"))


def _amd(env: Mapping[str, str], root: Path) -> Survey:
    seen = gpus.kfd(_nodes(root))
    unable = _why_not(env, root, bool(seen.gpus or seen.findings))
    more = (Finding(Vendor.AMD, gpus.UNUSABLE, unable),) if unable else ()
    return Survey(() if unable else seen.gpus, seen.findings + more)


def _nodes(root: Path) -> Iterator[gpus.Node]:
    numbers = [int(path.name) for path in (root / TOPOLOGY).glob("*") if path.name.isdecimal()]
    for number in sorted(numbers):
        node = root / TOPOLOGY / str(number)
        banks = tuple(_read(bank) for bank in sorted(node.glob("mem_banks/*/properties")))
        yield gpus.Node(str(number), _read(node / "properties"), banks)


def _why_not(env: Mapping[str, str], root: Path, node: bool) -> str:
    """The first thing that keeps this box from using AMD devices; empty when nothing does."""
    kfd = root / "dev/kfd"
    if not node:
        cards = _cards(root, Vendor.AMD)
        told = f"AMD cards on PCI: {cards}, and the kernel's compute driver knows none: load an amdgpu driver that does"
        return told if cards else ""
    if not kfd.exists():
        return "/dev/kfd is missing: load amdgpu, or give the container --device /dev/kfd --device /dev/dri"
    if not rocm_runtime(env, root):
        return "AMD GPU without the ROCm runtime (libhsa-runtime64 is in no lib of $ROCM_PATH or /opt/rocm): install it"
    if not os.access(kfd, os.R_OK | os.W_OK, effective_ids=True):
        return f"no access to /dev/kfd: sudo usermod -aG {_group(kfd)} $USER, and log in again"
    return ""


def _group(path: Path) -> str:
    with contextlib.suppress(KeyError, OSError):
        if (name := grp.getgrgid(path.stat().st_gid).gr_name) != "root":
            return name
    return "render"


def _read(path: Path) -> str:
    """A file of the kernel's; empty when it can't be read, as a node that a container may not use."""
    try:
        return path.read_text("utf-8", "replace")
    except OSError:
        return ""
