"""Any archive at all: what passes the sender's filter is what ``tarfile`` sees, without what is left out."""

from __future__ import annotations

import io
import tarfile
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Literal, cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fdl_tasks.images import sender
from tests.images.archives import Archive, entry

pytestmark = pytest.mark.subprocess

NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=300).filter(
    lambda name: name.strip("/") == name and not name.startswith("./") and name not in sender.TAIL
)
KINDS = st.sampled_from([tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE])
ENTRIES = st.dictionaries(NAMES, st.tuples(KINDS, st.binary(max_size=2000)), max_size=8)


class Collected:
    """A stand-in for the fan-out: what each group gets, by its identity."""

    alive = ("somebody",)

    def __init__(self) -> None:
        self.got: dict[int, bytes] = {}

    def put(self, groups: Iterable[sender.Group], data: memoryview, last: bool = False) -> None:
        for group in groups:
            self.got[id(group)] = self.got.get(id(group), b"") + data


def seen(data: bytes) -> list[tuple[str, bytes, str, bytes]]:
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        return [
            (info.name, info.type, info.linkname, (tar.extractfile(info).read() if info.isreg() else b""))  # type: ignore[union-attr]
            for info in tar
        ]


def written(entries: dict[str, tuple[bytes, bytes]], form: int) -> bytes:
    """The entries, and behind them an image of one layer."""
    found = io.BytesIO()
    with tarfile.open(fileobj=found, mode="w", format=form) as tar:
        for name, (kind, data) in entries.items():
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, name[::-1] if kind in (tarfile.SYMTYPE, tarfile.LNKTYPE) else ""
            info.size = len(data) if kind == tarfile.REGTYPE else 0
            tar.addfile(info, io.BytesIO(data))
    body = found.getvalue()[: tar.offset - 2 * 512]
    return body + Archive().image([b"layer"]).bytes()


@pytest.mark.parametrize("form", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(entries=ENTRIES, data=st.data())
def test_a_filtered_archive_is_tarfiles_view_without_the_omitted(
    form: int, entries: dict[str, tuple[bytes, bytes]], data: st.DataObject
) -> None:
    omit = data.draw(st.sets(st.sampled_from(sorted(entries)))) if entries else set()
    saved = written(entries, form)
    every, less, out = sender.Group([], set()), sender.Group([], omit), Collected()
    with tempfile.NamedTemporaryFile() as file:
        Path(file.name).write_bytes(saved)
        sender.transfer(sender.Saved(["cat", file.name]), [every, less], cast(sender.FanOut, out))
    assert out.got[id(every)] == saved
    assert seen(out.got[id(less)]) == [one for one in seen(saved) if one[0] not in omit]


@pytest.mark.parametrize("size", [8 << 30, 20_000_000_000, 0])
@pytest.mark.parametrize("form", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_sizes_beyond_eight_gibibytes_are_read(size: int, form: Literal[1, 2], tmp_path: Path) -> None:
    info = tarfile.TarInfo(entry("sha256:" + "0" * 64))
    info.size = size
    (tmp_path / "head").write_bytes(info.tobuf(form) + bytes(1024))
    assert next(sender.entries(sender.Saved(["cat", str(tmp_path / "head")]))).size == size
