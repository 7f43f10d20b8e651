"""The controller's fresh files: written, the same for all looks, gone afterwards."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from fdl_tasks.checks.shared import LOOKS, PAUSE, fresh_files
from fdl_tasks.errors import PreflightError


def test_every_look_has_a_file_of_its_own_with_the_same_new_token(tmp_path: Path) -> None:
    before = time.time()
    with fresh_files(tmp_path) as fresh, fresh_files(tmp_path) as other:
        found = {path.name: path.read_text() for path in (tmp_path / "target/cluster").iterdir()}
        assert len(fresh.written) == LOOKS and fresh.token != other.token
        expected = dict.fromkeys(fresh.written, f"{fresh.token}\n") | dict.fromkeys(other.written, f"{other.token}\n")
        assert found == expected
    assert all(before <= began <= ended <= time.time() for began, ended in fresh.written.values())
    assert list((tmp_path / "target/cluster").iterdir()) == []


def test_looking_takes_five_seconds() -> None:
    assert (LOOKS - 1) * float(PAUSE) == 5


def test_they_are_gone_after_an_error_too(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), fresh_files(tmp_path):
        raise KeyboardInterrupt
    assert list((tmp_path / "target/cluster").iterdir()) == []


def test_a_root_that_is_not_there_is_named_and_not_made(tmp_path: Path) -> None:
    with pytest.raises(PreflightError, match="No such file") as told, fresh_files(tmp_path / "nowhere"):
        pytest.fail("there is nothing to write into")
    assert str(tmp_path / "nowhere/target/cluster") in str(told.value) and "controller.path" in told.value.hint
    assert not (tmp_path / "nowhere").exists()


def test_what_can_not_be_written_says_how_to_mend_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(self: Path, *args: object, **kwargs: object) -> None:
        raise PermissionError(13, "Permission denied")

    (tmp_path / "target/cluster").mkdir(parents=True)
    monkeypatch.setattr(Path, "open", refused)  # root may write anywhere, so the refusal is played
    with pytest.raises(PreflightError, match="Permission denied") as told, fresh_files(tmp_path):
        pytest.fail("nothing was written")
    assert "chown" in told.value.hint


def test_a_disk_that_fills_up_leaves_no_file_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(PreflightError, match="No space left"), fresh_files(tmp_path):
        pytest.fail("nothing was written")
    assert list((tmp_path / "target/cluster").iterdir()) == []
