"""Whether a tree is what was published: every kind of difference, odd names, links, and what can never arrive."""

import hashlib
import os
import subprocess
from pathlib import Path

import pytest

from fdl_tasks.boxes.source.digest import differences, left_out, parse, read_plain, verify
from fdl_tasks.boxes.source.manifest import FILE, SIDECAR, Digest, Manifest
from fdl_tasks.errors import PermanentError, TransientError

HASH = hashlib.sha256(b"x").hexdigest()


def line(name: bytes, content: bytes = b"x") -> bytes:
    return hashlib.sha256(content).hexdigest().encode() + b"  " + name + b"\n"


def write(tree: Path, name: bytes, content: bytes = b"x") -> None:
    path = Path(os.fsdecode(os.fsencode(tree) + b"/" + name))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def published(tree: Path, lines: bytes) -> Manifest:
    (tree / SIDECAR).write_bytes(lines)
    return Manifest("x", digest=Digest(hashlib.sha256(lines).hexdigest()))


def tree_of(tree: Path, *names: bytes) -> Manifest:
    for name in names:
        write(tree, name)
    (tree / FILE).write_text("bin: x\n")
    return published(tree, b"".join(line(name) for name in sorted(names)))


def test_a_tree_that_is_what_was_published_passes(tmp_path: Path) -> None:
    manifest = tree_of(tmp_path, b"Cargo.toml", b"src/main.rs", b"a/target", b"b")
    for kept in (b"target/release/x", b"sub/target/x", b".git/HEAD", b"sub/.git/HEAD", b"libtorch/lib/x"):
        write(tmp_path, kept)
    verify(tmp_path, manifest)


def test_without_a_digest_there_is_nothing_to_compare(tmp_path: Path) -> None:
    verify(tmp_path / "not there", Manifest("x"))


def test_every_difference_is_transient_and_names_the_file(tmp_path: Path) -> None:
    manifest = tree_of(tmp_path, b"a", b"sub/b", b"c")
    write(tmp_path, b"a", b"y")
    (tmp_path / "sub/b").unlink()
    write(tmp_path, b"extra")
    write(tmp_path, b"sub/libtorch/extra")
    with pytest.raises(TransientError, match="a, extra, sub/b, sub/libtorch/extra") as caught:
        verify(tmp_path, manifest)
    assert caught.value.where == str(tmp_path) and "publish" in caught.value.hint


def test_five_are_named_and_the_rest_counted(tmp_path: Path) -> None:
    manifest = tree_of(tmp_path, *(b"f%d" % n for n in range(8)))
    for n in range(8):
        (tmp_path / f"f{n}").unlink()
    with pytest.raises(TransientError, match="f0, f1, f2, f3, f4 and 3 more"):
        verify(tmp_path, manifest)


@pytest.mark.parametrize(
    ("sidecar", "says"), [(None, "missing"), (line(b"b"), "another publish"), (b"", "another publish")]
)
def test_a_sidecar_that_is_not_the_manifests_is_transient(tmp_path: Path, sidecar: bytes | None, says: str) -> None:
    manifest = tree_of(tmp_path, b"a")
    (tmp_path / SIDECAR).unlink()
    if sidecar is not None:
        (tmp_path / SIDECAR).write_bytes(sidecar)
    with pytest.raises(TransientError, match=says):
        verify(tmp_path, manifest)


@pytest.mark.parametrize("name", [b"target/x", b"a/target/b/c", b".git/HEAD", b"sub/.git/x", b"libtorch/x"])
def test_a_listed_file_that_can_never_arrive_is_permanent(tmp_path: Path, name: bytes) -> None:
    manifest = tree_of(tmp_path, b"z", name)
    with pytest.raises(PermanentError, match=f"never fetched: {name.decode()}"):
        verify(tmp_path, manifest)


@pytest.mark.parametrize("name", [b"target", b"a/target", b"targets/x", b"a/libtorch/x", b"libtorch", b".gitignore"])
def test_a_name_that_only_looks_like_one_arrives(name: bytes) -> None:
    assert not left_out(name)


@pytest.mark.parametrize("name", [b"a b", b"a  b", b"\xff\xfe", b"\xc3\xa9", b"a\\b", b"a\nb", b"a\rb", b"\\", b" a"])
def test_odd_names_are_read_as_sha256sum_writes_them(tmp_path: Path, name: bytes) -> None:
    write(tmp_path, name)
    manifest = published(tmp_path, _sha256sum_line(name))
    verify(tmp_path, manifest)


def _sha256sum_line(name: bytes) -> bytes:
    escaped = name.replace(b"\\", b"\\\\").replace(b"\n", b"\\n").replace(b"\r", b"\\r")
    return (b"\\" if escaped != name else b"") + HASH.encode() + b"  " + escaped + b"\n"


@pytest.mark.subprocess
def test_sha256sum_itself_writes_what_is_read(tmp_path: Path) -> None:
    names = [b"a", b"a\nb", b"c\\nd", b"e\rf", b"\xff", b"sub/g"]
    for name in names:
        write(tmp_path, name)
    argv = [b"sha256sum", b"--", *(b"./" + name for name in names)]
    raw = subprocess.run(argv, cwd=tmp_path, check=True, capture_output=True).stdout
    assert parse(raw, "s") == dict.fromkeys(names, HASH)


def test_a_name_that_no_escape_marks_is_taken_as_it_stands() -> None:
    assert parse(line(b"a\\nb"), "s") == {b"a\\nb": HASH}
    assert parse(HASH.upper().encode() + b" *a\r", "s") == {b"a\r": HASH}


@pytest.mark.parametrize(
    "raw",
    [b"x\n", b"0" * 64 + b" a\n", line(b"/etc/passwd"), line(b"../x"), line(b"a/../../x"), line(b"./"), line(b"")],
)
def test_a_sidecar_that_is_no_list_is_permanent(raw: bytes) -> None:
    with pytest.raises(PermanentError) as caught:
        parse(line(b"ok") + raw, "s")
    assert caught.value.where == "s:2"


def test_control_characters_of_a_name_are_never_printed(tmp_path: Path) -> None:
    manifest = tree_of(tmp_path)
    write(tmp_path, b"\x1b[2J")
    write(tmp_path, b"\xff")
    with pytest.raises(TransientError) as caught:
        verify(tmp_path, manifest)
    assert "\\x1b[2J" in caught.value.what and "\x1b" not in caught.value.what
    assert caught.value.what.encode()


def test_links_are_neither_followed_nor_hashed(tmp_path: Path) -> None:
    tree, outside = tmp_path / "tree", tmp_path / "outside"
    tree.mkdir()
    write(outside, b"secret")
    manifest = tree_of(tree, b"a")
    (tree / "loop").symlink_to(".")
    (tree / "self").symlink_to("self")
    (tree / "out").symlink_to(outside)
    (tree / "to-file").symlink_to(outside / "secret")
    os.mkfifo(tree / "fifo")
    verify(tree, manifest)
    (tree / "a").unlink()
    (tree / "a").symlink_to(outside / "secret")  # the same content, but not a file of the tree
    with pytest.raises(TransientError, match="published: a"):
        verify(tree, manifest)
    assert differences(tree, {b"out/secret": HASH, b"a": HASH}) == [b"a", b"out/secret"]


def test_the_run_files_are_read_from_the_tree_itself_only(tmp_path: Path) -> None:
    (tmp_path / "there").write_text("bin: x\n")
    (tmp_path / "link").symlink_to("there")
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "folder").mkdir()
    assert read_plain(tmp_path / "there", 100) == b"bin: x\n"
    assert read_plain(tmp_path / "nothing", 100) is None
    for name, says in (("link", "link"), ("fifo", "regular"), ("folder", "directory")):
        with pytest.raises(PermanentError, match=says):
            read_plain(tmp_path / name, 100)
    with pytest.raises(PermanentError, match="larger"):
        read_plain(tmp_path / "there", 3)
