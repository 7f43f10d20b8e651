from __future__ import annotations

from pathlib import Path

import pytest

from tests.tasks.project import Project, make_project


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return make_project(tmp_path / "mono repo")
