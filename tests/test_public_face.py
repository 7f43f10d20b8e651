"""``import fdl_tasks``: what it offers, how lazily, and that no submodule ever takes a public name."""

from __future__ import annotations

import pkgutil
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import fdl_tasks
from fdl_tasks.errors import UsageError
from fdl_tasks.testing import FakeHost, fake_connect, make_cluster

TOP = Path(__file__).resolve().parents[1]
FUNCTIONS = [
    "collection",
    "ensure_image",
    "load_cluster",
    "prebuild",
    "prebuild_clean",
    "preflight",
    "prepare",
    "prepare_box",
    "silent",
    "sync_image",
]


def import_everything() -> list[str]:
    names = [module.name for module in pkgutil.walk_packages(fdl_tasks.__path__, "fdl_tasks.")]
    for name in names:
        import_module(name)
    return names


def test_every_public_name_is_there_and_listed() -> None:
    assert all(getattr(fdl_tasks, name) is not None for name in fdl_tasks.__all__)
    assert dir(fdl_tasks) == sorted(fdl_tasks.__all__)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'sync_everything'"):
        _ = fdl_tasks.sync_everything


def test_no_module_has_the_name_of_a_public_function_or_a_task() -> None:
    modules = {path.stem for path in (TOP / "fdl_tasks").glob("*")}
    assert modules & set(FUNCTIONS) == set()
    inner = {path.stem for path in (TOP / "fdl_tasks" / "tasks").glob("*.py")}
    assert inner & set(fdl_tasks.tasks.__all__) == set()


def test_every_public_function_can_be_called_twice_after_every_submodule_was_imported(tmp_path: Path) -> None:
    assert "fdl_tasks.tasks.program" in import_everything()
    (tmp_path / "cluster.yml").write_text("controller: {host: c, path: .}\nworkers: []\ncommands: {x: {cwd: .}}\n")
    node = make_cluster(tmp_path, node=None)
    for _ in range(2):
        cluster = fdl_tasks.load_cluster(tmp_path / "cluster.yml")
        assert fdl_tasks.prebuild(cluster, cmd="x").ok
        for bring in (fdl_tasks.sync_image, fdl_tasks.ensure_image):
            with pytest.raises(UsageError):
                bring(node, image="app:1", hosts=["nobody"], connect=fake_connect(FakeHost("node")))
        with pytest.raises(UsageError):
            fdl_tasks.preflight(node, hosts=["nobody"], connect=fake_connect(FakeHost("node")))
        with pytest.raises(UsageError):
            fdl_tasks.prepare(cluster, source_bin="x")
        assert set(fdl_tasks.collection().task_names) == {
            "prebuild",
            "prebuild-clean",
            "preflight",
            "sync-image",
            "ensure-image",
            "images",
            "prepare",
            "gpus",
            "cluster.show",
            "cluster.schema",
            "libtorch.get",
            "libtorch.list",
            "libtorch.use",
        }
        fdl_tasks.silent(fdl_tasks.Event("a", fdl_tasks.Kind.NOTE, "x"))


@pytest.mark.parametrize("name", fdl_tasks.tasks.__all__)
def test_a_task_is_a_task_and_not_a_module(name: str) -> None:
    from invoke.tasks import Task

    import_everything()
    assert isinstance(getattr(fdl_tasks.tasks, name), Task)


def test_two_collections_share_nothing() -> None:
    first, second = fdl_tasks.collection("a", width=3), fdl_tasks.collection("b")
    assert (first.name, second.name) == ("a", "b")
    assert first.configuration()["fdl"]["width"] == "3"
    assert second.configuration()["fdl"]["width"] is None


@pytest.mark.subprocess
def test_importing_the_library_imports_next_to_nothing() -> None:
    code = (
        "import sys, importlib, typing; old = set(sys.modules); import fdl_tasks; print(sorted({*sys.modules} - old))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=TOP, capture_output=True, text=True)
    assert done.stdout == "['__future__', 'fdl_tasks']\n"


def test_the_types_are_for_users_too() -> None:
    assert (TOP / "fdl_tasks" / "py.typed").is_file()


@pytest.mark.subprocess
def test_this_repositorys_task_file_lists_the_tasks_at_the_top_level() -> None:
    done = subprocess.run([sys.executable, "-m", "invoke", "--list"], cwd=TOP, capture_output=True, text=True)
    listed = re.findall(r"^  (\S+)", done.stdout, re.MULTILINE)
    tasks = ["ensure-image", "gpus", "images", "prebuild", "prebuild-clean", "preflight", "prepare", "sync-image"]
    inner = ["cluster.schema", "cluster.show", "libtorch.get", "libtorch.list", "libtorch.use"]
    assert listed == ["demo", *tasks, *inner]


@pytest.mark.subprocess
def test_the_demo_names_what_is_missing_and_the_way_to_get_it(tmp_path: Path) -> None:
    (tmp_path / "git").symlink_to("/bin/true")
    done = subprocess.run(
        [sys.executable, "-m", "invoke", "demo"], cwd=TOP, env={"PATH": str(tmp_path)}, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert [line.split(" is missing: ")[0] for line in done.stderr.splitlines()] == ["cargo", "cc"]
    assert "https://rustup.rs" in done.stderr
