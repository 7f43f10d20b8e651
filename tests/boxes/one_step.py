"""One step of ``prepare`` as a process of its own: it can be interrupted, killed, or run with fewer rights.

The call is JSON in argv[1]; the outcome is a line of JSON on stdout. With ``stay`` it then waits to be ended.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from fdl_tasks.boxes.data.dataset import prepare_data
from fdl_tasks.boxes.data.directories import prove
from fdl_tasks.boxes.tools import Tools
from fdl_tasks.cluster.model import Ssh
from fdl_tasks.errors import PrepareError

ROOT = Path(__file__).resolve().parents[2]
UNPRIVILEGED = ("setpriv", "--bounding-set=-dac_override,-dac_read_search", "--inh-caps=-dac_override,-dac_read_search")
UNABLE_TO_MOUNT = ("setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin")


def command(*before: str, **call: Any) -> list[str]:
    """The argv of a step, with a program before it that takes rights away."""
    return [*before, sys.executable, __file__, json.dumps(call)]


def outcome(*before: str, **call: Any) -> dict[str, Any]:
    """Run a step to its end; ``class`` is empty when it went well."""
    done = subprocess.run(
        command(*before, **call),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.stdout, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def run(call: dict[str, Any]) -> dict[str, Any]:
    notes: list[str] = []
    try:
        if "env" in call:
            got = prove(call["env"], notes.append)
        else:
            ssh = Ssh("", **call["ssh"]) if call.get("ssh") else None
            got = prepare_data(call["path"], call.get("source"), ssh, Tools("box"), notes.append)
    except PrepareError as error:
        return {"class": error.kind, "message": str(error), "notes": notes}
    return {"class": "", "got": str(got), "notes": notes}


if __name__ == "__main__":
    wanted = json.loads(sys.argv[1])
    sys.stdout.write(json.dumps(run(wanted)) + "\n")
    sys.stdout.flush()
    if wanted.get("stay"):
        time.sleep(60)
