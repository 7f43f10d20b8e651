"""Whose build serves whom, and the copy: like the original, and nobody else's."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fdl_tasks.builds import share
from fdl_tasks.builds.plan import Job
from fdl_tasks.cluster.model import Command
from fdl_tasks.errors import BuildError, Stage, TransportError
from fdl_tasks.outcome import Attempt

ONE = Job("a", Command("x"), "precompiled/cu128", Path("/srv/mono"), "x", "/w/a/libtorch/precompiled/cu128/lib")


@pytest.mark.parametrize(
    ("changes", "leader"),
    [
        ({}, "a"),
        ({"loader_path": "/elsewhere/lib"}, "a"),
        ({"arch": "precompiled/cu126"}, "b"),
        ({"command": Command("x", profile="dev")}, "b"),
        ({"command": Command("x", build="make")}, "b"),
        ({"cwd_subpath": "y"}, "b"),
        ({"service": "cuda"}, "b"),
        ({"docker_deps": True}, "b"),
    ],
)
def test_the_first_with_the_same_inputs_leads(changes: dict[str, Any], leader: str) -> None:
    jobs = {"a": ONE, "b": replace(ONE, host="b", **changes), "c": replace(ONE, host="c", **changes)}
    assert share.leaders(jobs) == {"a": "a", "b": leader, "c": leader}
    assert list(share.leading(jobs)) == sorted({"a", leader})


@pytest.fixture
def binary(tmp_path: Path) -> Path:
    binary = tmp_path / "a" / "x"
    binary.parent.mkdir()
    binary.write_bytes(os.urandom(3_000_000))
    binary.chmod(0o750)
    os.utime(binary, ns=(1_700_000_000_000_000_000, 1_700_000_000_123_456_789))
    return binary


@pytest.mark.parametrize("can", ["all", "no clone", "no copy within the kernel", "a copy that ends early"])
def test_a_copy_is_the_same_in_all_but_its_place(
    binary: Path, tmp_path: Path, can: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unable(*args: object) -> None:
        raise OSError(95, "Operation not supported")

    if can != "all":
        monkeypatch.setattr("fcntl.ioctl", unable)
    if can == "no copy within the kernel":
        monkeypatch.setattr("os.copy_file_range", unable)
    if can == "a copy that ends early":
        monkeypatch.setattr("os.copy_file_range", lambda *_: 0)
    made = tmp_path / "b" / "deep" / "x"
    share.copy(binary, made)
    old, new = binary.stat(), made.stat()
    assert made.read_bytes() == binary.read_bytes()
    assert (new.st_mode, new.st_mtime_ns) == (old.st_mode, old.st_mtime_ns)
    assert (new.st_ino != old.st_ino, new.st_nlink, old.st_nlink) == (True, 1, 1)
    assert [path.name for path in made.parent.iterdir()] == ["x"]


def test_what_was_there_is_replaced_and_its_other_name_is_left_alone(binary: Path, tmp_path: Path) -> None:
    (tmp_path / "b" / "deps").mkdir(parents=True)
    cache, made = tmp_path / "b/deps/x-0123", tmp_path / "b/x"
    cache.write_text("cargo's own")
    os.link(cache, made)
    share.copy(binary, made)
    assert cache.read_text() == "cargo's own"
    assert made.read_bytes() == binary.read_bytes()


def test_a_copy_that_fails_leaves_the_old_one_and_nothing_else(
    binary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = tmp_path / "b" / "x"
    made.parent.mkdir()
    made.write_text("old")

    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    for name in ("fcntl.ioctl", "os.copy_file_range", "shutil.copyfileobj"):
        monkeypatch.setattr(name, full)
    with pytest.raises(OSError, match="No space"):
        share.copy(binary, made)
    assert made.read_text() == "old"
    assert [path.name for path in made.parent.iterdir()] == ["x"]


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (BuildError("cargo ended", hint="look", tail=("a line",)), "cargo ended (the build of a, .*)\n  next: look"),
        (TransportError(Stage.DEADLINE, "too long", where="a"), "a: time limit: too long (the build of a, .*)"),
        (ValueError("odd"), r"ValueError('odd') (the build of a, .*)"),
    ],
)
def test_a_failure_is_the_followers_too_and_said_to_be_shared(tmp_path: Path, error: Exception, says: str) -> None:
    leader = replace(ONE, root=tmp_path)
    follower = replace(leader, host="b")
    with pytest.raises(BuildError) as got:
        share.take(leader, Attempt("a", None, error, 1.0), follower)
    assert str(got.value) == says.replace(".*", "which is this worker's too")
    assert f"built once, for a: the output is in {leader.log}\n" in follower.log.read_text()
