"""A full disk is told alike by every step."""

import errno
from pathlib import Path

import pytest

from fdl_tasks.boxes.room import full, is_full


@pytest.mark.parametrize(
    ("error", "found"),
    [
        (OSError(errno.ENOSPC, "x"), True),
        (OSError(errno.EDQUOT, "x"), True),
        (OSError(errno.EACCES, "x"), False),
        ('rsync: write failed on "/a": No space left on device (28)', True),
        ("fatal: sha1 file write error: Disk quota exceeded", True),
        ("space", False),
    ],
)
def test_what_means_that_there_is_no_room(error: OSError | str, found: bool) -> None:
    assert is_full(error) is found


def test_the_error_names_path_needed_and_free(tmp_path: Path) -> None:
    said = str(full(tmp_path / "not/there/yet", "the download", 3_000_000_000))
    assert said.startswith(f"{tmp_path}/not/there/yet: the download: no room: 2.8 GiB needed, ")
    assert " free\n  next: free space there" in said
