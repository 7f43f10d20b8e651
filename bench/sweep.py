"""Preflight of many labels over one sshd, beside ``xargs`` with the ssh binary and the same probe."""

from __future__ import annotations

import json
from pathlib import Path

from fdl_tasks.checks import probe, shared
from fdl_tasks.scripts import Scripts
from tests.lab.lab import Lab
from tests.lab.sshd import SETTINGS

from . import projects
from .lab import lab_here
from .measure import BenchError, Program, Ran, alternate, run
from .rows import Group, Judged, Row

LABELS = 50
WIDTH = 16
MOUNT = "/srv/mono"
# $1 where the answer goes, $2 the probe; the rest is ssh's. One sh a label, since xargs alone feeds no stdin.
ONE = 'out=$1 probe=$2; shift 2; exec ssh "$@" sh -s <"$probe" >"$out"'


def measure(folder: Path, rounds: int) -> Group:
    project = folder / "mono"
    projects.empty_libtorch(project, ["precompiled/cpu"])
    with lab_here() as lab, shared.fresh_files(project, 1) as fresh:
        ssh = _site(lab, project)
        text = probe.render(Scripts(), MOUNT, MOUNT, abi=True, fresh=list(fresh.written), pause=shared.PAUSE).text
        (folder / "probe.sh").write_text(text)
        default = _Xargs(folder, "default", ssh)
        curve = _Xargs(folder, "curve25519", ["-o", "KexAlgorithms=curve25519-sha256", *ssh])
        done = alternate("preflight", rounds, lambda: _ours(project), default, curve)
    return Group(
        f"`preflight` of {LABELS} labels over one sshd",
        f"`fdl-tasks preflight --json`, {WIDTH} at once, with the controller's own checks and the start of Python",
        f"`xargs -P{WIDTH}` of `ssh … sh -s`, fed with the script that preflight renders; nothing judges its answers",
        _rows(done),
        f"the sshd runs on the same machine, with MaxStartups {SETTINGS['MaxStartups']} (its default would drop "
        "the peer's connections; preflight tries those again). CPU is the client's: the process and all it started",
    )


def _site(lab: Lab, project: Path) -> list[str]:
    """One node under many labels; what the ssh binary needs to reach it."""
    node = lab.node("bench", share={MOUNT: project})
    one = lab.worker(node, MOUNT, arch="precompiled/cpu", data_path=MOUNT)
    projects.write_cluster(project, [{**one, "host": f"w{number:02}"} for number in range(LABELS)])
    return lab.ssh_argv(node)


def _ours(project: Path) -> Ran:
    ran = run(projects.ours(project, "preflight", "--json", "--width", str(WIDTH)))
    hosts = json.loads(ran.out[0])["hosts"].values()
    if sum(one["facts"].get("shared") is True for one in hosts) != LABELS:
        raise BenchError(f"not every label answered:\n{ran.out[0]}\n{ran.err[0]}")
    return ran


class _Xargs:
    """The peer, with one set of ssh's arguments."""

    def __init__(self, folder: Path, name: str, ssh: list[str]):
        self._answers, labels = folder / name, folder / "labels"
        self._answers.mkdir()
        labels.write_text("".join(f"{number}\n" for number in range(LABELS)))
        xargs: list[str | Path] = ["xargs", "-a", labels, f"-P{WIDTH}", "-I{}", "sh", "-c", ONE, "sh"]
        self._program = Program([*xargs, self._answers / "{}", folder / "probe.sh", *ssh], folder)

    def __call__(self) -> Ran:
        for old in self._answers.iterdir():
            old.unlink()
        ran = run(self._program)
        facts = [probe.parse(answer.read_text()) for answer in self._answers.iterdir()]
        if sum(one.ended and one.shared not in (None, probe.ABSENT) for one in facts) != LABELS:
            raise BenchError(f"not every label answered the peer:\n{ran.err[0]}")
        return ran


def _rows(done: list[tuple[Ran, ...]]) -> tuple[Row, ...]:
    ours, default, curve = zip(*done, strict=True)
    wall, cpu = [one.wall for one in ours], [one.cpu for one in ours]
    return (
        Row("seconds; ssh's default key exchange", "s", wall, [one.wall for one in default], Judged.RATIO, 1.0),
        Row("seconds; ssh with curve25519", "s", wall, [one.wall for one in curve], Judged.RATIO, 1.0),
        Row("CPU; ssh's default key exchange", "s", cpu, [one.cpu for one in default], Judged.RATIO, 1.0),
        Row("CPU; ssh with curve25519", "s", cpu, [one.cpu for one in curve], Judged.RATIO),
    )
