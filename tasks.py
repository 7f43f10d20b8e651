"""This repository's own tasks: the library's, mounted as in any task file, and the demo."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

from invoke.context import Context
from invoke.exceptions import Exit
from invoke.tasks import task

import fdl_tasks

TOP = Path(__file__).resolve().parent
CLUSTER = TOP / "cluster.yml"
EXAMPLE = TOP / "examples" / "monorepo"
GET = {
    "git": "Debian: apt install git",
    "cargo": "https://rustup.rs, or Debian: apt install cargo",
    "cc": "Debian: apt install gcc libc6-dev",
}


@task(auto_shortflags=False)
def demo(c: Context) -> None:
    """Build the example for two workers, and start it.

    Both are this machine, with unlike variants; small stand-ins are made for libtorch. Needs git, cargo
    and cc, no GPU and no other machine.
    """
    if missing := [f"{tool} is missing: {way}" for tool, way in GET.items() if not shutil.which(tool)]:
        raise Exit("\n".join(missing), code=2)
    workers = fdl_tasks.load_cluster(CLUSTER).workers or ()
    variants = {worker.host: worker.arch or "" for worker in workers}
    made = subprocess.run([EXAMPLE / "make-libtorch.sh", EXAMPLE, *variants.values()], stdin=subprocess.DEVNULL)
    if made.returncode:
        raise Exit("the stand-ins for libtorch could not be made", code=1)
    fdl_tasks.tasks.prebuild(c, cmd="ddp-bench", cluster=CLUSTER)
    envelope = os.environ[fdl_tasks.ENV_NAME]
    print(f"\nThe envelope, for the launcher:\n{envelope}\n\nEvery worker's binary, started from it:", flush=True)
    if wrong := [host for host, entry in json.loads(envelope).items() if not _starts(host, entry, variants[host])]:
        raise Exit(f"did not find its own libtorch: {', '.join(wrong)}", code=1)


def _starts(host: str, entry: dict[str, str], variant: str) -> bool:
    """Start one binary as a launcher would; true when it says that it found the worker's variant."""
    done = subprocess.run(
        [EXAMPLE / entry["bin"]],
        cwd=EXAMPLE / entry.get("cwd_subpath", ""),
        env={**os.environ, "LD_LIBRARY_PATH": entry["ld_library_path"]},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    print(f"{host}: {done.stdout.strip()}", flush=True)
    return done.returncode == 0 and f"libtorch {Path(variant).name} " in done.stdout


ns = fdl_tasks.collection(cluster=CLUSTER)
ns.add_task(demo)
