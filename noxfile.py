"""Everything that is done with a checkout, from nothing but Python 3.11+: ``python3 noxfile.py``.

    python3 noxfile.py                  the tests (what this machine lacks for some of them is named)
    python3 noxfile.py -s demo          the main job on the embedded default cluster
    python3 noxfile.py -s tests -- -k preflight      words after -- go to pytest
    python3 noxfile.py -l               what else there is

Where nox is missing, it is installed into ``.nox/bootstrap``, and nothing else is touched.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parent
BOOTSTRAP = ROOT / ".nox" / "bootstrap"
NOX = "nox>=2025.2.9"
HAS_NOX = "import nox, nox.project; nox.project.dependency_groups"  # groups came in 2025.2.9


def stop(what: str, hint: str) -> NoReturn:
    print(f"noxfile.py: {what}\n  next: {hint}", file=sys.stderr)
    raise SystemExit(2)


def has_nox(python: str) -> bool:
    """Whether that interpreter starts and has a nox that is new enough."""
    try:
        return subprocess.run([python, "-c", HAS_NOX], capture_output=True).returncode == 0
    except OSError:
        return False


def bootstrap() -> str:
    """The interpreter of a private venv that has nox; made, or mended, where needed."""
    python = str(BOOTSTRAP / ("Scripts" if os.name == "nt" else "bin") / "python")
    if has_nox(python):
        return python
    if not (importlib.util.find_spec("venv") and importlib.util.find_spec("ensurepip")):
        stop("this Python has no venv module (or no ensurepip)", "apt-get install python3-venv, then run this again")
    print("noxfile.py: installing nox into .nox/bootstrap (once)", file=sys.stderr)
    make = [sys.executable, "-m", "venv", "--clear", str(BOOTSTRAP)]
    install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", NOX]
    for argv in (make, install):
        done = subprocess.run(argv, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        if done.returncode:
            shutil.rmtree(BOOTSTRAP, ignore_errors=True)
            said = "\n".join(f"  | {line}" for line in (done.stderr or done.stdout).strip().splitlines()[-5:])
            what = f"could not set up nox: {' '.join(argv)} ended with {done.returncode}\n{said}"
            stop(
                what, "mend that (pip needs a package index and some free disk), or install nox yourself and run `nox`"
            )
    return python


def start(words: list[str]) -> None:
    """Go on as nox, in an interpreter that has it. Never comes back."""
    if sys.version_info < (3, 11):  # noqa: UP036 - this file is run by whatever python3 is
        stop(f"Python 3.11 or newer is needed, this is {sys.version.split()[0]}", "python3.11 noxfile.py (or newer)")
    python = sys.executable if has_nox(sys.executable) else bootstrap()
    os.execv(python, [python, "-m", "nox", "-f", str(Path(__file__).resolve()), *words])


if __name__ == "__main__":
    start(sys.argv[1:])

import nox  # noqa: E402

PYPROJECT = nox.project.load_toml(ROOT / "pyproject.toml")
nox.needs_version = ">=2025.2.9"
nox.options.sessions = ["tests"]
nox.options.reuse_venv = "yes"
nox.options.default_venv_backend = "virtualenv"

# Most of the time a test waits for a connection, a container or a limit; a module shares its nodes and engines.
SIDE_BY_SIDE = ("-n", "3", "--dist", "loadfile")


def install(session: nox.Session, *groups: str, project: bool = True) -> None:
    """Install dependency groups of pyproject.toml, and the project as it lies here."""
    requirements = nox.project.dependency_groups(PYPROJECT, *groups) if groups else ()
    session.install(*(["-e", "."] if project else []), *requirements)


@nox.session
def tests(session: nox.Session) -> None:
    """All tests. What needs root, sshd or Docker is skipped with the reason where that is missing."""
    install(session, "test")
    session.run("python", "-m", "pytest", *(session.posargs or SIDE_BY_SIDE))


@nox.session
def e2e(session: nox.Session) -> None:
    """The tests on the lab's real nodes only."""
    install(session, "test")
    session.run("python", "-m", "pytest", "tests/e2e", *(session.posargs or SIDE_BY_SIDE))


@nox.session
def scripts(session: nox.Session) -> None:
    """ShellCheck and the shells themselves over every rendered template."""
    install(session, "test")
    session.run("python", "-m", "pytest", "tests/test_templates.py", *session.posargs)


@nox.session
def lint(session: nox.Session) -> None:
    """Ruff: rules and format."""
    install(session, "lint", project=False)
    session.run("ruff", "check")
    session.run("ruff", "format", "--check")


@nox.session
def types(session: nox.Session) -> None:
    """mypy --strict over the library and its tests."""
    install(session, "test", "types")
    session.run("mypy", *session.posargs)


@nox.session
def demo(session: nox.Session) -> None:
    """The main job on the embedded cluster.yml: two workers on this machine, each with its own libtorch."""
    ways = {
        "git": "apt-get install git",
        "cargo": "https://rustup.rs, or apt-get install cargo",
        "cc": "apt-get install gcc libc6-dev",
    }
    lacks = [f"{tool} ({way})" for tool, way in ways.items() if not shutil.which(tool)]
    if lacks:
        session.error(f"the demo needs {', '.join(lacks)}")
    install(session)
    session.run("python", "-m", "invoke", "demo", *session.posargs)


@nox.session
def pictures(session: nox.Session) -> None:
    """The terminal pictures of docs/pictures/, from real runs (needs cargo, cc and ssh)."""
    install(session)
    session.run("python", "-m", "tests.pictures", *session.posargs)


@nox.session
def bench(session: nox.Session) -> None:
    """Measure, each figure beside its peer's, and write docs/benchmarks.md (as root: also what goes over ssh)."""
    install(session)
    session.run("python", "-m", "bench", *session.posargs, interrupt_timeout=60, terminate_timeout=10)


@nox.session
def lab(session: nox.Session) -> None:
    """A cluster of real nodes on this machine, for trying things by hand; Ctrl-C ends it (needs root)."""
    install(session)
    session.run("python", "-m", "tests.lab", *session.posargs, interrupt_timeout=60, terminate_timeout=10)
