"""How every ssh that ``prepare`` starts is spelled, be it rsync's, git's or sshfs's (pure).

OpenSSH keeps the first value of a keyword, so the order says who wins: a pinned host key, then the user's options,
then the key file and the port, then our own. A fresh box knows nobody: it takes the key of a host that it has never
met (facts/upstream.md, 9.40), unless ``ssh.host_key`` pins it (``pins.py``).
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from ...cluster.model import Ssh

ALIAS = "fdl-pinned"  # the name under which a file of ours holds the pinned key, whatever the host is called
OURS = (
    "BatchMode=yes",
    "StrictHostKeyChecking=accept-new",
    "ControlPath=none",  # a shared connection may be anybody's, and its master would outlive us
    "ClearAllForwardings=yes",  # they are the tunnel's, and would be in its way
    "RequestTTY=no",
    "ConnectTimeout=15",
    "ServerAliveInterval=15",
    "ServerAliveCountMax=3",
)


def options(ssh: Ssh | None, port: int | None = None, known: Path | None = None) -> list[str]:
    """``Keyword=value`` of every option, for ``ssh -o`` or ``sshfs -o``.

    Args:
        port: the source's own; ``ssh.port`` is that of another host, as may be its user.
        known: the file that ``pins.pinned`` made, where a host key is pinned.
    """
    own = [option for option in ssh.options if _keyword(option) != "batchmode"] if ssh else []
    key = [f"IdentityFile={quoted(ssh.identity_file)}"] if ssh and ssh.identity_file else []
    return [*(trusting(known) if known else []), *own, *key, *([f"port={port}"] if port else []), *OURS]


def trusting(known: Path, checking: str = "yes") -> list[str]:
    """The options with which nothing but this file says which host key is right."""
    return [
        f"HostKeyAlias={ALIAS}",
        f"StrictHostKeyChecking={checking}",
        f"UserKnownHostsFile={quoted(str(known))}",
        "GlobalKnownHostsFile=/dev/null",
        "IgnoreUnknown=KnownHostsCommand",  # older than 8.5, it has none
        "KnownHostsCommand=none",
        "VerifyHostKeyDNS=no",
        "UpdateHostKeys=no",
        "HashKnownHosts=no",
        "CheckHostIP=no",
    ]


def remote_shell(ssh: Ssh | None, port: int | None = None, known: Path | None = None) -> list[str]:
    """The words of ``rsync -e`` and GIT_SSH_COMMAND: join them with ``shlex.join``, which both understand."""
    return command(options(ssh, port, known))


def command(options: Sequence[str]) -> list[str]:
    """``ssh`` with these options."""
    return ["ssh", *(word for option in options for word in ("-o", option))]


def spelled(words: Sequence[str]) -> str:
    """Words as one text that a shell, git and rsync split into the same words again."""
    return shlex.join(words)


def overruled(ssh: Ssh | None) -> str | None:
    """The option with which the user asks for prompts, which nobody would answer; None when there is none."""
    asked = [option for option in ssh.options if _keyword(option) == "batchmode"] if ssh else []
    return next((option for option in asked if not option.lower().endswith("yes")), None)


def quoted(value: str) -> str:
    """A file name as ssh's configuration takes it: in quotes where it has a blank or a mark in it."""
    if not any(mark in value for mark in " \t\"'\\#"):
        return value
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _keyword(option: str) -> str:
    return option.replace("=", " ").split()[0].lower() if option.strip(" =") else ""
