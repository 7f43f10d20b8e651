"""The library inside somebody's own task file: as ``pre``, from a task's body, star-imported, without Invoke."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import fdl_tasks
from fdl_tasks.testing import Completed, FakeHost, fake_connect, make_cluster
from tests.tasks.project import ENV_NAME, TOP, Project, make_project

pytestmark = pytest.mark.subprocess


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return make_project(tmp_path / "mono")


def both(project: Project, cmd: str = "train") -> str:
    slug = "target/cluster/{}/precompiled-{}/release/{}"
    hosts = {
        host: {"bin": slug.format(host, cuda, cmd), "ld_library_path": project.loader_path(cuda)}
        for host, cuda in (("new", "cu128"), ("old", "cu126"))
    }
    return json.dumps(hosts, separators=(",", ":"))


def test_a_task_that_has_prebuild_as_pre_sees_the_envelope(project: Project) -> None:
    done = project.inv("train")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == f"train sees {both(project)}"


def test_a_task_whose_pre_failed_does_not_run(project: Project) -> None:
    done = project.inv("train", FAIL_ON="cu128")
    assert done.returncode == 1
    assert "train sees" not in done.stdout


def test_tasks_work_from_another_tasks_body_and_give_their_reports(project: Project) -> None:
    done = project.inv("body")
    assert done.returncode == 0, done.stderr
    said = [line for line in done.stdout.splitlines() if line.startswith("body got")]
    assert said == ["body got train True ['new', 'old']", "body got other True ['old']"]
    assert done.stdout.endswith("3 hosts: 3 ok\n")


def test_a_task_in_the_same_call_and_what_it_runs_see_the_envelope(project: Project) -> None:
    done = project.inv("fdl.prebuild", "--cmd", "train", "show")
    assert done.stdout.splitlines()[-2:] == [f"show sees {both(project)}", both(project)]


def test_an_inherited_envelope_is_gone_after_a_dry_run_and_a_failure(project: Project) -> None:
    inherited = {ENV_NAME: '{"new":{"bin":"old/binary","ld_library_path":""}}'}
    done = project.inv("fdl.prebuild", "--cmd", "train", "--dry-run", "show", **inherited)
    assert done.stdout.splitlines()[-1] == "show sees None"
    assert not (project.root / "target").exists()


def test_with_host_the_partial_envelope_is_announced(project: Project) -> None:
    done = project.inv("fdl.prebuild", "--cmd", "train", "--host", "old", "show")
    envelope = json.loads(done.stdout.splitlines()[-1])
    assert list(envelope) == ["old"]
    assert "note: the envelope is partial, with --host: old" in done.stderr


STAR = "from invoke import task\nfrom fdl_tasks.tasks import *\n\n\n@task\ndef mine(c):\n    '''Mine.'''\n"


def test_a_star_import_hides_no_task_of_the_user(project: Project) -> None:
    (project.root / "tasks.py").write_text(STAR)
    listed = re.findall(r"^  (\S+)", project.inv("--list").stdout, re.M)
    ours = [name.replace("_", "-") for name in fdl_tasks.tasks.__all__]
    assert listed == sorted([*ours, "mine"])


@pytest.mark.parametrize(
    ("given", "environment", "label"),
    [
        ("", {}, "near"),
        ("cluster=HERE / 'far.yml'", {}, "far"),
        ("cluster=HERE / 'far.yml'", {"INVOKE_FDL_CLUSTER": "third.yml"}, "third"),
        ("cluster=HERE / 'far.yml'", {"FDL_CLUSTER": "third.yml"}, "third"),
    ],
)
def test_the_collection_takes_settings(project: Project, given: str, environment: dict[str, str], label: str) -> None:
    for name, host in (("cluster", "near"), ("far", "far"), ("third", "third")):
        (project.root / f"{name}.yml").write_text(f"controller: {{host: {host}, path: .}}\nworkers: []\n")
    head = "from pathlib import Path\nimport fdl_tasks\nHERE = Path(__file__).parent\n"
    (project.root / "tasks.py").write_text(f"{head}ns = fdl_tasks.collection({given})\n")
    rows = json.loads(project.inv("cluster.show", "--json", **environment).stdout)["settings"]
    assert [row["value"] for row in rows if (row["of"], row["key"]) == ("controller", "host")] == [label]


def test_users_templates_stand_in_for_the_librarys(project: Project) -> None:
    own = project.root / "own" / "builds"
    own.mkdir(parents=True)
    shipped = (TOP / "templates" / "builds" / "build.sh").read_text()
    (own / "build.sh").write_text(shipped.replace("\nexec ", "\n# by our own template\nexec "))
    done = project.inv("fdl.prebuild", "--cmd", "train", "--dry-run", INVOKE_FDL_TEMPLATES="own")
    assert done.stdout.count("# by our own template") == 2
    (own / "build.sh").write_text('echo "{{ oops }}"\n')
    done = project.inv("fdl.prebuild", "--cmd", "train", "--dry-run", INVOKE_FDL_TEMPLATES="own")
    assert done.returncode == 2
    assert "own/builds/build.sh:1: Jinja where a value could break out" in done.stderr


def test_without_invoke_it_is_a_typed_value_and_the_environment_is_left_alone(project: Project) -> None:
    code = (
        "import os, fdl_tasks\n"
        "report = fdl_tasks.prebuild(fdl_tasks.load_cluster(), cmd='train')\n"
        "print(report.ok, sorted(report.hosts), report.envelope['new'].bin, fdl_tasks.ENV_NAME in os.environ)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=project.root, env=project.environment(), capture_output=True, text=True
    )
    binary = "target/cluster/new/precompiled-cu128/release/train"
    assert (done.stdout, done.stderr) == (f"True ['new', 'old'] {binary} False\n", "")


def test_a_fake_host_serves_the_whole_preflight(tmp_path: Path) -> None:
    """The example of ``fdl_tasks.testing``: what users are told to write must work."""
    lines = [
        "__FLODL_DP_DIR__=1",
        "__FLODL_DP_READ__=1",
        "__FLODL_ROOT__",
        "1 /dev/x 9 1 9000000 9% /",
        "__FLODL_END__",
    ]
    node = FakeHost("node", Completed(0, "\n".join(lines) + "\n", "", 0.1))
    cluster = make_cluster(tmp_path, node="precompiled/cu128")
    report = fdl_tasks.preflight(cluster, connect=fake_connect(node), shared_check=False, mounts_only=True)
    assert report.hosts["node"].status == "ok", report.hosts["node"]
    assert [script.name for script in node.scripts] == ["checks/probe.sh"]
