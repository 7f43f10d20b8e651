"""Which file is read: the flag, then the variable, then the nearest one upwards that is ours."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from fdl_tasks.cluster.load import find, search
from fdl_tasks.errors import ConfigError


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """a/cluster.yml, a/fdl.cluster.yml, a/b/fdl.cluster.yml, a/b/c/ and a/other.yml."""
    (tmp_path / "a/b/c").mkdir(parents=True)
    for name in ("a/cluster.yml", "a/fdl.cluster.yml", "a/b/fdl.cluster.yml", "a/other.yml"):
        (tmp_path / name).write_text("workers: []")
    return tmp_path


@pytest.mark.parametrize(
    ("flag", "env", "start", "found"),
    [
        (None, {}, "a", "a/cluster.yml"),
        (None, {}, "a/b", "a/b/fdl.cluster.yml"),
        (None, {}, "a/b/c", "a/b/fdl.cluster.yml"),
        (None, {"FDL_CLUSTER": ""}, "a", "a/cluster.yml"),
        (None, {"FDL_CLUSTER": "  "}, "a", "a/cluster.yml"),
        (None, {"FDL_CLUSTER": "../other.yml"}, "a/b", "a/other.yml"),
        ("../../other.yml", {"FDL_CLUSTER": "nowhere"}, "a/b/c", "a/other.yml"),
        ("~/other.yml", {}, "a/b", "a/other.yml"),
    ],
)
def test_the_flag_wins_over_the_variable_and_that_over_the_nearest_file(
    tree: Path,
    monkeypatch: pytest.MonkeyPatch,
    flag: str | None,
    env: Mapping[str, str],
    start: str,
    found: str,
) -> None:
    monkeypatch.setenv("HOME", str(tree / "a"))
    assert find(flag, start=tree / start, env=env) == tree / found


def test_a_directory_of_that_name_is_walked_past(tree: Path) -> None:
    (tree / "a/b/c/cluster.yml").mkdir()
    assert find(None, start=tree / "a/b/c", env={}) == tree / "a/b/fdl.cluster.yml"


@pytest.mark.parametrize(
    ("named", "env", "what"),
    [
        ("nowhere.yml", {}, "can't be read: No such file or directory\n  next: look at --cluster"),
        (None, {"FDL_CLUSTER": "nowhere.yml"}, "can't be read: No such file or directory\n  next: look at FDL_CLUSTER"),
        ("b", {}, "is a directory\n  next: --cluster names the file itself"),
        ("a\0b", {}, "can't be read: "),
        ("~nobody-of-that-name/x", {}, "ome"),
    ],
)
def test_a_named_file_that_is_none_is_refused_and_no_other_is_looked_for(
    tree: Path, named: str | None, env: Mapping[str, str], what: str
) -> None:
    with pytest.raises(ConfigError, match=what):
        find(named, start=tree / "a", env=env)


def test_no_file_anywhere_says_where_it_began_and_search_gives_none(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=rf"{tmp_path}: no cluster.yml and no fdl.cluster.yml") as caught:
        find(None, start=tmp_path, env={})
    assert "--cluster" in caught.value.hint
    assert search(None, start=tmp_path, env={}) is None


@pytest.mark.parametrize("own", [1000, 1001])
def test_a_found_file_of_another_user_is_refused_and_a_named_one_is_read(
    tree: Path, monkeypatch: pytest.MonkeyPatch, own: int
) -> None:
    real = Path.stat

    def owned(path: Path, *, follow_symlinks: bool = True) -> os.stat_result:
        values = list(real(path, follow_symlinks=follow_symlinks))
        values[4] = 1000
        return os.stat_result(values)

    monkeypatch.setattr(Path, "stat", owned)
    monkeypatch.setattr(os, "getuid", lambda: own)
    if own == 1000:
        assert find(None, start=tree / "a", env={}) == tree / "a/cluster.yml"
        return
    with pytest.raises(ConfigError, match="belongs to another user"):
        find(None, start=tree / "a", env={})
    assert find("other.yml", start=tree / "a", env={}) == tree / "a/other.yml"


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file away")
def test_a_file_or_a_link_of_another_user_is_refused(tree: Path) -> None:
    os.chown(tree / "a/cluster.yml", 12345, -1)
    with pytest.raises(ConfigError, match="belongs to another user"):
        find(None, start=tree / "a", env={})
    link = tree / "a/b/c/cluster.yml"
    link.symlink_to(tree / "a/other.yml")
    assert find(None, start=link.parent, env={}) == link
    os.chown(link, 12345, -1, follow_symlinks=False)
    with pytest.raises(ConfigError, match="belongs to another user"):
        find(None, start=link.parent, env={})
