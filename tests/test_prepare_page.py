"""docs/prepare.md, held against the code: what it says of flags, exit codes, JSON, variants, keys, units is so."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

import fdl_tasks
from fdl_tasks.boxes.build import Binary
from fdl_tasks.boxes.pipeline import Prepared
from fdl_tasks.boxes.source import manifest
from fdl_tasks.boxes.specs import RsyncSource, parse_data_source, parse_source
from fdl_tasks.boxes.torch import variants
from fdl_tasks.boxes.torch.library import Libtorch
from fdl_tasks.cluster.load import load_cluster
from fdl_tasks.errors import PermanentError, TransientError
from fdl_tasks.report.prepared import failure_json
from fdl_tasks.settings import DEFAULTS

TOP = Path(__file__).resolve().parents[1]
PAGE = (TOP / "docs/prepare.md").read_text()
E2E = "".join(path.read_text() for path in (TOP / "tests/e2e").glob("test_prepare_*.py"))
TASKS = {task.replace("_", ".") if task.startswith("libtorch") else task: task for task in fdl_tasks.tasks.__all__}


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.M | re.S)


def section(title: str) -> str:
    return PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]


def rows(text: str) -> list[list[str]]:
    """The cells of every row of a table."""
    return [[cell.strip() for cell in line[1:-1].split("|")] for line in text.splitlines() if line[:2] == "| "]


def test_every_flag_and_task_that_the_page_names_is_there() -> None:
    ours = [name for name in TASKS.values() if name.startswith(("prepare", "gpus", "libtorch"))]
    there = {flag for name in ours for flag in getattr(fdl_tasks.tasks, name).help}
    used = {
        flag.removeprefix("--") for line in PAGE.splitlines() for flag in re.findall(r"(?<![\w-])--[a-z][a-z-]+", line)
    }
    foreign = {"release", "features", "no-block", "steps"}  # cargo's, systemctl's, the binary's
    assert used - foreign <= there
    assert set(re.findall(r"(?:inv|fdl-tasks) (prepare|gpus|libtorch\.\w+)", PAGE)) <= set(TASKS)


def test_the_exit_codes_are_those_of_the_errors() -> None:
    table = {code: name for code, name, _ in rows(PAGE.split("\n## ")[0]) if code.isdecimal()}
    assert table["1"] == TransientError.kind and TransientError("x").exit_code == 1
    assert table["2"] == PermanentError.kind and PermanentError("x").exit_code == 2
    assert set(table) == {"0", "1", "2", "130"}


def test_the_json_has_the_shape_that_is_printed() -> None:
    ready, failed = (json.loads(text) for text in re.findall(r"^\{.*?^(?=\{|\Z)", blocks("json")[0], re.M | re.S))
    box = Prepared(Path("/d"), Libtorch(Path("/l"), "v", None), Binary(Path("/b"), Path("/c")), ("x",), "r").as_json()
    assert shape(ready) == shape(box)
    assert shape(failed) == shape(failure_json(TransientError("x")))
    assert failed["class"] == TransientError.kind


def shape(value: Any) -> Any:
    return {key: shape(item) for key, item in value.items()} if isinstance(value, dict) else type(value)


def test_the_variants_are_those_that_can_be_downloaded() -> None:
    told: dict[str, tuple[str, str]] = {}
    for tokens, name, *archs in rows(section("libtorch")):
        for token in re.findall(r"`([\w.]+)`", tokens) if name.startswith("`precompiled/") else ():
            told[token] = (name.strip("`"), archs[0])
    cards = {variant.name: variant.archs for variant in (variants.CU126, variants.CU128, variants.ROCM70)}
    assert {token: name for token, (name, _) in told.items()} == {
        token: variant.name for token, variant in variants._TOKENS.items()
    }
    assert {name: archs for name, archs in told.values() if name in cards} == cards
    assert f"Release {variants.RELEASE} from" in PAGE and "download.pytorch.org" in variants.BASE_URL


def test_the_settings_are_those_that_are_read() -> None:
    names = {name.strip("`"): variable.strip("`") for name, variable, _ in rows(section("libtorch")) if "`fdl." in name}
    assert names == {f"fdl.libtorch.{key}": f"INVOKE_FDL_LIBTORCH_{key.upper()}" for key in DEFAULTS["libtorch"]}


def test_the_manifest_of_the_page_is_read_without_a_note() -> None:
    text = next(block for block in blocks("yaml") if block.startswith("bin:")).replace(
        "sha256: …", f"sha256: {64 * 'a'}"
    )
    found, notes = manifest.parse(text.encode(), "page")
    assert (found.cwd, found.args, notes) == ("ddp-bench", ("--steps", "10"), ())
    told = {*manifest.Manifest.__dataclass_fields__} - {key for key, value in vars(found).items() if value}
    assert all(f"{key}" in text.splitlines()[-1] for key in told)


def test_the_specs_of_the_keys_are_read_and_the_forced_commands_are_tested() -> None:
    text = section("Keys for rented boxes")
    assert parse_source(re.findall(r"rsync://\S+", text)[0])
    assert parse_data_source(re.findall(r"sshfs://\S+", text)[0])
    commands = re.findall(r'^command="([^"]+)",restrict ', text, re.M)
    assert len(commands) == 2
    assert [command for command in commands if command not in E2E] == []


def cloud() -> Any:
    return yaml.safe_load(next(block for block in blocks("yaml") if block.startswith("#cloud-config")))


def test_the_cloud_config_writes_a_cluster_file_that_is_read(tmp_path: Path) -> None:
    files = {file["path"]: file["content"] for file in cloud()["write_files"]}
    (tmp_path / "cluster.yml").write_text(files["/etc/fdl/cluster.yml"])
    join = load_cluster(tmp_path / "cluster.yml").join
    assert join.libtorch == "auto" and join.ssh and join.ssh.host_keys
    source, data = parse_source(join.source.spec if join.source else ""), parse_data_source(join.data_source or "")
    assert isinstance(source, RsyncSource)
    hosts = [target.login.partition("@")[2] for target in (source.target, data)]
    aliases = re.findall(r"^Host (\S+)$", files["/home/train/.ssh/config"], re.M)
    assert hosts == aliases  # each with a key of its own
    assert "FDL_CLUSTER=/etc/fdl/cluster.yml" in unit()["Service"]["Environment"]
    assert set(cloud()["packages"]) >= {"rsync", "git", "sshfs", "g++"}


def unit() -> dict[str, dict[str, list[str]]]:
    """Section, key, every value: a key may stand several times."""
    found: dict[str, dict[str, list[str]]] = {}
    for line in filter(None, blocks("ini")[0].splitlines()):
        if line.startswith("["):
            values = found.setdefault(line.strip("[]"), {})
        elif not line.startswith("#"):
            key, value = line.split("=", 1)
            values.setdefault(key, []).append(value)
    return found


def test_the_unit_tries_again_after_1_and_powers_off_after_2_alone() -> None:
    service = unit()["Service"]
    program, task = service["ExecStart"][0].split()
    assert program.endswith("/fdl-tasks") and task in TASKS
    assert service["Restart"] == ["on-failure"]
    assert service["RestartPreventExitStatus"] == [str(PermanentError("x").exit_code)]
    assert f'"$$EXIT_STATUS" != {PermanentError("x").exit_code} ||' in service["ExecStopPost"][0]
    assert "FailureAction" not in unit()["Unit"]  # systemd's own would fire at each try
    assert service["KillMode"] == ["process"] and service["RemainAfterExit"] == ["yes"]


@pytest.mark.subprocess
@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="no systemd-analyze here")
def test_systemd_finds_no_fault_in_the_unit(tmp_path: Path) -> None:
    file = tmp_path / "fdl-prepare.service"
    file.write_text(blocks("ini")[0].replace("/opt/fdl/bin/fdl-tasks", "/bin/true").replace("User=train", "User=root"))
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", file], capture_output=True, text=True, timeout=60)
    assert [line for line in done.stderr.splitlines() if "fdl-prepare" in line] == []


def test_the_python_of_the_page_names_what_the_library_has() -> None:
    [text] = blocks("python")
    compile(text, "docs/prepare.md", "exec")
    assert all(hasattr(fdl_tasks, name) for name in re.findall(r"fdl_tasks\.(\w+)", text))
    assert {*re.findall(r"\bbox\.(\w+)", text)} <= {*Prepared.__dataclass_fields__}
