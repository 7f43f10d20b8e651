"""A project root with one libtorch, and looks at the shared mount that follow each other fast."""

from __future__ import annotations

from pathlib import Path

import pytest

from fdl_tasks.checks import shared


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared, "PAUSE", "0.01")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "mono/libtorch" / "precompiled/cu128" / "lib").mkdir(parents=True)
    return tmp_path / "mono"
