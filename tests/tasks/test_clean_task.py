"""``inv prebuild-clean`` as its user sees it: output, exit code, and what is left."""

from __future__ import annotations

import json
import os
import re
import time
from pathlib import Path

import pytest
from filelock import FileLock

from tests.tasks.project import Project, make_project

pytestmark = pytest.mark.subprocess


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """Workers ``new`` and ``old`` are in cluster.yml; ``gone`` was, and ``new`` had another variant."""
    made = make_project(tmp_path / "mono")
    for place in ("new/precompiled-cu128", "new/precompiled-cu118", "gone/precompiled-cu126"):
        folder = made.root / "target/cluster" / place
        (folder / "release").mkdir(parents=True)
        (folder / "release/train").write_bytes(b"x" * 3_000_000)
        for path in (folder / "release/train", folder / "release", folder):
            os.utime(path, (time.time() - 41 * 86400,) * 2)
    return made


def plain(text: str) -> str:
    return re.sub(r" +", " ", text)


LISTED = """\
left over size last written status
target/cluster/gone/precompiled-cu126 2.9 MiB 41 days ago {0}
target/cluster/new/precompiled-cu118 2.9 MiB 41 days ago {0}

"""


def test_a_dry_run_lists_then_it_removes_then_there_is_nothing(project: Project) -> None:
    done = project.inv("fdl.prebuild-clean", "--dry-run")
    assert plain(done.stdout) == LISTED.format("to remove") + "2 to remove, 5.7 MiB to be freed\n"
    done = project.inv("fdl.prebuild-clean")
    assert plain(done.stdout) == LISTED.format("removed") + "2 removed, 5.7 MiB freed\n"
    assert done.stderr == "[gone] removing precompiled-cu126\n[new] removing precompiled-cu118\n"
    assert done.returncode == 0
    assert [path.name for path in (project.root / "target/cluster").iterdir()] == ["new"]
    done = project.program("prebuild-clean")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"nothing to remove: cluster.yml names all there is in {project.root}/target/cluster\n"


def test_json_has_every_item(project: Project) -> None:
    with FileLock(project.root / "target/cluster/gone/precompiled-cu126/.fdl-lock"):
        done = project.inv("fdl.prebuild-clean", "--json")
    answer = json.loads(done.stdout)
    assert (done.returncode, answer["ok"]) == (0, True)
    gone, new = answer["items"]
    assert (gone["path"], gone["status"]) == ("target/cluster/gone/precompiled-cu126", "in use")
    assert {key: new[key] for key in ("path", "host", "status", "error")} == {
        "path": "target/cluster/new/precompiled-cu118",
        "host": "new",
        "status": "removed",
        "error": None,
    }
    assert answer["freed"] == new["size"] > 3_000_000


def test_a_link_is_refused_with_code_1_and_nothing_on_stdout(project: Project) -> None:
    (project.root / "target").rename(project.root / "elsewhere")
    (project.root / "target").symlink_to("elsewhere")
    done = project.inv("fdl.prebuild-clean")
    assert (done.returncode, done.stdout) == (1, "")
    assert f"{project.root}/target: is a symbolic link, to elsewhere" in done.stderr


def test_a_cluster_yml_without_workers_is_a_configuration_error(project: Project) -> None:
    (project.root / "cluster.yml").write_text("controller: {host: ctrl, path: .}\n")
    done = project.inv("fdl.prebuild-clean")
    assert (done.returncode, done.stdout) == (2, "")
    assert "`workers:` is missing" in done.stderr
