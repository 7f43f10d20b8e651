"""Small files of our own: whole or not at all, and never through a link."""

from pathlib import Path

import pytest

from fdl_tasks.files import is_file, read, write


def test_a_file_is_written_whole_and_not_again_where_it_is_that_already(tmp_path: Path) -> None:
    write(tmp_path / "x", "one")
    first = (tmp_path / "x").stat()
    write(tmp_path / "x", "one")
    again = (tmp_path / "x").stat()
    assert (again.st_ino, again.st_mtime_ns, oct(again.st_mode)) == (first.st_ino, first.st_mtime_ns, "0o100644")
    write(tmp_path / "x", "two", 0o600)
    assert (read(tmp_path / "x"), oct((tmp_path / "x").stat().st_mode)) == ("two", "0o100600")


@pytest.mark.parametrize("text", ["precious", "other"])
def test_a_link_in_the_way_is_replaced_and_what_it_leads_to_stays(tmp_path: Path, text: str) -> None:
    (tmp_path / "precious").write_text("precious")
    (tmp_path / "x").symlink_to("precious")
    write(tmp_path / "x", text)
    assert (not (tmp_path / "x").is_symlink(), read(tmp_path / "x")) == (True, text)
    assert read(tmp_path / "precious") == "precious"


def test_what_fails_leaves_the_old_one_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    with pytest.raises(OSError):
        write(tmp_path / "x", "text")
    assert list(tmp_path.iterdir()) == [tmp_path / "x"]


def test_what_can_not_be_read_is_empty(tmp_path: Path) -> None:
    assert (read(tmp_path / "no"), read(tmp_path), is_file(tmp_path), is_file(tmp_path / "no")) == (
        "",
        "",
        False,
        False,
    )
