"""A prebuild in a process of its own, to send signals to."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tests.builds.monorepo import Project

ROOT = Path(__file__).resolve().parents[2]
RUN = """
import os, sys
from pathlib import Path
from fdl_tasks.builds.run import dry_run
from fdl_tasks.cluster.model import Command
from tests.builds.monorepo import Project
uid, root, service, line, *hosts = sys.argv[1:]
project = Project(Path(root), controller={"docker": service or None})
project.commands["ddp-bench"] = Command("ddp-bench", build=line or None)
if int(uid) != os.geteuid():
    dry_run(project.cluster, "ddp-bench")  # what is imported late can't be read by that user
    os.setgroups([]), os.setgid(int(uid)), os.setuid(int(uid))
try:
    report = project.prebuild(hosts=hosts)
except KeyboardInterrupt:
    sys.exit(130)
for built in report.hosts.values():
    print(built.status, built.error)
"""


def start(
    project: Project, line: str, *hosts: str, service: str = "", uid: int = os.geteuid()
) -> subprocess.Popen[str]:
    """Start prebuilding ``project`` with that build line; cargo's when it is empty. ``uid``: as that user."""
    library = ROOT if uid == os.geteuid() else readable_library(project.root.parent / "library")
    env = {**os.environ, "PYTHONPATH": str(library)}
    argv = [sys.executable, "-c", RUN, str(uid), str(project.root), service, line, *hosts]
    return subprocess.Popen(argv, cwd=library, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def readable_library(folder: Path) -> Path:
    """A copy that another user can read: a checkout may lie in a private directory."""
    for name in ("fdl_tasks", "templates", "tests"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)
    return folder


def wait_for(condition: Callable[[], object], what: str, limit: float = 15) -> None:
    deadline = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < deadline, f"waited {limit} s in vain: {what}"
        time.sleep(0.02)


def interrupt(process: subprocess.Popen[str]) -> tuple[int, float]:
    """Send a Ctrl-C; exit code, and seconds until the process had ended."""
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    code = process.wait(timeout=20)
    return code, time.monotonic() - began


def running(word: str) -> list[str]:
    """Command lines of this machine's processes that hold ``word``."""
    found = []
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = place.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if word in line and place.parent.name != str(os.getpid()) and RUN[:20] not in line:
            found.append(line)
    return found
