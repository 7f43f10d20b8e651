"""What every test gets: a clean environment, no way out of the process, and the lab where it asks for it.

A test that asks for ``lab`` or ``engine`` (or a fixture built on them) is marked for it by itself. Where
the machine lacks what those need it is skipped with the reason; with FDL_REQUIRE_LAB=1 it fails instead.
"""

from __future__ import annotations

import functools
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:  # so that `pytest` finds tests.lab as `python -m pytest` does
    sys.path.insert(0, str(ROOT))

from tests.lab import files, system  # noqa: E402
from tests.lab.lab import Lab  # noqa: E402

REQUIRED = os.environ.get("FDL_REQUIRE_LAB") == "1"
FOREIGN = ("FDL_", "FLODL_", "INVOKE_", "XDG_", "DOCKER_", "COMPOSE_", "LIBTORCH_")
COLOUR = {"NO_COLOR", "FORCE_COLOR", "CLICOLOR", "CLICOLOR_FORCE", "PY_COLORS", "COLORTERM", "TTY_COMPATIBLE"}
OTHERS = {"SSH_AUTH_SOCK", "SSH_AGENT_PID", "CARGO_TARGET_DIR", "CARGO_BUILD_TARGET", "COLUMNS", "LINES"}
FREE = ("subprocess", "lab", "docker")  # markers of tests that may start programs
NEEDS = {"lab": system.missing_for_lab, "docker": system.missing_for_docker}


@functools.cache
def lacks(marker: str) -> str:
    """Why tests with that marker cannot run here; empty when they can."""
    missing = NEEDS["lab"]() if marker == "lab" else [*NEEDS["lab"](), *NEEDS["docker"]()]
    return f"needs {', '.join(missing)}" if missing else ""


def pytest_configure() -> None:
    """Ctrl-C is tested: a program that is started where SIGINT is ignored, as in xdist's workers, never sees one."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for fixture, marker in (("lab", "lab"), ("engine", "docker")):
            if fixture in getattr(item, "fixturenames", ()):
                item.add_marker(marker)


def pytest_runtest_setup(item: pytest.Item) -> None:
    for marker in ("lab", "docker"):
        if item.get_closest_marker(marker) and (reason := lacks(marker)):
            pytest.skip(reason)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, Any]:
    report = yield
    marked = any(item.get_closest_marker(marker) for marker in ("lab", "docker"))
    if REQUIRED and marked and report.skipped and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"skipped although FDL_REQUIRE_LAB=1: {report.longrepr[2]}"
    return report


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    for name in list(os.environ):
        if name.startswith(FOREIGN) or name in COLOUR | OTHERS:
            monkeypatch.delenv(name)
    monkeypatch.setenv("CARGO_HOME", str(files.CARGO))  # cargo is found in the true home
    monkeypatch.setenv("RUSTUP_HOME", str(files.RUSTUP))
    monkeypatch.setenv("HOME", str(tmp_path_factory.mktemp("home")))


@pytest.fixture(autouse=True)
def _no_way_out(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if not any(request.node.get_closest_marker(marker) for marker in ("lab", "docker")):
        for name in ("connect", "connect_ex"):
            monkeypatch.setattr(socket.socket, name, _local_only(getattr(socket.socket, name)))
    if not any(request.node.get_closest_marker(marker) for marker in FREE):
        for owner, name in ((subprocess.Popen, "__init__"), (os, "system"), (os, "posix_spawn"), (os, "execve")):
            monkeypatch.setattr(owner, name, _no_program)


def _local_only(connect: Any) -> Any:
    def guarded(self: socket.socket, address: Any) -> Any:
        if self.family != socket.AF_UNIX:
            pytest.fail(f"this test tried to reach {address}: mark it `lab`, or keep it from the network")
        return connect(self, address)

    return guarded


def _no_program(*args: Any, **kwargs: Any) -> NoReturn:
    pytest.fail(f"this test tried to start a program {args[1:2]}: mark it `subprocess`")


@pytest.fixture(scope="session")
def lab() -> Iterator[Lab]:
    """The lab of this test run. Nodes are made by the tests that want them, in 0.1 s each."""
    if reason := lacks("lab"):
        pytest.skip(reason)
    with Lab(lacking=pytest.skip) as made:
        yield made
