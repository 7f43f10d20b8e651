"""Which addresses could be a way from the source to a target (pure).

Rules: spec/sync-image.md, 4; facts/images.md, 2.
"""

from __future__ import annotations

import hashlib
import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import TYPE_CHECKING

from ..cluster.model import Worker

if TYPE_CHECKING:
    from ..hosts.settings import Settings


_ADDRESS = re.compile(r"[A-Za-z0-9_:][A-Za-z0-9_.:-]*(%[A-Za-z0-9_.-]+)?")
_USER = re.compile(r"[^\s@:/\"'\\-][^\s@:/\"'\\]*")
_KEY = re.compile(r"[a-z0-9][a-z0-9@.-]* [A-Za-z0-9+/]+={0,2}")


@dataclass(frozen=True)
class Way:
    """One login from the source to a target. ``alias`` names the target in the known_hosts of this run.

    ``key_file`` is a path on the source node; ``aes`` whether both CPUs have AES.
    """

    target: str
    address: str
    port: int
    user: str
    alias: str
    key_file: str | None
    fabric: bool
    aes: bool = False

    @property
    def kind(self) -> str:
        """What sort of address it is, for messages."""
        return "fabric address" if self.fabric else "management address"


@dataclass(frozen=True)
class Peer:
    """A node as an end of ways: its own settings and the host keys (kind, base64) that are known to be its own.

    ``fault`` says why nothing is known of these. ``aes``: whether its CPU has AES.
    """

    worker: Worker
    settings: Settings | None = None
    host_keys: tuple[tuple[str, str], ...] = ()
    aes: bool = False
    fault: str = ""

    @property
    def local(self) -> bool:
        return self.worker.transport == "local"


@dataclass(frozen=True)
class Candidates:
    """The ways to one target that are worth a try, best first, and why each other address is none."""

    target: str
    ways: tuple[Way, ...]
    refused: tuple[str, ...] = ()


def candidates(source: Peer, target: Peer, *, require_fabric: bool = False) -> Candidates:
    """The ways from ``source`` to ``target``: its fabric address, then its management address (pure)."""
    label = target.worker.host
    settings, fault = target.settings, _unusable(source, target)
    if settings is None or fault:
        return Candidates(label, (), (fault or "nothing is known of its ssh settings: no connection to it was made",))
    known = Way(
        label,
        "",
        settings.port,
        settings.user,
        alias(label),
        _key_file(source, target),
        False,
        source.aes and target.aes,
    )
    ways, refused = list[Way](), list[str]()
    for fabric, address, why_not in _addresses(target, settings, require_fabric):
        if why_not:
            refused.append(why_not)
        elif address not in [way.address for way in ways]:
            ways.append(replace(known, address=address, fabric=fabric))
    return Candidates(label, tuple(ways), tuple(refused))


def _addresses(target: Peer, settings: Settings, require_fabric: bool) -> list[tuple[bool, str, str]]:
    """(whether it is the fabric's, address, why it is no way between nodes)."""
    worker, found = target.worker, list[tuple[bool, str, str]]()
    if worker.fabric_ip:
        found.append((True, worker.fabric_ip, _no_way("fabric_ip", worker.fabric_ip)))
    if require_fabric:
        return found or [(True, "", "it has no fabric_ip in cluster.yml, and only the fabric may be used")]
    if worker.mgmt_ip:
        found.append((False, worker.mgmt_ip, _no_way("mgmt_ip", worker.mgmt_ip)))
    elif target.local:
        found.append((False, "", "it is this machine (transport: local) and has no mgmt_ip in cluster.yml"))
    elif settings.proxy:
        found.append((False, "", f"{settings.hostname} is behind a jump or a proxy, and no mgmt_ip is in cluster.yml"))
    else:
        found.append((False, settings.hostname, _no_way("its ssh address", settings.hostname)))
    return found


def _no_way(name: str, address: str) -> str:
    """Why an address is none between nodes; empty when it may be one."""
    if not _ADDRESS.fullmatch(address):
        return f"{name} {address!r} is neither a name nor an address"
    try:
        ip = ipaddress.ip_address(address)
        ip = getattr(ip, "ipv4_mapped", None) or ip  # ::ffff:127.0.0.1
        loopback = ip.is_loopback or ip.is_unspecified
    except ValueError:
        loopback = address.lower().rstrip(".").split(".")[0] in ("localhost", "ip6-localhost", "ip6-loopback")
    return f"{name} {address} is a loopback address: each node would find itself there" if loopback else ""


def _unusable(source: Peer, target: Peer) -> str:
    """What stands against every address of the target; empty when nothing does."""
    if target.fault:
        return f"its ssh settings: {target.fault}"
    if not target.host_keys:
        return "its host key is not known, so none could be pinned" + (" (/etc/ssh has none)" if target.local else "")
    if bad := [kind for kind, text in target.host_keys if not _KEY.fullmatch(f"{kind} {text}")]:
        return f"its host key ({bad[0]!r}) has characters that no known_hosts file can hold"
    if target.settings and not _USER.fullmatch(target.settings.user):
        return f"its user {target.settings.user!r} can't be handed on to ssh"
    key = _key_file(source, target)
    if key and ("%" in key or "${" in key):
        return f"ssh would expand the name of the key file {key}: set node_identity_file"
    return ""


def _key_file(source: Peer, target: Peer) -> str | None:
    """The key for the login, as the source node names it; None: whatever its own ssh takes.

    Without ``node_identity_file`` it has the name of the controller's key for the target (``identity_file``, or
    the single one in the ssh configuration): the same file where the controller is the source.
    """
    if source.worker.ssh.node_identity_file:
        return source.worker.ssh.node_identity_file
    written = target.worker.ssh.identity_file
    resolved = target.settings.identity_files if target.settings else ()
    own = PurePath(written) if written else resolved[0] if len(resolved) == 1 else None
    if own is None:
        return None
    return str(own) if source.local else f"~/.ssh/{own.name}"


def alias(label: str) -> str:
    """What a target is called in the known_hosts of a run: no character of it means anything there."""
    return f"fdl-{hashlib.sha256(label.encode()).hexdigest()[:16]}"


def known_hosts(targets: Sequence[Peer]) -> str:
    """The text of the file that pins the targets' keys, a line a key (pure)."""
    return "".join(
        f"{alias(target.worker.host)} {kind} {text}\n"
        for target in targets
        if not target.fault
        for kind, text in target.host_keys
        if _KEY.fullmatch(f"{kind} {text}")
    )
