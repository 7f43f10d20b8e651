"""The identity of a variant: whatever could change what a binary is linked against changes it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from fdl_tasks.errors import BuildError
from fdl_tasks.stamp import identity

NEW = 2_000_000_000_000_000_000


def make(top: Path) -> Path:
    (top / "lib" / "sub").mkdir(parents=True)
    (top / "include").mkdir()
    (top / "build-version").write_text("2.10.0+cpu\n")
    (top / "lib" / "libtorch.so.2").write_bytes(b"one")
    (top / "lib" / "libtorch.so").symlink_to("libtorch.so.2")
    (top / "lib" / "sub" / "x").write_bytes(b"x")
    return top


def touch(path: Path) -> None:
    os.utime(path, ns=(NEW, NEW))


def longer(path: Path) -> None:
    before = path.stat()
    path.write_bytes(path.read_bytes() + b"+")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


CHANGES: dict[str, Callable[[Path], object]] = {
    "another version": lambda top: (top / "build-version").write_text("2.11.0+cpu\n"),
    "no version": lambda top: (top / "build-version").unlink(),
    "a new time": lambda top: touch(top / "lib" / "libtorch.so.2"),
    "a new size": lambda top: longer(top / "lib" / "libtorch.so.2"),
    "a new name": lambda top: (top / "lib" / "libtorch.so.2").rename(top / "lib" / "libtorch.so.3"),
    "one more": lambda top: (top / "lib" / "libc10.so").touch(),
    "one less": lambda top: (top / "lib" / "sub" / "x").unlink(),
    "below": lambda top: touch(top / "lib" / "sub" / "x"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_seen(tmp_path: Path, change: str) -> None:
    top = make(tmp_path)
    before = identity(top)
    CHANGES[change](top)
    assert identity(top) != before


def test_the_target_of_a_link_outside_lib_counts(tmp_path: Path) -> None:
    top, outside = make(tmp_path / "a"), tmp_path / "libcuda.so"
    outside.touch()
    (top / "lib" / "libcuda.so").symlink_to(outside)
    before = identity(top)
    touch(outside)
    assert identity(top) != before


def test_what_is_not_in_lib_does_not_count(tmp_path: Path) -> None:
    top = make(tmp_path)
    before = identity(top)
    (top / "include" / "torch.h").touch()
    assert identity(top) == before


def test_a_dangling_link_is_no_error(tmp_path: Path) -> None:
    top = make(tmp_path)
    (top / "lib" / "libtorch.so.2").unlink()
    assert len(identity(top)) == 64


def test_an_unreadable_version_is_an_error_that_names_the_place(tmp_path: Path) -> None:
    top = make(tmp_path)
    (top / "build-version").unlink()
    (top / "build-version").mkdir()
    with pytest.raises(BuildError, match=str(top)):
        identity(top)
