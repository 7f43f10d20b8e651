"""The cluster.yml at the top is what the demo runs on: it must stay valid and refer to what is there."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from fdl_tasks.cluster.load import load_cluster
from fdl_tasks.cluster.model import Cluster, Controller, Worker

TOP = Path(__file__).resolve().parents[1]
EXAMPLE = TOP / "examples" / "monorepo"
FILES = [TOP / "cluster.yml", EXAMPLE / "cluster.yml"]


def load(file: Path) -> tuple[Cluster, Controller, tuple[Worker, ...]]:
    cluster = load_cluster(file)
    assert cluster.controller is not None
    assert cluster.workers is not None
    return cluster, cluster.controller, cluster.workers


@pytest.mark.parametrize("file", FILES, ids=["embedded", "example"])
def test_controller_and_workers_live_in_the_example_on_this_machine(file: Path) -> None:
    _, controller, workers = load(file)
    assert controller.path == EXAMPLE
    assert controller.docker is None
    assert [(Path(worker.path), worker.transport) for worker in workers] == [(EXAMPLE, "local")] * 2


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        (FILES[0], {"blackwell": "precompiled/cu128", "pascal": "precompiled/cu126"}),
        (FILES[1], {"bench-gpu": "precompiled/cu128", "bench-cpu": "precompiled/cpu"}),
    ],
    ids=["embedded", "example"],
)
def test_workers_differ_in_their_variant(file: Path, expected: dict[str, str]) -> None:
    assert {worker.host: worker.arch for worker in load(file)[2]} == expected


@pytest.mark.parametrize("file", FILES, ids=["embedded", "example"])
def test_no_worker_is_taken_for_the_controller(file: Path) -> None:
    _, controller, workers = load(file)
    assert not {controller.host, socket.gethostname()} & {worker.host for worker in workers}


@pytest.mark.parametrize("file", FILES, ids=["embedded", "example"])
def test_declared_data_is_there_so_that_preflight_has_nothing_to_say(file: Path) -> None:
    _, controller, workers = load(file)
    places = [(controller.data_path, controller.data_path_declared)]
    places += [(worker.data_path, worker.data_path_declared) for worker in workers]
    assert all(declared and Path(place).is_dir() for place, declared in places)


@pytest.mark.parametrize(
    ("file", "names"),
    [(FILES[0], ["ddp-bench"]), (FILES[1], ["ddp-bench", "ring-bench", "ckpt-info"])],
    ids=["embedded", "example"],
)
def test_every_command_it_names_is_a_project_of_the_example(file: Path, names: list[str]) -> None:
    commands = load(file)[0].commands
    assert list(commands) == names
    for name, command in commands.items():
        manifest = ("Makefile", "CMakeLists.txt") if command.build else ("Cargo.lock",)
        assert any((EXAMPLE / name / known).is_file() for known in manifest)
