"""This machine as a box that gets ready: the whole command, with a home of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

import yaml

from tests.e2e.site import PROGRAM, ROOT

BLACKWELL = json.dumps([{"index": 0, "name": "NVIDIA RTX PRO 6000", "arch": "12.0", "vram_mb": 97887}])
PASCAL = json.dumps([{"index": 0, "name": "Tesla P100", "arch": "6.0", "vram_mb": 16384}])
RUN = {
    "bin": "target/release/ddp-bench",
    "cwd": "ddp-bench",
    "build": 'cargo build --release --quiet --features "$FDL_GPU_FEATURE"',
    "args": ["--steps", "10"],
    "run": "0123456789abcdef0123456789abcdef",
    "built": True,
}


@dataclass
class Box:
    """This machine as a box of its own: HOME, a ``join:`` block, the ways to a controller and a mirror."""

    folder: Path
    join: dict[str, Any]
    env: dict[str, str] = field(default_factory=dict)
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    def argv(self, *words: str) -> list[str]:
        (self.folder / "cluster.yml").write_text(yaml.safe_dump({"join": self.join}))
        return [sys.executable, "-c", PROGRAM, "prepare", *words]

    def options(self, **env: str) -> dict[str, Any]:
        return {
            "cwd": self.folder,
            "env": {**os.environ, "PYTHONPATH": str(ROOT), "HOME": str(self.folder), **self.env, **env},
            "stdin": subprocess.DEVNULL,
            "text": True,
        }

    def run(self, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(self.argv(*words), capture_output=True, timeout=100, **self.options(**env))

    def start(self, *words: str, **env: str) -> subprocess.Popen[str]:
        argv, pipe = self.argv(*words), subprocess.PIPE
        self.started.append(subprocess.Popen(argv, stdout=pipe, stderr=pipe, **self.options(**env)))
        return self.started[-1]

    def stop(self) -> None:
        """End what a test that failed left running; what such a run had started ends with it."""
        for process in self.started:
            process.kill()
            process.wait()

    def ready(self, *words: str, **env: str) -> dict[str, Any]:
        done = self.run("--json", *words, **env)
        assert done.returncode == 0, done.stderr
        answer: dict[str, Any] = json.loads(done.stdout)
        assert answer["ok"] is True
        return answer

    def refused(self, code: int, *words: str, **env: str) -> str:
        """The error of a box that is not ready; the class in the JSON is the exit code's."""
        done = self.run("--json", *words, **env)
        assert done.returncode == code, f"{done.returncode}\n{done.stdout}\n{done.stderr}"
        answer = json.loads(done.stdout)
        assert (answer["ok"], answer["class"]) == (False, {1: "transient", 2: "permanent"}[code])
        assert "Traceback" not in done.stderr
        return str(answer["error"])

    @property
    def root(self) -> Path:
        return self.folder / ".flodl"


def put_up(project: Path, **changes: Any) -> None:
    """Publish what is in ``project``, by hand: the sidecar, then the manifest with its digest."""
    names = sorted(path.relative_to(project).as_posix() for path in project.rglob("*") if path.is_file())
    own = [name for name in names if not {"target", "libtorch"} & set(Path(name).parts) and "fdl-run" not in name]
    lines = "".join(f"{sha256((project / name).read_bytes()).hexdigest()}  {name}\n" for name in own)
    (project / ".fdl-run.sha256").write_text(lines)
    digest = {"sha256": sha256(lines.encode()).hexdigest(), "files": len(own)}
    manifest = {**RUN, "digest": digest, "published_epoch": int(time.time()) - 120, **changes}
    (project / ".fdl-run.yml").write_text(yaml.safe_dump(manifest))


def stand_in(folder: Path, name: str, line: str) -> dict[str, str]:
    """A program that takes the place of another on the PATH."""
    folder.mkdir()
    (folder / name).write_text(f"#!/bin/sh\n{line}\n")
    (folder / name).chmod(0o755)
    return {"PATH": f"{folder}:{os.environ['PATH']}"}


def left_of(box: Box) -> list[str]:
    """Command lines of processes that run below this box's home."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            environment = (place / "environ").read_bytes()
            if f"HOME={box.folder}\0".encode() in environment:
                found.append((place / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:
            continue
    return found


MAKE = "printf '#!/bin/sh\\necho hello\\n' >x && chmod +x x"  # a build that needs nothing and takes no time


def publish(folder: Path, **manifest: Any) -> str:
    """A tree of one file, published by hand; the spec of it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "main.sh").write_text("echo hello\n")
    if manifest:
        (folder / ".fdl-run.yml").write_text(yaml.safe_dump({"bin": "x", "build": MAKE, **manifest}))
    return f"file://{folder}"


def installed(root: Path, name: str = "precompiled/cu128", archs: str = "7.0 7.5 8.0 8.6 8.9 9.0 12.0") -> Path:
    """A libtorch below ``root`` that is active."""
    place = root / "libtorch" / name
    (place / "lib").mkdir(parents=True)
    (place / ".arch").write_text(f"archs={archs}\n")
    (root / "libtorch/.active").write_text(f"{name}\n")
    return place
