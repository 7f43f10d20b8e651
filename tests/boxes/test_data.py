"""The data: declared or mounted, looked at, and what each trouble with it means."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from fdl_tasks.boxes.data import dataset as data
from fdl_tasks.boxes.data.dataset import Look, absolute, judge, kept, look, prepare_data
from fdl_tasks.boxes.data.listing import listed
from fdl_tasks.boxes.data.mounts import Mount
from fdl_tasks.boxes.specs import Target
from fdl_tasks.boxes.tools import Tools
from fdl_tasks.cluster.model import Ssh
from fdl_tasks.errors import PermanentError, PrepareError, Stage, TransientError, TransportError
from fdl_tasks.hosts.base import Completed
from tests.boxes.one_step import UNPRIVILEGED, outcome
from tests.lab.lab import Lab
from tests.lab.system import run

TABLE = (
    Mount("/dev/sda1", "ext4", Path("/")),
    Mount("exa:/data", "fuse.sshfs", Path("/mnt/far")),
    Mount("nas:/data", "nfs4", Path("/mnt/nas")),
)
FAR = Target("exa:/data")


class Box(Tools):
    """Tools that answer every look with the next of ``looks``, and run nothing."""

    def __init__(self, *looks: dict[str, Any] | BaseException | str):
        super().__init__("box")
        self._looks = list(looks)
        self.ran: list[Sequence[str | Path]] = []

    def need(self, *tools: str) -> None:
        self.ran.append(tools)

    def run(self, argv: Sequence[str | Path], **kwargs: Any) -> Completed:
        self.ran.append(argv)
        answer = self._looks.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        return Completed(0, answer if isinstance(answer, str) else json.dumps(answer), "", 0.1)


def seen(real: str, error: int = 0, *, empty: bool = True) -> dict[str, Any]:
    return {"real": real, "error": error, "empty": empty}


def failing(path: str | None, source: str | None, tools: Tools) -> PrepareError:
    with pytest.raises(PrepareError) as caught:
        prepare_data(path, source, None, tools, lambda note: None)
    return caught.value


# -- the counterparts of the seed's tests -----------------------------------------------------


def test_without_data_fields_nothing_is_prepared_and_nothing_runs() -> None:
    notes: list[str] = []
    box = Box()
    assert prepare_data(None, None, None, box, notes.append) is None
    assert (notes, box.ran) == ([], [])


@pytest.mark.parametrize(
    "spec",
    [
        "/flodl/data",
        "smb://server/share",
        "sshfs://exa",
        "sshfs://exa:banana/data",
        "sshfs://:/flodl/data",
        "sshfs://exa:/",
        "sshfs://-oProxyCommand=x/data",
        "sshfs://exa/da\x1b[2Jta",
        "sshfs://exa/data\n",
        "",
    ],
)
def test_a_broken_source_is_permanent_names_its_field_and_runs_nothing(spec: str) -> None:
    box = Box()
    error = failing("/mnt/far", spec, box)
    assert isinstance(error, PermanentError)
    assert "data_source" in str(error)
    assert str(error).isprintable() or "\n  next: " in str(error)
    assert "\x1b" not in str(error)
    assert box.ran == []


def test_a_bare_path_as_source_is_told_where_it_belongs() -> None:
    assert "data_path:" in str(failing(None, "/flodl/data", Box()))


@pytest.mark.subprocess
def test_a_relative_path_is_handed_on_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "data").mkdir()
    monkeypatch.chdir(tmp_path)
    assert prepare_data("data", None, None, Tools("box"), print) == tmp_path / "data"


@pytest.mark.subprocess
def test_a_declared_path_is_verified_and_given_back_with_no_note(tmp_path: Path) -> None:
    notes: list[str] = []
    (tmp_path / "corpus").touch()
    assert prepare_data(str(tmp_path), None, None, Tools("box"), notes.append) == tmp_path
    assert notes == []


@pytest.mark.subprocess
def test_a_declared_path_that_is_empty_may_be_a_mount_that_is_not_there(tmp_path: Path) -> None:
    notes: list[str] = []
    assert prepare_data(str(tmp_path), None, None, Tools("box"), notes.append) == tmp_path
    assert notes == [f"{tmp_path} is empty: is what should be mounted there?"]


@pytest.mark.subprocess
def test_a_declared_path_that_is_not_there_is_permanent_names_the_ways_out_and_makes_nothing(tmp_path: Path) -> None:
    error = failing(str(tmp_path / "absent"), None, Tools("box"))
    assert isinstance(error, PermanentError)
    for words in ("No such file or directory", "data_path", "data_source:", str(tmp_path / "absent")):
        assert words in str(error)
    assert not (tmp_path / "absent").exists()


@pytest.mark.subprocess
def test_a_directory_needs_no_write_permission(tmp_path: Path) -> None:
    (tmp_path / "corpus").touch()
    tmp_path.chmod(0o555)
    before = UNPRIVILEGED if os.geteuid() == 0 else ()
    assert outcome(*before, path=str(tmp_path)) == {"class": "", "got": str(tmp_path), "notes": []}


# -- paths ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "expected"),
    [("/mnt/x", "/mnt/x"), ("x", "HERE/x"), ("link/../x", "HERE/link/../x"), (".", "HERE"), ("/mnt//x/", "/mnt/x")],
)
def test_a_path_is_made_absolute_without_following_anything(
    path: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "link").symlink_to("/usr/bin")
    monkeypatch.chdir(tmp_path)
    assert str(absolute(path)) == expected.replace("HERE", str(tmp_path))


@pytest.mark.parametrize("path", ["", "  ", "/mnt/a\nb", "/mnt/\x1b[2J", "/mnt/\0", "/mnt/\udcff"])
def test_a_path_that_is_empty_or_unprintable_is_refused_printably(path: str) -> None:
    error = failing(path, None, Box())
    assert isinstance(error, PermanentError)
    assert "data_path" in str(error)
    assert str(error).replace("\n", "").isprintable()


def test_a_current_directory_that_is_gone_is_permanent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert "current directory is gone" in str(failing("data", None, Box()))


@pytest.mark.subprocess
@pytest.mark.parametrize(
    ("kind", "words"),
    [("file", "Not a directory"), ("loop", "Too many levels of symbolic links"), ("dangling", "No such file")],
)
def test_a_path_that_is_no_directory_is_permanent(kind: str, words: str, tmp_path: Path) -> None:
    place = tmp_path / kind
    if kind == "file":
        place.write_text("x")
    else:
        place.symlink_to(place if kind == "loop" else tmp_path / "gone")
    error = failing(str(place), None, Tools("box"))
    assert isinstance(error, PermanentError)
    assert words in str(error)


@pytest.mark.subprocess
def test_a_link_to_a_directory_stays_the_link(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/usr")
    assert prepare_data(str(tmp_path / "link"), None, None, Tools("box"), print) == tmp_path / "link"


@pytest.mark.subprocess
@pytest.mark.parametrize("mode", [0o000, 0o111, 0o444])
def test_a_directory_that_the_user_may_not_list_or_enter_is_permanent(mode: int, tmp_path: Path) -> None:
    place = tmp_path / "closed"
    place.mkdir()
    place.chmod(mode)
    before = UNPRIVILEGED if os.geteuid() == 0 else ()
    answer = outcome(*before, path=str(place))
    place.chmod(0o755)
    assert answer["class"] == "permanent"
    assert "Permission denied" in answer["message"]


# -- looking ----------------------------------------------------------------------------------


def test_a_listing_tells_an_empty_directory_from_one_with_files(tmp_path: Path) -> None:
    assert listed(str(tmp_path)) == {"error": 0, "empty": True, "real": str(tmp_path)}
    (tmp_path / "x").write_text("")
    (tmp_path / "link").symlink_to(tmp_path)
    assert listed(str(tmp_path / "link")) == {"error": 0, "empty": False, "real": str(tmp_path)}


@pytest.mark.subprocess
def test_a_look_survives_any_name(tmp_path: Path) -> None:
    place = tmp_path / "-x 'y\" $(z) ü"
    place.mkdir()
    assert look(place, Tools("box")) == Look(place, 0, empty=True)


def test_a_look_that_takes_too_long_is_given_up() -> None:
    assert look(Path("/mnt/far"), Box(TransportError(Stage.DEADLINE, "10 s"))) is None


@pytest.mark.parametrize("answer", ["", "Killed", "[]", "{}", '{"real": 1}'])
def test_a_look_that_gives_no_answer_is_transient(answer: str) -> None:
    with pytest.raises(TransientError, match="could not be looked at"):
        look(Path("/mnt/far"), Box(answer))


@pytest.mark.parametrize(
    ("path", "error", "kind", "words"),
    [
        ("/mnt/far", errno.ENOTCONN, TransientError, "fusermount -u /mnt/far"),
        ("/mnt/far", errno.EIO, TransientError, "Input/output error"),
        ("/mnt/nas", errno.ESTALE, TransientError, "sudo umount /mnt/nas"),
        ("/mnt/nas/below", errno.ESTALE, TransientError, "sudo umount /mnt/nas"),
        ("/mnt/nas", errno.EHOSTDOWN, TransientError, "Host is down"),
        ("/mnt/nas", errno.EACCES, PermanentError, "Permission denied"),
        ("/mnt/nas/below", errno.ENOENT, PermanentError, "data_source:"),
        ("/home/data", errno.EIO, PermanentError, "Input/output error"),
        ("/home/data", errno.ENOENT, PermanentError, "data_source:"),
        ("/home/data", errno.ENOTDIR, PermanentError, "Not a directory"),
        ("/home/data", errno.ELOOP, PermanentError, "symbolic links"),
    ],
)
def test_what_a_mounts_far_side_may_mend_is_transient_and_nothing_else(
    path: str, error: int, kind: type[PrepareError], words: str
) -> None:
    found = judge(Path(path), Look(Path(path), error), TABLE)
    assert type(found) is kind
    assert words in str(found)
    assert path in str(found)


@pytest.mark.parametrize("path", ["/mnt/far", "/home/da ta"])
def test_what_does_not_list_in_time_is_transient(path: str) -> None:
    found = judge(Path(path), None, TABLE)
    assert type(found) is TransientError
    assert "does not list within 10 s" in str(found)
    assert "fusermount -u" in str(found)


def test_what_lists_is_good() -> None:
    assert judge(Path("/mnt/far"), Look(Path("/mnt/far")), TABLE) is None


# -- mounts that are there already ------------------------------------------------------------


@pytest.mark.parametrize(
    ("there", "told", "way"),
    [
        (Mount("exa:/data", "fuse.sshfs", Path("/m")), 1, ""),
        (Mount("exa:/data/", "fuse.sshfs", Path("/m")), 1, ""),
        (Mount("exa:/other", "fuse.sshfs", Path("/m")), 2, "fusermount -u /m"),
        (Mount("root@exa:/data", "fuse.sshfs", Path("/m")), 2, "fusermount -u /m"),
        (Mount("tmpfs", "tmpfs", Path("/m")), 2, "sudo umount /m; fusermount -u"),
    ],
)
def test_a_mount_that_is_there_is_told_and_once_more_when_it_is_another(there: Mount, told: int, way: str) -> None:
    lines = kept(Path("/m"), there, FAR)
    assert len(lines) == told
    assert f"from {there.source} ({there.kind})" in lines[0]
    assert way in lines[-1]


def test_the_default_mountpoint_is_flodl_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data, "mounts", lambda: (Mount("exa:/data", "fuse.sshfs", Path("/flodl/data")),))
    box = Box(seen("/flodl/data"))
    assert prepare_data(None, "sshfs://exa/data", None, box, print) == Path("/flodl/data")
    assert [argv[-1] for argv in box.ran] == [Path("/flodl/data")]


def test_a_mount_behind_a_link_is_found_and_the_link_is_handed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data, "mounts", lambda: TABLE)
    notes: list[str] = []
    assert prepare_data("/data", "sshfs://exa/data", None, Box(seen("/mnt/far")), notes.append) == Path("/data")
    assert notes == ["/data is mounted already, from exa:/data (fuse.sshfs)"]


@pytest.mark.parametrize("answer", [TransportError(Stage.DEADLINE, "10 s"), seen("/mnt/far", errno.ENOTCONN)])
def test_a_dead_mount_is_transient_and_nothing_is_mounted_over_it(
    answer: dict[str, Any] | BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data, "mounts", lambda: TABLE)
    box = Box(answer)
    assert isinstance(failing("/mnt/far", "sshfs://exa/data", box), TransientError)
    assert len(box.ran) == 1


def test_a_mountpoint_below_a_dead_mount_is_transient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data, "mounts", lambda: TABLE)
    error = failing("/mnt/nas/x", "sshfs://exa/data", Box(seen("/mnt/nas/x", errno.ESTALE)))
    assert isinstance(error, TransientError)


# -- mounting, with a stand-in for sshfs ------------------------------------------------------


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An sshfs of our own, first on the PATH; a test writes what it does."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "sshfs").write_text("#!/bin/sh\nexit 0\n")
    (folder / "sshfs").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return folder / "sshfs"


@pytest.mark.subprocess
def test_success_with_nothing_mounted_is_transient(stand_in: Path, tmp_path: Path) -> None:
    error = failing(str(tmp_path / "m"), "sshfs://exa/data", Tools("box"))
    assert isinstance(error, TransientError)
    assert "reported success, but nothing is mounted from exa:/data" in str(error)


@pytest.mark.subprocess
def test_the_mountpoint_is_made_and_what_it_holds_is_a_note(stand_in: Path, tmp_path: Path) -> None:
    notes: list[str] = []
    for _ in range(2):
        with pytest.raises(TransientError):
            prepare_data(str(tmp_path / "a/m"), "sshfs://exa/data", None, Tools("box"), notes.append)
        (tmp_path / "a/m/own").write_text("x")
    assert notes == [f"{tmp_path}/a/m is not empty: what is in it is hidden while exa:/data is mounted there"]


@pytest.mark.subprocess
def test_a_refusals_words_come_through_and_no_temporary_directory_stays(
    stand_in: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "temp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temp"))
    stand_in.write_text("#!/bin/sh\necho 'remote host has disconnected' >&2; exit 1\n")
    error = failing(str(tmp_path / "m"), "sshfs://exa/data", Tools("box"))
    assert isinstance(error, TransientError)
    assert "internal-sftp -R" in str(error)
    assert list((tmp_path / "temp").iterdir()) == []


@pytest.mark.subprocess
def test_a_missing_temp_directory_is_left_to_the_step_that_proves_it(
    stand_in: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path / "absent"))
    stand_in.write_text("#!/bin/sh\necho lost >&2; exit 7\n")
    error = failing(str(tmp_path / "m"), "sshfs://exa/data", Tools("box"))
    assert "sshfs ended with 7" in str(error)


@pytest.mark.subprocess
def test_an_sshfs_that_waits_forever_is_ended_and_transient(
    stand_in: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data, "MOUNTING", 1.0)
    stand_in.write_text(f"#!/bin/sh\necho $$ >{tmp_path}/pid; exec sleep 60\n")
    error = failing(str(tmp_path / "m"), "sshfs://exa/data", Tools("box"))
    assert isinstance(error, TransientError)
    assert "within 1 s" in str(error)
    assert not Path("/proc", (tmp_path / "pid").read_text().strip()).exists()


@pytest.mark.subprocess
def test_a_missing_sshfs_is_permanent_with_the_install_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bin").mkdir()
    for tool in ("sh", "head", "sleep"):
        (tmp_path / "bin" / tool).symlink_to(f"/bin/{tool}")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    error = failing(str(tmp_path / "m"), "sshfs://exa/data", Tools("box"))
    assert isinstance(error, PermanentError)
    assert "sshfs is not installed" in str(error)
    assert "install -y" in str(error)


@pytest.mark.subprocess
@pytest.mark.parametrize("at", ["file/m", "file", "dangling"])
def test_a_mountpoint_that_cannot_be_made_is_permanent_and_names_both_ways_out(
    at: str, tmp_path: Path, stand_in: Path
) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "dangling").symlink_to(tmp_path / "gone")
    error = failing(str(tmp_path / at), "sshfs://exa/data", Tools("box"))
    assert isinstance(error, PermanentError)
    for words in (f"sudo mkdir -p {tmp_path / at}", "sudo chown $USER", "`data_path:`"):
        assert words in str(error)


def test_a_mountpoint_on_a_read_only_disk_is_permanent(lab: Lab, tmp_path: Path) -> None:
    with lab.small_disk(tmp_path / "ro", "64k") as disk:
        run("mount", "-o", "remount,ro", disk)
        error = failing(str(disk / "m"), "sshfs://exa/data", Tools("box"))
    assert isinstance(error, PermanentError)
    assert "Read-only file system" in str(error)
    assert "sudo mkdir -p" in str(error)


def test_a_prompting_option_is_overruled_aloud(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    notes: list[str] = []
    box = Box(seen(str(tmp_path)), "", seen(str(tmp_path)))
    with pytest.raises(TransientError):
        prepare_data(str(tmp_path), "sshfs://exa/data", Ssh("", options=("BatchMode=no",)), box, notes.append)
    assert "BatchMode=no" in notes[0]
    assert "BatchMode=no" not in " ".join(map(str, box.ran[2]))


def test_a_pinned_key_needs_a_place_to_stay(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("HOME")
    ssh = Ssh("", host_keys=("SHA256:" + "A" * 43,))
    with pytest.raises(PermanentError, match="no place for the pinned host key"):
        prepare_data(str(tmp_path), "sshfs://exa/data", ssh, Box(seen(str(tmp_path))), print)
