"""Real builds in containers of a compose service, on an engine of the lab's."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator

import pytest
import yaml

from fdl_tasks.cluster.model import Command
from fdl_tasks.outcome import Kind
from tests.builds.interrupting import interrupt, start, wait_for
from tests.builds.monorepo import VARIANTS, Project, says, statuses
from tests.lab.compose import compose_service
from tests.lab.engine import Engine
from tests.lab.lab import Lab

pytestmark = pytest.mark.docker
MAKE = 'mkdir -p "$FDL_TARGET_DIR/release" && cp /bin/busybox "$FDL_TARGET_DIR/release/$FDL_CMD"'


@pytest.fixture
def engine(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    engine = lab.engine("builds")
    engine.load_tiny()
    monkeypatch.setenv("DOCKER_HOST", engine.host)
    yield engine
    for name in engine.containers():
        engine.docker("rm", "-f", name, check=False)


@pytest.fixture
def docker_project(engine: Engine, project: Project) -> Project:
    """The project, built by the service ``cuda`` with this machine's own compiler."""
    for old in ("compose.yaml", "Dockerfile"):
        (project.root / old).unlink()
    services = {"cuda": compose_service(depends_on=["db"]), "db": compose_service(command=["sleep", "600"])}
    text = yaml.safe_dump({"name": "mono", "services": services})
    (project.root / "docker-compose.yml").write_text(text)
    project.controller = {"docker": "cuda"}
    return project


def test_every_worker_gets_a_binary_that_finds_its_own_library(docker_project: Project, engine: Engine) -> None:
    report = docker_project.prebuild()
    assert statuses(report) == dict.fromkeys(VARIANTS, "ok"), [b.error for b in report.hosts.values()]
    assert docker_project.start(report, "a") == says("cu128", "cuda")
    assert docker_project.start(report, "c") == says("cpu", "none")
    assert report.envelope["a"].bin == "target/cluster/a/precompiled-cu128/release/ddp-bench"
    assert "compiling ddp-bench" in docker_project.told("a", Kind.STATE)
    assert engine.containers() == []


def test_workers_of_one_arch_are_built_in_one_container(docker_project: Project) -> None:
    docker_project.variants = {"a": "precompiled/cpu", "b": "precompiled/cpu"}
    report = docker_project.prebuild()
    assert [built.shared_with for built in report.hosts.values()] == [None, "a"], report.hosts["a"].error
    assert not docker_project.told("b", Kind.LINE)
    alone = docker_project.prebuild(hosts=["b"])
    assert any("Compiling" in line for line in docker_project.told("b", Kind.LINE))
    for made in (report, alone):
        assert docker_project.start(made, "b") == says("cpu", "none")


def test_a_libtorch_replaced_in_place_is_built_against_anew(docker_project: Project) -> None:
    docker_project.variants = {"c": "precompiled/cpu"}
    docker_project.prebuild()
    docker_project.make_libtorch("precompiled/cpu", LIBTORCH_VERSION="2.11.0")
    said = docker_project.start(docker_project.prebuild(), "c")
    assert said == "ddp-bench: libtorch cpu (build 2.11.0+cpu), feature none\n"


def test_a_compile_error_carries_its_lines_and_leaves_no_container(docker_project: Project, engine: Engine) -> None:
    main = docker_project.root / "ddp-bench/src/main.rs"
    main.write_text(f'{main.read_text()}\n#[cfg(feature = "cuda")]\ncompile_error!("not today");\n')
    report = docker_project.prebuild()
    assert statuses(report) == {"a": "failed", "b": "failed", "c": "ok"}
    error = report.hosts["a"].error or ""
    assert "cargo build in service cuda ended with exit code 101" in error
    assert "  | error: not today" in error
    assert engine.containers() == []


def test_an_own_line_gets_the_containers_view(docker_project: Project) -> None:
    docker_project.variants = {"a": "precompiled/cu128"}
    show = 'echo "$PWD $FDL_TARGET_DIR $FDL_GPU_FEATURE $FDL_CMD $CARGO_TARGET_DIR ${CARGO_BUILD_JOBS:-none}"'
    docker_project.commands["ddp-bench"] = Command("ddp-bench", build=f"{show}; {MAKE}")
    report = docker_project.prebuild()
    assert report.ok, report.hosts["a"].error
    target = "/workspace/target/cluster/a/precompiled-cu128"
    first, jobs = docker_project.told("a", Kind.LINE)[-1].rsplit(" ", 1)
    assert first == f"/workspace/ddp-bench {target} cuda ddp-bench {target}"
    assert int(jobs) >= 1


def test_what_a_service_depends_on_is_started_only_on_request(docker_project: Project, engine: Engine) -> None:
    docker_project.variants = {"c": "precompiled/cpu"}
    docker_project.commands["ddp-bench"] = Command("ddp-bench", build=MAKE)
    assert docker_project.prebuild().ok
    assert engine.containers() == []
    docker_project.controller["docker_deps"] = True
    assert docker_project.prebuild().ok
    assert engine.containers() == ["mono-db-1"]


def test_an_unknown_service_fails_with_composes_own_words(docker_project: Project) -> None:
    docker_project.variants = {"c": "precompiled/cpu"}
    docker_project.controller["docker"] = "nope"
    assert "no such service: nope" in (docker_project.prebuild().hosts["c"].error or "")


def test_an_image_without_bash_is_named(docker_project: Project) -> None:
    docker_project.variants = {"c": "precompiled/cpu"}
    bare = {"cuda": {"image": "tiny:1", "network_mode": "none", "volumes": [".:/workspace"]}}
    (docker_project.root / "docker-compose.yml").write_text(yaml.safe_dump({"name": "mono", "services": bare}))
    assert "the image of service cuda needs bash and cargo" in (docker_project.prebuild().hosts["c"].error or "")


def containers_of(engine: Engine, host: str) -> list[str]:
    return [name for name in engine.containers() if name.startswith("fdl-") and name.endswith(f"-{host}")]


@pytest.mark.parametrize("wait", ["running", "starting"])
def test_ctrl_c_leaves_no_container(docker_project: Project, engine: Engine, wait: str) -> None:
    process = start(docker_project, "trap '' TERM; sleep 600", "c", service="cuda")
    if wait == "running":
        wait_for(lambda: containers_of(engine, "c"), "the container is there")
        time.sleep(0.5)
    else:
        wait_for(lambda: (docker_project.target("c") / "build.log").exists(), "the client starts")
        time.sleep(0.15)
    code, seconds = interrupt(process)
    assert code == 130, process.communicate()
    assert seconds < 2
    assert containers_of(engine, "c") == []
    time.sleep(1)
    assert containers_of(engine, "c") == []


def test_a_killed_library_leaves_no_container(docker_project: Project, engine: Engine) -> None:
    process = start(docker_project, "sleep 600", "c", service="cuda")
    wait_for(lambda: containers_of(engine, "c"), "the container is there")
    process.kill()
    process.wait()
    wait_for(lambda: not containers_of(engine, "c"), "the container is gone", limit=5)


def test_a_client_that_is_killed_leaves_no_container(docker_project: Project, engine: Engine) -> None:
    process = start(docker_project, "sleep 600", "c", service="cuda")
    wait_for(lambda: containers_of(engine, "c"), "the container is there")
    time.sleep(0.5)
    name = containers_of(engine, "c")[0]
    subprocess.run(["pkill", "-KILL", "-f", f"compose run .*--name {name} "], check=True)
    said, _ = process.communicate(timeout=20)
    assert "was ended by signal 9" in said
    assert containers_of(engine, "c") == []
