"""What tests of ``sync-image`` do with a site: programs that misbehave, and what may be left behind."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from tests.e2e.image_site import ImageSite
from tests.e2e.site import eventually

PASSED_ON = 'exec /lab/engine/docker "$@"'


def nodes_of(report: dict[str, Any], *fields: str) -> dict[str, Any]:
    found = {label: tuple(node[field] for field in fields) for label, node in report["nodes"].items()}
    return {label: values[0] if len(fields) == 1 else values for label, values in found.items()}


def left(site: ImageSite) -> dict[str, list[str]]:
    """What a relay may leave on the nodes in use: processes, directories, names."""
    found = {}
    for label in site.used:
        node, engine = site.nodes[label], site.engines[label]
        folders = node.find("/tmp", "-mindepth", "1")
        found[label] = [*node.processes(), *folders, *(name for name in engine.names() if "/fdl-" in name)]
    return {label: things for label, things in found.items() if things}


def nothing_left(site: ImageSite) -> bool:
    assert eventually(lambda: not left(site), 8), left(site)
    return True


@contextlib.contextmanager
def does(site: ImageSite, label: str, program: str, script: str) -> Iterator[None]:
    """That node's program is this script; what that does not end it passes on."""
    node = site.nodes[label]
    on = PASSED_ON if program == "docker" else f'exec /usr/bin/{program} "$@"'
    node.stand_in(program, f"#!/bin/bash\n{script}\n{on}\n")
    try:
        yield
    finally:
        if program == "docker":
            node.stand_in("docker", f"#!/bin/sh\n{PASSED_ON}\n")
        else:
            node.path(f"/lab/bin/{program}").unlink()
