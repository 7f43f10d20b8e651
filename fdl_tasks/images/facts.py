"""What a node says of its Docker and of the image: the one parser of the probe's answer (pure).

A fact that is missing, cut (``answer``), or said in two ways is unknown. A node counts as without the image only
when its Docker said "No such image", as with it only when the whole inspect arrived; all else is its error.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from . import answer

_ID = re.compile(r"sha256:[0-9a-f]{64}")
_PAIR = re.compile(r"(\d{1,3})\.(\d{1,3})")
_ROOM = re.compile(r"(\d{1,15}) (/.*)")
_MOST = 1 << 60  # bytes: a larger size is none
_DRIVER_TYPE = ["driver-type", "io.containerd.snapshotter.v1"]
PYTHON = (3, 8)  # the oldest python3 that runs sender.py and relay.py
CUT = "its answer was cut off or mixed with other output"
_GONE = ("not found", "no suitable export target")  # facts/images.md 1: a save of a copy that lacks content
# What both stores and all releases show of a config, and what makes a container differ. Docker 28 no longer shows
# Hostname, AttachStdin and such; Image (the parent of the classic builder) is shown by graphdriver stores only.
_RUN = ("Cmd", "Entrypoint", "Env", "Shell", "User", "WorkingDir")
_CONFIG = (*_RUN, "ExposedPorts", "Healthcheck", "Labels", "OnBuild", "StopSignal", "Volumes")


@dataclass(frozen=True)
class ImageFacts:
    """An image as ``docker image inspect`` shows it. ``size`` is its ``.Size`` in bytes.

    ``id`` is whole (``sha256:`` and 64 digits): the config's digest in a graphdriver store, the manifest's or
    the index's in a containerd store. ``config`` is canonical JSON of what decides how a container runs.
    """

    id: str
    layers: tuple[str, ...]
    os: str
    architecture: str
    variant: str
    config: str
    created: str
    repo_tags: tuple[str, ...]
    repo_digests: tuple[str, ...]
    size: int


@dataclass(frozen=True)
class NodeFacts:
    """One node. ``error`` says why nothing is known of its image; without it, ``image`` None is proven absence.

    ``docker`` is the way in: how a command line begins. ``complete`` and ``startable`` are what the node's own
    Docker showed of its copy, None: unknown; ``flaw`` tells what is wrong with it. Of a brief look that found the
    image, ``store`` is empty, and what comes with it unknown. ``unpacked`` are the sizes
    of the history's entries in bytes, newest first. ``free`` is bytes by directory where the store may keep
    data. ``arch`` is the engine's, as in ``amd64``; ``python`` the version of the node's python3.
    """

    label: str
    docker: tuple[str, ...] = ("docker",)
    server: str = ""
    api: tuple[int, int] = (0, 0)
    store: str = ""
    image: ImageFacts | None = None
    others: tuple[ImageFacts, ...] = ()
    complete: bool | None = None
    free: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    tools: frozenset[str] = frozenset()
    error: str | None = None
    startable: bool | None = None
    flaw: str = ""
    unpacked: tuple[int, ...] = ()
    python: tuple[int, int] | None = None
    arch: str = ""

    @property
    def broken(self) -> bool:
        """Whether its copy is known to lack content, or not to start."""
        return self.complete is False or self.startable is False

    @property
    def programs(self) -> bool:
        """Whether its python3 runs sender.py and relay.py."""
        return (self.python or (0, 0)) >= PYTHON


def failed(label: str, why: str) -> NodeFacts:
    """A node of which nothing is known."""
    return NodeFacts(label, error=why)


def parse(text: str, label: str, docker_host: str | None = None, *, brief: bool = False) -> NodeFacts:
    """The facts in a probe's answer, whatever else is in it; ``docker_host`` and ``brief`` are what it was given."""
    said = answer.said(text)
    value = {name: values[0].strip() for name, values in said.items() if len(set(values)) == 1}
    if "END" not in said or ("IMAGE" in said and "NOIMAGE" in said):
        return failed(label, CUT)
    if "NODOCKER" in value:
        return failed(label, f"there is no docker on its PATH ({value['NODOCKER']}): install it there")
    if "REFUSED" in value:
        return failed(label, _refused(value, docker_host))
    node = _engine(label, said, value, docker_host, brief=brief and "IMAGE" in value)
    return node if node.error else _with_image(node, value)


def image(shown: Mapping[str, Any] | None) -> ImageFacts | None:
    """One object of ``docker image inspect``; None when it lacks what identifies an image."""
    found, root = _text(_in(shown, "Id")), _in(shown, "RootFS")
    if shown is None or not _ID.fullmatch(found) or not isinstance(root, dict):
        return None
    size = shown.get("Size")
    return ImageFacts(
        id=found,
        layers=_words(root.get("Layers")),
        os=_text(shown.get("Os")),
        architecture=_text(shown.get("Architecture")),
        variant=_text(shown.get("Variant")),
        config=canonical(shown.get("Config")),
        created=_text(shown.get("Created")),
        repo_tags=_words(shown.get("RepoTags")),
        repo_digests=_words(shown.get("RepoDigests")),
        size=size if isinstance(size, int) and 0 < size < _MOST else 0,
    )


def canonical(config: object) -> str:
    """An image's config as comparable text: sorted; null, empty and false are the same as not there."""
    shown = config if isinstance(config, dict) else {}
    return json.dumps({key: shown[key] for key in _CONFIG if shown.get(key)}, sort_keys=True, ensure_ascii=False)


def _engine(
    label: str, said: Mapping[str, Sequence[str]], value: Mapping[str, str], docker_host: str | None, *, brief: bool
) -> NodeFacts:
    version, info = answer.json_object(value.get("VERSION")), answer.json_object(value.get("INFO"))
    way = {"user": ("docker",), "sudo": ("sudo", "-n", "docker"), "host": ("docker", "--host", docker_host or "")}
    docker, api, store = way.get(value.get("WAY", "")), _api(version), _store(info)
    if docker is None or api is None or (store is None and not brief):
        return failed(label, value.get("NOINFO") or CUT)
    rooms = [found for one in said.get("FREE", ()) if (found := _ROOM.fullmatch(one))]
    return NodeFacts(
        label,
        docker,
        _text(_in(version, "Server", "Version"))[:100],
        api,
        store or "",
        others=tuple(filter(None, map(image, map(answer.json_object, dict.fromkeys(said.get("OTHER", ())))))),
        free=MappingProxyType({room[2]: int(room[1]) * 1024 for room in rooms}),
        tools=frozenset(value.get("TOOLS", "").split()),
        python=_pair(value.get("PYTHON")),
        arch=_text(_in(version, "Server", "Arch")),
    )


def _with_image(node: NodeFacts, value: Mapping[str, str]) -> NodeFacts:
    shown = image(answer.json_object(value.get("IMAGE")))
    if shown is None:
        why = value.get("NOIMAGE")
        if why and "No such image" in why:
            return node
        return failed(node.label, f"docker image inspect failed: {why}" if why else CUT)
    complete, lacking = (True, "") if node.store == "graphdriver" else _complete(value)
    sizes = tuple(int(word) for word in value.get("SIZES", "").split() if word.isdecimal() and len(word) < 16)
    return replace(node, image=shown, complete=complete, flaw=lacking, unpacked=sizes)


def _refused(value: Mapping[str, str], docker_host: str | None) -> str:
    """Why Docker did not answer, and the group or setting that would change it."""
    why, user = value["REFUSED"], value.get("USER") or "the login's user"
    if docker_host:
        return f"docker_host is {docker_host}, and there docker says: {why}"
    if "permission denied" not in why:
        return f"docker says: {why}"
    sudo = value.get("SUDO") or "not available"
    return (
        f"{user} may not use Docker, and sudo -n docker failed ({sudo}): put {user} in the group docker, allow "
        f"docker with sudo without a password, or set docker_host in cluster.yml (docker says: {why})"
    )


def _complete(value: Mapping[str, str]) -> tuple[bool | None, str]:
    """From the beginning of the image's own archive: without content, all of it is a few kilobytes.

    Of a larger one that beginning shows no more than that there is some: only a container proves the rest.
    """
    archive = value.get("ARCHIVE", "")
    entries = set(archive.split())
    if "manifest.json" not in entries:
        gone = any(mark in archive for mark in _GONE)
        return (False, f"its copy can't be saved: {archive}") if gone else (None, "")
    named = _named(value.get("MANIFEST"))
    if named is None:
        return None, ""
    if named <= entries:
        return True, ""
    return False, "its store has the image's name but lacks content: a load failed there"


def _named(manifest: str | None) -> set[str] | None:
    """The entries that an archive's manifest.json names; None when it can't be read."""
    try:
        images = json.loads(manifest or "")
        return {name for one in images for name in [one["Config"], *(one["Layers"] or ())]}
    except (ValueError, TypeError, KeyError):
        return None


def _store(info: Mapping[str, Any] | None) -> str | None:
    if not _text(_in(info, "Driver")):
        return None
    status = _in(info, "DriverStatus")
    return "containerd" if isinstance(status, list) and _DRIVER_TYPE in status else "graphdriver"


def _api(version: Mapping[str, Any] | None) -> tuple[int, int] | None:
    """The API that client and server agree on; None unless both said theirs."""
    client, server = (_pair(_text(_in(version, side, "ApiVersion"))) for side in ("Client", "Server"))
    return min(client, server) if client and server else None


def _pair(text: str | None) -> tuple[int, int] | None:
    found = _PAIR.fullmatch(text or "")
    return (int(found[1]), int(found[2])) if found else None


def _in(shown: object, *path: str) -> object:
    for key in path:
        shown = shown.get(key) if isinstance(shown, dict) else None
    return shown


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _words(value: object) -> tuple[str, ...]:
    return tuple(word for word in value if isinstance(word, str)) if isinstance(value, list) else ()
