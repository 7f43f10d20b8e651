"""cargo's output as captured from cargo 1.95 (tests/cases/cargo), read for what counts in it."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

import pytest

from fdl_tasks.builds import cargo
from fdl_tasks.builds.cargo import Trouble
from fdl_tasks.builds.plan import Job
from fdl_tasks.cluster.model import Command
from fdl_tasks.errors import BuildError

CASES = Path(__file__).resolve().parents[1] / "cases" / "cargo"
TARGET = "target/cluster/a/precompiled-cpu"
JOB = Job("a", Command("ddp-bench"), "precompiled/cpu", Path("/srv/mono"), "ddp-bench", "/srv/mono/libtorch/x/lib")
DOCKER = Job("a", Command("ddp-bench"), "precompiled/cpu", Path("/home/me/m"), "", "/l", service="cuda")


def announced(case: str, name: str = "ddp-bench") -> list[str]:
    found = [cargo.message(line) for line in (CASES / f"{case}.out").read_text().splitlines()]
    return [named[0] for message in found if message and (named := cargo.executable(message, name))]


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        ("rebuilt", [f"/srv/mono/{TARGET}/release/ddp-bench"]),
        ("fresh", [f"/srv/mono/{TARGET}/release/ddp-bench"]),
        ("triple", [f"/srv/mono/{TARGET}/x86_64-unknown-linux-gnu/release/ddp-bench"]),
        ("error", []),
    ],
)
def test_the_binary_is_where_cargo_says(case: str, expected: list[str]) -> None:
    assert announced(case) == expected


def test_a_library_or_another_binary_is_not_taken_for_it() -> None:
    assert announced("rebuilt", "helper") == announced("rebuilt", "bench") == []


@pytest.mark.parametrize("line", ["", "plain", "{", '{"reason"', '{"a": 1}', '["reason"]', '{"reason"}'])
def test_what_is_no_message_of_cargos_is_none(line: str) -> None:
    assert cargo.message(line) is None


@pytest.mark.parametrize("text", ['{"reason":"compiler-artifact"}', '{"reason":"compiler-artifact","target":null}'])
def test_a_message_without_a_target_announces_nothing(text: str) -> None:
    message = cargo.message(text)
    assert message is not None
    assert cargo.executable(message, "ddp-bench") is None


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        ("rebuilt", ["compiling helper", "compiling ddp-bench"]),
        ("fresh", []),
        ("error", ["compiling ddp-bench"]),
    ],
)
def test_progress_is_read_from_the_captures(case: str, expected: list[str]) -> None:
    assert [s for line in (CASES / f"{case}.err").read_text().splitlines() if (s := cargo.state(line))] == expected


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("\x1b[1m\x1b[92m   Compiling\x1b[0m torch-sys v0.15.0 (/w)", "compiling torch-sys"),
        ("    Blocking waiting for file lock on build directory", "blocking waiting for file lock on build directory"),
        (" Downloading crates ...", "downloading crates"),
        ("    Updating crates.io index", "updating crates.io index"),
        ("error: could not compile `x`", None),
        ("note: Compiling is hard", None),
    ],
)
def test_a_line_says_what_cargo_is_at(line: str, expected: str | None) -> None:
    assert cargo.state(line) == expected


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("error: failed to write `/t/x`: No space left on device (os error 28)", Trouble.DISK_FULL),
        ("/usr/bin/ld: final link failed: No space left on device", Trouble.DISK_FULL),
        ("          collect2: fatal error: ld terminated with signal 7 [Bus error]", Trouble.BUS_ERROR),
        ("error: failed to write `/t/x`: Disk quota exceeded (os error 122)", Trouble.QUOTA),
        (
            'runc create failed: unable to start container process: exec: "bash": executable file not found',
            Trouble.NO_BASH,
        ),
        ("rm: cannot remove '/t/release': Permission denied", Trouble.DENIED),
        ("error: could not compile `x`", None),
    ],
)
def test_the_machines_fault_is_told_from_the_sources(line: str, expected: Trouble | None) -> None:
    assert cargo.trouble(line) == expected


@pytest.mark.parametrize(
    ("job", "path"),
    [(JOB, f"/srv/mono/{TARGET}/x/release/ddp-bench"), (DOCKER, f"/workspace/{TARGET}/x/release/ddp-bench")],
    ids=["native", "docker"],
)
def test_a_path_of_the_build_becomes_one_below_the_project_root(job: Job, path: str) -> None:
    assert cargo.artifact([(path, "p")], job) == f"{TARGET}/x/release/ddp-bench"


@pytest.mark.parametrize(
    ("job", "path", "says"),
    [
        (JOB, None, "named no binary ddp-bench"),
        (JOB, "/srv/mono/target/release/ddp-bench", "outside the target directory"),
        (JOB, f"/srv/mono/{TARGET}/../ddp-bench", "outside the target directory"),
        (JOB, f"/srv/mono/{TARGET}-old/release/ddp-bench", "outside the target directory"),
        (DOCKER, f"/srv/mono/{TARGET}/release/ddp-bench", "outside the target directory /workspace"),
    ],
)
def test_a_binary_elsewhere_or_none_is_an_error(job: Job, path: str | None, says: str) -> None:
    with pytest.raises(BuildError, match=says):
        cargo.artifact([(path, "p")] if path else [], job)


def test_the_native_view_of_the_project_is_the_controllers() -> None:
    assert (JOB.inside, DOCKER.inside) == (PurePosixPath("/srv/mono"), PurePosixPath("/workspace"))
