"""``python -m tests.lab``: a cluster by hand. Brings nodes up, says how to use them, waits for Ctrl-C."""

from __future__ import annotations

import argparse
import shlex
import shutil
import signal
import sys
from pathlib import Path

from .compose import write_compose
from .engine import Store
from .lab import Lab
from .node import ENGINE_SOCKET, Node
from .system import missing_for_docker, missing_for_lab, run

ROOT = Path(__file__).resolve().parents[2]
VARIANTS = ("precompiled/cu128", "precompiled/cu126", "precompiled/rocm70")


def main() -> int:
    """Exit code 0 after Ctrl-C, 2 when something that the lab needs is missing."""
    options = _arguments()
    if missing := [*missing_for_lab(), *(missing_for_docker() if options.docker else [])]:
        print("the lab needs:", *(f"  {thing}" for thing in missing), sep="\n", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with Lab() as lab:
            _bring_up(lab, options)
            print("Ctrl-C ends it and removes everything.", flush=True)
            signal.pause()
    except KeyboardInterrupt:
        print("\nthe lab is gone", flush=True)
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.lab", description=__doc__)
    parser.add_argument("--nodes", type=int, default=3, help="how many (default 3)")
    parser.add_argument("--docker", action="store_true", help="an engine for this machine and one for each node")
    return parser.parse_args()


def _bring_up(lab: Lab, options: argparse.Namespace) -> None:
    project = lab.dir / "mono"
    shutil.copytree(ROOT / "examples" / "monorepo", project, ignore=shutil.ignore_patterns("target", "libtorch"))
    run(project / "make-libtorch.sh", project, *VARIANTS)
    nodes = [_node(lab, project, number, options.docker) for number in range(options.nodes)]
    service = {"docker": _engine_for_builds(lab, project)} if options.docker else {}
    workers = [lab.worker(node, at, arch=VARIANTS[i % len(VARIANTS)]) for i, (node, at) in enumerate(nodes)]
    controller = {"host": "controller", "path": str(project), **service}
    cluster = lab.cluster_yml(project, workers=workers, controller=controller)
    _tell(lab, cluster, [node for node, _ in nodes])


def _node(lab: Lab, project: Path, number: int, docker: bool) -> tuple[Node, str]:
    """A node, with the project at a path of its own."""
    at = "/srv/mono" if number % 2 == 0 else "/mnt/nas/mono"
    env = {"DOCKER_HOST": f"unix://{ENGINE_SOCKET}"} if docker else {}
    node = lab.node(f"node{number + 1}", share={at: project}, fabric=True, env=env)
    if docker:
        lab.engine(node.name, node=node, store=Store.CONTAINERD if number % 2 else Store.GRAPHDRIVER).load_tiny()
    return node, at


def _engine_for_builds(lab: Lab, project: Path) -> str:
    """Compose's service that builds on this machine's own engine; its name."""
    write_compose(project)
    lab.engine("controller").load_tiny()
    return "cuda"


def _tell(lab: Lab, cluster: Path, nodes: list[Node]) -> None:
    print(f"cluster.yml:  {cluster}")
    print(f"project:      {cluster.parent}")
    for node in nodes:
        print(f"  {node.name}: {shlex.join(['ssh', *lab.ssh_argv(node)])}")
    if "controller" in lab.engines:
        print(f"try first:    export DOCKER_HOST={lab.engines['controller'].host}")
    print("try, from another terminal, where fdl-tasks is installed (.nox/lab/bin/fdl-tasks is):")
    print(f"  fdl-tasks preflight --cluster {cluster}")
    print(f"  fdl-tasks prebuild --cmd ddp-bench --cluster {cluster}")
    print(f"  ip netns exec {nodes[0].netns} ip addr" if nodes else "  (no nodes)")


if __name__ == "__main__":
    sys.exit(main())
