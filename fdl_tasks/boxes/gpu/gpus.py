"""The GPUs of a box: what its drivers and files say, what the masks leave of that, what is usable (pure).

The rules: spec/prepare.md, step 1, and facts/upstream.md, section 8. What is wrong with one card is a
finding: beside working ones it is a note, and it is the explanation where nothing is usable.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...arch import Vendor
from ...errors import PermanentError, UsageError

TESTING = "FLODL_TESTING_GPU_JSON"  # replaces the survey
QUERY = "index,uuid,compute_cap,memory.total,name"  # of nvidia-smi; the name last: it may hold commas
MASKS = {
    Vendor.NVIDIA: ("CUDA_VISIBLE_DEVICES",),
    Vendor.AMD: ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"),  # the first that is set
}
UNUSABLE, TOOL_FAILED, UNPARSABLE = "hardware_unusable", "tool_failed", "unparsable"  # kinds of findings
MASKED, UNRESOLVED = "mask_applied", "mask_unresolved"


@dataclass(frozen=True)
class Gpu:
    """One device as its driver numbers it; ``arch`` as ``8.6`` or ``gfx90a``.

    ``memory`` is in MiB; None where the driver can't tell, as with unified memory.
    """

    vendor: Vendor
    index: int
    name: str
    arch: str
    memory: int | None
    uuid: str | None = None

    def __str__(self) -> str:
        return f"{self.vendor.name} {self.index} ({self.name}, {self.arch})"


@dataclass(frozen=True)
class Finding:
    """Something that was seen of the hardware and is no device; ``kind`` is a short stable name."""

    vendor: Vendor | None
    kind: str
    message: str


@dataclass(frozen=True)
class Survey:
    """The devices, by vendor and number, and what else there is to tell."""

    gpus: tuple[Gpu, ...]
    findings: tuple[Finding, ...]


@dataclass(frozen=True)
class Node:
    """One topology node of AMD's kernel driver (KFD): its files' texts, not parsed."""

    name: str
    properties: str
    banks: tuple[str, ...]


def smi(out: str) -> Survey:
    """What ``nvidia-smi --query-gpu=QUERY --format=csv,noheader,nounits`` printed."""
    gpus, findings = list[Gpu](), list[Finding]()
    for line in filter(None, map(str.strip, out.splitlines())):
        found = re.fullmatch(r"([0-9]{1,3}), ([^,]*), ([0-9]+\.[0-9]+), ([^,]*), (.*)", line)
        if found:
            uuid, memory = found[2].strip(), found[4].strip()
            known = int(memory) if re.fullmatch("[0-9]{1,9}", memory) else None
            named = uuid if uuid.startswith("GPU-") else None
            gpus.append(Gpu(Vendor.NVIDIA, int(found[1]), found[5].strip(), found[3], known, named))
        else:
            findings.append(Finding(Vendor.NVIDIA, UNPARSABLE, f"nvidia-smi: no device in its line {line!r}"))
    return Survey(tuple(gpus), tuple(findings))


def kfd(nodes: Iterable[Node]) -> Survey:
    """AMD's devices, numbered in the order of ``nodes``. A CPU's node is none; a torn one is a finding."""
    gpus, findings = list[Gpu](), list[Finding]()
    for node in nodes:
        has = _properties(node.properties)
        if has.get("vendor_id", 4098) != 4098 or has.get("simd_count") == 0:
            continue
        if not (version := has.get("gfx_target_version")) or not {"vendor_id", "simd_count"} <= has.keys():
            why = f"KFD node {node.name} does not tell which GPU it is (a container may be kept from reading it)"
            findings.append(Finding(Vendor.AMD, UNPARSABLE, why))
            continue
        arch = gfx(version)
        uuid = f"GPU-{has['unique_id']:016x}" if has.get("unique_id") else None  # as rocminfo spells it
        gpus.append(Gpu(Vendor.AMD, len(gpus), f"AMD {arch}", arch, _memory(node.banks), uuid))
    return Survey(tuple(gpus), tuple(findings))


def gfx(version: int) -> str:
    """``gfx90a`` of ``gfx_target_version`` 90010: major, minor, and the step in hex."""
    return f"gfx{version // 10000}{version // 100 % 100}{version % 100:x}"


def _properties(text: str) -> dict[str, int]:
    return {key: int(value) for key, value in re.findall("^([a-z_0-9]+) ([0-9]{1,20})$", text, re.M)}


def _memory(banks: Iterable[str]) -> int | None:
    """The largest memory bank, in MiB."""
    return max((_properties(bank).get("size_in_bytes", 0) for bank in banks), default=0) // (1 << 20) or None


def from_json(text: str) -> Survey:
    """What ``FLODL_TESTING_GPU_JSON`` says: an array of devices, or ``{gpus, notes}``.

    Raises:
        PermanentError: it is malformed.
    """
    try:
        value = json.loads(text)
        told = _fields(value, gpus=list, notes=list) if isinstance(value, dict) else {"gpus": value}
        gpus = tuple(_gpu(_fields(one, **_DEVICE)) for one in _list(told.get("gpus")))
        notes = tuple(_finding(_fields(one, vendor=str, kind=str, message=str)) for one in _list(told.get("notes")))
    except (ValueError, RecursionError) as error:
        raise PermanentError(f"{TESTING} is malformed: {error}", hint=f"mend it or unset {TESTING}") from None
    return Survey(tuple(sorted(gpus, key=lambda gpu: (list(Vendor).index(gpu.vendor), gpu.index))), notes)


_DEVICE = {"index": int, "vendor": str, "name": str, "arch": str, "sm": str, "vram_mb": int}
_VENDORS = {"nvidia": Vendor.NVIDIA, "amd": Vendor.AMD}


def _list(value: object) -> list[Any]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise ValueError("devices and notes are arrays")
    return value


def _fields(value: object, **types: type) -> dict[str, Any]:
    """The keys that are given: null counts as absent."""
    if not isinstance(value, dict):
        raise ValueError(f"{json.dumps(value)[:60]} is no object")
    given = {key: item for key, item in value.items() if item is not None}
    for key, item in given.items():
        if key not in types:
            raise ValueError(f"unknown key {key!r}")
        if type(item) is not types[key]:  # true is no number
            raise ValueError(f"{key!r} can't be {json.dumps(item)[:60]}")
    return given


def _gpu(given: dict[str, Any]) -> Gpu:
    arch = given.get("arch", given.get("sm"))
    if "index" not in given or not given.get("name") or not arch:
        raise ValueError("a device needs index, name and arch")
    if not 0 <= given["index"] <= 255 or given.get("vram_mb", 0) < 0:
        raise ValueError("an index is 0 to 255, and vram_mb is not below 0")
    return Gpu(
        _vendor(given.get("vendor", "nvidia")), given["index"], given["name"], arch, given.get("vram_mb") or None
    )


def _finding(given: dict[str, Any]) -> Finding:
    vendor = _vendor(given["vendor"]) if "vendor" in given else None
    return Finding(vendor, given.get("kind", UNUSABLE), given.get("message", ""))


def _vendor(name: str) -> Vendor:
    if name not in _VENDORS:
        raise ValueError(f"vendor {name!r} is none of {', '.join(_VENDORS)}")
    return _VENDORS[name]


def masked(survey: Survey, env: Mapping[str, str]) -> Survey:
    """What the variables that hide devices from a process leave; what they hide is a finding."""
    left, findings = list[Gpu](), list(survey.findings)
    for vendor, names in MASKS.items():
        gpus = [gpu for gpu in survey.gpus if gpu.vendor is vendor]
        name = next((name for name in names if name in env), None)
        if not gpus or name is None:
            left += gpus
            continue
        seen, unknown = _visible(gpus, env[name])
        left += seen
        if unknown:
            why = f"{name}={env[name]}: {unknown!r} names no {vendor.name} device that is known here: it hides none"
            findings.append(Finding(vendor, UNRESOLVED, why))
        elif hidden := [str(gpu.index) for gpu in gpus if gpu not in seen]:
            why = f"{name}={env[name]} hides {vendor.name} {', '.join(hidden)}{_order(gpus, env)}"
            findings.append(Finding(vendor, MASKED, why))
    return Survey(tuple(left), tuple(findings))


def _order(gpus: Sequence[Gpu], env: Mapping[str, str]) -> str:
    """Of unlike cards CUDA counts the fastest first, unless it is told to keep the driver's order."""
    unlike = len({gpu.arch for gpu in gpus if gpu.vendor is Vendor.NVIDIA}) > 1
    told = " by the driver's numbers, which are CUDA's with CUDA_DEVICE_ORDER=PCI_BUS_ID only"
    return told if unlike and env.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID" else ""


def _visible(gpus: Sequence[Gpu], mask: str) -> tuple[Sequence[Gpu], str]:
    """The devices that a mask selects; all, and the entry, where one can't be resolved.

    A number without a device ends the list, as it does for CUDA and HIP ("CUDA C++ Programming Guide",
    environment variables): what follows it is hidden.
    """
    seen = list[Gpu]()
    for entry in filter(None, map(str.strip, mask.split(","))):
        number, digits = re.fullmatch("-?[0-9]+", entry), entry.lstrip("0") or "0"
        found = [gpu for gpu in gpus if (str(gpu.index) == digits if number else _has_uuid(gpu, entry))]
        if len(found) != 1 and not number:
            return gpus, entry
        if not found:
            break
        seen += found
    return [gpu for gpu in gpus if gpu in seen], ""


def _has_uuid(gpu: Gpu, entry: str) -> bool:
    """CUDA takes the beginning of a UUID too, where it is unique."""
    return len(entry) > len("GPU-") and (gpu.uuid or "").lower().startswith(entry.lower())


def usable(survey: Survey, devices: tuple[int, ...] | None) -> tuple[Gpu, ...]:
    """The devices that this box offers: those of ``devices`` (None: all) in a survey that masks were applied to.

    Raises:
        PermanentError: there is none, or one of ``devices`` is not there.
    """
    why = list(_explained(survey.findings))
    if not survey.gpus:
        raise PermanentError(
            "no usable GPU: " + ("; ".join(why) or "no driver and no card of NVIDIA or AMD was found"),
            hint="mend that (`inv gpus` shows it again); a driver that loads late belongs before prepare in the boot",
        )
    offered = tuple(gpu for gpu in survey.gpus if devices is None or gpu.index in devices)
    missing = sorted({*(devices or ())} - {gpu.index for gpu in offered})
    if missing or not offered:
        told = f"{', '.join(map(str, missing))} is not usable here" if missing else "it names no device"
        raise PermanentError(
            "; ".join([f"--devices: {told}", *why]), hint=f"usable are {', '.join(map(str, survey.gpus))}"
        )
    return offered


def _explained(findings: Iterable[Finding]) -> Iterator[str]:
    yield from dict.fromkeys(finding.message for finding in findings if finding.message)


def parse_devices(text: str | None) -> tuple[int, ...] | None:
    """``0,1`` of ``--devices``; None for ``all`` and for nothing.

    Raises:
        UsageError: it is no list of numbers from 0 to 255.
    """
    if text is None or text.strip().lower() == "all":
        return None
    entries = [entry.strip() for entry in text.split(",")]
    if all(re.fullmatch("[0-9]{1,3}", entry) and int(entry) < 256 for entry in entries):
        return tuple(dict.fromkeys(map(int, entries)))
    raise UsageError(f"--devices takes `all` or numbers from 0 to 255, not {text!r}", hint="as --devices 0,1")
