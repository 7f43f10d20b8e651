"""prebuild-clean: what is planned for removal, what is removed, and what is left alone."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from filelock import FileLock

from fdl_tasks.builds import clean
from fdl_tasks.builds.clean import CleanReport, State, prebuild_clean, stale
from fdl_tasks.builds.locks import LOCK
from fdl_tasks.cluster.model import Cluster, Controller
from fdl_tasks.errors import BuildError, ConfigError
from fdl_tasks.testing import make_cluster

HOUR = 3600


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    """Worker ``a`` is built for, ``off`` is not, ``blank`` has no arch."""
    changes = {"off": {"build": False}}
    return make_cluster(tmp_path, changes=changes, a="precompiled/cu128", off="builds/gfx1030", blank=None)


def fill(root: Path, place: str, age: float = 0.0) -> Path:
    """A target directory as cargo leaves it: one file, linked twice."""
    folder = root / "target/cluster" / place
    (folder / "release/deps").mkdir(parents=True)
    binary = folder / "release/deps/train-0123"
    binary.write_bytes(b"x" * 100_000)
    (folder / "release/train").hardlink_to(binary)
    for path in [*folder.rglob("*"), folder]:
        os.utime(path, (time.time() - age,) * 2)
    return folder


def states(report: CleanReport) -> dict[str, str]:
    return {item.path.removeprefix("target/cluster/"): str(item.state) for item in report.items}


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        (("a", "precompiled-cu128"), False),
        (("a", "precompiled-cu126"), True),
        (("off", "builds-gfx1030"), False),
        (("off", "precompiled-cpu"), True),
        (("blank", "precompiled-cpu"), False),
        (("gone", "precompiled-cu128"), True),
        (("A", "precompiled-cu128"), True),
        (("a", ".fdl-gone-0123"), True),
        (("blank", ".fdl-gone-0123"), True),
    ],
)
def test_what_no_worker_stands_for_is_stale(cluster: Cluster, place: tuple[str, str], expected: bool) -> None:
    assert (stale([place], cluster.need_workers()) == [place]) is expected


def test_what_cluster_yml_no_longer_names_goes_and_the_rest_stays(cluster: Cluster, tmp_path: Path) -> None:
    kept = [fill(tmp_path, place) for place in ("a/precompiled-cu128", "off/builds-gfx1030", "blank/x")]
    gone = [fill(tmp_path, place) for place in ("a/precompiled-cu126", "old/precompiled-cpu", "old/precompiled-cu118")]
    report = prebuild_clean(cluster)
    assert states(report) == {
        "a/precompiled-cu126": "removed",
        "old/precompiled-cpu": "removed",
        "old/precompiled-cu118": "removed",
    }
    assert report.ok
    assert not any(path.exists() for path in gone)
    assert all((path / "release/train").exists() for path in kept)
    assert sorted(path.name for path in (tmp_path / "target/cluster").iterdir()) == ["a", "blank", "off"]
    assert prebuild_clean(cluster).items == ()


def test_size_counts_a_file_once_and_age_is_of_the_youngest(cluster: Cluster, tmp_path: Path) -> None:
    fill(tmp_path, "old/x", age=3 * HOUR)
    [item] = prebuild_clean(cluster, dry_run=True).items
    assert 100_000 <= item.size < 150_000
    assert 3 * HOUR <= item.age < 3 * HOUR + 60


def test_a_dry_run_removes_nothing(cluster: Cluster, tmp_path: Path) -> None:
    folder = fill(tmp_path, "old/x")
    (tmp_path / "target/cluster/empty").mkdir()
    assert states(prebuild_clean(cluster, dry_run=True)) == {"old/x": "to remove"}
    assert sorted(path.name for path in folder.iterdir()) == ["release"]
    assert (tmp_path / "target/cluster/empty").is_dir()


def test_probe_files_go_when_no_preflight_can_be_using_them(cluster: Cluster, tmp_path: Path) -> None:
    base = tmp_path / "target/cluster"
    base.mkdir(parents=True)
    for name, age in ((".fdl-probe-old-0", 2 * HOUR), (".fdl-probe-new-0", 60), ("notes.txt", 2 * HOUR)):
        (base / name).touch()
        os.utime(base / name, (time.time() - age,) * 2)
    (base / ".fdl-probe-folder").mkdir()
    assert states(prebuild_clean(cluster)) == {".fdl-probe-old-0": "removed"}
    assert sorted(path.name for path in base.iterdir()) == [".fdl-probe-folder", ".fdl-probe-new-0", "notes.txt"]


@pytest.mark.parametrize("dry_run", [False, True])
def test_a_directory_that_a_prebuild_holds_is_left_and_said(cluster: Cluster, tmp_path: Path, dry_run: bool) -> None:
    folder = fill(tmp_path, "old/x")
    with FileLock(folder / LOCK):
        report = prebuild_clean(cluster, dry_run=dry_run)
        assert states(report) == {"old/x": "in use"}
        assert report.ok
        assert (folder / "release/train").exists()
    assert states(prebuild_clean(cluster, dry_run=dry_run)) == {"old/x": "to remove" if dry_run else "removed"}
    assert folder.exists() is dry_run


@pytest.mark.parametrize("link", ["target/cluster/link", "target/cluster/old/link"])
def test_nothing_is_removed_through_a_link(cluster: Cluster, tmp_path: Path, link: str) -> None:
    outside = fill(tmp_path / "outside", "old/x")
    fill(tmp_path, "old/y")
    (tmp_path / link).symlink_to(outside.parent)
    (tmp_path / "target/cluster/old/y/inner").symlink_to(outside)
    assert states(prebuild_clean(cluster)) == {"old/y": "removed"}
    assert (outside / "release/train").exists()
    assert (tmp_path / link).is_symlink()


@pytest.mark.parametrize("link", ["target", "target/cluster"])
def test_a_target_that_is_a_link_itself_is_refused(cluster: Cluster, tmp_path: Path, link: str) -> None:
    outside = fill(tmp_path / "outside", "old/x")
    (tmp_path / link).parent.mkdir(exist_ok=True)
    (tmp_path / link).symlink_to(tmp_path / "outside" / link)
    with pytest.raises(BuildError, match="symbolic link"):
        prebuild_clean(cluster)
    assert outside.exists()


def test_cargos_own_profile_of_that_name_is_no_host(cluster: Cluster, tmp_path: Path) -> None:
    fill(tmp_path, "deps/x")
    fill(tmp_path, "old/x")
    (tmp_path / "target/cluster/.cargo-lock").touch()
    (tmp_path / "target/cluster/.fingerprint/x").mkdir(parents=True)
    assert states(prebuild_clean(cluster)) == {"old/x": "removed"}
    assert (tmp_path / "target/cluster/deps/x/release/train").exists()


def test_what_an_interrupted_removal_left_goes_next_time(cluster: Cluster, tmp_path: Path) -> None:
    fill(tmp_path, "a/.fdl-gone-1a2b")
    assert states(prebuild_clean(cluster)) == {"a/.fdl-gone-1a2b": "removed"}


def test_what_is_still_there_is_never_called_removed(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = fill(tmp_path, "old/x")
    monkeypatch.setattr(clean, "_remove", lambda base, host, path: None)
    [item] = prebuild_clean(cluster).items
    assert (item.state, folder.exists()) == (State.FAILED, True)
    assert "is there again" in item.error


def as_nobody(root: Path) -> dict[str, str]:
    """Path and error of what failed when the user nobody cleans ``root``, in a process of its own."""
    reading, writing = os.pipe()
    if os.fork() == 0:
        try:
            os.setuid(pwd.getpwnam("nobody").pw_uid)
            controller = Controller("ctrl", root, docker="cuda")
            report = prebuild_clean(Cluster(root / "cluster.yml", "ctrl", controller, ()))
            os.write(writing, json.dumps({i.path: i.error for i in report.items if i.state is State.FAILED}).encode())
        finally:
            os._exit(0)
    os.close(writing)
    os.wait()
    with open(reading, "rb") as answer:
        found: dict[str, str] = json.loads(answer.read())
    return found


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be somebody else")
def test_a_containers_left_overs_fail_whole_and_say_how_to_mend_it() -> None:
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        root.chmod(0o755)
        theirs, mine = fill(root, "old/x"), fill(root, "other/y")
        for path in (root, *root.rglob("*")):
            if theirs / "release" not in (path, *path.parents):
                os.chown(path, pwd.getpwnam("nobody").pw_uid, -1)
        [(failed, error)] = as_nobody(root).items()
        assert failed == "target/cluster/old/x"
        assert f"permission denied: {theirs}/release is owned by uid 0" in error
        assert "docker compose run --rm --no-deps cuda rm -rf /workspace/target/cluster/old/x" in error
        assert (theirs / "release/train").exists()
        assert not mine.exists()


def test_a_cluster_without_workers_named_removes_nothing(tmp_path: Path) -> None:
    folder = fill(tmp_path, "old/x")
    with pytest.raises(ConfigError, match="workers"):
        prebuild_clean(Cluster(tmp_path / "cluster.yml", "ctrl", Controller("ctrl", tmp_path)))
    assert folder.exists()


def test_nothing_there_is_nothing_to_do(cluster: Cluster) -> None:
    assert prebuild_clean(cluster).items == ()
    assert prebuild_clean(cluster).as_json() == {"ok": True, "freed": 0, "items": []}


def test_a_prebuild_that_begins_meanwhile_gets_a_fresh_directory_and_keeps_it(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = fill(tmp_path, "old/x")
    removed, waiter = threading.Event(), FileLock(folder / LOCK, thread_local=False)

    def slow_rmtree(*args: Any, **kwargs: Any) -> None:
        removed.set()
        time.sleep(0.3)
        shutil.rmtree(*args, **kwargs)

    monkeypatch.setattr(clean, "shutil", SimpleNamespace(rmtree=slow_rmtree))
    with ThreadPoolExecutor() as pool:
        cleaning = pool.submit(prebuild_clean, cluster)
        assert removed.wait(5)
        with waiter.acquire(timeout=5):
            (folder / "build.log").write_text("new\n")
            assert states(cleaning.result()) == {"old/x": "in use"}
            assert sorted(path.name for path in folder.iterdir()) == [LOCK, "build.log"]
            assert states(prebuild_clean(cluster)) == {"old/x": "in use"}
