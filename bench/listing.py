"""``inv --list`` with the library mounted: what everybody pays who has it in their task file."""

from __future__ import annotations

import sys
from pathlib import Path

from .measure import BenchError, Program, Ran, alternate, run
from .rows import Group, Judged, Row

SMALL = '''from invoke import task


@task
def hello(c):
    """Nothing."""
'''
MOUNTED = f"""import fdl_tasks
from invoke import Collection
{SMALL}

ns = Collection(hello)
ns.add_collection(fdl_tasks.collection(), "fdl")
"""


def measure(folder: Path, rounds: int) -> Group:
    ours = _Lister(folder / "mounted", MOUNTED, "fdl.prebuild")
    peer = _Lister(folder / "small", SMALL, "hello")
    done = alternate("inv --list", rounds, ours, peer)
    row = Row("seconds", "s", [a.wall for a, _ in done], [b.wall for _, b in done], Judged.RATIO, 1.3)
    return Group(
        "`inv --list`",
        "a task file with one empty task and the library mounted",
        "the same without the library (Invoke refuses to list a file that has no task at all)",
        (row,),
    )


class _Lister:
    def __init__(self, folder: Path, tasks: str, expected: str):
        folder.mkdir()
        (folder / "tasks.py").write_text(tasks)
        self._program, self._expected = Program([sys.executable, "-m", "invoke", "--list"], folder), expected

    def __call__(self) -> Ran:
        ran = run(self._program)
        if self._expected not in ran.out[0]:
            raise BenchError(f"{self._expected} is not listed:\n{ran.out[0]}")
        return ran
