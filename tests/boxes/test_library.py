from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from fdl_tasks.arch import Vendor
from fdl_tasks.boxes.gpu.gpus import Gpu
from fdl_tasks.boxes.torch import download as downloads
from fdl_tasks.boxes.torch import library, staging
from fdl_tasks.boxes.torch.download import Progress, silent
from fdl_tasks.boxes.torch.library import Libtorch, Settings, acquire
from fdl_tasks.errors import FdlError, PermanentError, TransientError, UsageError
from tests.boxes.server import RELEASE, SOUND, Answer, Member, Server, archive, serving, sound

ZIP = archive(SOUND)
TOP = Path(__file__).resolve().parents[2]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(downloads, "PAUSE", 0.001)
    monkeypatch.setattr("platform.system", lambda: "Linux")
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    with serving(monkeypatch, Answer(ZIP)) as made:
        yield made


class Box:
    """A global root, and what was noted on the way."""

    def __init__(self, root: Path, server: Server):
        self.root, self.server, self.notes = root, server, list[str]()

    def get(
        self,
        token: str = "cpu",
        *gpus: Gpu,
        sha256: str | None = None,
        release: str = RELEASE,
        progress: Progress = silent,
        unpacking: Progress | None = None,
    ) -> Libtorch:
        settings = Settings(self.server.url, release, sha256)
        how = {"settings": settings, "note": self.notes.append, "progress": progress, "unpacking": unpacking}
        return acquire(token, self.root, gpus, **how)  # type: ignore[arg-type]

    @property
    def place(self) -> Path:
        return self.root / "libtorch"

    def names(self) -> list[str]:
        """All that is there, but for what is inside of variants and for the lock."""
        found = [path for depth in ("*", "*/*") for path in self.place.glob(depth)]
        return sorted(str(path.relative_to(self.place)) for path in found if not path.name.startswith(staging.LOCK))

    def read(self, name: str) -> str:
        return (self.place / name).read_text()


@pytest.fixture
def box(tmp_path: Path, server: Server) -> Box:
    return Box(tmp_path / "root", server)


INSTALLED = [".active", "precompiled", "precompiled/cpu"]


def test_a_variant_is_fetched_installed_and_active(box: Box) -> None:
    got = box.get()
    assert got == Libtorch(box.place / "precompiled/cpu", "precompiled/cpu", "cpu")
    assert box.server.paths == ["/cpu/libtorch-shared-with-deps-2.10.0%2Bcpu.zip"]
    assert box.names() == INSTALLED
    assert box.read(".active") == "precompiled/cpu\n"
    assert box.read("precompiled/cpu/.arch") == "cuda=none\ntorch=2.10.0\narchs=cpu\nsource=precompiled\nvariant=cpu\n"
    assert (got.dir / "lib/libtorch.so").read_bytes() == SOUND["libtorch/lib/libtorch.so"].data
    assert box.notes == [f"libtorch: precompiled/cpu at {got.dir}"]


def test_everybody_may_read_what_is_installed(box: Box) -> None:
    got = box.get()
    paths = [got.dir, got.dir / "lib", got.dir / "lib/libtorch.so", got.dir / "build-version", got.dir / ".arch"]
    modes = [stat.S_IMODE(path.stat().st_mode) for path in [*paths, box.place / ".active"]]
    assert modes == [0o755, 0o755, 0o755, 0o644, 0o644, 0o644]


@pytest.mark.parametrize(
    ("token", "name", "bucket", "version"),
    [
        ("cu128", "precompiled/cu128", "cu128", "cu128"),
        ("cu128", "precompiled/cu128", "cu128", "of.our.own"),
        ("rocm7.1", "precompiled/rocm71", "rocm7.1", "rocm7.1"),
        ("auto", "precompiled/cu126", "cu126", "cu126"),
    ],
)
def test_every_variant_has_its_own_place(box: Box, token: str, name: str, bucket: str, version: str) -> None:
    box.server.answers[:] = [Answer(archive(sound(version)))]
    got = box.get(token, Gpu(Vendor.NVIDIA, 0, "GTX 1060", "6.1", 6144))
    assert got.variant == name
    assert box.server.paths[0].startswith(f"/{bucket}/")


@pytest.mark.parametrize(
    ("token", "holds"), [("rocm7.0", "cpu"), ("cu128", "cpu"), ("cu128", "rocm7.0"), ("cpu", "cu126")]
)
def test_a_mirror_that_gives_out_another_kind_is_refused(box: Box, token: str, holds: str) -> None:  # pain point 34
    box.server.answers[:] = [Answer(archive(sound(holds)))]
    with pytest.raises(PermanentError, match=rf"its build-version is '2\.10\.0\+{holds}', not 2\.10\.0\+{token}"):
        box.get(token)
    assert box.names() == ["precompiled"]


@pytest.mark.parametrize("build_version", ["2.10.0", "2.10.0\n", "2.10.0+cpu"])
def test_the_second_run_asks_nobody(box: Box, build_version: str) -> None:
    first = box.get()
    (first.dir / "build-version").write_text(build_version)
    assert box.get() == first
    assert len(box.server.requests) == 1
    assert box.notes[0] == box.notes[1]


def test_what_is_there_is_made_active_and_told_as_it_is_without_network(box: Box) -> None:
    box.get()
    (box.place / ".active").write_text("precompiled/other\n")
    (box.place / "precompiled/cpu/.arch").write_text("archs=none of them\n")
    box.get()
    assert (box.read(".active"), box.read("precompiled/cpu/.arch").splitlines()[2]) == (
        "precompiled/cpu\n",
        "archs=cpu",
    )
    (box.place / ".active").unlink()
    (box.place / "precompiled/cpu/.arch").unlink()
    box.get()
    assert box.read(".active") == "precompiled/cpu\n"
    assert len(box.server.requests) == 1
    assert box.names() == INSTALLED


@pytest.mark.parametrize("spoil", ["lib", "build-version", "release", "kind"])
def test_what_is_not_that_release_whole_is_replaced(box: Box, spoil: str) -> None:
    got = box.get()
    (got.dir / "of the old one").touch()
    if spoil == "lib":
        (got.dir / "lib").rename(got.dir / "lib64")
    elif spoil == "build-version":
        (got.dir / "build-version").unlink()
    else:
        (got.dir / "build-version").write_text("2.9.1+cpu" if spoil == "release" else "2.10.0+cu128")
    box.get()
    assert len(box.server.requests) == 2
    assert (got.dir / "lib/libtorch.so").exists()
    assert not (got.dir / "of the old one").exists()
    assert box.names() == INSTALLED


def test_a_link_in_the_place_is_replaced_and_what_it_leads_to_stays(box: Box, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/precious").touch()
    (box.place / "precompiled").mkdir(parents=True)
    (box.place / "precompiled/cpu").symlink_to(tmp_path / "mine")
    box.get()
    assert not (box.place / "precompiled/cpu").is_symlink()
    assert (tmp_path / "mine/precious").exists()


@pytest.mark.parametrize("system", ["Linux aarch64", "Darwin arm64", "Darwin x86_64", "Windows AMD64"])
@pytest.mark.parametrize("token", ["rocm7.0", "cpu", "auto"])
def test_elsewhere_than_on_linux_x86_64_nothing_is_put_in_its_place(  # pain point 34
    box: Box, monkeypatch: pytest.MonkeyPatch, system: str, token: str
) -> None:
    monkeypatch.setattr("platform.system", lambda: system.split()[0])
    monkeypatch.setattr("platform.machine", lambda: system.split()[1])
    with pytest.raises(PermanentError, match=system.replace(" ", " on ")) as told:
        box.get(token)
    assert "builds/" in told.value.hint
    assert box.server.requests == []
    assert not box.root.exists()


def test_an_unknown_token_is_permanent_before_anything_is_touched(box: Box) -> None:
    with pytest.raises(PermanentError, match="'cu999'"):
        box.get("cu999")
    assert not box.root.exists()


TOPLESS = {name.removeprefix("libtorch/"): member for name, member in SOUND.items() if name != "libtorch/"}
OTHER_TOP = {name.replace("libtorch/", "torch/", 1): member for name, member in SOUND.items()}
NO_LIB = {name: member for name, member in SOUND.items() if "/lib/" not in name}
OLD = {**SOUND, "libtorch/build-version": Member(b"2.9.1+cpu\n")}
UNVERSIONED = {name: member for name, member in SOUND.items() if "version" not in name}


@pytest.mark.parametrize(
    ("answer", "error", "why"),
    [
        (Answer(status=404), TransientError, "the server answers 404"),
        (Answer(ZIP, stop=20), TransientError, "the download failed"),
        (Answer(b"<html>log in first</html>"), TransientError, "no whole zip"),
        (Answer(ZIP[:-30]), TransientError, "no whole zip"),
        (Answer(archive({**SOUND, "../../x": Member(b"bad")})), PermanentError, "leads out of the archive"),
        (Answer(archive(TOPLESS)), PermanentError, "has no libtorch/lib/"),
        (Answer(archive(OTHER_TOP)), PermanentError, "has no libtorch/lib/"),
        (Answer(archive(NO_LIB)), PermanentError, "has no libtorch/lib/"),
        (Answer(archive(OLD)), PermanentError, r"its build-version is '2\.9\.1\+cpu', not 2\.10\.0\+cpu"),
        (Answer(archive(UNVERSIONED)), PermanentError, "its build-version is '', not"),
    ],
    ids=["404", "cut off", "a page", "torn", "climbs", "no top", "other top", "no lib", "old", "no version"],
)
@pytest.mark.parametrize("before", [False, True])
def test_what_fails_leaves_things_as_they_were(
    box: Box, answer: Answer, error: type[FdlError], why: str, before: bool
) -> None:
    if before:
        (box.get().dir / "build-version").write_text("2.8.0")
        (box.place / ".active").write_text("builds/mine\n")
    box.server.answers[:] = [answer]
    with pytest.raises(error, match=why) as told:
        box.get()
    assert told.value.where == box.server.url + box.server.paths[-1]
    assert box.names() == (INSTALLED if before else ["precompiled"])
    if before:
        assert box.read("precompiled/cpu/build-version") == "2.8.0"
        assert box.read(".active") == "builds/mine\n"


def test_no_password_of_a_mirror_is_shown(box: Box) -> None:
    box.server.answers[:] = [Answer(archive(NO_LIB))]
    box.server.url = box.server.url.replace("http://", "http://me:secret@")
    with pytest.raises(PermanentError) as told:
        box.get()
    assert "127.0.0.1" in told.value.where
    assert "secret" not in str(told.value)


def test_a_pinned_hash_holds(box: Box) -> None:
    with pytest.raises(TransientError, match="is pinned"):
        box.get(sha256="0" * 64)
    assert box.names() == ["precompiled"]


@pytest.mark.parametrize("when", ["progress", "unpacking"])
def test_ctrl_c_leaves_nothing_half_installed(box: Box, when: str) -> None:
    def interrupt(done: int, total: int | None) -> None:
        assert list((box.place / "precompiled").glob(f"{staging.STAGING}*/*"))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        box.get(**{when: interrupt})  # type: ignore[arg-type]
    assert box.names() == ["precompiled"]


def test_staging_is_beside_the_destination_whatever_tmp_is(  # pain point 33
    box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", "/nowhere")
    monkeypatch.setattr("tempfile.tempdir", "/nowhere")
    seen = list[Path]()

    def look(done: int, total: int | None) -> None:
        seen.extend((box.place / "precompiled").glob(f"{staging.STAGING}*/libtorch.zip"))

    box.get(progress=look)
    assert seen
    assert box.names() == INSTALLED


def test_what_a_killed_run_left_is_removed_by_the_next(box: Box) -> None:
    left = box.place / "precompiled" / f"{staging.STAGING}abc"
    (left / "zip").mkdir(parents=True)
    (left / "libtorch.zip").write_bytes(bytes(1000))
    box.get()
    assert box.names() == INSTALLED


def test_a_second_run_waits_for_the_first_and_finds_its_work_done(box: Box) -> None:
    other = Box(box.root, box.server)
    second = threading.Thread(target=lambda: other.get())

    def slow(done: int, total: int | None) -> None:
        if second.ident:
            return
        second.start()
        deadline = time.monotonic() + 10
        while not other.notes and time.monotonic() < deadline:
            time.sleep(0.01)
        assert len(list((box.place / "precompiled").glob(f"{staging.STAGING}*"))) == 1

    box.get(unpacking=slow)
    second.join(10)
    doing = f"installs a libtorch ({box.place}/precompiled/.fdl-lock)"
    assert other.notes[0] == f"waiting for process {os.getpid()} on {socket.gethostname()}, which {doing}"
    assert other.notes[1:] == box.notes
    assert len(box.server.requests) == 1


def test_where_nothing_can_be_locked_it_goes_on_and_removes_nobodys_staging(
    box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unable(self: object, timeout: float = 0) -> None:
        raise NotImplementedError("no locks here")

    monkeypatch.setattr("filelock.FileLock.acquire", unable)
    left = box.place / "precompiled" / f"{staging.STAGING}of-another"
    left.mkdir(parents=True)
    box.get()
    assert left.is_dir()
    assert "can't be locked (no locks here)" in box.notes[0]


def test_a_variant_is_complete_when_it_comes_to_its_place(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    def looked(new: Path, to: Path, *, aside: Path) -> None:
        assert "archs=cpu\n" in (new / ".arch").read_text()
        assert not to.exists()
        staging.move(new, to, aside=aside)

    monkeypatch.setattr(library, "move", looked)
    box.get()
    assert box.names() == INSTALLED


def test_a_replacement_that_fails_puts_the_old_one_back(tmp_path: Path) -> None:
    old = tmp_path / "cpu"
    old.mkdir()
    with pytest.raises(FileNotFoundError):
        staging.move(tmp_path / "not there", old, aside=tmp_path / "aside")
    assert old.is_dir()
    assert not (tmp_path / "aside").exists()


@pytest.mark.parametrize("at", ["root", "root/libtorch", "root/libtorch/precompiled"])
def test_a_place_that_is_no_directory_is_permanent(box: Box, tmp_path: Path, at: str) -> None:
    (tmp_path / at).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / at).touch()
    with pytest.raises(PermanentError, match="can't be installed") as told:
        box.get()
    assert str(tmp_path / "root") in told.value.where
    assert "FLODL_HOME" in told.value.hint


def test_a_root_that_cannot_be_written_will_do_where_all_is_in_order(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    box.get()
    monkeypatch.setattr("tempfile.mkstemp", lambda **how: pytest.fail("it wrote"))
    monkeypatch.setattr("filelock.FileLock.acquire", lambda *args, **how: pytest.fail("it locked"))
    box.get()


@pytest.mark.subprocess
def test_a_full_disk_is_permanent_and_is_left_as_it_was(box: Box, tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root, to mount a small disk")
    (tmp_path / "root").mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(box.root)], check=False).returncode:
        pytest.skip("can't mount here")
    try:
        box.server.answers[:] = [Answer(archive({**SOUND, "libtorch/lib/big": Member(bytes(3 << 20))}))]
        with pytest.raises(PermanentError, match=r"unpacking libtorch: no room: 3\.0 MiB needed"):
            box.get()
        box.server.answers[:] = [Answer(os.urandom(3 << 20))]
        with pytest.raises(PermanentError, match=r"the archive of libtorch: no room: 3\.0 MiB needed"):
            box.get()
        box.server.answers[:] = [Answer(os.urandom(3 << 20), length=-1)]
        with pytest.raises(PermanentError, match="the archive of libtorch: no room: more needed, 0 KiB free") as told:
            box.get()
        assert told.value.where == str(box.place / "precompiled")  # what is there still when it is read
        assert box.names() == ["precompiled"]
    finally:
        subprocess.run(["umount", str(box.root)], check=True)


@pytest.mark.subprocess
@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGKILL])
def test_a_run_that_is_ended_from_outside_leaves_nothing_that_the_next_one_keeps(box: Box, end: signal.Signals) -> None:
    box.server.answers[:] = [Answer(ZIP, stop=30, stall=5), Answer(ZIP)]
    program = (
        "import sys; from pathlib import Path; from fdl_tasks.boxes.torch.library import *\n"
        "acquire('cpu', Path(sys.argv[1]), (), settings=Settings(sys.argv[2]), note=print)"
    )
    argv = [sys.executable, "-c", program, str(box.root), box.server.url]
    env = {**os.environ, "PYTHONPATH": str(TOP)}
    with subprocess.Popen(argv, env=env, stderr=subprocess.DEVNULL) as run:
        deadline = time.monotonic() + 30
        while not box.server.requests and time.monotonic() < deadline:
            time.sleep(0.02)
        time.sleep(0.2)
        run.send_signal(end)
        run.wait(10)
    assert len(box.names()) == (1 if end is signal.SIGINT else 2)
    box.get()
    assert box.names() == INSTALLED


def test_progress_is_told_of_both_halves(box: Box) -> None:
    told = list[tuple[str, int, int | None]]()
    box.get(
        progress=lambda done, total: told.append(("down", done, total)),
        unpacking=lambda done, total: told.append(("un", done, total)),
    )
    size = sum(len(member.data) for member in SOUND.values())
    assert ("down", len(ZIP), len(ZIP)) in told
    assert told[-1] == ("un", size, size)


@pytest.mark.parametrize(
    ("done", "total", "text"),
    [
        (0, 100 << 20, "[--------------------]   0%  0 KiB of 100.0 MiB"),
        (50 << 20, 100 << 20, "[##########----------]  50%  50.0 MiB of 100.0 MiB"),
        (5 << 29, 5 << 29, "[####################] 100%  2.5 GiB of 2.5 GiB"),
        (7, 0, "0 KiB"),
        (3 << 20, None, "3.0 MiB"),
        (4, 2, "[####################] 100%  0 KiB of 0 KiB"),
    ],
)
def test_how_far_it_is_is_a_bar_and_figures(done: int, total: int | None, text: str) -> None:
    assert library.amount(done, total) == text


@pytest.mark.parametrize("wrong", [{"base_url": "file:///srv"}, {"release": "2.1"}, {"sha256": "abc"}])
def test_settings_that_cannot_be_right_are_refused_when_they_are_made(wrong: dict[str, str]) -> None:
    with pytest.raises(UsageError):
        replace(library.SETTINGS, **wrong)
