from __future__ import annotations

import os
import random
import stat
import struct
import subprocess
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from fdl_tasks.boxes.torch import unpack as subject
from fdl_tasks.boxes.torch.unpack import unpack
from fdl_tasks.errors import PermanentError, PrepareError, TransientError
from tests.boxes.server import SOUND, Member, archive


def unpacked(folder: Path, data: bytes) -> Path:
    (folder / "x.zip").write_bytes(data)
    (folder / "in").mkdir()
    unpack(folder / "x.zip", folder / "in")
    return folder / "in"


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir())


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_an_archive_is_unpacked_as_it_is(tmp_path: Path, compression: int) -> None:
    into = unpacked(tmp_path, archive(SOUND, compression))
    assert {name: (into / name).read_bytes() for name in files(into)} == {
        name: member.data for name, member in SOUND.items() if not name.endswith("/")
    }


@pytest.mark.parametrize(
    ("mode", "after"),
    [(0o644, 0o644), (0o755, 0o755), (0o600, 0o644), (0o700, 0o744), (0o777, 0o755), (0o666, 0o644), (0, 0o644),
     (0o4755, 0o755), (0o2755, 0o755), (0o6777, 0o755), (0o1644, 0o644)],
)  # fmt: skip
def test_what_can_be_executed_stays_so_and_nothing_is_setuid(tmp_path: Path, mode: int, after: int) -> None:
    into = unpacked(tmp_path, archive({"a": Member(b"x", stat.S_IFREG | mode)}))
    assert stat.S_IMODE((into / "a").stat().st_mode) == after


@pytest.mark.parametrize(
    "name",
    ["../x", "libtorch/../../x", "/tmp/x", "//x", "libtorch/..", "..\\x", "libtorch\\..\\..\\x", "C:\\x", "a\\b",
     "libtorch/../libtorch/x"],
)  # fmt: skip
def test_a_member_that_climbs_out_is_refused_and_nothing_is_unpacked(tmp_path: Path, name: str) -> None:
    with pytest.raises(PermanentError, match="leads out of the archive") as told:
        unpacked(tmp_path, archive({**SOUND, name: Member(b"bad")}))
    assert repr(name) in told.value.what
    assert files(tmp_path) == ["x.zip"]


@pytest.mark.parametrize(
    ("member", "why"),
    [
        (("a\0b", Member(b"x")), "is no name for a file"),
        (("a\x1b[2J", Member(b"x")), "is no name for a file"),
        (("a\nb", Member(b"x")), "is no name for a file"),
        (("a\u202eb", Member(b"x")), "is no name for a file"),
        (("libtorch/lib", Member(b"/etc", stat.S_IFLNK | 0o777)), "neither a file nor a directory"),
        (("libtorch/x", Member(b"../../..", stat.S_IFLNK | 0o777)), "neither a file nor a directory"),
        (("dev", Member(b"", stat.S_IFBLK | 0o666)), "neither a file nor a directory"),
        (("pipe", Member(b"", stat.S_IFIFO | 0o666)), "neither a file nor a directory"),
    ],
)
def test_what_is_no_ordinary_member_is_refused(tmp_path: Path, member: tuple[str, Member], why: str) -> None:
    name, content = member
    with pytest.raises(PermanentError, match=why) as told:
        unpacked(tmp_path, archive({**SOUND, name: content}))
    assert "\x1b" not in str(told.value)
    assert files(tmp_path) == ["x.zip"]


@pytest.mark.parametrize("last", [("a", "a/b"), ("a/b", "a"), ("a", "a"), ("a", "./a"), ("x" * 300, "y")])
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_members_in_the_way_of_each_other_are_refused(tmp_path: Path, last: tuple[str, str]) -> None:
    out = tmp_path / "double.zip"
    with zipfile.ZipFile(out, "w") as zipped:
        for name in last:
            zipped.writestr(name, b"x")
    with pytest.raises(PermanentError, match="can't be unpacked: "):
        unpacked(tmp_path, out.read_bytes())


def test_far_too_many_members_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "MEMBERS", 100)
    with pytest.raises(PermanentError, match="it has 101 members"):
        unpacked(tmp_path, archive({str(number): Member() for number in range(101)}))


@pytest.mark.parametrize("said", [(1 << 20) - 1, (1 << 20) + 1, 0x7FFFFFFF])
def test_a_member_that_lies_about_its_size_is_never_more_than_it_says(tmp_path: Path, said: int) -> None:
    data = bytearray(archive({"libtorch/x": Member(bytes(1 << 20))}))
    struct.pack_into("<I", data, data.rindex(b"PK\1\2") + 24, said)
    with pytest.raises(TransientError, match=r"Bad CRC-32|shorter than it says"):
        unpacked(tmp_path, bytes(data))
    assert (tmp_path / "in/libtorch/x").stat().st_size <= min(said, 1 << 20)


def test_more_than_any_libtorch_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "SIZE", 10 << 20)
    with pytest.raises(PermanentError, match=r"it would be 20\.0 MiB"):
        unpacked(tmp_path, archive({"a": Member(bytes(10 << 20)), "b": Member(bytes(10 << 20))}))


def test_a_full_disk_is_permanent_before_it_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "free", lambda path: 1000)
    with pytest.raises(PermanentError, match=r"unpacking libtorch: no room: 1 KiB needed, .* free"):
        unpacked(tmp_path, archive({"a": Member(bytes(1001))}))
    assert files(tmp_path) == ["x.zip"]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    if os.geteuid() != 0:
        pytest.skip("needs root, to mount a small disk")
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)], check=False).returncode:
        pytest.skip("can't mount here")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.subprocess
def test_a_disk_that_becomes_full_is_permanent_and_told_with_its_figures(
    small_disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subject, "free", lambda path: 1 << 40)  # somebody else fills it meanwhile
    (tmp_path / "x.zip").write_bytes(archive({"a": Member(bytes(3 << 20))}))
    with pytest.raises(PermanentError, match=r"no room: 3\.0 MiB needed, .* free") as told:
        unpack(tmp_path / "x.zip", small_disk)
    assert told.value.where == str(small_disk)


@pytest.mark.parametrize(
    "data",
    [b"", b"<html>please log in</html>", archive(SOUND)[:-10], archive(SOUND)[:200], archive(SOUND)[200:], bytes(100)],
    ids=["empty", "a page", "end cut off", "half", "beginning cut off", "zeros"],
)
def test_what_is_no_whole_zip_is_transient(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(TransientError, match="it is no whole zip") as told:
        unpacked(tmp_path, data)
    assert told.value.where == str(tmp_path / "x.zip")


def test_a_flipped_bit_in_a_member_is_transient(tmp_path: Path) -> None:
    data = bytearray(archive({"a": Member(os.urandom(10_000))}, zipfile.ZIP_STORED))
    data[5000] ^= 1
    with pytest.raises(TransientError, match="Bad CRC-32"):
        unpacked(tmp_path, bytes(data))


def test_whatever_is_broken_ends_in_one_of_the_two_classes_and_stays_inside(tmp_path: Path) -> None:
    good, chance = archive(SOUND), random.Random(5)
    (tmp_path / "in").mkdir()
    for number in range(400):
        data = bytearray(good)
        for _ in range(chance.randint(1, 8)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        (tmp_path / "x.zip").write_bytes(data)
        try:
            into = tmp_path / "in" / str(number)
            into.mkdir()
            unpack(tmp_path / "x.zip", into)
        except PrepareError:
            pass
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "x.zip"]
    assert not [path for path in (tmp_path / "in").rglob("*") if path.is_symlink()]


@pytest.mark.parametrize("at", [6, 8])
def test_an_encrypted_archive_and_an_unknown_compression_are_refused(tmp_path: Path, at: int) -> None:
    data = bytearray(archive({"a": Member(b"x" * 100)}))
    for record, offset in ((b"PK\3\4", at), (b"PK\1\2", at + 2)):
        struct.pack_into("<H", data, data.index(record) + offset, {6: 1, 8: 12}[at])
    with pytest.raises(PermanentError, match="is encrypted, or compressed in a way"):
        unpacked(tmp_path, bytes(data))


def test_progress_counts_what_is_unpacked(tmp_path: Path) -> None:
    told = list[tuple[int, int | None]]()
    (tmp_path / "x.zip").write_bytes(archive({"a": Member(bytes(3 << 20)), "b": Member(b"x")}))
    (tmp_path / "in").mkdir()
    unpack(tmp_path / "x.zip", tmp_path / "in", progress=lambda done, total: told.append((done, total)))
    assert told[-1] == ((3 << 20) + 1, (3 << 20) + 1)
    assert len(told) == 4
