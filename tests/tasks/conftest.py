from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.tasks.project import Project, make_project


@pytest.fixture
def project(tmp_path: Path) -> Project:
    if not shutil.which("cc"):
        pytest.skip("not installed: cc")
    return make_project(tmp_path / "mono repo")
