"""``inv gpus`` as a user calls it: table, JSON, exit code."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from invoke.collection import Collection
from invoke.context import Context
from invoke.exceptions import Exit

from fdl_tasks.arch import Vendor
from fdl_tasks.boxes.gpu.gpus import Finding, Gpu, Survey
from fdl_tasks.report.boxes import gpu_json, gpu_table
from fdl_tasks.report.masking import clean
from fdl_tasks.tasks.gpu_survey import gpus

BOX = {
    "gpus": [
        {"index": 0, "name": "Tesla P100", "arch": "6.0", "vram_mb": 16384},
        {"index": 1, "name": "RTX 3090", "arch": "8.6", "vram_mb": 24576},
        {"index": 2, "name": "GB10", "arch": "12.1"},
    ],
    "notes": [{"vendor": "amd", "message": "AMD GPU without the ROCm runtime"}],
}
TABLE = """\
vendor  device  status    arch  memory     name        uuid
NVIDIA  0       masked    6.0   16384 MiB  Tesla P100
NVIDIA  1       ok        8.6   24576 MiB  RTX 3090
NVIDIA  2       left out  12.1  unknown    GB10

AMD: AMD GPU without the ROCm runtime
NVIDIA: CUDA_VISIBLE_DEVICES=1,2 hides NVIDIA 0 by the driver's numbers, which are CUDA's with \
CUDA_DEVICE_ORDER=PCI_BUS_ID only
1 of 3 GPUs usable
"""


@pytest.fixture
def box(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLODL_TESTING_GPU_JSON", json.dumps(BOX))
    for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("box")
def test_every_device_is_shown_with_what_keeps_it_from_use(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,2")
    assert [gpu.name for gpu in gpus(Context(), devices="1")] == ["RTX 3090"]
    assert capsys.readouterr() == (TABLE, "")


@pytest.mark.usefixtures("box")
def test_json_has_the_same(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,2")
    gpus(Context(), devices="1", json=True)
    told = json.loads(capsys.readouterr().out)
    assert told["ok"] is True
    assert [(gpu["index"], gpu["status"], gpu["memory_mib"]) for gpu in told["gpus"]] == [
        (0, "masked", 16384),
        (1, "ok", 24576),
        (2, "left out", None),
    ]
    assert told["findings"][0] == {
        "vendor": "amd",
        "kind": "hardware_unusable",
        "message": "AMD GPU without the ROCm runtime",
    }


@pytest.mark.parametrize(
    ("devices", "env", "said", "shown"),
    [
        ("3", {}, "--devices: 3 is not usable here", "0 of 3 GPUs usable"),
        ("0", {"CUDA_VISIBLE_DEVICES": "1"}, "--devices: 0 is not usable here", "0 of 3 GPUs usable"),
        (None, {"CUDA_VISIBLE_DEVICES": ""}, "no usable GPU: AMD GPU without", "0 of 3 GPUs usable"),
        (None, {"FLODL_TESTING_GPU_JSON": "[]"}, "no usable GPU: no driver and no card", "0 of 0 GPUs usable"),
        (None, {"FLODL_TESTING_GPU_JSON": "[3]"}, "FLODL_TESTING_GPU_JSON is malformed", ""),
        ("one", {}, "--devices takes `all` or numbers", ""),
    ],
)
@pytest.mark.usefixtures("box")
def test_a_box_with_nothing_usable_ends_with_2_after_showing_what_is_there(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    devices: str | None,
    env: dict[str, str],
    said: str,
    shown: str,
) -> None:
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(Exit) as caught:
        gpus(Context(), devices=devices)
    assert caught.value.code == 2
    assert str(caught.value.message).startswith(said)
    assert capsys.readouterr().out.rstrip().endswith(shown)


@pytest.mark.usefixtures("box")
def test_json_of_a_refused_box_is_still_json(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(Exit) as caught:
        gpus(Context(), devices="7", json=True)
    told = json.loads(capsys.readouterr().out)
    assert (caught.value.code, told["ok"], len(told["gpus"])) == (2, False, 3)


def test_names_and_messages_cannot_steer_the_terminal() -> None:
    evil = Gpu(Vendor.AMD, 0, "Card\x1b[2J\x07", "gfx90a", 1, "GPU-\x1b]0;title\x07")
    seen = Survey((evil,), (Finding(None, "k", "a\x1b[31mb\u202ec"),))
    shown = gpu_table(seen, seen, (evil,), clean, None)
    assert "\x1b" not in shown
    assert shown.splitlines()[1].split() == ["AMD", "0", "ok", "gfx90a", "1", "MiB", "Card", "GPU-"]
    assert shown.splitlines()[3:] == ["note: abc", "1 of 1 GPU usable"]
    assert gpu_json(seen, seen, ())["ok"] is False


@pytest.mark.subprocess
def test_it_is_a_task_of_a_task_file_and_says_what_this_machine_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert list(Collection(gpus).task_names) == ["gpus"]
    source = "from invoke.collection import Collection\nfrom fdl_tasks.tasks.gpu_survey import gpus\n"
    (tmp_path / "tasks.py").write_text(f"{source}ns = Collection(gpus)\n")
    inv = [sys.executable, "-m", "invoke", "gpus"]
    top = Path(__file__).resolve().parents[2]
    monkeypatch.setenv("PYTHONPATH", str(top))
    real = subprocess.run([*inv, "--json"], cwd=tmp_path, capture_output=True, text=True)
    told = json.loads(real.stdout)
    assert real.returncode == (0 if told["ok"] else 2), real.stderr
    assert ("no usable GPU" in real.stderr) is not told["ok"]
    monkeypatch.setenv("FLODL_TESTING_GPU_JSON", json.dumps(BOX))
    spoofed = subprocess.run([*inv, "--devices", "0,1"], cwd=tmp_path, capture_output=True, text=True)
    assert (spoofed.returncode, spoofed.stderr) == (0, "")
    assert spoofed.stdout.endswith("2 of 3 GPUs usable\n")
