from __future__ import annotations

import os
from pathlib import Path

import pytest

from fdl_tasks.errors import UsageError
from fdl_tasks.tasks.handover import check_file, write_file

TEXT = '{"a":{"bin":"target/x","ld_library_path":"/l"}}\n'


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o000, 0o644)])
def test_a_file_is_written_whole_with_the_users_mask(tmp_path: Path, umask: int, mode: int) -> None:
    before = os.umask(umask)
    try:
        write_file(tmp_path / "e.json", TEXT)
    finally:
        os.umask(before)
    assert (tmp_path / "e.json").read_text() == TEXT
    assert (tmp_path / "e.json").stat().st_mode & 0o777 == mode
    assert [path.name for path in tmp_path.iterdir()] == ["e.json"]


def test_a_write_that_fails_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "e.json").write_text("old")

    def full(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_file(tmp_path / "e.json", TEXT)
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("e.json", "old")]


@pytest.mark.parametrize("content", [None, "", "{}", TEXT])
def test_a_new_file_or_an_old_envelope_is_taken(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "e.json").write_text(content)
    assert check_file(tmp_path / "e.json") == tmp_path / "e.json"


@pytest.mark.parametrize("content", ["[package]\n", '{"name":"x"}', '{"a":{"version":1}}', "[]", "\xff"])
def test_a_file_that_is_no_envelope_is_not_lost(tmp_path: Path, content: str) -> None:
    (tmp_path / "package.json").write_text(content, "latin-1")
    with pytest.raises(UsageError, match="is no envelope"):
        check_file(tmp_path / "package.json")
    assert (tmp_path / "package.json").read_text("latin-1") == content


@pytest.mark.parametrize("name", ["/dev/null", ".", "nowhere/e.json"])
def test_a_place_where_no_file_can_be_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="--envelope"):
        check_file(name)


def test_a_link_is_followed_so_that_it_stays(tmp_path: Path) -> None:
    (tmp_path / "true.json").write_text("{}")
    (tmp_path / "link.json").symlink_to("true.json")
    assert check_file(tmp_path / "link.json") == tmp_path / "true.json"
