"""What conftest.py promises of every test, tried on small test files."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.lab.system import run

pytestmark = pytest.mark.subprocess


def pytest_over(folder: Path, source: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run pytest with the suite's own conftest over one file."""
    (folder / "test_inner.py").write_text(source)
    settings = ["-c", "/dev/null", "--rootdir", str(folder), "-p", "tests.conftest", "-o", "markers=lab\ndocker"]
    argv = [sys.executable, "-m", "pytest", "-rs", "-p", "no:cacheprovider", *settings, str(folder)]
    return run(*argv, cwd=Path(__file__).resolve().parents[1], env={"COLUMNS": "400", **env}, check=False)


ASKS = """
import pytest

@pytest.mark.lab
def test_needs_a_node() -> None:
    pytest.skip("no wish to")
"""


@pytest.mark.parametrize(
    ("required", "path", "code", "said"),
    [
        ("0", "", 0, "1 skipped"),
        ("1", "", 1, "skipped although FDL_REQUIRE_LAB=1: Skipped: no wish to"),
        ("0", "/nowhere", 0, "needs ssh (run `.ci/run install`"),
        ("1", "/nowhere", 1, "FDL_REQUIRE_LAB=1: Skipped: needs ssh (run `.ci/run install`"),
    ],
    ids=["may skip", "must not skip", "may lack ssh", "must have ssh"],
)
def test_a_lab_test_is_never_skipped_where_the_lab_is_required(
    tmp_path: Path, required: str, path: str, code: int, said: str
) -> None:
    done = pytest_over(tmp_path, ASKS, FDL_REQUIRE_LAB=required, **({"PATH": path} if path else {}))
    assert done.returncode == code, done.stdout
    assert said in done.stdout


GUARDED = """
import os, socket, subprocess

def test_network() -> None:
    try:
        socket.create_connection(("127.0.0.1", 9), timeout=1)
    except OSError:
        pass

def test_program() -> None:
    subprocess.run(["true"])

def test_environment() -> None:
    assert os.path.expanduser("~") != "/root" and "SSH_AUTH_SOCK" not in os.environ and "FDL_X" not in os.environ
"""


def test_a_unit_test_reaches_no_network_no_program_and_no_home(tmp_path: Path) -> None:
    done = pytest_over(tmp_path, GUARDED, SSH_AUTH_SOCK="/x", FDL_X="1", HOME="/root")
    assert "2 failed, 1 passed" in done.stdout, done.stdout
    assert "tried to reach ('127.0.0.1', 9)" in done.stdout and "tried to start a program (['true'],)" in done.stdout
