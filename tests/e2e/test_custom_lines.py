"""Commands that cargo does not build: the example's CMake and make projects, and what a build line owes.

Their lines are read from the example's own cluster.yml, so that what stands there is what is tested.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e.site import EXAMPLE, Site
from tests.lab.compose import write_compose
from tests.lab.engine import Engine, Store
from tests.lab.lab import Lab

CU128, CPU = "precompiled/cu128", "precompiled/cpu"
COMMANDS: dict[str, dict[str, Any]] = yaml.safe_load((EXAMPLE / "cluster.yml").read_text())["commands"]
OWN = [name for name, command in COMMANDS.items() if "build" in command]
VERSIONS = {"ring-bench": "ring-bench 1.2.0\n", "ckpt-info": "ckpt-info 0.9.2\n"}
MISSING = [tool for tool in ("cmake", "make", "cc") if shutil.which(tool) is None]

pytestmark = [
    pytest.mark.subprocess,
    pytest.mark.skipif(
        bool(MISSING) and os.environ.get("FDL_REQUIRE_LAB") != "1", reason=f"not installed: {', '.join(MISSING)}"
    ),
]


@pytest.fixture
def site(site: Site) -> Site:
    """Two workers with unlike variants, that see the project under unlike paths."""
    site.add("blackwell", "/srv/mono", CU128)
    site.add("plain", "/mnt/nas/mono", CPU)
    return site


@pytest.fixture(scope="module")
def docker(lab: Lab) -> Iterator[Engine]:
    made = lab.engine("custom-lines", store=Store.GRAPHDRIVER)
    made.load_tiny()
    yield made
    made.stop()


def started(site: Site, name: str) -> dict[str, str]:
    """What each worker's binary says on its node, after a prebuild of the command."""
    report = site.json("prebuild", "--cmd", name)
    return {label: site.launch(label, entry).stdout for label, entry in report["envelope"].items()}


def each_its_own(name: str) -> dict[str, str]:
    return {
        "blackwell": f"{name}: libtorch cu128 (build 2.10.0+cu128), feature cuda\n",
        "plain": f"{name}: libtorch cpu (build 2.10.0+cpu), feature none\n",
    }


def test_the_example_has_a_line_for_cmake_and_one_for_make() -> None:
    assert OWN == ["ring-bench", "ckpt-info"]
    assert ["cmake" in COMMANDS[name]["build"] for name in OWN] == [True, False]


@pytest.mark.parametrize("name", OWN)
def test_each_worker_gets_a_binary_that_finds_its_own_libtorch(site: Site, name: str) -> None:
    site.write(commands=COMMANDS)
    assert started(site, name) == each_its_own(name)


@pytest.mark.parametrize("name", OWN)
def test_the_same_lines_build_in_a_container(
    site: Site, docker: Engine, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("DOCKER_HOST", docker.host)
    write_compose(site.project)
    site.write({"docker": "cuda"}, commands=COMMANDS)
    assert started(site, name) == each_its_own(name)
    assert docker.containers() == []


@pytest.mark.parametrize("name", OWN)
def test_a_binary_refuses_the_other_workers_library(site: Site, name: str) -> None:
    site.write(commands=COMMANDS)
    entry = site.json("prebuild", "--cmd", name)["envelope"]["blackwell"]
    other = {**entry, "ld_library_path": f"/srv/mono/libtorch/{CPU}/lib"}
    assert "undefined symbol: torch_kernels_2_10_0_cu128" in site.launch("blackwell", other).stderr


@pytest.mark.parametrize("name", OWN)
def test_a_line_that_builds_nothing_fails_and_says_where_the_binary_belongs(site: Site, name: str) -> None:
    site.write(commands={name: {**COMMANDS[name], "build": "true"}})
    report = site.json("prebuild", "--cmd", name, code=1)
    errors = {label: host["error"] for label, host in report["hosts"].items()}
    assert [host["status"] for host in report["hosts"].values()] == ["failed", "failed"]
    assert all(f"must write $FDL_TARGET_DIR/{COMMANDS[name]['bin']}" in error for error in errors.values())
    assert report["envelope"] == {}


@pytest.mark.parametrize("name", OWN)
def test_an_artifact_that_is_newer_than_all_sources_is_taken_and_an_older_one_is_not(site: Site, name: str) -> None:
    site.write(commands=COMMANDS)
    site.json("prebuild", "--cmd", name)
    site.write(commands={name: {**COMMANDS[name], "build": "true"}})
    assert started(site, name) == each_its_own(name)
    later = time.time() + 5
    os.utime(site.project / name / "main.c", (later, later))
    report = site.json("prebuild", "--cmd", name, code=1)
    assert all("is an old one" in host["error"] for host in report["hosts"].values())
    os.utime(site.project / name / "main.c")
    site.write(commands=COMMANDS)
    assert started(site, name) == each_its_own(name)


@pytest.mark.parametrize("place", ["../ring-bench", "/bin/true"])
def test_a_binary_outside_the_target_directory_is_refused_before_anything_is_contacted(site: Site, place: str) -> None:
    site.write(commands={"ring-bench": {**COMMANDS["ring-bench"], "bin": place}})
    done = site.run("prebuild", "--cmd", "ring-bench")
    assert (done.returncode, done.stdout) == (2, "")
    assert "commands.ring-bench.bin" in done.stderr
    assert not (site.project / "target").exists()


@pytest.mark.parametrize("name", OWN)
def test_the_example_builds_without_the_library_too(example: Path, tmp_path: Path, name: str) -> None:
    """Somebody else's project needs no FDL variable but the libtorch that it links."""
    source, out, libtorch = example / name, tmp_path / "out", example / "libtorch" / CPU
    cmake = f"cmake -S . -B {out} >&2 && cmake --build {out} >&2"
    line = cmake if "cmake" in COMMANDS[name]["build"] else f"make OUT={out} >&2"
    environment = {**os.environ, "LIBTORCH_PATH": str(libtorch), "LD_LIBRARY_PATH": f"{libtorch}/lib"}
    argv = ["sh", "-c", f"{line} && {out}/{name} --version"]
    done = subprocess.run(argv, cwd=source, env=environment, capture_output=True, text=True)
    assert done.stdout == VERSIONS[name], done.stderr
    missing = subprocess.run(argv, cwd=source, env={**environment, "LIBTORCH_PATH": "/nowhere"}, capture_output=True)
    assert missing.returncode != 0
    assert b"/nowhere" in missing.stderr
