"""Fixtures of the tests that really build."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.builds.monorepo import Project, make_project


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """The example with three variants, in a place whose name needs every care."""
    if missing := [tool for tool in ("cargo", "cc") if not shutil.which(tool)]:
        pytest.skip(f"not installed: {', '.join(missing)}")
    return make_project(tmp_path / "mönö 'repo' \"x\" $(touch pwned) a")
