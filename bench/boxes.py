"""``prepare`` a second time, with nothing changed, beside the bare tools."""

from __future__ import annotations

import hashlib
import json
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

import yaml

from tests.lab.lab import Lab
from tests.lab.node import Node

from . import projects
from .lab import lab_here
from .measure import ROOT, BenchError, Program, Ran, alternate, run, usual_env
from .rows import Group, Judged, Row

FILES, BYTES = 2000, 10_000  # of the tree, beside its crates
LIMIT = 1.3
SERVED = "/srv/run/tree"
START = "import fdl_tasks.tasks.program, fdl_tasks.boxes.pipeline, fdl_tasks.report.prepared, jinja2"
GPU = json.dumps([{"index": 0, "name": "a card", "arch": "12.0", "vram_mb": 97887}])
BUILD = "cargo build --release --quiet"


def measure(folder: Path, rounds: int) -> Group:
    tree = projects.many_crates(folder / "tree")
    for number in range(FILES):
        data = tree / "data" / str(number % 50) / str(number)
        data.parent.mkdir(parents=True, exist_ok=True)
        data.write_bytes(hashlib.sha256(str(number).encode()).digest() * (BYTES // 32))
    subprocess.run(["cargo", "generate-lockfile", "--offline"], cwd=tree / "app", check=True, env=usual_env())
    _publish(tree)
    with lab_here() as lab:
        node = lab.node("ctrl", share={SERVED: tree})
        rows = (_row("rsync", _rsync(lab, node, folder / "by-rsync"), rounds),
                _row("git", _git(lab, node, tree, folder / "by-git"), rounds))  # fmt: skip
    return Group(
        f"`prepare` a second time, with nothing changed: {FILES} files beside {projects.CRATES + 1} crates",
        "`fdl-tasks prepare` less the start-up of Python with the library; it checks every file's SHA-256 too, and "
        "that the binary finds its libraries",
        "the bare tools one after another: `rsync -a --delete`, or `git fetch --depth 1` and `git checkout --force "
        "--detach`; then `cargo build`",
        rows,
        "the source is on a node of the same machine, over ssh",
    )


def _row(what: str, pair: tuple[Program, Program], rounds: int) -> Row:
    start = Program([sys.executable, "-c", START], ROOT)
    done = alternate(f"prepare by {what}", rounds, lambda: _ours(pair[0]), lambda: run(pair[1]), lambda: run(start))
    began = median(started.wall for _, _, started in done)
    ours, peer = [one.wall - began for one, _, _ in done], [one.wall for _, one, _ in done]
    return Row(f"seconds, by {what}", "s", ours, peer, Judged.RATIO, LIMIT)


def _ours(program: Program) -> Ran:
    ran = run(program)
    if not json.loads(ran.out[0])["ok"]:
        raise BenchError(ran.out[0])
    return ran


def _rsync(lab: Lab, node: Node, folder: Path) -> tuple[Program, Program]:
    source = f"rsync://root@{node.address}:{node.port}{SERVED}"
    shell = shlex.join(["ssh", *_ssh(lab, node)])
    fetch = ["rsync", "-a", "--delete", "--exclude=target/", "--exclude=.git/", "-e", shell]
    line = shlex.join([*fetch, f"root@{node.address}:{SERVED}/", "./"])
    return _box(lab, folder / "box", source), _bare(folder / "bare", line)


def _git(lab: Lab, node: Node, tree: Path, folder: Path) -> tuple[Program, Program]:
    env = {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "safe.directory", "GIT_CONFIG_VALUE_0": "*"}
    for words in (["init", "--quiet", "-b", "main"], ["add", "--all", "--force", "."], _COMMIT):
        subprocess.run(["git", *words], cwd=tree, check=True, env={"PATH": "/usr/bin:/bin", **env})
    node.write("/root/.gitconfig", "[safe]\n\tdirectory = *\n")
    url = f"ssh://root@{node.address}:{node.port}{SERVED}"
    fetch = shlex.join(["git", "fetch", "--quiet", "--depth", "1", url, "main"])
    line = f"git init --quiet && {fetch} && git checkout --quiet --force --detach FETCH_HEAD"
    return (
        _box(lab, folder / "box", f"git+{url}#main"),
        _bare(folder / "bare", line, {"GIT_SSH_COMMAND": shlex.join(["ssh", *_ssh(lab, node)[:-2]])}),
    )


_COMMIT = ["-c", "user.name=b", "-c", "user.email=b@example.org", "commit", "--quiet", "--message", "a run"]


def _ssh(lab: Lab, node: Node) -> list[str]:
    options = [word for option in lab.ssh_options() for word in ("-o", option)]
    return ["-i", str(lab.client_key), *options, "-p", str(node.port)]


def _box(lab: Lab, home: Path, source: str) -> Program:
    """A box that has its libtorch; the first, unmeasured round fetches and builds."""
    projects.empty_libtorch(home / ".flodl", ["precompiled/cpu"])
    (home / ".flodl/libtorch/.active").write_text("precompiled/cpu\n")
    ssh: Mapping[str, Any] = {"target": "ctrl", "identity_file": str(lab.client_key), "options": lab.ssh_options()}
    (home / "cluster.yml").write_text(yaml.safe_dump({"join": {"ssh": dict(ssh), "source": {"from": source}}}))
    env = {"HOME": str(home), "FLODL_HOME": str(home / ".flodl"), "FLODL_TESTING_GPU_JSON": GPU}
    return projects.ours(home, "prepare", "--json", env=env)


def _bare(home: Path, fetch: str, env: Mapping[str, str] | None = None) -> Program:
    home.mkdir(parents=True)
    return Program(["sh", "-c", f"{fetch} && cd app && exec {BUILD}"], home, env or {})


def _publish(tree: Path) -> None:
    """The manifest with its digest, as a publisher writes it."""
    (tree / ".gitignore").write_text("target/\n")
    names = sorted(path.relative_to(tree).as_posix() for path in tree.rglob("*") if path.is_file())
    lines = "".join(f"{hashlib.sha256((tree / name).read_bytes()).hexdigest()}  {name}\n" for name in names)
    (tree / ".fdl-run.sha256").write_text(lines)
    digest = {"sha256": hashlib.sha256(lines.encode()).hexdigest(), "files": len(names)}
    manifest = {"bin": "target/release/app", "cwd": "app", "build": BUILD, "digest": digest}
    (tree / ".fdl-run.yml").write_text(yaml.safe_dump(manifest))
