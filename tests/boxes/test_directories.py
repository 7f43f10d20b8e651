"""The local directories: proven by writing, nothing left of the proof."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fdl_tasks.boxes.data import directories
from fdl_tasks.boxes.data.directories import global_root, prove
from fdl_tasks.boxes.data.mounts import Mount, mounted_at, mounted_over, mounts
from fdl_tasks.errors import PermanentError
from tests.boxes.one_step import UNPRIVILEGED, outcome
from tests.lab.lab import Lab
from tests.lab.system import run


@pytest.fixture
def box(tmp_path: Path) -> dict[str, str]:
    """A box as it should be: its own home and temp directory."""
    for name in ("home", "temp"):
        (tmp_path / name).mkdir()
    return {"HOME": str(tmp_path / "home"), "TMPDIR": str(tmp_path / "temp")}


def proven(env: dict[str, str]) -> tuple[Path | None, list[str]]:
    notes: list[str] = []
    return prove(env, notes.append), notes


def refused(env: dict[str, str]) -> str:
    with pytest.raises(PermanentError) as caught:
        proven(env)
    return str(caught.value)


@pytest.mark.parametrize(
    ("env", "root"),
    [
        ({"HOME": "/home/u"}, "/home/u/.flodl"),
        ({"HOME": "/home/u", "FLODL_HOME": "/disk/flodl"}, "/disk/flodl"),
        ({"HOME": "/home/u", "FLODL_HOME": ""}, "/home/u/.flodl"),
        ({"FLODL_HOME": "/disk/flodl"}, "/disk/flodl"),
        ({"HOME": ""}, None),
        ({}, None),
    ],
)
def test_the_global_root_is_flodl_home_else_below_home(env: dict[str, str], root: str | None) -> None:
    assert global_root(env) == (Path(root) if root else None)


def test_a_good_box_gets_its_cache_and_no_probe_file_stays(box: dict[str, str]) -> None:
    root, _ = proven(box)
    assert root == Path(box["HOME"]) / ".flodl"
    assert [path.relative_to(box["HOME"]) for path in Path(box["HOME"]).rglob("*")] == [
        Path(".flodl"),
        Path(".flodl/data"),
    ]
    assert list(Path(box["TMPDIR"]).iterdir()) == []


def test_the_second_time_is_as_good_as_the_first(box: dict[str, str]) -> None:
    assert proven(box)[0] == proven(box)[0]


def test_the_dataset_cache_stays_at_home_wherever_flodl_home_is(box: dict[str, str], tmp_path: Path) -> None:
    root, _ = proven({**box, "FLODL_HOME": str(tmp_path / "elsewhere")})
    assert root == tmp_path / "elsewhere"
    assert Path(box["HOME"], ".flodl/data").is_dir()


@pytest.mark.parametrize("home", [None, ""])
def test_without_a_home_there_is_a_note_and_no_root(box: dict[str, str], home: str | None) -> None:
    env = {"TMPDIR": box["TMPDIR"]} | ({} if home is None else {"HOME": home})
    root, notes = proven(env)
    assert root is None
    assert "HOME is not set" in notes[0]


@pytest.mark.parametrize("name", ["HOME", "TMPDIR", "FLODL_HOME"])
def test_a_relative_directory_is_refused_by_its_name(box: dict[str, str], name: str) -> None:
    assert f"{name} is 'here'" in refused({**box, name: "here"})


def test_a_home_that_is_not_there_yet_is_made_with_the_cache(box: dict[str, str], tmp_path: Path) -> None:
    proven({**box, "HOME": str(tmp_path / "new/home")})
    assert (tmp_path / "new/home/.flodl/data").is_dir()


def test_a_home_that_is_a_file_is_permanent(box: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    message = refused({**box, "HOME": str(tmp_path / "file")})
    assert "can't be made: Not a directory" in message
    assert "set HOME" in message


def test_a_cache_that_is_a_file_or_a_link_to_nothing_is_permanent(box: dict[str, str]) -> None:
    flodl = Path(box["HOME"]) / ".flodl"
    flodl.mkdir()
    (flodl / "data").symlink_to("/nowhere/at/all")
    assert "File exists" in refused(box)
    assert str(flodl / "data") in refused(box)


@pytest.mark.parametrize("value", [None, ""])
def test_without_tmpdir_it_is_slash_tmp(
    box: dict[str, str], value: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    probes: list[Path] = []
    monkeypatch.setattr(directories, "_write_and_delete", probes.append)
    proven({"HOME": box["HOME"]} | ({} if value is None else {"TMPDIR": value}))
    assert [probe.parent for probe in probes] == [Path(box["HOME"]) / ".flodl/data", Path("/tmp")]


def test_a_missing_temp_directory_is_permanent_and_never_made(box: dict[str, str], tmp_path: Path) -> None:
    message = refused({**box, "TMPDIR": str(tmp_path / "absent")})
    assert f"{tmp_path / 'absent'}: the temp directory can't be written to: No such file or directory" in message
    assert "TMPDIR" in message
    assert not (tmp_path / "absent").exists()


@pytest.mark.parametrize("kind", ["file", "loop", "dangling"])
def test_a_temp_directory_that_is_none_is_permanent(box: dict[str, str], tmp_path: Path, kind: str) -> None:
    place = tmp_path / kind
    if kind == "file":
        place.write_text("x")
    else:
        place.symlink_to(place if kind == "loop" else tmp_path / "gone")
    words = {"file": "Not a directory", "loop": "Too many levels of symbolic links", "dangling": "No such file"}
    assert words[kind] in refused({**box, "TMPDIR": str(place)})


def test_a_temp_directory_may_be_a_link(box: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(box["TMPDIR"])
    assert proven({**box, "TMPDIR": str(tmp_path / "link")})[0]


def test_little_room_is_a_note(box: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directories, "free", lambda folder: (1 << 30) - 1 if "temp" in str(folder) else 1 << 30)
    notes = [note for note in proven(box)[1] if "free" in note]
    assert notes == [f"the temp directory {box['TMPDIR']} has 1024.0 MiB free: less than any real dataset takes"]


@pytest.mark.parametrize("moment", ["fsync", "fdopen"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError(5, "Input/output error")])
def test_whatever_ends_the_proof_the_probe_is_removed(
    box: dict[str, str], moment: str, error: BaseException | type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*args: object) -> None:
        assert list(Path(box["HOME"], ".flodl/data").iterdir()), "the probe is there at this moment"
        raise error

    monkeypatch.setattr(os, moment, fails)
    with pytest.raises((KeyboardInterrupt, PermanentError)):
        proven(box)
    assert list(Path(box["HOME"], ".flodl/data").iterdir()) == []


def test_a_probe_never_writes_through_a_link_that_was_planted(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("precious")
    (tmp_path / "probe").symlink_to(tmp_path / "precious")
    with pytest.raises(FileExistsError):
        directories._write_and_delete(tmp_path / "probe")
    assert (tmp_path / "precious").read_text() == "precious"


def test_probe_names_cannot_be_guessed(box: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    probes: list[Path] = []
    monkeypatch.setattr(directories, "_write_and_delete", probes.append)
    proven(box)
    proven(box)
    assert len({probe.name for probe in probes}) == 4
    assert all(len(probe.name.rpartition("-")[2]) == 32 for probe in probes)


TABLE = (
    Mount("/dev/sda1", "ext4", Path("/")),
    Mount("first", "ext4", Path("/data")),
    Mount("second", "tmpfs", Path("/data")),
    Mount("other", "nfs", Path("/database")),
)


@pytest.mark.parametrize(
    ("path", "at", "over"),
    [
        ("/data", "second", "second"),
        ("/data/x/y", None, "second"),
        ("/databas", None, "/dev/sda1"),
        ("/", "/dev/sda1", "/dev/sda1"),
    ],
)
def test_the_topmost_mount_at_or_over_a_path_is_found(path: str, at: str | None, over: str) -> None:
    found = mounted_at(Path(path), TABLE)
    assert (found.source if found else None) == at
    assert (there := mounted_over(Path(path), TABLE))
    assert there.source == over


def test_this_machines_mounts_are_read() -> None:
    assert mounted_at(Path("/proc"), mounts()) == Mount("proc", "proc", Path("/proc"))


# -- on real file systems ---------------------------------------------------------------------


def test_memory_and_little_room_are_notes(lab: Lab, box: dict[str, str]) -> None:
    with lab.small_disk(Path(box["TMPDIR"]), "1m"):
        _, notes = proven(box)
    temp = [note for note in notes if box["TMPDIR"] in note]
    assert [("tmpfs" in temp[0], "memory" in temp[0]), "1.0 MiB free" in temp[1]] == [(True, True), True]


@pytest.mark.parametrize("name", ["HOME", "TMPDIR"])
def test_a_full_disk_is_permanent_with_what_is_free(lab: Lab, box: dict[str, str], name: str) -> None:
    with lab.small_disk(Path(box[name]), "64k") as disk:
        (disk / ".flodl/data").mkdir(parents=True)
        fill = disk / "fill"
        with pytest.raises(OSError, match="No space"), fill.open("wb", buffering=0) as stream:
            while True:
                stream.write(bytes(4096))
        message = refused(box)
        assert sorted(path.name for path in disk.rglob("*")) == [".flodl", "data", "fill"]
    assert "no room: 4 KiB needed, 0 KiB free" in message
    assert box[name] in message


@pytest.mark.parametrize(("name", "words"), [("HOME", "can't be made"), ("TMPDIR", "can't be written to")])
def test_a_read_only_disk_is_permanent(lab: Lab, box: dict[str, str], name: str, words: str) -> None:
    with lab.small_disk(Path(box[name]), "64k") as disk:
        run("mount", "-o", "remount,ro", disk)
        assert f"{words}: Read-only file system" in refused(box)


@pytest.mark.subprocess
@pytest.mark.parametrize(("name", "words"), [("HOME", "can't be made"), ("TMPDIR", "can't be written to")])
def test_a_directory_that_is_not_the_users_is_permanent(box: dict[str, str], name: str, words: str) -> None:
    Path(box[name]).chmod(0o555)
    before = UNPRIVILEGED if os.geteuid() == 0 else ()
    answer = outcome(*before, env=box)
    assert answer["class"] == "permanent"
    assert f"{words}: Permission denied" in answer["message"]


@pytest.mark.subprocess
def test_a_directory_that_nothing_can_be_deleted_from_is_not_writable(lab: Lab, box: dict[str, str]) -> None:
    temp = Path(box["TMPDIR"])
    if run("chattr", "+a", temp, check=False).returncode:
        pytest.skip("this file system knows no append-only directories")
    try:
        assert "Operation not permitted" in refused(box)
    finally:
        run("chattr", "-a", temp)
