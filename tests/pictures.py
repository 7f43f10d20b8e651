"""Draws the pictures of docs/pictures/ from real runs: ``python -m tests.pictures [NAME…]`` (``nox -s pictures``).

Each is a command of the console script, run on a terminal of 100 columns in a copy of the example monorepo, and
what that terminal shows at the end, or at a moment, as SVG. Needs cargo, cc, ssh; contacts no other machine. Those
of images are made on the lab, and need what that needs.
"""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.text import Text

from tests.lab.engine import Engine, Store
from tests.lab.lab import Lab
from tests.lab.node import Node
from tests.lab.releases import Release
from tests.terminal import Screen, Terminal

TOP = Path(__file__).resolve().parents[1]
PICTURES = TOP / "docs" / "pictures"
SHOWN_ROOT = "/srv/mono"  # the project root in the pictures; the real one has as many letters, so that columns hold
SHOWN_HOME = "/home/box"  # the same for those of a box, whose home it is
COLUMNS = 100
LETTER = 12.2  # width of one in Rich's SVG
FONTS = 'ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace'
VARIANTS = {"spark": "precompiled/cu128", "volta": "precompiled/cu126", "plain": "precompiled/cpu"}
OURS = ("FDL_", "FLODL_", "INVOKE_", "LIBTORCH_", "CARGO_TARGET", "CARGO_BUILD")
CPU_ONLY = '\n#[cfg(not(feature = "cuda"))]\ncompile_error!("ddp-bench has no kernels for this device");\n'


@dataclass(frozen=True)
class Picture:
    """A command, what is done to the project before it, and when to look (at the end, when None).

    ``env`` is laid over the environment; ``shown`` stands for the project's directory.
    """

    name: str
    words: str
    before: Callable[[Path], None]
    at: Callable[[Screen], bool] | None = None
    env: dict[str, str] = field(default_factory=dict)
    shown: str = SHOWN_ROOT


def cluster(root: Path, **top: Any) -> None:
    """cluster.yml with three workers that this machine plays."""
    data = str(root / "data")
    workers = [
        {"host": host, "transport": "local", "path": ".", "arch": arch, "data_path": data}
        for host, arch in VARIANTS.items()
    ]
    lead = {"host": "ctrl", "path": ".", "data_path": data}
    document = {"controller": lead, "workers": workers, "commands": {"ddp-bench": {"check": ["--version"]}}, **top}
    (root / "cluster.yml").write_text(yaml.safe_dump(document, sort_keys=False))


def healthy(root: Path) -> None:
    cluster(root)


def unfit(root: Path) -> None:
    """One worker without its data, one whose libtorch is not there."""
    cluster(root)
    document = yaml.safe_load((root / "cluster.yml").read_text())
    document["workers"][1]["data_path"] = "/mnt/nas/imagenet"
    document["workers"][2]["arch"] = "builds/sm61-sm120"
    (root / "cluster.yml").write_text(yaml.safe_dump(document, sort_keys=False))


def broken_for_one(root: Path) -> None:
    cluster(root)
    with (root / "ddp-bench/src/main.rs").open("a") as source:
        source.write(CPU_ONLY)


def fresh(root: Path) -> None:
    cluster(root)
    shutil.rmtree(root / "target", ignore_errors=True)


def by_ssh(root: Path) -> None:
    """A worker that is reached by ssh, with settings of its own: nothing of this account is shown."""
    (root / "keys").mkdir()
    (root / "keys/cluster").touch(mode=0o600)
    ssh = {"user": "ubuntu", "identity_file": "keys/cluster", "options": [f"UserKnownHostsFile={root}/keys/hosts"]}
    worker = {"host": "node-a", "path": "/mnt/mono", "arch": "precompiled/cu128", "ssh": ssh}
    cluster(root, workers=[worker], env={"WANDB_API_KEY": "2f7c1e9b"})


def faulty(root: Path) -> None:
    shutil.copy(TOP / "tests/cases/cluster/ten-faults.yml", root / "cluster.yml")


def left_overs(root: Path) -> None:
    """A variant and a host that cluster.yml no longer names."""
    cluster(root)
    for place in ("volta/precompiled-cu118", "titan/precompiled-cu118"):
        shutil.copytree(root / "target/cluster/volta/precompiled-cu126", root / "target/cluster" / place)


LAB = ExitStack()
NODES = {
    "spark-1": {"store": Store.CONTAINERD, "release": Release.D28},
    "spark-2": {"store": Store.CONTAINERD, "release": Release.D28},
    "volta": {"store": Store.GRAPHDRIVER, "release": Release.D26},
}


@cache
def lab() -> tuple[Lab, dict[str, Node], dict[str, Engine]]:
    """Nodes with an engine each. One has the image, another what the image is made from."""
    made = LAB.enter_context(Lab())
    nodes = {label: made.node(label, fabric=True) for label in NODES}
    for node in nodes.values():
        made.give_key(node)
    engines = made.start_engines({label: {**kind, "node": nodes[label]} for label, kind in NODES.items()})
    engines["spark-1"].build("repo/base:24", [30_000_000])
    engines["spark-1"].give(engines["spark-2"], "repo/base:24")
    engines["spark-1"].build("repo/vllm:24", [4_000_000], from_="repo/base:24")
    return made, nodes, engines


def on_the_lab(root: Path) -> None:
    made, nodes, engines = lab()
    for label in ("spark-2", "volta"):
        engines[label].docker("rmi", "--force", "repo/vllm:24", check=False)
    workers = [made.worker(node, "/srv", fabric_ip=node.fabric_address) for node in nodes.values()]
    controller = {"host": "ctrl", "path": str(root)}
    made.cluster_yml(root, workers=workers, controller=controller, recipes={"vllm": {"image": "repo/vllm:24"}})


def one_in_the_other_store(root: Path) -> None:
    on_the_lab(root)
    _, _, engines = lab()
    engines["spark-1"].give(engines["volta"], "repo/vllm:24")


BLACKWELL = {"index": 0, "name": "NVIDIA RTX PRO 6000 Blackwell", "arch": "12.0", "vram_mb": 97887}
PASCAL = {"index": 1, "name": "Tesla P100-PCIE-16GB", "arch": "6.0", "vram_mb": 16384}
NO_ACCESS = "no access to /dev/kfd: sudo usermod -aG render $USER, and log in again"
NOTES = ({"vendor": "amd", "kind": "hardware_unusable", "message": NO_ACCESS},)
RUN = {
    "bin": "target/release/ddp-bench",
    "cwd": "ddp-bench",
    "build": 'cargo build --release --features "$FDL_GPU_FEATURE"',
    "args": ["--steps", "10"],
    "run": "5f0c9a417e3d4b06a1c2d3e4f5061728",
    "built": True,
}


def box(root: Path, libtorch: str = "auto") -> None:
    """The project as a box's home: a published run in it, and the variants of libtorch in their place."""
    (root / ".flodl/data").mkdir(parents=True)
    (root / "libtorch").rename(root / ".flodl/libtorch")
    (root / "run").mkdir()
    for entry in [path for path in root.iterdir() if path.name not in ("run", "data", ".flodl")]:
        entry.rename(root / "run" / entry.name)
    (root / "run/.fdl-run.yml").write_text(yaml.safe_dump({**RUN, "published_epoch": int(time.time()) - 420}))
    join = {"source": {"from": f"file://{root}/run"}, "data_path": f"{root}/data", "libtorch": libtorch}
    (root / "cluster.yml").write_text(yaml.safe_dump({"join": join}))


def box_of_another_time(root: Path) -> None:
    box(root, "cu128")


def box_with_variants(root: Path) -> None:
    """One is active, one was copied without its libraries."""
    box(root)
    variants = root / ".flodl/libtorch"
    (variants / ".active").write_text("precompiled/cu128\n")
    shutil.copytree(variants / "precompiled/cu126", variants / "builds/sm61-sm120")
    shutil.rmtree(variants / "builds/sm61-sm120/lib")


def devices(*gpus: dict[str, object], notes: tuple[dict[str, str], ...] = (), **env: str) -> dict[str, str]:
    """The environment of a box that has these; its home is the current directory's own (see ``screen_of``)."""
    return {"FLODL_TESTING_GPU_JSON": json.dumps({"gpus": gpus, "notes": notes}), **env}


def building(screen: Screen) -> bool:
    text = "\n".join(screen.lines)
    return "compiling ddp-bench" in text and "waiting for" in text


PREBUILD = "prebuild --cmd ddp-bench"
ALL = [
    Picture("preflight", "preflight", unfit),
    Picture("live", PREBUILD, fresh, at=building),
    Picture("prebuild", PREBUILD, healthy),
    Picture("prebuild-failed", PREBUILD, broken_for_one),
    Picture("prebuild-clean", "prebuild-clean", left_overs),
    Picture("cluster-show", "cluster.show", by_ssh),
    Picture("cluster-faults", "preflight", faulty),
    Picture("prebuild-help", "--help prebuild", healthy),
    Picture("sync-image-plan", "sync-image --recipe vllm --plan", on_the_lab),
    Picture("sync-image", "sync-image --recipe vllm", on_the_lab),
    Picture("images", "images --recipe vllm", one_in_the_other_store),
    Picture("prepare", "prepare", box, env=devices(BLACKWELL), shown=SHOWN_HOME),
    Picture("prepare-never", "prepare", box_of_another_time, env=devices(BLACKWELL, PASCAL), shown=SHOWN_HOME),
    Picture(
        "gpus", "gpus", box, env=devices(BLACKWELL, PASCAL, notes=NOTES, CUDA_VISIBLE_DEVICES="0"), shown=SHOWN_HOME
    ),
    Picture("libtorch-list", "libtorch.list", box_with_variants, shown=SHOWN_HOME),
]


@contextmanager
def project() -> Iterator[Path]:
    """A copy of the example with its libtorch stand-ins, at a path as long as the one that is shown."""
    letters = len(SHOWN_ROOT) - len("/tmp/")
    root = next(path for n in range(10**letters) if (path := Path(f"/tmp/{n:0{letters}}")) and not path.exists())
    root.mkdir(mode=0o700)
    try:
        ignored = shutil.ignore_patterns("target", "libtorch", "__pycache__")
        shutil.copytree(TOP / "examples/monorepo", root, ignore=ignored, dirs_exist_ok=True)
        (root / "data").mkdir()
        subprocess.run([root / "make-libtorch.sh", root, *VARIANTS.values()], check=True, capture_output=True)
        yield root
    finally:
        shutil.rmtree(root)


def screen_of(picture: Picture, root: Path) -> Screen:
    """What the terminal shows after the run, or at the moment that is meant."""
    picture.before(root)
    argv = [sys.executable, "-c", "from fdl_tasks.tasks.program import main; main()", *picture.words.split()]
    env = {name: value for name, value in os.environ.items() if not name.startswith(OURS) and name != "NO_COLOR"}
    env |= {"FLODL_HOST_NAME": "ctrl", "PYTHONPATH": str(TOP), "COLORTERM": "truecolor", **picture.env}
    if picture.shown == SHOWN_HOME:
        own = {name: str(Path.home() / place) for name, place in (("CARGO_HOME", ".cargo"), ("RUSTUP_HOME", ".rustup"))}
        env = {**own, **env, "HOME": str(root)}
    with Terminal(argv, columns=COLUMNS, rows=200, env=env, cwd=root, all_streams=True) as terminal:
        if picture.at:
            terminal.until(picture.at, seconds=60)
            terminal.freeze()
        terminal.ended(seconds=300)
        return terminal.screen


def svg(picture: Picture, screen: Screen, root: Path) -> str:
    """The screen below its command line. Fonts are named, never fetched."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    console.print(Text(f"$ fdl-tasks {picture.words}", style="bold"))
    console.print(Text.from_ansi(screen.styled().replace(str(root), picture.shown)))
    plain = re.sub(r"@font-face \{\{.*?\}\}\s*", "", CONSOLE_SVG_FORMAT, flags=re.S)
    plain = plain.replace("Fira Code, monospace", FONTS).replace("font-family: arial", "font-family: sans-serif")
    text = console.export_svg(title="", code_format=plain, unique_id=f"fdl-{picture.name}")
    text = re.sub(r"<text [^>]*>\s*</text>", "", text)  # the ends of lines
    text = re.sub(r'x="([0-9.]+)"( y="[^"]*") textLength="([0-9.]+)"([^>]*)>((?:&#160;)+)', _moved, text)
    text = text.replace("<text ", "\n<text ").replace("</text>", "</text>\n")
    return "\n".join(filter(None, (line.rstrip() for line in text.splitlines()))) + "\n"


def _moved(span: re.Match[str]) -> str:
    """A span without its leading blanks, as far to the right: some viewers leave them out."""
    blanks = len(span[5]) // len("&#160;") * LETTER
    return f'x="{float(span[1]) + blanks:g}"{span[2]} textLength="{float(span[3]) - blanks:g}"{span[4]}>'


def main(names: list[str]) -> None:
    PICTURES.mkdir(exist_ok=True)
    if unknown := set(names) - {picture.name for picture in ALL}:
        sys.exit(f"no picture {', '.join(sorted(unknown))}; there are {', '.join(one.name for one in ALL)}")
    for picture in ALL:
        if not names or picture.name in names:
            with project() as root:
                if picture.name in ("prebuild-clean", "prebuild"):
                    screen_of(Picture("", PREBUILD, healthy), root)
                text = svg(picture, screen_of(picture, root), root)
            (PICTURES / f"{picture.name}.svg").write_text(text)
            print(f"docs/pictures/{picture.name}.svg: {len(text) >> 10} kB")


if __name__ == "__main__":
    with LAB:
        main(sys.argv[1:])
