"""Whether a directory lists: a program of its own, since nothing can end a process that a dead mount holds.

It is started with ``python -I -S`` and this file's path; it imports nothing of ours.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import sys
from typing import Any


def listed(path: str) -> dict[str, Any]:
    """``error`` (errno, 0: it lists and can be entered), ``empty``, and ``real``: the path without symlinks.

    sshfs answers from its cache for 20 s after the far side is gone. What a name that nobody can have asked for
    before leads to, only the far side can say.
    """
    error, empty = 0, False
    try:
        with os.scandir(path) as entries:
            empty = next(entries, None) is None
        with contextlib.suppress(FileNotFoundError):
            os.stat(f"{path}/.fdl-{os.urandom(16).hex()}")  # noqa: PTH116 - starts sooner without
    except OSError as failed:
        error = failed.errno or errno.EIO
    return {"error": error, "empty": empty, "real": os.path.realpath(path)}


if __name__ == "__main__":
    os.write(1, json.dumps(listed(sys.argv[1])).encode())
