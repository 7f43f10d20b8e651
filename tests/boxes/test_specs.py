"""Where a source or data is: every spelling that is taken, every one that is refused."""

from pathlib import Path

import pytest

from fdl_tasks.boxes.specs import (
    FileSource,
    GitSource,
    RsyncSource,
    Target,
    parse_data_source,
    parse_source,
)
from fdl_tasks.errors import PermanentError

TARGETS = [
    ("exa/flodl/data", "exa:/flodl/data", None),
    ("flodl@exa/flodl/data", "flodl@exa:/flodl/data", None),
    ("exa:/flodl/data", "exa:/flodl/data", None),
    ("flodl@exa:2222/flodl/data", "flodl@exa:/flodl/data", 2222),
    ("exa:2222:/flodl/data", "exa:/flodl/data", 2222),
    ("exa/flodl/data/", "exa:/flodl/data", None),
    ("exa:/a b/@c:d#e", "exa:/a b/@c:d#e", None),
    ("exa//d", "exa://d", None),
    ("exa/~", "exa:/~", None),
    ("u@[fe80::1%eth0]:22/d", "u@[fe80::1%eth0]:/d", 22),
    ("[::1]:/d", "[::1]:/d", None),
    ("ctrl_1.lan:1/d", "ctrl_1.lan:/d", 1),
]
BROKEN_TARGETS = [
    "",
    "exa",
    "exa:2222",
    "exa:banana/data",
    "exa:/",
    "exa//",
    "exa:/.",
    "exa:/a/..",
    "exa:",
    "exa::/d",
    "exa:2222::/d",
    "exa:~/d",
    "@exa:/d",
    ":/flodl/data",
    "/d",
    "exa:0/d",
    "exa:65536/d",
    "exa:+22/d",
    "exa:-1/d",
    "exa:２２/d",
    "-oProxyCommand=x/d",
    "-u@exa/d",
    "u@-exa/d",
    "e xa/d",
    "e'xa/d",
    "e$xa/d",
    "::1:/d",
    "[::1/d",
    "[-o]/d",
    "exa/d\n",
    "exa/d\x1b[2J",
    "exa/d\x00",
    "ex\ta/d",
]


@pytest.mark.parametrize(("text", "remote", "port"), TARGETS)
def test_a_far_directory_is_read_in_every_spelling(text: str, remote: str, port: int | None) -> None:
    assert parse_data_source(f"sshfs://{text}") == Target(remote, port)
    assert parse_source(f"rsync://{text}") == RsyncSource(Target(remote, port))


@pytest.mark.parametrize("text", BROKEN_TARGETS)
def test_a_broken_far_directory_is_permanent_and_names_the_field_and_the_forms(text: str) -> None:
    for parse, scheme, field in ((parse_data_source, "sshfs", "data_source"), (parse_source, "rsync", "source")):
        with pytest.raises(PermanentError) as caught:
            parse(f"{scheme}://{text}")
        assert caught.value.what.startswith(f"{field}: ")
        assert f"{scheme}://[user@]host[:port]/abs" in caught.value.hint
        assert str(caught.value).isprintable() or "\n  next: " in str(caught.value)
        assert not any(mark in str(caught.value) for mark in "\x1b\x00\t")


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("/flodl/data", "data_path:"),
        ("exa:/flodl/data", "data_path:"),
        ("smb://server/share", "data_path:"),
        ("SSHFS://exa/d", "SSHFS"),
        ("", "data_source"),
        ("  ", "data_source"),
    ],
)
def test_data_that_sshfs_does_not_mount_is_refused_with_where_it_belongs(spec: str, says: str) -> None:
    with pytest.raises(PermanentError, match="data_source") as caught:
        parse_data_source(spec)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("spec", "source"),
    [
        ("file:///mnt/rdl", FileSource(Path("/mnt/rdl"))),
        ("file:///mnt/a b/", FileSource(Path("/mnt/a b"))),
        ("git+https://exa/o/r.git#v1", GitSource("https://exa/o/r.git", "v1")),
        ("git+https://me:token@exa:8443/r#main", GitSource("https://me:token@exa:8443/r", "main")),
        ("git+https://[::1]:8443/r#main", GitSource("https://[::1]:8443/r", "main")),
        ("git+ssh://git@exa/o/r#feature/x", GitSource("ssh://git@exa/o/r", "feature/x")),
        ("git+ssh://exa:2222/r#" + 40 * "a", GitSource("ssh://exa:2222/r", 40 * "a")),
        ("git+file:///srv/r#a#b", GitSource("file:///srv/r", "a#b")),
        ("git+file:///srv/r#refs/heads/a@b", GitSource("file:///srv/r", "refs/heads/a@b")),
    ],
)
def test_a_source_is_read(spec: str, source: object) -> None:
    assert parse_source(spec) == source


@pytest.mark.parametrize(
    "spec",
    [
        "/mnt/rdl",
        "mnt/rdl",
        "",
        "sshfs://exa/d",
        "ftp://exa/d",
        "FILE:///d",
        "rsync://exa/d*",
        "rsync://exa:/a[b]/c",
        "rsync://u@[::1]/d?",
        "rsync://exa/a\\b",
        "file://",
        "file:///",
        "file:////",
        "file:///.",
        "file://srv/d",
        "file://./d",
        "git+http://exa/r#main",
        "git+git://exa/r#main",
        "git+ext::sh -c x#main",
        "git+https://exa/r",
        "git+https://exa/r#",
        "git+https://#main",
        "git+https://exa#main",
        "git+https://exa/#main",
        "git+https://exa:x/r#main",
        "git+https://-x/r#main",
        "git+https://-u@exa/r#main",
        "git+https://@exa/r#main",
        "git+ssh://#main",
        "git+ssh://-oProxyCommand=x/r#main",
        "git+ssh://git@-x/r#main",
        "git+ssh://exa:o/r#main",
        "git+ssh://exa:/r#main",
        "git+file://#main",
        "git+file:///#main",
        "git+file://srv/r#main",
        "git+https://exa/r#-f",
        "git+https://exa/r#--upload-pack=x",
        "git+https://exa/r#+main",
        "git+https://exa/r#a:b",
        "git+https://exa/r#refs/heads/*",
        "git+https://exa/r#a..b",
        "git+https://exa/r#a b",
        "git+https://exa/r#main~1",
        "git+https://exa/r#@{u}",
        "git+https://exa/r#a\nb",
        "git+https://exa/r\x1b#a",
    ],
)
def test_every_other_source_is_permanent_and_names_the_field_and_the_forms(spec: str) -> None:
    with pytest.raises(PermanentError) as caught:
        parse_source(spec)
    assert caught.value.what.startswith("source: ")
    for form in ("file:///", "rsync://", "git+https://", "git+ssh://", "git+file:///", "#ref"):
        assert form in caught.value.hint
    assert "\x1b" not in str(caught.value)


def test_no_message_shows_what_stands_before_a_host() -> None:
    source = parse_source("git+https://me:s3cret@exa/r#main")
    assert "s3cret" not in str(source) and "exa/r" in str(source)
    with pytest.raises(PermanentError) as caught:
        parse_source("git+https://me:s3cret@exa/r")
    assert "s3cret" not in str(caught.value) and "exa/r" in str(caught.value)
    for other in ("git+https://s3cret@exa/r", "git+ssh://me:s3cret@exa/r#main", "rsync://me:s3cret@exa/r"):
        with pytest.raises(PermanentError) as caught:
            parse_source(other)
        assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    ("spec", "login", "port"),
    [
        ("git+ssh://git@exa:2222/o/r#main", "git@exa", 2222),
        ("git+ssh://[::1]/r#main", "::1", None),
    ],
)
def test_whom_ssh_speaks_to_is_known_of_a_git_source(spec: str, login: str, port: int | None) -> None:
    source = parse_source(spec)
    assert isinstance(source, GitSource) and source.target
    assert (source.target.login, source.target.port) == (login, port)


def test_ssh_speaks_to_nobody_for_other_git_sources() -> None:
    assert [GitSource(f"{scheme}://exa/r", "m").target for scheme in ("https", "file")] == [None, None]
