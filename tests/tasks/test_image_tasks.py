"""Whole commands about images on two nodes that this machine plays, with a stand-in for docker."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path

import pytest

from tests.images.nodes import INFO, VERSION, shown
from tests.tasks.project import Project, make_project

pytestmark = pytest.mark.subprocess

GOOD = {
    "version*": f"echo {shlex.quote(VERSION)}",
    "info*": f"echo {shlex.quote(INFO)}",
    "image?inspect*": f"echo {shlex.quote(json.dumps(shown('xyz')))}",
    "create*": "echo abc",
    "run*": ":",
    "rm*": ":",
    "image?ls*": ":",
    "history*": "echo 5",
}
ABSENT = {"image?inspect*": "echo 'Error response from daemon: No such image: app:1' >&2; exit 1"}


@pytest.fixture
def project(tmp_path: Path) -> Project:
    made = make_project(tmp_path / "mono repo")
    with (made.root / "cluster.yml").open("a") as file:
        file.write("recipes: {x: {image: 'app:1', exec_probe: [/bin/true]}}\n")
    return made


def docker(project: Project, **answers: str) -> dict[str, str]:
    """A PATH whose first docker gives these answers, by its first words, and notes its calls."""
    place = project.root.parent / "bin"
    place.mkdir(exist_ok=True)
    cases = "\n".join(f"{words}) {does} ;;" for words, does in answers.items())
    calls = shlex.quote(str(place / "calls"))
    (place / "docker").write_text(f'#!/bin/sh\necho "$*" >>{calls}\ncase $* in\n{cases}\n*) exit 9 ;;\nesac\n')
    (place / "docker").chmod(0o755)
    return {"PATH": f"{place}:{os.environ['PATH']}"}


def calls(project: Project) -> list[str]:
    file = project.root.parent / "bin/calls"
    return file.read_text().splitlines() if file.exists() else []


@pytest.mark.parametrize("task", ["sync-image", "ensure-image"])
def test_when_every_node_has_it_a_container_is_started_on_each_and_nothing_sent(project: Project, task: str) -> None:
    done = project.inv(f"fdl.{task}", "--recipe", "x", **docker(project, **GOOD))
    assert done.returncode == 0, done.stderr
    assert done.stdout == (
        "node  status   mode  sent  seconds  over  proof\n"
        "new   source                              same id\n"
        "old   in-sync                             same id\n"
        "\n"
        "app:1 from new (every copy has the same content): 1 source, 1 in-sync\n"
    )
    started = [call for call in calls(project) if call.startswith("run ")]
    assert len(started) == 2
    assert all("--pull=never" in call and "--entrypoint /bin/true" in call for call in started)
    assert not any(call.startswith(("save", "load", "pull")) for call in calls(project))


def test_the_result_is_one_json_object_and_nothing_else(project: Project) -> None:
    done = project.inv("fdl.sync-image", "--image", "app:1", "--json", **docker(project, **GOOD))
    assert done.stdout.count("\n") == 1
    report = json.loads(done.stdout)
    assert (report["image"], report["source"], report["ok"]) == ("app:1", "new", True)
    assert {label: node["status"] for label, node in report["nodes"].items()} == {"new": "source", "old": "in-sync"}


@pytest.mark.parametrize("task", ["sync-image", "ensure-image"])
def test_when_no_node_has_it_the_end_is_loud_and_no_task_follows(project: Project, task: str) -> None:
    done = project.inv(f"fdl.{task}", "--image", "app:1", "show", **docker(project, **{**GOOD, **ABSENT}))
    assert (done.returncode, done.stdout) == (1, "")
    assert "no node has the image: new does not have the image; old does not have the image" in done.stderr
    assert "next: pull or build it on one node first" in done.stderr
    assert not any(call.startswith("pull") for call in calls(project))


def test_copies_that_do_not_start_are_exit_code_1_with_the_reason_of_each(project: Project) -> None:
    answers = {**GOOD, "run*": "echo odd kernel >&2; exit 1"}
    done = project.inv("fdl.sync-image", "--image", "app:1", **docker(project, **answers))
    assert done.returncode == 1
    assert "no node has a copy that starts: new: " in done.stderr
    assert "odd kernel" in done.stderr


def test_a_failed_node_is_exit_code_1_with_its_reason_last(project: Project) -> None:
    file = project.root / "cluster.yml"
    file.write_text(file.read_text().replace("cu126, ", "cu126, docker_host: 'tcp://old:1', "))
    answers = {"--host*": "echo refused >&2; exit 1", **GOOD}
    done = project.inv("fdl.sync-image", "--image", "app:1", "show", **docker(project, **answers))
    assert done.returncode == 1
    assert done.stdout.splitlines()[-1] == "app:1 from new (the only node that has it): 1 source, 1 failed"
    why = "docker_host is tcp://old:1, and there docker says: refused"
    assert done.stderr.endswith(f"\nold: {why}\napp:1: 1 of 2 nodes failed: old\n")


def test_plan_looks_and_changes_nothing(project: Project) -> None:
    done = project.inv("fdl.sync-image", "--image", "app:1", "--plan", **docker(project, **GOOD))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0].split() == ["node", "mode", "transport", "bytes", "why"]
    assert done.stdout.splitlines()[-1] == (
        "app:1 from new (every copy has the same content): nothing to do: every node that could be asked has it"
    )
    assert not any(call.startswith(("create", "run", "save", "tag")) for call in calls(project))


def test_images_shows_what_each_node_has(project: Project) -> None:
    environment = docker(project, **GOOD)
    done = project.inv("fdl.images", "--recipe", "x", **environment)
    assert done.returncode == 0, done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()[:3]] == ["node", "new", "old"]
    assert done.stdout.endswith("2 of 2 nodes have it whole\n")
    found = json.loads(project.inv("fdl.images", "--recipe", "x", "--host", "old", "--json", **environment).stdout)
    assert list(found["nodes"]) == ["old"]
    assert found["nodes"]["old"]["id"] == shown("xyz")["Id"]


def test_images_of_nodes_that_cannot_be_asked_is_exit_code_1(project: Project) -> None:
    done = project.inv("fdl.images", "--image", "app:1", **docker(project, **{"version*": "echo boom >&2; exit 1"}))
    assert done.returncode == 1
    assert done.stdout.count("docker says: boom") == 2
    assert done.stderr.endswith("2 of 2 nodes could not be asked: new, old\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["sync-image"], "name the image by --recipe or by --image, one of them"),
        (["sync-image", "--recipe", "x", "--image", "app:1"], "one of them"),
        (["ensure-image"], "name the image by --recipe or by --image"),
        (["images"], "name the image by --recipe or by --image"),
        (["sync-image", "--recipe", "none"], "no recipe 'none'"),
        (["sync-image", "--recipe", "../x"], "no name for a recipe"),
        (["sync-image", "--image", "-v/:/host"], "is no image reference"),
        (["sync-image", "--image", "a b"], "is no image reference"),
        (["sync-image", "--image", "app:1", "--host", "nobody"], "'nobody' names no worker"),
        (["sync-image", "--image", "app:1", "--group", "nobody"], "'nobody' names no worker"),
        (["sync-image", "--image", "app:1", "--width", "0"], "--width (fdl.width) takes"),
        (["sync-image", "--image", "app:1", "--source", "nobody"], "the source 'nobody' is none of the nodes"),
        (["sync-image", "--image", "app:1", "--dry-run", "--source", "x"], "the source 'x' is none of the nodes"),
        (["sync-image", "--image", "app:1", "--dry-run", "--json"], "--dry-run prints scripts, not JSON"),
    ],
)
def test_a_wrong_call_is_told_and_changes_nothing(project: Project, arguments: list[str], message: str) -> None:
    task, *flags = arguments
    done = project.inv(f"fdl.{task}", *flags, **docker(project, **GOOD))
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert not any(call.startswith(("run", "save", "load", "tag", "pull")) for call in calls(project))


def test_dry_run_prints_every_script_and_contacts_nobody(project: Project) -> None:
    done = project.inv("fdl.sync-image", "--recipe", "x", "--dry-run", **docker(project, **GOOD))
    assert done.returncode == 0, done.stderr
    heads = [line for line in done.stdout.splitlines() if line.startswith("# --- ")]
    assert heads == [
        "# --- new: images/probe.sh",
        "# --- old: images/probe.sh",
        "# --- <source>: images/ways.sh",
        "# --- <source>: images/send.sh",
        "# --- <target>: images/pull-relay.sh",
        "# --- <source>: images/send.sh",
        "# --- <target>: images/load.sh",
        "# --- <target>: images/verify.sh",
    ]
    assert calls(project) == []


FLAGS = ["--cluster", "--group", "--host", "--image", "--json", "--recipe", "--width"]
SENDING = ["--require-fabric", "--source"]


@pytest.mark.parametrize(
    ("task", "flags"),
    [
        ("images", FLAGS),
        ("ensure-image", [*FLAGS, *SENDING]),
        ("sync-image", [*FLAGS, *SENDING, "--dry-run", "--plan", "--transport"]),
    ],
)
def test_help_tells_every_flag_in_words(project: Project, task: str, flags: list[str]) -> None:
    text = project.inv("--help", f"fdl.{task}").stdout
    told = [line.split()[0].split("=")[0] for line in text[text.index("Options:") :].splitlines() if " --" in line]
    assert told == sorted(flags)
    assert f"inv {task}" in text


def test_as_the_pre_of_a_task_it_lets_nothing_start_without_the_image(project: Project) -> None:
    (project.root / "tasks.py").write_text(
        "from invoke import call, task\nimport fdl_tasks\n\n\n"
        "@task(pre=[call(fdl_tasks.tasks.ensure_image, recipe='x')])\n"
        "def launch(c):\n    print('launched')\n"
    )
    assert project.inv("launch", **docker(project, **GOOD)).stdout.endswith("\nlaunched\n")
    done = project.inv("launch", **docker(project, **{**GOOD, **ABSENT}))
    assert (done.returncode, done.stdout) == (1, "")
