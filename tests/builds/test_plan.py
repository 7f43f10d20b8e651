"""From cluster.yml to command lines, without a file or a process."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from pathlib import Path, PurePosixPath

import pytest

from fdl_tasks.builds.plan import (
    Job,
    Site,
    build_words,
    cargo_argv,
    command_directory,
    compose_words,
    container_name,
    job,
)
from fdl_tasks.cluster.model import Command, Controller, Ssh, Worker
from fdl_tasks.errors import BuildError, UsageError
from fdl_tasks.scripts import quote

ROOT = Path("/srv/mono")
BENCH = Command("ddp-bench")
NATIVE = Job("node-a", BENCH, "precompiled/cu128", ROOT, "ddp-bench", "/w/libtorch/precompiled/cu128/lib")
DOCKER = replace(NATIVE, service="cuda")
CPU = replace(NATIVE, arch="precompiled/cpu")
LINE = replace(NATIVE, command=Command("ddp-bench", build="make -C x $FDL_TARGET_DIR"))


@pytest.mark.parametrize(
    ("command", "below", "own", "top", "expected"),
    [
        (Command("a", cwd="tools/a"), "elsewhere", True, True, "tools/a"),
        (Command("a", cwd="."), None, True, True, ""),
        (Command("a"), "elsewhere", True, True, "a"),
        (Command("a"), None, True, True, "a"),
        (Command("a"), "crates/b", False, True, "crates/b"),
        (Command("a"), ".", False, False, ""),
        (Command("a"), None, False, True, ""),
    ],
)
def test_the_commands_directory(command: Command, below: str | None, own: bool, top: bool, expected: str) -> None:
    site = Site(ROOT, None if below is None else PurePosixPath(below), own, top)
    assert command_directory(command, site) == expected


def test_no_directory_for_the_command_names_what_was_looked_at() -> None:
    with pytest.raises(
        UsageError, match=r"/srv/mono/a has no Cargo.toml, nor has the current directory or one above it"
    ) as got:
        command_directory(BENCH_A, Site(ROOT, None, False, False))
    assert "commands.a.cwd" in got.value.hint
    assert got.value.exit_code == 2


BENCH_A = Command("a")


def worker(**fields: object) -> Worker:
    return replace(Worker("node-a", "/w/", Ssh("node-a"), arch="precompiled/cu128"), **fields)  # type: ignore[arg-type]


def test_a_job_has_the_conventional_places() -> None:
    made = job(worker(), BENCH, Controller("c", ROOT), "ddp-bench", {"precompiled/cu128"})
    assert made == NATIVE
    assert made.target_dir == "target/cluster/node-a/precompiled-cu128"
    assert made.target == ROOT / "target/cluster/node-a/precompiled-cu128"
    assert made.libtorch == ROOT / "libtorch/precompiled/cu128"
    assert made.log == made.target / "build.log"
    assert (made.feature, made.warnings) == ("cuda", ())


def test_a_changed_arch_never_meets_the_other_ones_cache() -> None:
    assert NATIVE.target_dir != replace(NATIVE, arch="precompiled/cu118").target_dir


@pytest.mark.parametrize(("arch", "warned"), [("precompiled/cpu", 0), ("builds/gfx1030", 0), ("builds/mine", 1)])
def test_an_unknown_variant_is_built_with_a_warning(arch: str, warned: int) -> None:
    made = replace(NATIVE, arch=arch)
    assert len(made.warnings) == warned
    assert all(repr(arch) in text for text in made.warnings)


@pytest.mark.parametrize(
    ("one", "says"),
    [
        (worker(arch=None), "worker node-a has no arch.*arch: precompiled/cu128"),
        (worker(arch="builds/x"), "/srv/mono/libtorch/builds/x has no lib/"),
    ],
)
def test_a_worker_without_a_usable_variant_fails(one: Worker, says: str) -> None:
    with pytest.raises(BuildError) as got:
        job(one, BENCH, Controller("c", ROOT), "", {"precompiled/cu128"})
    assert re.search(says, str(got.value), re.S)


JSON = "--message-format=json-render-diagnostics"


@pytest.mark.parametrize(
    ("one", "expected"),
    [
        (NATIVE, f"cargo build --release {JSON} --features cuda --bin ddp-bench"),
        (CPU, f"cargo build --release {JSON} --bin ddp-bench"),
        (replace(NATIVE, arch="builds/gfx1030"), f"cargo build --release {JSON} --features rocm --bin ddp-bench"),
        (
            replace(CPU, command=Command("b", profile="bench", cargo_args=("--locked", "--features", "x y"))),
            f"cargo build --profile bench {JSON} --bin b --locked --features 'x y'",
        ),
    ],
)
def test_the_cargo_line(one: Job, expected: str) -> None:
    assert cargo_argv(one) == shlex.split(expected)


T = "target/cluster/node-a/precompiled-cu128"


def into(target: str) -> list[str]:
    return [f"CARGO_TARGET_DIR={target}", f"CARGO_BUILD_BUILD_DIR={target}"]


CUDA_PAIR = ["CUDA_VERSION=12.8.0", "CUDA_TAG=12.8"]


def variables(words: list[str]) -> list[str]:
    return words[: next(n for n, word in enumerate(words) if word in ("cargo", "sh", "docker"))]


@pytest.mark.parametrize(
    ("one", "expected"),
    [
        (NATIVE, [*into(f"/srv/mono/{T}"), "LIBTORCH_PATH=/srv/mono/libtorch/precompiled/cu128", *CUDA_PAIR]),
        (
            replace(NATIVE, arch="precompiled/cu126-pt27"),
            [
                *into("/srv/mono/target/cluster/node-a/precompiled-cu126-pt27"),
                "LIBTORCH_PATH=/srv/mono/libtorch/precompiled/cu126-pt27",
            ],
        ),
        (DOCKER, into(f"/workspace/{T}")),
        (
            LINE,
            [
                *into(f"/srv/mono/{T}"),
                "LIBTORCH_PATH=/srv/mono/libtorch/precompiled/cu128",
                *CUDA_PAIR,
                "FDL_GPU_FEATURE=cuda",
                f"FDL_TARGET_DIR=/srv/mono/{T}",
                "FDL_CMD=ddp-bench",
            ],
        ),
    ],
    ids=["native", "no CUDA release in the name", "docker", "own line"],
)
def test_the_variables_of_a_build(one: Job, expected: list[str]) -> None:
    assert variables(build_words(one)) == expected


@pytest.mark.parametrize("one", [LINE, replace(LINE, service="cuda")], ids=["native", "docker"])
def test_an_own_line_is_one_word_for_sh(one: Job) -> None:
    assert build_words(one)[-3:] == ["sh", "-c", "make -C x $FDL_TARGET_DIR"]


HOST = ["LIBTORCH_HOST_PATH=/srv/mono/libtorch/precompiled/cu128", "LIBTORCH_CPU_PATH=./libtorch/precompiled/cpu"]
RUN = "docker compose run --rm -T {deps}--name fdl-1-node-a -e CARGO_BUILD_JOBS=3 {own}cuda"
OWN = f"-e FDL_GPU_FEATURE=cuda -e FDL_TARGET_DIR=/workspace/{T} -e FDL_CMD=ddp-bench "


@pytest.mark.parametrize(
    ("one", "expected"),
    [
        (DOCKER, RUN.format(deps="--no-deps ", own="")),
        (replace(DOCKER, docker_deps=True), RUN.format(deps="", own="")),
        (replace(LINE, service="cuda"), RUN.format(deps="--no-deps ", own=OWN)),
    ],
    ids=["plain", "deps", "own line"],
)
def test_the_compose_line(one: Job, expected: str) -> None:
    assert compose_words(one, "fdl-1-node-a", 3) == [*HOST, *CUDA_PAIR, *expected.split()]


@pytest.mark.parametrize(
    ("host", "expected"),
    [("node-a", "fdl-7-node-a"), ("köln.1", "fdl-7-k-ln.1"), ("a b/$(x)", "fdl-7-a-b---x-"), ("日本", "fdl-7---")],
)
def test_a_containers_name_is_one_that_docker_takes(host: str, expected: str) -> None:
    assert container_name("7", host) == expected


@pytest.mark.parametrize("word", ["ddp-bench", "target/cluster/exa"])
def test_safe_words_are_left_as_they_are(word: str) -> None:
    assert quote(word) == word


@pytest.mark.parametrize("word", ["", "a b", "it's", "$(x)", "a\nb"])
def test_unsafe_words_come_back_as_one_word(word: str) -> None:
    assert quote(word).startswith("'")
    assert shlex.split(quote(word)) == [word]
