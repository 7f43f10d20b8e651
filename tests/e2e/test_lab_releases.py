"""The newer Docker's folder is made whole or not at all, and its absence is said once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.lab import releases
from tests.lab.lab import Lab
from tests.lab.releases import Release
from tests.lab.system import LabError

pytestmark = pytest.mark.lab

# In debootstrap's place: what it was asked for, and a folder as it leaves one.
MAKES = """#!/bin/sh
echo "$*" >>"{calls}"
for word; do case $word in *half-made-*) made=$word ;; esac; done
mkdir -p "$made/usr/bin" "$made/var/cache/apt/archives"
touch "$made/var/cache/apt/archives/docker.deb" "$made/usr/bin/dockerd"
mount -t tmpfs left-over "$made/usr"
{end}
"""


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the stand-in for debootstrap notes what it was asked for; it succeeds until ``breaks`` says so."""
    monkeypatch.setattr(releases, "CACHE", tmp_path / "cache")
    monkeypatch.setattr(releases, "_failed", [])
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/sbin:/usr/bin:/sbin:/bin")
    stand_in(tmp_path, "true")
    return tmp_path / "calls"


def stand_in(folder: Path, end: str) -> None:
    (folder / "debootstrap").write_text(MAKES.format(calls=folder / "calls", end=end))
    (folder / "debootstrap").chmod(0o755)


def test_it_is_made_once_and_kept(calls: Path) -> None:
    first, second = releases.made(), releases.made()
    assert first == second and first.parent == releases.CACHE and (first / "usr").is_dir()
    (asked,) = calls.read_text().splitlines()
    assert "docker.io" in asked and " forky " in asked and "://" in asked
    assert not (first / "var/cache/apt/archives").exists()
    assert str(first) not in Path("/proc/mounts").read_text()


def test_a_half_made_one_is_never_used(calls: Path, tmp_path: Path) -> None:
    stand_in(tmp_path, "echo 'no such suite' >&2; exit 1")
    for _ in range(2):  # the second time without trying again
        with pytest.raises(LabError, match="no such suite"):
            releases.made()
    assert len(calls.read_text().splitlines()) == 1
    assert [path.name[:10] for path in releases.CACHE.iterdir() if path.is_dir()] == ["half-made-"]
    releases._failed.clear()
    stand_in(tmp_path, "true")
    releases.made()
    assert [path.name[:6] for path in releases.CACHE.iterdir() if path.is_dir()] == ["forky-"]


def test_a_lab_is_told_what_it_cannot_have(calls: Path, tmp_path: Path) -> None:
    stand_in(tmp_path, "echo 'no way out' >&2; exit 1")
    told: list[str] = []
    with Lab(lacking=told.append) as lab, pytest.raises(LabError):
        lab.engine("newer", release=Release.D28)
    assert len(told) == 1 and "Docker 28" in told[0] and "no way out" in told[0]


def test_nothing_but_this_machines_python_is_needed_to_make_it() -> None:
    root = Path(__file__).resolve().parents[2]
    asked = [sys.executable, "-S", "-c", "import tests.lab.releases as made; print(made.Release.D28)"]
    assert subprocess.run(asked, cwd=root, capture_output=True, text=True).stdout == "28\n"
