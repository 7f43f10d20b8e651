"""How the source reaches each target: which addresses could do, and which of them answer with the pinned key.

Rules: spec/sync-image.md, 4; facts/images.md, 2. ``addresses`` decides which could do, one script on the
source tries them all at once with a login that does nothing, and ``logins`` judges, before a byte is sent.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol, runtime_checkable

from ..cluster.model import Worker
from ..errors import TransportError
from ..hosts.base import Host
from ..hosts.fanout import Cancel
from ..hosts.settings import Settings, resolve
from ..scripts import Script, Scripts
from .addresses import Candidates, Peer, Way, candidates, known_hosts
from .logins import LOGIN_LIMIT, Reach, Route, Tried, parse, route

__all__ = [
    "Candidates",
    "Peer",
    "Route",
    "Way",
    "candidates",
    "find_routes",
    "known_hosts",
    "peer",
    "render",
    "ssh_argv",
]

CONNECT_LIMIT = 10  # seconds, for the connection and the other side's first words
ALIVE_INTERVAL, ALIVE_COUNT = 15, 4  # seconds, times: a dead peer is noticed after a minute
# OpenSSH's own list with AES-GCM before ChaCha20, which is 2 to 3 times slower where the CPU has AES
CIPHERS = "aes128-gcm@openssh.com,aes256-gcm@openssh.com,chacha20-poly1305@openssh.com,aes128-ctr,aes192-ctr,aes256-ctr"
TRIES = 6  # in a row that get nobody in, of logins that an sshd drops (MaxStartups)


@runtime_checkable
class Verified(Protocol):
    """A host that keeps what its connection was made with (``hosts.ssh.SshHost``)."""

    settings: Settings | None
    host_key: tuple[str, str] | None


def peer(worker: Worker, host: Host, *, aes: bool = False, own_keys: Path = Path("/etc/ssh")) -> Peer:
    """A node as its connection showed it, once a script has run there.

    Of this machine (``transport: local``) port and user are what OpenSSH resolves, the host keys are those in
    ``own_keys``.
    """
    if isinstance(host, Verified):
        return Peer(worker, host.settings, (host.host_key,) if host.host_key else (), aes)
    found = Peer(worker, aes=aes)
    if not found.local:
        return found
    try:
        return replace(found, settings=resolve(worker.ssh), host_keys=_own_keys(own_keys))
    except (TransportError, OSError) as error:
        return replace(found, fault=str(error))


def _own_keys(folder: Path) -> tuple[tuple[str, str], ...]:
    lines = [path.read_text("utf-8").split() for path in sorted(folder.glob("ssh_host_*_key.pub"))]
    return tuple((words[0], words[1]) for words in lines if len(words) > 1)


def ssh_argv(way: Way, directory: str, *, forward: str = "") -> tuple[str, ...]:
    """The ssh command line of a way, up to the remote command (pure).

    ``directory`` has the file ``known_hosts``, seen from where ssh is started: ``.``, or a path without blanks
    and ``%``. ``forward`` is what ``-R`` takes: ssh ends when the target does not grant it, and forwardings of the
    login's own then count as well. The login's ssh configuration still counts on the source, but for what is set
    here.
    """
    options = {
        "BatchMode": "yes",
        "ConnectTimeout": str(CONNECT_LIMIT),
        "StrictHostKeyChecking": "yes",
        "UserKnownHostsFile": f"{directory}/known_hosts",
        "GlobalKnownHostsFile": "/dev/null",
        "HostKeyAlias": way.alias,
        "UpdateHostKeys": "no",
        "VerifyHostKeyDNS": "no",
        "CheckHostIP": "no",
        "IgnoreUnknown": "KnownHostsCommand",  # since OpenSSH 8.5
        "KnownHostsCommand": "none",
        "ForwardAgent": "no",
        "ForwardX11": "no",
        "ClearAllForwardings": "no" if forward else "yes",  # those of the command line too
        "PermitLocalCommand": "no",
        "RemoteCommand": "none",
        "ProxyCommand": "none",
        "ControlMaster": "no",
        "ControlPath": "none",  # a connection that is open already was never checked against the pin
        "Compression": "no",
        "ServerAliveInterval": str(ALIVE_INTERVAL),
        "ServerAliveCountMax": str(ALIVE_COUNT),
        "LogLevel": "ERROR",
        **({"ExitOnForwardFailure": "yes"} if forward else {}),
        **({"Ciphers": CIPHERS} if way.aes else {}),
        **({"IdentitiesOnly": "yes"} if way.key_file else {}),
    }
    words = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
    key = ("-i", way.key_file) if way.key_file else ()
    words += ["-R", forward] if forward else []
    return ("ssh", "-T", *words, *key, "-p", str(way.port), "-l", way.user, "--", way.address)


def render(scripts: Scripts, ways: Sequence[Way], pinned: str) -> Script:
    """The script that tries these ways from the source; ``pinned`` is the text of the known_hosts file."""
    logins = list[str | int]()
    for way in ways:
        words = (*ssh_argv(way, "."), "true")
        logins += [len(words), *words]
    return scripts.render("images/ways.sh", known_hosts=pinned, limit=LOGIN_LIMIT, logins=logins)


def find_routes(
    source: Host, asked: Sequence[Candidates], pinned: str, cancel: Cancel, scripts: Scripts | None = None
) -> dict[str, Route]:
    """Try every candidate from ``source``; how each target is reached, by label.

    Raises:
        FdlError: the source has no ssh, or its answer was cut off.
        TransportError: the source could not be spoken to.
    """
    todo = [way for each in asked for way in each.ways]
    results: dict[Way, Tried] = {}
    tries = 0
    while todo and tries < TRIES:
        cancel.pause(tries * random.uniform(0.2, 0.6))  # noqa: S311
        results |= {tried.way: tried for tried in _try(source, todo, pinned, scripts or Scripts())}
        dropped = [way for way in todo if results[way].reach is Reach.DROPPED]
        tries = tries + 1 if len(dropped) == len(todo) else 1
        todo = dropped
    return {each.target: route(each, results) for each in asked}


def _try(source: Host, ways: Sequence[Way], pinned: str, scripts: Scripts) -> list[Tried]:
    done = source.run(render(scripts, ways, pinned), limit=LOGIN_LIMIT + 15.0)
    return parse(done.out, ways, source.label, done.err)
