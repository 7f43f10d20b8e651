"""A share of this machine's CPUs for a node, as a machine has its own: the others can neither use it nor take it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path

GROUPS = Path("/sys/fs/cgroup")
PERIOD = 10_000  # microseconds; short, so that a node never stands still for long


def give(group: str, name: str, cpus: float, pids: Iterable[str]) -> None:
    """Let those processes, and all that they start from now on, use so many CPUs together.

    The control group is one of the run's, which removes them at its end.
    """
    old = (GROUPS / "cpu").is_dir()  # version 1 of control groups
    folder = (GROUPS / "cpu" if old else GROUPS) / group / name
    folder.mkdir(parents=True, exist_ok=True)
    quota = int(cpus * PERIOD)
    if old:
        (folder / "cpu.cfs_period_us").write_text(str(PERIOD))
        (folder / "cpu.cfs_quota_us").write_text(str(quota))
    else:
        for top in (GROUPS, folder.parent):
            (top / "cgroup.subtree_control").write_text("+cpu")
        (folder / "cpu.max").write_text(f"{quota} {PERIOD}")
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            (folder / "cgroup.procs").write_text(pid)
