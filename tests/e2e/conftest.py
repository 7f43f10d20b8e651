"""The example monorepo on the lab, as most modules here want it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.e2e.site import Site, copy_example
from tests.lab.lab import Lab


@pytest.fixture(scope="session")
def example(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example with its libtorch variants; for reading and copying only."""
    return copy_example(tmp_path_factory.mktemp("example"))


@pytest.fixture
def site(lab: Lab, example: Path, tmp_path: Path) -> Site:
    """A copy of the example for this test alone, that no worker mounts yet."""
    project = tmp_path / "site" / "mono"
    shutil.copytree(example, project, symlinks=True)
    (tmp_path / "data").mkdir()
    return Site(lab, project, tmp_path / "data")
