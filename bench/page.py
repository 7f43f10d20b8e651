"""The page of all figures: what they are, on what machine, how to have them again."""

from __future__ import annotations

import datetime
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

from .measure import ROOT, usual_env
from .rows import Group, table

INTRO = """# Benchmarks

What the library costs, each figure beside its peer's. Written by `nox -s bench`; not by hand.
"""
READING = """## How to read it

- A figure is the median of its rounds, with the least and the most behind it.
- Each round runs ours, then the peer (A B A B …), so that whatever else the machine does meets both. *Compared* is
  taken round by round (ours / peer, or ours - peer for times with a sign), and then the median of that: it may differ
  a little from what the two medians give. For counts it is the worst of ours.
- The smaller figures vary by a tenth or more from run to run even on a quiet machine; the load at the start tells how
  quiet it was. A ratio near its target is not decided by one run.
- Before the first round all of it runs once without being measured, but for builds from nothing and sent images.
- What has no target is there to compare with.
- Every measured command is looked at: it must have done its work (50 answers, nothing compiled, …), or there is no
  figure.

## How to have it again

```
python3 noxfile.py -s bench                                  # all of it, and this page; as root for what goes over ssh
python3 noxfile.py -s bench -- --only listing --rounds 30    # one part, printed
python3 noxfile.py -s bench -- --only relay --only in-sync --write    # these parts, in their places on the page
```

The images take the longest: 150 transfers of 0.4 to 1 GB in the 5 rounds, half an hour on two quiet cores; and 20 GB
of disk for the time being, below the folder for temporary files.
"""


def page(groups: Sequence[Group], left_out: Mapping[str, str], load: float) -> str:
    """The whole page as Markdown; ``left_out`` is part -> reason, ``load`` the load average at the start."""
    tables = [table(group) for group in groups]
    missing = [f"- `{name}`: {reason}" for name, reason in left_out.items()]
    rest = ["### Not measured", "\n".join(missing)] if missing else []
    return "\n\n".join([INTRO.rstrip(), _machine(load), "## Figures", *tables, *rest, READING.rstrip()]) + "\n"


def put(page: str, groups: Sequence[Group], load: float) -> str:
    """The page with these groups in the places of the same title, or behind the others; each says when it was."""
    for group in groups:
        when = f"- measured by itself on {datetime.date.today():%Y-%m-%d}, load at the start {load:.1f}"
        head, _, rest = table(group).partition("\n\n")
        text = f"{head}\n\n{when}\n{rest}\n\n"
        old = re.compile(rf"^{re.escape(head)}\n.*?(?=^##)", re.DOTALL | re.MULTILINE)
        page, found = old.subn(text.replace("\\", r"\\"), page)
        page = page if found else page.replace("## How to read it", f"{text}## How to read it", 1)
    return page


def _machine(load: float) -> str:
    packages = ", ".join(f"{name} {version(name)}" for name in ("invoke", "fabric", "paramiko"))
    facts = {
        "date": f"{datetime.date.today():%Y-%m-%d}",
        "CPU": f"{_cpu()}, {len(os.sched_getaffinity(0))} cores; load at the start {load:.1f}",
        "kernel": f"{platform.system()} {platform.release().partition('-')[0]}",
        "Python": f"{platform.python_version()}; {packages}",
        "OpenSSH": _said("ssh", "-V"),
        "Docker": _said("dockerd", "--version"),
        "Rust": f"{_said('cargo', '--version')}; {_said('rustc', '--version')}",
    }
    lines = [f"| {name} | {fact} |" for name, fact in facts.items()]
    return "\n".join(["## Machine", "", "| | |", "|---|---|", *lines])


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _said(*argv: str) -> str:
    if not shutil.which(argv[0]):
        return "not there"
    done = subprocess.run(argv, cwd=ROOT, env=usual_env(), capture_output=True, text=True, stdin=subprocess.DEVNULL)
    return (done.stdout or done.stderr).strip().splitlines()[0]
