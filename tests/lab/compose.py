"""A compose service that builds with this machine's own compiler: no image has to be fetched.

Its image is the lab's tiny one; everything a compiler needs is mounted into it, read-only.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from . import files
from .images import TINY
from .system import write

MACHINE = ("/usr", "/bin", "/lib", "/lib64", "/etc/alternatives")


def compose_service(**fields: Any) -> dict[str, Any]:
    """The service as compose reads it; ``fields`` replace or add to what it has.

    ``LIBTORCH_HOST_PATH`` of compose's environment is seen at ``/opt/libtorch``: a mount under
    ``/usr`` would fail, that being read-only.
    """
    toolchain = [str(path) for path in (files.CARGO / "bin", files.RUSTUP) if path.is_dir()]
    service = {
        "image": TINY,
        "network_mode": "none",
        "working_dir": "/workspace",
        "volumes": [
            *(f"{path}:{path}:ro" for path in [*MACHINE, *toolchain] if Path(path).exists()),
            ".:/workspace",
            "${LIBTORCH_HOST_PATH:-./libtorch}:/opt/libtorch:ro",
        ],
        "tmpfs": ["/tmp:exec", "/cargo:exec"],
        "environment": {
            "PATH": f"{files.CARGO}/bin:/usr/local/bin:/usr/bin:/bin",
            "HOME": "/tmp",
            "CARGO_HOME": "/cargo",
            "RUSTUP_HOME": str(files.RUSTUP),
            "LIBTORCH_PATH": "/opt/libtorch",
        },
    }
    return {**service, **fields}


def write_compose(project: Path, service: str = "cuda", **fields: Any) -> Path:
    """Write ``project/compose.yaml``, the name that compose looks for first, with that one service."""
    document = {"services": {service: compose_service(**fields)}}
    return write(project / "compose.yaml", yaml.safe_dump(document, sort_keys=False))
