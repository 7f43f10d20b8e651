"""Images made without a registry: the base image, and small ones built on it with layers of given sizes."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import random
import shlex
import shutil
import tarfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

from .system import run, write

TINY = "tiny:1"
OLD = "2024-02-29T12:00:00Z"  # when the base image says it was made
CHUNK = 1 << 22
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
# Path in the image -> what is there: so many random bytes, these bytes, or a copy of that file.
Files = Mapping[str, int | bytes | Path]
PROGRAM = '#include <stdio.h>\nint main(void) { puts("started"); return 0; }\n'


def write_tiny(archive: Path) -> Path:
    """``tiny:1`` as ``docker save`` of old wrote it: the same bytes, hence the same image, on every engine."""
    layer = _tiny_layer()
    diff_id = f"sha256:{hashlib.sha256(layer).hexdigest()}"
    machine = platform.machine()
    config = json.dumps(
        {
            "architecture": ARCHITECTURES.get(machine, machine),
            "os": "linux",
            "created": OLD,
            "config": {"Cmd": ["sh"]},
            "rootfs": {"type": "layers", "diff_ids": [diff_id]},
            "history": [{"created": OLD, "created_by": "fdl-tasks lab"}],
        }
    ).encode()
    name = f"{hashlib.sha256(config).hexdigest()}.json"
    manifest = json.dumps([{"Config": name, "RepoTags": [TINY], "Layers": ["layer.tar"]}]).encode()
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(archive, "w") as tar:
        for at, content in (("layer.tar", layer), (name, config), ("manifest.json", manifest)):
            _add(tar, at, tarfile.REGTYPE, 0o644, content)
    return archive


def _tiny_layer() -> bytes:
    """A root file system: ``/bin/busybox`` with a link for each applet, and empty folders."""
    busybox = Path(shutil.which("busybox") or "/bin/busybox")
    out = BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for folder, mode in (("bin", 0o755), ("etc", 0o755), ("root", 0o700), ("tmp", 0o1777), ("workspace", 0o755)):
            _add(tar, folder, tarfile.DIRTYPE, mode)
        _add(tar, "bin/busybox", tarfile.REGTYPE, 0o755, busybox.read_bytes())
        for applet in run(busybox, "--list").stdout.split():
            if applet != "busybox":
                _add(tar, f"bin/{applet}", tarfile.SYMTYPE, 0o777, link="busybox")
        _add(tar, "etc/passwd", tarfile.REGTYPE, 0o644, b"root:x:0:0:root:/root:/bin/sh\n")
    return out.getvalue()


def _add(tar: tarfile.TarFile, name: str, kind: bytes, mode: int, content: bytes = b"", link: str = "") -> None:
    info = tarfile.TarInfo(name)
    info.type, info.mode, info.linkname, info.size = kind, mode, link, len(content)
    tar.addfile(info, BytesIO(content))


def write_context(
    folder: Path, layers: Sequence[int | Files], from_: str, seed: str, config: Mapping[str, Any]
) -> None:
    """A Dockerfile with one COPY for each layer, and what they copy. Equal arguments: equal bytes and times."""
    lines = [f"FROM {from_}", *(f"COPY {number}/ /" for number in range(len(layers))), *_instructions(config)]
    write(folder / "Dockerfile", "\n".join(lines) + "\n")
    for number, layer in enumerate(layers):
        files = {f"/layers/{number}": layer} if isinstance(layer, int) else layer
        for path, content in files.items():
            _put(folder / str(number) / path.lstrip("/"), content, f"{seed} {path}")
    for at in (folder, *folder.rglob("*")):
        os.utime(at, (0, 0))


def write_program(folder: Path) -> Path:
    """A program that needs no file but itself, and says ``started``."""
    source = write(folder / "started.c", PROGRAM)
    run(shutil.which("musl-gcc") or "cc", "-static", "-Os", "-s", "-o", folder / "started", source)
    return folder / "started"


def _put(at: Path, content: int | bytes | Path, seed: str) -> None:
    at.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, Path):
        shutil.copy(content, at)
        return
    with at.open("wb") as out:
        out.writelines(_noise(content, seed) if isinstance(content, int) else [content])


def _noise(size: int, seed: str) -> Iterator[bytes]:
    """Bytes that no compression makes smaller, the same for the same seed."""
    source = random.Random(seed)
    for start in range(0, size, CHUNK):
        yield source.randbytes(min(CHUNK, size - start))


def _instructions(config: Mapping[str, Any]) -> Iterable[str]:
    """``env={…}`` and ``label={…}`` a line each; lists (``cmd=[…]``) as JSON; anything else as it is."""
    for name, value in config.items():
        if isinstance(value, Mapping):
            yield from (f"{name.upper()} {key}={shlex.quote(str(text))}" for key, text in value.items())
        else:
            yield f"{name.upper()} {json.dumps(value) if isinstance(value, list) else value}"
