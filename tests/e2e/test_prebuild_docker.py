"""``prebuild`` with ``controller.docker``: real containers of a real engine, the binaries started on the nodes."""

import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e.site import Site, eventually
from tests.lab.compose import compose_service, write_compose
from tests.lab.engine import Engine, Store
from tests.lab.lab import Lab

pytestmark = pytest.mark.docker

CU128, CU126, CPU = "precompiled/cu128", "precompiled/cu126", "precompiled/cpu"


@pytest.fixture(scope="module", params=list(Store), ids=str)
def docker(lab: Lab, request: pytest.FixtureRequest) -> Iterator[Engine]:
    made = lab.engine(f"build-{request.param}", store=request.param)
    made.load_tiny()
    yield made
    made.stop()


@pytest.fixture
def site(site: Site, docker: Engine, monkeypatch: pytest.MonkeyPatch) -> Site:
    monkeypatch.setenv("DOCKER_HOST", docker.host)
    write_compose(site.project)
    return site


def two(site: Site, docker: str = "cuda", **top: Any) -> None:
    site.add("blackwell", "/srv/mono", CU128)
    site.add("plain", "/srv/mono", CPU)
    site.write({"docker": docker}, **top)


def test_each_worker_gets_its_own_binary_from_its_own_container(site: Site, docker: Engine) -> None:
    site.add("blackwell", "/srv/mono", CU128)
    site.add("pascal", "/mnt/nas/mono", CU126)
    site.add("plain", "/home/größe/mono", CPU)
    site.write({"docker": "cuda"})
    report = site.json("prebuild", "--cmd", "ddp-bench")
    said = {label: site.launch(label, entry).stdout.strip() for label, entry in report["envelope"].items()}
    assert said == {
        "blackwell": "ddp-bench: libtorch cu128 (build 2.10.0+cu128), feature cuda",
        "pascal": "ddp-bench: libtorch cu126 (build 2.10.0+cu126), feature cuda",
        "plain": "ddp-bench: libtorch cpu (build 2.10.0+cpu), feature none",
    }
    assert docker.containers() == []


def test_the_environment_of_compose_and_of_the_container(site: Site) -> None:
    """What compose interpolates and what the custom line sees, written out by the line itself."""
    seen = 'printf "%s\\n" "$FDL_CMD" "$FDL_GPU_FEATURE" "$FDL_TARGET_DIR" "$CARGO_BUILD_JOBS" "$FROM_COMPOSE"'
    line = f"{{ {seen}; }} >seen; mkdir -p $FDL_TARGET_DIR/release; cp /bin/sh $FDL_TARGET_DIR/release/ddp-bench"
    service = compose_service()
    service["environment"]["FROM_COMPOSE"] = "${CUDA_VERSION:-none} ${CUDA_TAG:-none} ${LIBTORCH_CPU_PATH:-none}"
    (site.project / "compose.yaml").write_text(yaml.safe_dump({"services": {"cuda": service}}))
    site.add("blackwell", "/srv/mono", CU128)
    site.write({"docker": "cuda"}, commands={"ddp-bench": {"build": line}})
    site.json("prebuild", "--cmd", "ddp-bench")
    name, feature, target, jobs, compose = (site.project / "ddp-bench" / "seen").read_text().splitlines()
    assert (name, feature) == ("ddp-bench", "cuda")
    assert target == "/workspace/target/cluster/blackwell/precompiled-cu128"
    assert int(jobs) >= 1
    assert compose == "12.8.0 12.8 ./libtorch/precompiled/cpu"


def test_a_service_that_does_not_exist_is_an_error_that_names_those_that_do(site: Site) -> None:
    two(site, docker="cuuda")
    done = site.run("prebuild", "--cmd", "ddp-bench")
    assert done.returncode == 1
    assert "cuuda" in done.stdout
    assert "cuda" in done.stdout.replace("cuuda", "")
    assert not list((site.project / "target").rglob("ddp-bench"))


def test_an_engine_that_does_not_answer_is_told_before_anything_is_built(site: Site) -> None:
    two(site)
    done = site.run("prebuild", "--cmd", "ddp-bench", DOCKER_HOST="unix:///nowhere/docker.sock")
    assert done.returncode == 1
    assert "/nowhere/docker.sock" in done.stdout or "engine" in done.stdout
    assert "Traceback" not in done.stderr


def test_a_compile_error_in_one_container_leaves_the_other_alone(site: Site, docker: Engine) -> None:
    main = site.project / "ddp-bench" / "src" / "main.rs"
    broken = '#[cfg(not(any(feature = "cuda", feature = "rocm")))]\ncompile_error!("no GPU, no bench");\n'
    main.write_text(main.read_text() + broken)
    two(site)
    report = site.json("prebuild", "--cmd", "ddp-bench", code=1)
    assert {label: host["status"] for label, host in report["hosts"].items()} == {
        "blackwell": "ok",
        "plain": "failed",
    }
    assert "no GPU, no bench" in report["hosts"]["plain"]["error"]
    assert docker.containers() == []


def test_libtorch_replaced_in_place_is_built_against_anew(site: Site) -> None:
    import os

    site.add("blackwell", "/srv/mono", CU128)
    site.write({"docker": "cuda"})
    site.json("prebuild", "--cmd", "ddp-bench")
    env = {**os.environ, "LIBTORCH_VERSION": "2.11.0"}
    script = site.project / "make-libtorch.sh"
    subprocess.run(["sh", script, site.project, CU128], check=True, capture_output=True, env=env)
    report = site.json("prebuild", "--cmd", "ddp-bench")
    done = site.launch("blackwell", report["envelope"]["blackwell"])
    assert done.stdout == "ddp-bench: libtorch cu128 (build 2.11.0+cu128), feature cuda\n", done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_container_outlives_the_command(site: Site, docker: Engine, number: signal.Signals) -> None:
    two(site, commands={"ddp-bench": {"build": "trap '' TERM INT; sleep 7701; sleep 7701"}})
    with subprocess.Popen(
        site.argv("prebuild", "--cmd", "ddp-bench", "--no-preflight"),
        cwd=site.project,
        env=site.env(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert eventually(lambda: len(docker.docker("ps", "-q").stdout.split()) == 1, 30)
        began = time.monotonic()
        process.send_signal(number)
        _, err = process.communicate(timeout=10)
        took = time.monotonic() - began
    assert process.returncode == (130 if number != signal.SIGKILL else -9), err
    assert took < 2
    assert b"Traceback" not in err
    assert eventually(lambda: docker.containers() == [], 5)


def test_a_project_path_from_hell(lab: Lab, docker: Engine, example: Path, tmp_path: Path) -> None:
    project = tmp_path / "a 'b' $(touch ran) é" / "mono"
    shutil.copytree(example, project, symlinks=True)
    write_compose(project)
    (tmp_path / "data").mkdir()
    site = Site(lab, project, tmp_path / "data")
    site.add("größe", "/srv/mono", CU128)
    site.write({"docker": "cuda"})
    done = site.run("prebuild", "--cmd", "ddp-bench", "--json", DOCKER_HOST=docker.host)
    assert done.returncode == 0, done.stderr
    assert not list(tmp_path.rglob("ran"))
