"""What the controller needs: which toolchain is asked for, and what its answers mean."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import pytest

from fdl_tasks.checks.controller import cargo_due, compose, look, precondition, toolchain
from fdl_tasks.cluster.model import Cluster, Command, Controller, Ssh, Worker
from fdl_tasks.hosts.base import Completed
from fdl_tasks.hosts.fanout import Cancel
from fdl_tasks.hosts.local import Local
from fdl_tasks.outcome import Level
from fdl_tasks.scripts import Scripts

NATIVE = Controller("ctrl", Path("/srv/mono"))
WORKER = Worker("node-a", "/srv/mono", Ssh("node-a"), arch="precompiled/cu128")
CARGO, LINE = Command("bench"), Command("bench", build="./ci/build.sh")

DOCKER = """
case "$*" in
"compose version") exit {version} ;;
"version") exit {engine} ;;
"compose --profile * config --services") [ {config} = 0 ] || echo 'yaml: line 3: bad' >&2
    [ -n "$LIBTORCH_HOST_PATH" ] && printf 'dev\\ncuda\\n'; exit {config} ;;
esac
exit 99
"""


def stand_in(folder: Path, name: str, body: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{body}\n")
    (folder / name).chmod(0o755)


@pytest.mark.parametrize(
    ("docker", "builds", "commands", "cmd", "due"),
    [
        (None, True, [], CARGO, True),
        (None, True, [], LINE, False),
        (None, True, [], None, True),
        (None, True, [LINE], None, False),
        (None, True, [LINE, Command("other")], None, True),
        ("cuda", True, [], CARGO, False),
        (None, False, [], CARGO, False),
    ],
)
def test_cargo_is_due_for_native_builds_without_a_line_of_their_own(
    docker: str | None, builds: bool, commands: list[Command], cmd: Command | None, due: bool
) -> None:
    named = MappingProxyType({str(number): one for number, one in enumerate(commands)})
    cluster = Cluster(Path("cluster.yml"), "ctrl", replace(NATIVE, docker=docker), (), commands=named)
    assert cargo_due(cluster, [replace(WORKER, build=builds)], cmd) is due


def test_no_worker_no_cargo() -> None:
    assert cargo_due(Cluster(Path("cluster.yml"), "ctrl", NATIVE, ()), [], CARGO) is False


@pytest.mark.parametrize(
    ("docker", "cargo", "name"),
    [
        ("cuda", False, "checks/compose.sh"),
        ("cuda", True, "checks/compose.sh"),
        (None, True, "checks/cargo.sh"),
        (None, False, None),
    ],
)
def test_only_what_builds_is_asked_for(docker: str | None, cargo: bool, name: str | None) -> None:
    script = toolchain(Scripts(), replace(NATIVE, docker=docker), cargo=cargo)
    assert (script.name if script else None) == name


@pytest.mark.parametrize(
    ("code", "out", "rule", "level", "told"),
    [
        (0, "dev\ncuda\n", "service", Level.OK, "'cuda'"),
        (0, "dev\napp\n", "service", Level.ERROR, "it has app, dev"),
        (0, "", "service", Level.ERROR, "no services at all"),
        (0, "cuda-12\n", "service", Level.ERROR, "it has cuda-12"),
        (3, "", "compose", Level.ERROR, "docker is not installed"),
        (4, "", "compose", Level.ERROR, "install the compose plugin"),
        (5, "", "compose", Level.ERROR, "does not answer"),
        (6, "", "compose", Level.ERROR, "mend the project's compose file (yaml: line 3)"),
        (137, "", "compose", Level.ERROR, "exit code 137"),
    ],
)
def test_what_compose_answers(code: int, out: str, rule: str, level: Level, told: str) -> None:
    found = compose("ctrl", "cuda", Completed(code, out, "note\nyaml: line 3\n" if code == 6 else "", 0.1))
    assert (found.rule, found.level) == (rule, level) and told in found.message and found.message.startswith("ctrl: ")


@pytest.mark.subprocess
@pytest.mark.parametrize(
    ("version", "engine", "config", "service", "rule", "level"),
    [
        (0, 0, 0, "cuda", "service", Level.OK),
        (0, 0, 0, "gone", "service", Level.ERROR),
        (1, 0, 0, "cuda", "compose", Level.ERROR),
        (0, 1, 0, "cuda", "compose", Level.ERROR),
        (0, 0, 15, "cuda", "compose", Level.ERROR),
    ],
)
def test_compose_is_asked_in_the_project_root(
    tmp_path: Path, version: int, engine: int, config: int, service: str, rule: str, level: Level
) -> None:
    stand_in(tmp_path, "docker", DOCKER.format(version=version, engine=engine, config=config))
    found = ask(tmp_path, replace(NATIVE, path=tmp_path, docker=service))
    assert found == (rule, level)


def ask(folder: Path, controller: Controller, path: str = "/usr/bin:/bin") -> tuple[str, Level]:
    script = toolchain(Scripts(), controller, cargo=True)
    assert script
    host = Local("ctrl", Cancel(), {"PATH": f"{folder}:{path}"})
    found = look(host, script, controller)
    return found.rule, found.level


@pytest.mark.subprocess
def test_a_root_that_is_not_there_has_no_compose_file(tmp_path: Path) -> None:
    assert ask(tmp_path, replace(NATIVE, path=tmp_path / "nowhere", docker="cuda")) == ("compose", Level.ERROR)


@pytest.mark.subprocess
def test_cargo_is_found_on_the_path_and_never_started(tmp_path: Path) -> None:
    stand_in(tmp_path, "cargo", f"touch {tmp_path}/started")
    assert ask(tmp_path, NATIVE) == ("cargo", Level.OK)
    assert not (tmp_path / "started").exists()


@pytest.mark.subprocess
@pytest.mark.skipif(
    any(Path(at, "cargo").exists() for at in ("/usr/bin", "/bin", "/usr/local/bin")), reason="cargo is everywhere here"
)
def test_no_cargo_is_an_error(tmp_path: Path) -> None:
    assert ask(tmp_path, NATIVE) == ("cargo", Level.ERROR)


@pytest.mark.subprocess
def test_an_engine_that_hangs_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fdl_tasks.checks.controller.LIMIT", 0.3)
    stand_in(tmp_path, "docker", "sleep 30")
    assert ask(tmp_path, replace(NATIVE, path=tmp_path, docker="cuda")) == ("compose", Level.WARNING)


@pytest.mark.parametrize(
    ("arch", "rule", "level", "told"),
    [
        ("precompiled/cu128", "libtorch", Level.OK, "libtorch/precompiled/cu128/lib"),
        ("precompiled/cu126", "libtorch", Level.ERROR, "libtorch/precompiled/cu126/lib is not a directory"),
        ("precompiled/file", "libtorch", Level.ERROR, "is not a directory"),
        (None, "variant", Level.ERROR, "arch: precompiled/cu128"),
    ],
)
def test_each_workers_libtorch(tmp_path: Path, arch: str | None, rule: str, level: Level, told: str) -> None:
    (tmp_path / "libtorch/precompiled/cu128/lib").mkdir(parents=True)
    (tmp_path / "libtorch/precompiled/file").mkdir()
    (tmp_path / "libtorch/precompiled/file/lib").write_text("")
    found = precondition(replace(NATIVE, path=tmp_path), replace(WORKER, arch=arch))
    assert (found.rule, found.level) == (rule, level) and told in found.message and found.message.startswith("node-a: ")
