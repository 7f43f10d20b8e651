"""The program whose stdin and stdout is the way to a host: a jump by ``ssh -W``, or the user's ProxyCommand (pure)."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence

from ..cluster.model import Ssh
from ..errors import Stage, TransportError

ALIVE_INTERVAL, ALIVE_COUNT = 15, 3  # seconds between keepalives; so many unanswered, and the peer is given up

# What names the target itself and must not follow to a jump host.
_TARGET_ONLY = {
    "hostkeyalias",
    "hostname",
    "port",
    "proxycommand",
    "proxyjump",
    "remotecommand",
    "setenv",
    "user",
}


def filled(what: str, text: str, tokens: Mapping[str, str]) -> str:
    """Fill in the tokens of ssh_config(5) that ``ssh -G`` leaves as they are; ``what`` is the keyword.

    Raises:
        TransportError: a token that this library does not know.
    """

    def value(match: re.Match[str]) -> str:
        if match[0] not in tokens:
            raise TransportError(Stage.SETTINGS, f"{what} has {match[0]!r}, which this library does not know")
        return tokens[match[0]]

    return re.sub("%.?", value, text)


def proxy(ssh: Ssh, found: Mapping[str, str], tokens: Mapping[str, str], limit: float) -> tuple[str, ...]:
    """Its argv, from what ``ssh -G`` resolved; empty where the way is direct. ``limit``: seconds to connect to a hop.

    Raises:
        TransportError: the ProxyCommand can't be honoured.
    """
    if (command := found.get("proxycommand", "none")) != "none":
        if found.get("proxyusefdpass") == "yes":
            raise TransportError(Stage.SETTINGS, "proxyusefdpass is set, and this library can't honour it")
        return ("sh", "-c", f"exec {filled('ProxyCommand', command, tokens)}")
    if (jumps := found.get("proxyjump", "none")) == "none":
        return ()
    return _jump(jumps.split(","), f"[{found['hostname']}]:{found['port']}", _options(ssh, limit))


def _jump(hops: Sequence[str], address: str, options: Sequence[str]) -> tuple[str, ...]:
    """Through every hop in turn. ``ssh -J`` would leave the options out at all hops but the last."""
    *before, last = hops
    through: tuple[str, ...] = ()
    if before:
        *head, _, _, where = _jump(before, "", options)  # what ends in -W, the address, -- and the hop
        command = f"{_escaped(head)} '[%h]:%p' -- {_escaped([where])}"
        through = ("-o", f"ProxyCommand={command}")
    return ("ssh", *options, *through, "-W", address, "--", _where(last))


def _escaped(argv: Sequence[str]) -> str:
    return shlex.join(argv).replace("%", "%%")


def _where(jump: str) -> str:
    """``[user@]host[:port]`` or an ``ssh://`` address, as ssh takes it in one word."""
    return jump if jump.startswith("ssh://") else f"ssh://{jump}"


def _options(ssh: Ssh, limit: float) -> tuple[str, ...]:
    """The user's options for a hop: all that do not name the target; then ours, BatchMode always."""
    kept = [option for option in ssh.options if _keyword(option) not in _TARGET_ONLY | {"batchmode"}]
    key = ("-i", ssh.identity_file) if ssh.identity_file else ()
    alive = (f"ServerAliveInterval={ALIVE_INTERVAL}", f"ServerAliveCountMax={ALIVE_COUNT}")
    ours = ("BatchMode=yes", f"ConnectTimeout={limit:.0f}", *alive)
    return (*key, *(word for option in (*kept, *ours) for word in ("-o", option)))


def _keyword(option: str) -> str:
    return option.replace("=", " ").split()[0].lower() if option.strip(" =") else ""
