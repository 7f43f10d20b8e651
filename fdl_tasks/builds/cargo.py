"""What cargo prints, read: the artifact it names, what it is at, what stopped it (pure).

The messages on stdout: https://doc.rust-lang.org/cargo/reference/external-tools.html#json-messages
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from enum import StrEnum
from pathlib import PurePosixPath
from typing import Any

from ..errors import BuildError
from .plan import Job

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_STEP = re.compile(r" *(Compiling|Downloading|Updating|Blocking waiting for) (.+?)(?: v[0-9].*)?")


class Trouble(StrEnum):
    """What a program met that is the machine's fault rather than the source's; the value is how it says so.

    A linker writes through a memory map: where the disk fills up it gets no error but a SIGBUS.
    """

    DISK_FULL = "No space left on device"
    QUOTA = "Disk quota exceeded"
    BUS_ERROR = "terminated with signal 7"
    DENIED = "Permission denied"
    NO_BASH = 'exec: "bash": executable file not found'


def message(line: str) -> dict[str, Any] | None:
    """A line of cargo's stdout as the message it is; None when it is something else."""
    if not line.startswith('{"'):
        return None
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) and "reason" in found else None


def executable(found: dict[str, Any], name: str) -> tuple[str, str] | None:
    """Path and package of binary ``name`` when this message announces it; a fresh one is announced, too."""
    target = found.get("target") or {}
    if found["reason"] == "compiler-artifact" and target.get("name") == name and "bin" in target.get("kind", ()):
        path = found.get("executable")
        return (path, str(found.get("package_id"))) if isinstance(path, str) else None
    return None


def state(line: str) -> str | None:
    """What a line of cargo's stderr says it is at, such as ``compiling torch-sys``."""
    found = _STEP.fullmatch(_COLOUR.sub("", line))
    return f"{found[1].lower()} {found[2].rstrip(' .')}" if found else None


def trouble(line: str) -> Trouble | None:
    """The machine's fault that a line of any program tells of (in the C locale's words)."""
    return next((kind for kind in Trouble if kind.value in line), None)


def artifact(named: Collection[tuple[str, str]], job: Job) -> str:
    """The binary that cargo named, with its package; the path relative to the project root.

    Raises:
        BuildError: cargo named none, several, or one outside the target directory.
    """
    if not named:
        raise BuildError(
            f"cargo ended well but named no binary {job.command.name}",
            hint="is `--message-format`, `--no-run` or the like in cargo_args?",
        )
    if len(named) > 1:  # of two packages, one over the other; or for two targets
        each = ", ".join(f"{path} of {package}" for path, package in sorted(named))
        raise BuildError(
            f"cargo built more than one binary {job.command.name}: {each}",
            hint=f"say which: commands.{job.command.name}.cwd, or `-p PACKAGE`, or one `--target`, in cargo_args",
        )
    [(path, _)] = named
    target = job.inside / job.target_dir
    below = PurePosixPath(path)
    if ".." in below.parts or not below.is_relative_to(target):
        raise BuildError(
            f"cargo put the binary at {path}, outside the target directory {target}, where no worker looks for it",
            hint="remove --target-dir, --artifact-dir and the like from cargo_args and cargo's configuration",
        )
    return f"{job.target_dir}/{below.relative_to(target)}"
