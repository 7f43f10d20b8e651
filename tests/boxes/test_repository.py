"""A source that git brings: what is checked out, what survives, what of the caller's git counts, and each failure."""

from __future__ import annotations

import os
import subprocess
from hashlib import sha256
from pathlib import Path

import pytest

from fdl_tasks.boxes.source.fetch import fetch
from fdl_tasks.boxes.source.manifest import FILE, SIDECAR, Manifest
from fdl_tasks.boxes.source.repository import MARK, git_failure
from fdl_tasks.boxes.specs import GitSource, parse_source
from fdl_tasks.boxes.tools import Tools
from fdl_tasks.errors import PermanentError, PrepareError, TransientError
from fdl_tasks.hosts.base import Completed

SSH, HTTPS = GitSource("ssh://exa/r", "main"), GitSource("https://me:s3cret@exa/r", "main")
FILE_URL = GitSource("file:///srv/r", "main")


@pytest.mark.parametrize(
    ("source", "verb", "err", "kind", "says"),
    [
        (SSH, "fetch", "ssh: Could not resolve hostname exa", TransientError, "exit code 128"),
        (
            SSH,
            "fetch",
            "error: Server does not allow request for unadvertised object 1a",
            PermanentError,
            "uploadpack.",
        ),
        (SSH, "fetch", "fatal: couldn't find remote ref main", TransientError, "no main there"),
        (SSH, "fetch", "fatal: remote error: upload-pack: not our ref 1a", TransientError, "no main there"),
        (SSH, "fetch", "Host key verification failed.", PermanentError, "ssh-keygen -R"),
        (HTTPS, "fetch", "fatal: unable to access 'https://exa/r/': 503", TransientError, "503"),
        (HTTPS, "fetch", "fatal: could not read Username: terminal prompts disabled", TransientError, "prompts"),
        (HTTPS, "fetch", "fatal: dumb http transport does not support shallow", PermanentError, "dumb http"),
        (HTTPS, "fetch", "git: Unable to find remote helper for 'https'", PermanentError, "helper"),
        (HTTPS, "fetch", "fatal: transport 'https' not allowed", PermanentError, "not allowed"),
        (HTTPS, "init", "fatal: cannot mkdir", PermanentError, "git init failed"),
        (HTTPS, "checkout", "error: unable to create file", PermanentError, "git checkout failed"),
        (FILE_URL, "fetch", "fatal: '/srv/r' does not appear to be a git repository", PermanentError, "appear"),
        (FILE_URL, "fetch", "fatal: detected dubious ownership in repository", PermanentError, "safe.directory"),
        (FILE_URL, "fetch", "fatal: couldn't find remote ref main", TransientError, "no main there"),
    ],
)
def test_what_a_failed_git_means(source: GitSource, verb: str, err: str, kind: type[PrepareError], says: str) -> None:
    failure = git_failure(source, verb, Completed(128, "", err, 0.0))
    assert type(failure) is kind and says in str(failure)
    assert "s3cret" not in str(failure)


def test_no_tail_shows_what_stands_before_a_host() -> None:
    failure = git_failure(HTTPS, "fetch", Completed(128, "", f"fatal: can't use {HTTPS.url} now", 0.0))
    assert "s3cret" not in str(failure) and "https://***@exa/r" in str(failure)


def git(folder: Path, *words: str) -> str:
    argv = ["git", "-c", "user.name=x", "-c", "user.email=x@x", *words]
    return subprocess.run(argv, cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


class Box:
    """A box, and the repository on its disk that it fetches from."""

    def __init__(self, folder: Path) -> None:
        self.origin, self.tree, self.notes = folder / "origin", folder / "flodl" / "source", list[str]()
        self.origin.mkdir()
        git(self.origin, "init", "--quiet", "--initial-branch=main")
        self.commit(a="1", b="1")

    def commit(self, **files: str | None) -> None:
        for name, text in files.items():
            path = self.origin / name.replace("__", "/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.unlink(missing_ok=True)
            if text is not None:
                path.write_text(text)
        git(self.origin, "add", "--all")
        git(self.origin, "commit", "--quiet", "--allow-empty", "-m", "x")

    def fetch(self, ref: str = "main") -> Manifest | None:
        source = parse_source(f"git+file://{self.origin}#{ref}")
        return fetch(source, self.tree, None, Tools("box"), self.notes.append)

    def fails(self, kind: type[PrepareError], ref: str = "main") -> PrepareError:
        with pytest.raises(kind) as caught:
            self.fetch(ref)
        assert type(caught.value) is kind
        return caught.value

    def files(self) -> set[str]:
        paths = (path.relative_to(self.tree) for path in self.tree.rglob("*") if path.is_file() or path.is_symlink())
        return {str(path) for path in paths if ".git" not in path.parts}

    def times(self) -> dict[str, int]:
        return {name: (self.tree / name).lstat().st_mtime_ns for name in self.files()}


@pytest.fixture
def box(tmp_path: Path) -> Box:
    return Box(tmp_path)


pytestmark = pytest.mark.subprocess


def test_a_branch_a_tag_and_a_commit_are_checked_out(box: Box) -> None:
    first = git(box.origin, "rev-parse", "HEAD")
    git(box.origin, "tag", "-a", "-m", "x", "v1")
    box.commit(a="2")
    for ref, text in (("main", "2"), ("v1", "1"), (first, "1"), ("refs/heads/main", "2")):
        assert box.fetch(ref) is None
        assert (box.tree / "a").read_text() == text
    assert git(box.tree, "rev-list", "--count", "HEAD") == "1"
    assert f"is commit {git(box.origin, 'rev-parse', 'HEAD')[:12]}" in box.notes[-1]


def test_times_are_kept_a_builds_output_survives_and_removed_files_go(box: Box) -> None:
    box.fetch()
    (box.tree / "target").mkdir()
    (box.tree / "target/made").write_text("x")
    (box.tree / "untracked").write_text("x")
    os.utime(box.tree / "a", (1_700_000_000, 1_700_000_000))
    box.fetch()
    before = box.times()
    box.fetch()
    assert box.times() == before

    box.commit(b=None, c="1")
    box.fetch()
    assert box.files() == {"a", "c", "target/made", "untracked"}
    assert box.times()["a"] == before["a"]


def test_what_was_changed_here_is_checked_out_by_force(box: Box) -> None:
    box.fetch()
    (box.tree / "a").write_text("mine")
    (box.tree / "b").unlink()
    box.fetch()
    assert ((box.tree / "a").read_text(), (box.tree / "b").read_text()) == ("1", "1")


def test_a_manifest_that_is_committed_is_read(box: Box) -> None:
    box.commit(**{FILE: "bin: x\nrun: 1a\n"})
    assert box.fetch() == Manifest("x", run="1a")
    box.commit(**{FILE: None})
    assert box.fetch() is None


def test_what_a_build_made_beside_its_target_directory_is_no_difference(box: Box) -> None:
    sidecar = "".join(f"{sha256(b'1').hexdigest()}  {name}\n" for name in "ab")
    digest = sha256(sidecar.encode()).hexdigest()
    box.commit(**{FILE: f"bin: x\ndigest: {{sha256: {digest}}}\n", SIDECAR: sidecar})
    assert box.fetch()
    (box.tree / "Cargo.lock").write_text("made by cargo")
    assert box.fetch()
    box.commit(a="2")
    assert "not what was published: a" in str(box.fails(TransientError))


def test_the_tree_of_another_source_leaves_nothing_behind_but_a_builds_output(box: Box, tmp_path: Path) -> None:
    files = {"a": "1", "stray": "x", FILE: "bin: old\n", SIDECAR: "x", "target/made": "x", "s/target/m": "x"}
    for name, text in files.items():
        (box.tree / name).parent.mkdir(parents=True, exist_ok=True)
        (box.tree / name).write_text(text)
    os.utime(box.tree / "a", (1_700_000_000, 1_700_000_000))
    assert box.fetch() is None
    assert box.files() == {"a", "b", "target/made", "s/target/m"}
    assert (box.tree / "a").stat().st_mtime == 1_700_000_000  # the same content: not written again

    (box.tree / FILE).write_text("bin: old\n")
    assert box.fetch() is None


def test_a_ref_that_is_not_there_is_transient(box: Box) -> None:
    assert "no nothing there" in box.fails(TransientError, "nothing").what
    assert "all 40 digits" in box.fails(TransientError, "0" * 40).hint


def test_a_repository_that_is_missing_is_permanent(box: Box, tmp_path: Path) -> None:
    box.origin.rename(tmp_path / "elsewhere")
    assert "does not appear to be a git repository" in str(box.fails(PermanentError))


@pytest.mark.parametrize("lock", ["index.lock", "HEAD.lock", "shallow.lock", "config.lock", "FETCH_HEAD.lock"])
def test_what_a_killed_run_left_behind_stops_no_later_one(box: Box, lock: str) -> None:
    box.fetch()
    (box.tree / ".git" / lock).touch()
    box.commit(a="2")
    box.fetch()
    assert (box.tree / "a").read_text() == "2" and not (box.tree / ".git" / lock).exists()


def test_an_init_that_was_killed_is_begun_again(box: Box) -> None:
    (box.tree / ".git/objects").mkdir(parents=True)
    box.fetch()
    assert (box.tree / "a").exists() and (box.tree / ".git" / MARK).is_file()


@pytest.mark.parametrize("broken", ["objects", "index", "HEAD"])
def test_a_broken_repository_is_begun_afresh_and_times_are_kept(box: Box, broken: str) -> None:
    box.fetch()
    os.utime(box.tree / "a", (1_700_000_000, 1_700_000_000))
    path = box.tree / ".git" / broken
    for file in [path] if path.is_file() else [p for p in path.rglob("*") if p.is_file()]:
        file.chmod(0o644)
        file.write_bytes(b"")
    (box.tree / "b").unlink()
    box.fetch()
    assert (box.tree / "b").read_text() == "1" and (box.tree / "a").stat().st_mtime == 1_700_000_000
    assert any("begun afresh" in note for note in box.notes)


@pytest.mark.parametrize("how", ["clone", "file", "link"])
def test_somebody_elses_repository_below_the_tree_is_never_used(box: Box, tmp_path: Path, how: str) -> None:
    theirs = tmp_path / "theirs"
    git(tmp_path, "clone", "--quiet", str(box.origin), str(theirs))
    (theirs / "a").write_text("their work")
    ran = tmp_path / "ran"
    hook = theirs / ".git/hooks/post-checkout"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\ntouch {ran}\n")
    hook.chmod(0o755)
    head = (theirs / ".git/HEAD").read_text()
    box.tree.mkdir(parents=True)
    if how == "clone":
        (theirs / ".git").rename(box.tree / ".git")
    elif how == "file":
        (box.tree / ".git").write_text(f"gitdir: {theirs}/.git\n")
    else:
        (box.tree / ".git").symlink_to(theirs / ".git")
    box.fetch()
    assert any("replaced" in note for note in box.notes)
    assert (box.tree / ".git" / MARK).is_file() and not (box.tree / ".git").is_symlink() and not ran.exists()
    if how != "clone":
        assert (theirs / ".git/HEAD").read_text() == head and (theirs / ".git/index").exists()
    assert (theirs / "a").read_text() == "their work"


def test_the_callers_git_variables_and_settings_do_not_change_what_is_checked_out(
    box: Box, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, ran = tmp_path / "other", tmp_path / "ran"
    box.commit(a="1\n2\n")
    other.mkdir()
    git(other, "init", "--quiet")
    for folder in ("hooks", "template/hooks"):
        hook = tmp_path / folder / "post-checkout"
        hook.parent.mkdir(parents=True)
        hook.write_text(f"#!/bin/sh\ntouch {ran}\n")
        hook.chmod(0o755)
    (Path(os.environ["HOME"]) / ".gitconfig").write_text(
        f"[core]\n autocrlf = true\n hooksPath = {tmp_path}/hooks\n fsmonitor = touch {ran}; false\n"
        f"[init]\n templateDir = {tmp_path}/template\n[submodule]\n recurse = true\n[fetch]\n recurseSubmodules = yes\n"
    )
    given = {
        "GIT_DIR": f"{other}/.git",
        "GIT_WORK_TREE": str(other),
        "GIT_INDEX_FILE": f"{other}/index",
        "GIT_OBJECT_DIRECTORY": f"{other}/objects",
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": "core.bare",
        "GIT_CONFIG_VALUE_0": "true",
        "GIT_CONFIG_PARAMETERS": "'core.bare=true'",
        "GIT_NAMESPACE": "x",
        "GIT_SHALLOW_FILE": "/nowhere",
        "GIT_ALLOW_PROTOCOL": "https",
        "GIT_SSH": "/bin/false",
    }
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    box.fetch()
    box.fetch()
    assert (box.tree / "a").read_bytes() == b"1\n2\n"
    assert not ran.exists() and not (box.tree / ".git/hooks").exists()
    assert sorted(path.name for path in other.iterdir()) == [".git"]


def test_submodules_are_not_followed(box: Box, tmp_path: Path) -> None:
    git(box.origin, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", f"file://{box.origin}", "sub")
    box.commit()
    (Path(os.environ["HOME"]) / ".gitconfig").write_text(
        "[submodule]\n recurse = true\n active = .\n[fetch]\n recurseSubmodules = yes\n[protocol]\n allow = always\n"
    )
    box.fetch()
    assert box.files() == {"a", "b", ".gitmodules"}


def test_a_tracked_link_that_leads_out_is_not_written_through(box: Box, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (box.origin / "out").symlink_to(outside)
    box.commit(dir__x="1")
    box.fetch()
    (box.tree / "dir/x").unlink()
    (box.tree / "dir").rmdir()
    (box.tree / "dir").symlink_to(outside)
    box.fetch()
    assert (box.tree / "dir/x").read_text() == "1" and list(outside.iterdir()) == []


def test_git_missing_here_is_permanent_with_the_line_that_installs_it(
    box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert "install -y git" in box.fails(PermanentError).hint


def test_nothing_runs_on_after_a_fetch(box: Box) -> None:
    for n in range(3):
        box.commit(a=str(n))
        box.fetch()
    left = subprocess.run(["pgrep", "-f", str(box.tree)], capture_output=True, text=True, check=False)
    assert left.stdout == ""
