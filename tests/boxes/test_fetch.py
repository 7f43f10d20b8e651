"""A tree fetched by the real rsync and git on this machine, and which class each failure has."""

from __future__ import annotations

import hashlib
import os
import pwd
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from fdl_tasks.boxes.source.fetch import fetch, rsync_failure
from fdl_tasks.boxes.source.manifest import FILE, SIDECAR, Manifest
from fdl_tasks.boxes.specs import FileSource, RsyncSource, Target, parse_source
from fdl_tasks.boxes.ssh.pins import pinned
from fdl_tasks.boxes.tools import Tools
from fdl_tasks.cluster.model import Ssh
from fdl_tasks.errors import PermanentError, PrepareError, Stage, TransientError, TransportError
from fdl_tasks.hosts.base import Completed

CASES = Path(__file__).parents[1] / "cases" / "boxes" / "rsync"
FAR, NEAR = RsyncSource(Target("exa:/srv/run/tree", 22)), FileSource(Path("/srv/run/tree"))
OLD = 1_700_000_000


def captured(name: str) -> Completed:
    code, _, err = (CASES / f"{name}.txt").read_text().partition("\n")
    return Completed(int(code), "", err, 0.0)


@pytest.mark.parametrize(
    ("case", "kind", "says"),
    [
        ("refused", TransientError, "Connection refused"),
        ("denied", TransientError, "identity_file"),
        ("lost", TransientError, "closed by remote host"),
        ("no-rsync", TransientError, "the far side has no rsync"),
        ("no-rsync-late", TransientError, "the far side has no rsync"),
        ("no-path", TransientError, "is the path there?"),
        ("rrsync-doubled", TransientError, "rsync://host:/tree"),
        ("vanished", TransientError, "files vanished"),
        ("host-key", PermanentError, "ssh-keygen -R"),
        ("read-only", PermanentError, "Read-only file system"),
        ("unwritable", PermanentError, "this user must be able to write"),
    ],
)
def test_what_a_failed_rsync_over_ssh_means(case: str, kind: type[PrepareError], says: str) -> None:
    failure = rsync_failure(FAR, captured(case))
    assert type(failure) is kind and says in str(failure)
    assert failure.what.startswith("source: ") and "exa:/srv/run/tree" in failure.where


@pytest.mark.parametrize(
    ("code", "err", "kind"),
    [
        (23, 'rsync: [sender] send_files failed to open "/srv/f": Permission denied (13)', PermanentError),
        (23, 'rsync: [sender] readlink_stat("/srv") failed: Stale file handle (116)', TransientError),
        (23, 'rsync: [sender] read errors mapping "/srv/f": Input/output error (5)', TransientError),
        (24, 'file has vanished: "/srv/run/tree/f"', TransientError),
        (20, "rsync error: received SIGINT, SIGTERM, or SIGHUP (code 20)", TransientError),
        (137, "", TransientError),
        (1, "rsync: --what: unknown option", PermanentError),
    ],
)
def test_what_a_failed_local_rsync_means(code: int, err: str, kind: type[PrepareError]) -> None:
    assert type(rsync_failure(NEAR, Completed(code, "", err, 0.0))) is kind


@pytest.mark.parametrize(
    ("code", "err", "kind"),
    [
        (23, 'rsync: [sender] send_files failed to open "/srv/f": Permission denied (13)', TransientError),
        (23, 'rsync: mkstemp "/root/.flodl/source/.f.x" failed: Permission denied (13)', PermanentError),
        (30, "rsync error: timeout in data send/receive (code 30) at io.c(195)", TransientError),
        (127, "fish: Unknown command: rsync", TransientError),
    ],
)
def test_what_the_far_side_can_mend_is_transient(code: int, err: str, kind: type[PrepareError]) -> None:
    assert type(rsync_failure(FAR, Completed(code, "", err, 0.0))) is kind


class Box:
    """A box whose source is on its own disk."""

    def __init__(self, folder: Path) -> None:
        self.origin, self.tree, self.notes = folder / "origin", folder / "flodl" / "source", list[str]()
        self.origin.mkdir()

    def write(self, files: Mapping[str, str]) -> None:
        for name, text in files.items():
            path = self.origin / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            os.utime(path, (OLD, OLD))

    def publish(self, *, bytes_: int = 0) -> None:
        paths = [path for path in self.origin.rglob("*") if path.is_file() and path.name not in (FILE, SIDECAR)]
        names = sorted(path.relative_to(self.origin).as_posix() for path in paths)
        lines = "".join(f"{hashlib.sha256((self.origin / n).read_bytes()).hexdigest()}  {n}\n" for n in names)
        digest = f"{{sha256: {hashlib.sha256(lines.encode()).hexdigest()}, bytes: {bytes_}}}"
        (self.origin / SIDECAR).write_text(lines)
        (self.origin / FILE).write_text(f"bin: target/release/x\nrun: 0123456789ab\ndigest: {digest}\n")

    def fetch(self, tools: Tools | None = None, spec: str = "") -> Manifest | None:
        source = parse_source(spec or f"file://{self.origin}")
        return fetch(source, self.tree, None, tools or Tools("box"), self.notes.append)

    def fails(self, kind: type[PrepareError], tools: Tools | None = None, spec: str = "") -> PrepareError:
        with pytest.raises(kind) as caught:
            self.fetch(tools, spec)
        assert type(caught.value) is kind
        return caught.value


@pytest.fixture
def box(tmp_path: Path) -> Box:
    return Box(tmp_path)


def times(tree: Path) -> dict[str, int]:
    return {str(p.relative_to(tree)): p.lstat().st_mtime_ns for p in tree.rglob("*")}


@pytest.mark.subprocess
def test_a_tree_is_mirrored_and_what_a_build_made_survives(box: Box) -> None:
    box.write({"a": "1", "sub/b": "1", "target/made": "x", "sub/target/made": "x", "libtorch/big": "x", ".git/x": "x"})
    box.write({"sub/libtorch/code": "1", "gone": "1"})
    assert box.fetch() is None
    assert sorted(times(box.tree)) == ["a", "gone", "sub", "sub/b", "sub/libtorch", "sub/libtorch/code"]
    assert (box.tree / "a").stat().st_mtime == OLD

    kept = ["target/here", "sub/target/here", "libtorch/here", ".git/here"]
    for name in kept:
        (box.tree / name).parent.mkdir(exist_ok=True)
        (box.tree / name).write_text("made here")
    (box.tree / "stray").write_text("x")
    (box.origin / "gone").unlink()
    box.write({"a": "22"})
    for _ in range(2):
        box.fetch()
        assert all((box.tree / name).read_text() == "made here" for name in kept)
    assert not (box.tree / "gone").exists() and not (box.tree / "stray").exists()
    assert (box.tree / "a").read_text() == "22"


@pytest.mark.subprocess
def test_a_second_fetch_of_the_same_tree_touches_no_time(box: Box) -> None:
    box.write({"a": "1", "sub/b": "1"})
    box.publish()
    first = box.fetch()
    before = times(box.tree)
    assert box.fetch() == first
    assert times(box.tree) == before


@pytest.mark.subprocess
def test_what_is_published_is_told(box: Box) -> None:
    box.write({"a": "1"})
    box.publish()
    box.fetch()
    assert box.notes == ["run 01234567: target/release/x, NOT built by its publisher"]


@pytest.mark.subprocess
def test_names_of_any_bytes_arrive(box: Box) -> None:
    for name in (b"a\nb", b"\xff\xfe", b"-rf", b" x "):
        Path(os.fsdecode(os.fsencode(box.origin) + b"/" + name)).write_text("x")
    box.fetch()
    assert {os.fsencode(path.name) for path in box.tree.iterdir()} == {b"a\nb", b"\xff\xfe", b"-rf", b" x "}


@pytest.mark.subprocess
def test_a_link_that_leads_out_stays_a_link_and_nothing_is_written_through_it(box: Box, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    box.write({"a": "1", "dir/b": "1"})
    (box.origin / "out").symlink_to(outside)
    (box.origin / "loop").symlink_to("loop")
    box.fetch()
    assert (box.tree / "out").is_symlink() and (box.tree / "loop").is_symlink()
    (box.tree / "dir/b").unlink()
    (box.tree / "dir").rmdir()
    (box.tree / "dir").symlink_to(outside)  # planted where the source has a directory
    box.fetch()
    assert (box.tree / "dir/b").read_text() == "1" and not (box.tree / "dir").is_symlink()
    assert list(outside.iterdir()) == []


class Meddling(Tools):
    """Runs a deed after each rsync, as a publisher would that does not wait."""

    def __init__(self, *deeds: object) -> None:
        super().__init__("box")
        self.deeds, self.argvs = list(deeds), list[list[str]]()

    def run(self, argv: Sequence[str | Path], **given: Any) -> Completed:
        done = super().run(argv, **given)
        self.argvs.append([str(word) for word in argv])
        if argv[0] == "rsync" and self.deeds:
            deed = self.deeds.pop(0)
            assert callable(deed)
            deed()
        return done


@pytest.mark.subprocess
def test_a_source_that_changes_without_a_publish_is_transient_and_names_the_file(box: Box) -> None:
    box.write({"a": "1", "sub/b": "1"})
    box.publish()
    box.write({"sub/b": "2"})
    failure = box.fails(TransientError)
    assert failure.what.endswith("published: sub/b")


@pytest.mark.subprocess
def test_a_publish_in_the_middle_of_a_fetch_is_caught_by_the_next_one(box: Box) -> None:
    box.write({"a": "1", "b": "1"})
    box.publish()

    def republish() -> None:  # the first fetch has the old manifest, and a part of the new tree
        box.write({"a": "2"})
        (box.tree / "a").write_text("2")
        box.publish()

    tools = Meddling(republish)
    assert box.fetch(tools)
    assert (box.tree / "a").read_text() == "2"
    assert [("--checksum" in argv) for argv in tools.argvs if argv[0] == "rsync"] == [False, True]
    assert "fetched again" in box.notes[0]


@pytest.mark.subprocess
def test_a_manifest_that_a_publisher_takes_away_meanwhile_is_not_published(box: Box) -> None:
    box.write({"a": "1"})
    box.publish()

    def begin() -> None:
        (box.tree / "a").write_text("2")
        (box.origin / FILE).unlink()

    assert box.fetch(Meddling(begin)) is None


@pytest.mark.subprocess
def test_a_file_that_is_spoilt_here_and_keeps_size_and_time_is_mended(box: Box) -> None:
    box.write({"a": "1"})
    box.publish()
    box.fetch()
    (box.tree / "a").write_text("X")
    os.utime(box.tree / "a", (OLD, OLD))
    assert box.fetch()
    assert (box.tree / "a").read_text() == "1"


@pytest.mark.subprocess
def test_a_source_that_lists_a_target_folder_is_permanent(box: Box) -> None:
    box.write({"sub/target/src.rs": "1"})
    box.publish()
    assert "sub/target/src.rs" in box.fails(PermanentError).what


@pytest.mark.subprocess
@pytest.mark.parametrize(
    ("text", "says"), [("bin: [", "malformed"), ("cwd: x", "`bin`"), ("bin: x\nbuilt: 3", "`built`")]
)
def test_a_malformed_manifest_is_a_permanent_failure_of_the_fetch(box: Box, text: str, says: str) -> None:
    box.write({FILE: text})
    failure = box.fails(PermanentError)
    assert says in str(failure) and str(box.tree / FILE) in failure.where


@pytest.mark.subprocess
def test_a_manifest_that_is_a_link_is_refused(box: Box, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("password: x\n")
    (box.origin / FILE).symlink_to(tmp_path / "secret")
    failure = box.fails(PermanentError)
    assert "link" in failure.what and "password" not in str(failure)


@pytest.mark.subprocess
def test_a_source_that_is_missing_or_no_directory_is_permanent(box: Box) -> None:
    box.write({"file": "x"})
    for path in (f"{box.origin}/nothing", f"{box.origin}/file"):
        failure = box.fails(PermanentError, spec=f"file://{path}")
        assert failure.where == path and failure.what.startswith("source: ")


def test_a_mount_that_hangs_is_transient(box: Box) -> None:
    class Hanging(Tools):
        def run(self, argv: Sequence[str | Path], **given: Any) -> Completed:
            assert argv[0] == "ls" and given["limit"] <= 30
            raise TransportError(Stage.DEADLINE, "it had not ended")

    failure = box.fails(TransientError, Hanging("box"))
    assert "time limit" in failure.what and str(box.origin) in failure.where


@pytest.mark.subprocess
def test_a_source_around_or_inside_of_the_tree_is_permanent(box: Box) -> None:
    (box.tree / "inner").mkdir(parents=True)
    for path in (box.tree, box.tree / "inner", box.tree.parent, box.tree.parent.parent):
        assert "lies around or inside" in box.fails(PermanentError, spec=f"file://{path}").what
    assert (box.tree / "inner").is_dir()


@pytest.mark.subprocess
def test_a_tree_may_be_a_link_to_a_larger_disk(box: Box, tmp_path: Path) -> None:
    (tmp_path / "larger").mkdir()
    box.tree.parent.mkdir()
    box.tree.symlink_to(tmp_path / "larger")
    box.write({"a": "1"})
    box.fetch()
    assert (tmp_path / "larger/a").exists() and box.tree.is_symlink()


def test_a_tree_that_is_a_file_a_dead_link_or_a_loop_is_permanent(box: Box) -> None:
    box.tree.parent.mkdir()
    for make in (
        lambda: box.tree.write_text("x"),
        lambda: box.tree.symlink_to("nothing"),
        lambda: box.tree.symlink_to(box.tree.name),
    ):
        make()
        failure = box.fails(PermanentError)
        assert failure.where == str(box.tree) and "is no directory" in failure.what
        box.tree.unlink()


def test_a_tree_that_is_a_link_to_a_directory_around_it_is_never_emptied(box: Box, tmp_path: Path) -> None:
    box.tree.parent.mkdir()
    (tmp_path / "mine").write_text("x")
    box.tree.symlink_to("..")
    assert "would empty" in box.fails(PermanentError).what
    assert (tmp_path / "mine").exists()


def test_a_tree_that_can_not_be_made_is_permanent(box: Box) -> None:
    box.tree.parent.write_text("a file")
    assert "can't be made" in box.fails(PermanentError).what


def test_rsync_missing_here_is_permanent_with_the_line_that_installs_it(
    box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    for spec in ("", "rsync://exa/d"):
        failure = box.fails(PermanentError, spec=spec)
        assert "rsync is not installed" in failure.what and "install -y rsync" in failure.hint


def test_a_key_file_that_is_not_there_is_permanent(box: Box, tmp_path: Path) -> None:
    source, ssh = parse_source("rsync://exa/d"), Ssh("", identity_file=str(tmp_path / "key"))
    with pytest.raises(PermanentError, match="key is not there"):
        fetch(source, box.tree, ssh, Tools("box"), box.notes.append)


def test_a_key_file_below_the_home_is_looked_for_where_ssh_looks(
    box: Box, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "key").touch()
    target, tools = Target("exa:/d"), Tools("box")
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: type("Entry", (), {"pw_dir": str(tmp_path)}))
    assert pinned(Ssh("", identity_file="~/key"), target, tools, tmp_path / "known") is None
    assert pinned(Ssh("", identity_file="%d/key"), target, tools, tmp_path / "known") is None
    with pytest.raises(PermanentError, match="~/other is not there"):
        pinned(Ssh("", identity_file="~/other"), target, tools, tmp_path / "known")


@pytest.mark.subprocess
def test_the_callers_rsync_variables_change_nothing(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RSYNC_OLD_ARGS": "1", "RSYNC_PROTECT_ARGS": "1", "RSYNC_RSH": "false"}.items():
        monkeypatch.setenv(name, value)
    box.write({"a": "1"})
    box.fetch()
    assert (box.tree / "a").exists()


@pytest.mark.subprocess
def test_another_compiler_than_the_publishers_is_a_note(
    box: Box, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rustc = tmp_path / "bin/rustc"
    rustc.parent.mkdir()
    rustc.write_text("#!/bin/sh\necho rustc 1.80.0\n")
    rustc.chmod(0o755)
    monkeypatch.setenv("PATH", f"{rustc.parent}:{os.environ['PATH']}")
    box.write({FILE: "bin: x\nrustc: rustc 1.86.0\nlater: 1\n"})
    box.fetch()
    assert any("rustc 1.80.0" in note and "rustc 1.86.0" in note for note in box.notes)
    assert any("later" in note for note in box.notes)
