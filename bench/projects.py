"""The projects that are built, and the command lines that build them: ours and cargo's own."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from .measure import Program

CRATES = 30
FEATURES = "\n[features]\ncuda = []\nrocm = []\n"
LIBRARY = "pub fn length(text: &str) -> usize {{\n    text.len() + {number}\n}}\n"


def many_crates(root: Path) -> Path:
    """A command ``app`` of ``CRATES`` small crates that wait for nothing but the linking; no other dependency."""
    for number in range(CRATES):
        _crate(root / "crates" / f"c{number}", f"c{number}", "src/lib.rs", LIBRARY.format(number=number))
    uses = "".join(f'c{number} = {{ path = "../crates/c{number}" }}\n' for number in range(CRATES))
    sums = " + ".join(f"c{number}::length(&text)" for number in range(CRATES))
    main = f'fn main() {{\n    let text = std::env::args().collect::<String>();\n    println!("{{}}", {sums});\n}}\n'
    _crate(root / "app", "app", "src/main.rs", main, f"{FEATURES}\n[dependencies]\n{uses}")
    return root


def _crate(folder: Path, name: str, file: str, source: str, more: str = "") -> None:
    (folder / "src").mkdir(parents=True)
    (folder / file).write_text(source)
    (folder / "Cargo.toml").write_text(f'[package]\nname = "{name}"\nversion = "0.1.0"\nedition = "2021"\n{more}')


def empty_libtorch(root: Path, variants: Sequence[str]) -> None:
    """Variants with nothing in them: ``app`` links none."""
    for variant in variants:
        lib = root / "libtorch" / variant / "lib"
        lib.mkdir(parents=True)
        (lib.parent / "build-version").write_text(f"{variant}\n")
        (lib / "empty").touch()


def local_workers(root: Path, archs: Mapping[str, str]) -> None:
    """``cluster.yml`` of workers that are all this machine, label -> variant."""
    workers = [{"host": host, "transport": "local", "path": str(root), "arch": arch} for host, arch in archs.items()]
    write_cluster(root, [{**worker, "data_path": str(root)} for worker in workers])


def write_cluster(root: Path, workers: Sequence[Mapping[str, Any]]) -> None:
    controller = {"host": "ctrl", "path": str(root), "data_path": str(root)}
    document = {"controller": controller, "workers": [dict(worker) for worker in workers]}
    (root / "cluster.yml").write_text(yaml.safe_dump(document, sort_keys=False))


def ours(root: Path, *words: str, env: Mapping[str, str] | None = None) -> Program:
    """``fdl-tasks WORDS``, called from the project."""
    line = "from fdl_tasks.tasks.program import main; main()"
    cluster = {"FDL_CLUSTER": str(root / "cluster.yml")}
    return Program([sys.executable, "-c", line, *words], root, {**cluster, **(env or {})})


def bare_cargo(root: Path, cmd: str, target: Path, libtorch: Path, feature: str, **env: str) -> Program:
    """What a person types for one worker."""
    features = ["--features", feature] if feature else []
    argv = ["cargo", "build", "--release", *features, "--bin", cmd]
    return Program(argv, root / cmd, {"CARGO_TARGET_DIR": str(target), "LIBTORCH_PATH": str(libtorch), **env})
