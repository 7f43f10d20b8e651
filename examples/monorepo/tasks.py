"""Our own tasks; fdl-tasks brings the ones under ``fdl.`` and builds for every worker before we train."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from pathlib import Path

from invoke import Collection, Context, Exit, call, task

import fdl_tasks

ROOT = Path(__file__).resolve().parent
ENVELOPE = "FLODL_INTERNAL_PREBUILD_PER_HOST"


@task
def libtorch(c: Context) -> None:
    """Make the stand-in libtorch variants under libtorch/."""
    c.run(shlex.join([str(ROOT / "make-libtorch.sh"), str(ROOT)]), in_stream=False)


def _read_envelope(file: str | None) -> dict[str, dict[str, str]]:
    try:
        text = Path(file).read_text(encoding="utf-8") if file else os.environ.get(ENVELOPE)
        hosts: dict[str, dict[str, str]] = json.loads(text or "{}")
    except (OSError, ValueError) as error:
        raise Exit(f"{file or ENVELOPE}: {error}", code=2) from error
    if not hosts:
        raise Exit("no envelope: run `inv train`, or pass what `inv fdl.prebuild --envelope FILE` wrote", code=2)
    return hosts


def _start(host: str, entry: dict[str, str]) -> bool:
    """Start one local worker's binary; all that is known of it stands in its entry of the envelope."""
    print(f"{host}: ", end="", flush=True)
    binary, directory = ROOT / entry["bin"], ROOT / entry.get("cwd_subpath", "")
    environment = {**os.environ, "FLODL_HOST_NAME": host, "LD_LIBRARY_PATH": entry["ld_library_path"]}
    try:
        return subprocess.run([binary], cwd=directory, env=environment).returncode == 0
    except OSError as error:
        print(error, flush=True)
        return False


@task(help={"envelope": "file that `inv fdl.prebuild --envelope FILE` wrote; default: of this same call"})
def launch(c: Context, envelope: str | None = None) -> None:
    """Start every local worker's binary, from the envelope alone."""
    failed = [host for host, entry in _read_envelope(envelope).items() if not _start(host, entry)]
    if failed:
        raise Exit(f"did not run: {', '.join(failed)}", code=1)


@task(pre=[call(libtorch), call(fdl_tasks.tasks.prebuild, cmd=["ddp-bench"])])
def train(c: Context) -> None:
    """Build for every worker, then start what was built."""
    launch(c)


ns = Collection(libtorch, launch, train)
ns.add_collection(fdl_tasks.collection(), "fdl")
