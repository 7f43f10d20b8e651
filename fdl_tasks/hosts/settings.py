"""How a host is reached, as OpenSSH itself resolves it: ``ssh -G`` and a pure reading of its answer.

Port, user and identity file of cluster.yml stand first on the command line, then its ``options``,
then our defaults; OpenSSH keeps the first value of a keyword, and its own files come last.
``Match exec`` lines of the user's ssh configuration run, as they do for ``ssh``.
"""

from __future__ import annotations

import os
import subprocess
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ..cluster.model import Ssh
from ..errors import Stage, TransportError

CONNECT_LIMIT = 10.0  # seconds, when ConnectTimeout is not set
ALIVE_INTERVAL, ALIVE_COUNT = 15, 3
RESOLVE_LIMIT = 30.0  # seconds for `ssh -G`: a Match exec of the user's may hang

# Resolved, and of consequence, but not to be had from the ssh client that runs the scripts.
_REFUSED = {
    "bindinterface": "none",
    "certificatefile": "none",
    "knownhostscommand": "none",
    "pkcs11provider": "none",
    "remotecommand": "none",
    "revokedhostkeys": "none",
}
_ALGORITHMS = {
    "ciphers": "ciphers",
    "hostkeyalgorithms": "keys",
    "kexalgorithms": "kex",
    "macs": "macs",
    "pubkeyacceptedalgorithms": "pubkeys",
}
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


@dataclass(frozen=True)
class Settings:
    """One host's settings, resolved. Times in seconds; ``algorithms`` by Paramiko's names of the kinds."""

    target: str
    hostname: str
    port: int
    user: str
    identity_files: tuple[Path, ...]
    identities_only: bool
    identity_agent: str | None
    known_hosts: tuple[Path, ...]
    global_known_hosts: tuple[Path, ...]
    alias: str | None
    strict: str  # "yes", "accept-new" or "no"
    hash_known_hosts: bool
    connect_limit: float
    alive_interval: int
    alive_count: int
    family: str  # "any", "inet" or "inet6"
    bind_address: str | None
    compression: bool
    public_key: bool
    environment: tuple[tuple[str, str], ...]
    proxy: tuple[str, ...]  # argv of the program whose stdin and stdout is the connection; empty: connect directly
    algorithms: tuple[tuple[str, tuple[str, ...]], ...]
    pins: tuple[str, ...]
    batch_overruled: bool

    @property
    def address(self) -> str:
        """Where it goes, for messages."""
        return f"{self.hostname} port {self.port}"

    @property
    def key_name(self) -> str:
        """The name under which known_hosts files hold this host's key."""
        name = (self.alias or self.hostname).lower()
        return name if self.alias or self.port == 22 else f"[{name}]:{self.port}"


def options_of(ssh: Ssh) -> tuple[str, ...]:
    """The options of cluster.yml in OpenSSH's order of precedence."""
    port = ("-p", str(ssh.port)) if ssh.port else ()
    user = ("-l", ssh.user) if ssh.user else ()
    key = ("-i", ssh.identity_file) if ssh.identity_file else ()
    return (*port, *user, *key, *(word for option in ssh.options for word in ("-o", option)))


def resolve(ssh: Ssh) -> Settings:
    """Ask OpenSSH for the settings of one host.

    Raises:
        TransportError: ssh is missing or refuses the settings, or one of them can't be honoured.
    """
    if ssh.identity_file and not any(Path(f"{ssh.identity_file}{end}").expanduser().is_file() for end in ("", ".pub")):
        raise TransportError(  # ssh would only warn, and go on with other keys
            Stage.SETTINGS, f"identity_file {ssh.identity_file} is not there", hint="mend it in cluster.yml"
        )
    answer = _ask(("ssh", "-G", *options_of(ssh), "-o", "BatchMode=yes", "--", ssh.target))
    return parse(ssh, answer, os.environ.get("SSH_AUTH_SOCK"))


@cache
def _ask(argv: tuple[str, ...]) -> str:
    try:
        done = subprocess.run(argv, capture_output=True, stdin=subprocess.DEVNULL, timeout=RESOLVE_LIMIT, check=False)
    except FileNotFoundError:
        raise TransportError(Stage.SETTINGS, "there is no ssh program", hint="install OpenSSH's client") from None
    except subprocess.TimeoutExpired:
        hint = "a Match exec in the ssh configuration may hang"
        raise TransportError(Stage.SETTINGS, f"ssh -G gave no answer in {RESOLVE_LIMIT:g} s", hint=hint) from None
    if done.returncode != 0:
        said = done.stderr.decode("utf-8", "replace").strip() or f"exit code {done.returncode}"
        raise TransportError(Stage.SETTINGS, f"ssh refuses them: {said}", hint="try the same settings with ssh by hand")
    return done.stdout.decode("utf-8", "replace")


def parse(ssh: Ssh, answer: str, agent: str | None) -> Settings:
    """Settings from what ``ssh -G`` printed (pure). ``agent`` is the environment's SSH_AUTH_SOCK.

    Raises:
        TransportError: a setting was resolved that can't be honoured; it is named.
    """
    found: dict[str, list[str]] = defaultdict(list)
    for line in answer.splitlines():
        keyword, _, value = line.partition(" ")
        found[keyword.lower()].append(value)
    one = {keyword: values[0] for keyword, values in found.items()}
    _refuse(one)
    port = int(one["port"])
    connect, alive = one.get("connecttimeout", "none"), int(one.get("serveraliveinterval", "0"))
    return Settings(
        target=ssh.target,
        hostname=one["hostname"],
        port=port,
        user=one["user"],
        identity_files=tuple(Path(name).expanduser() for name in found["identityfile"] if name != "none"),
        identities_only=one.get("identitiesonly") == "yes",
        identity_agent=_agent(one.get("identityagent"), agent),
        known_hosts=_files(one.get("userknownhostsfile", "")),
        global_known_hosts=_files(one.get("globalknownhostsfile", "")),
        alias=one.get("hostkeyalias"),
        strict={"accept-new": "accept-new", "no": "no", "false": "no", "off": "no"}.get(
            one["stricthostkeychecking"], "yes"
        ),
        hash_known_hosts=one.get("hashknownhosts") == "yes",
        connect_limit=CONNECT_LIMIT if connect == "none" else float(connect),
        alive_interval=min(alive, ALIVE_INTERVAL) or ALIVE_INTERVAL,
        alive_count=int(one.get("serveralivecountmax", ALIVE_COUNT)),
        family=one.get("addressfamily", "any"),
        bind_address=one.get("bindaddress"),
        compression=one.get("compression") == "yes",
        public_key=one.get("pubkeyauthentication", "yes") not in ("no", "false"),
        environment=tuple((name, value) for name, _, value in (line.partition("=") for line in found["setenv"])),
        proxy=_proxy(ssh, one, port),
        algorithms=tuple((ours, tuple(one[k].split(","))) for k, ours in _ALGORITHMS.items() if k in one),
        pins=ssh.host_keys,
        batch_overruled=one.get("batchmode") == "no",
    )


def _refuse(one: dict[str, str]) -> None:
    for keyword, harmless in _REFUSED.items():
        if one.get(keyword, harmless) != harmless:
            raise TransportError(
                Stage.SETTINGS,
                f"{keyword} is set to {one[keyword]!r}, and this library can't honour it",
                hint=f"give the worker other settings, e.g. options: [{keyword}=none] if it can do without",
            )


def _agent(setting: str | None, inherited: str | None) -> str | None:
    if setting in (None, "SSH_AUTH_SOCK"):
        return inherited
    if setting == "none":
        return None
    return os.environ.get(setting[1:]) if setting.startswith("$") else str(Path(setting).expanduser())


def _files(value: str) -> tuple[Path, ...]:
    return tuple(Path(name).expanduser() for name in value.split() if name not in ("none", "/dev/null"))


def _proxy(ssh: Ssh, one: dict[str, str], port: int) -> tuple[str, ...]:
    if (command := one.get("proxycommand", "none")) != "none":
        return ("sh", "-c", f"exec {_expand(command, ssh, one, port)}")
    if (jumps := one.get("proxyjump", "none")) == "none":
        return ()
    *before, last = jumps.split(",")
    address = f"[{one['hostname']}]:{port}"
    through = ("-J", ",".join(before)) if before else ()
    return ("ssh", *_jump_options(ssh), *through, "-W", address, *_jump_target(last))


def _jump_options(ssh: Ssh) -> tuple[str, ...]:
    """The user's options for a hop: all that do not name the target; BatchMode is ours."""
    kept = [o for o in ssh.options if _keyword(o) not in _TARGET_ONLY | {"batchmode"}]
    key = ("-i", ssh.identity_file) if ssh.identity_file else ()
    ours = ("BatchMode=yes", f"ServerAliveInterval={ALIVE_INTERVAL}", f"ServerAliveCountMax={ALIVE_COUNT}")
    return (*key, *(word for option in (*kept, *ours) for word in ("-o", option)))


def _keyword(option: str) -> str:
    return option.replace("=", " ").split()[0].lower() if option.strip(" =") else ""


def _jump_target(jump: str) -> Sequence[str]:
    """``[user@]host[:port]`` or an ``ssh://`` address, as words for ssh."""
    return ("--", jump if jump.startswith("ssh://") else f"ssh://{jump}")


def _expand(command: str, ssh: Ssh, one: dict[str, str], port: int) -> str:
    """The tokens of ssh_config(5) that ProxyCommand takes, which ``ssh -G`` leaves as they are."""
    values = {"%%": "%", "%h": one["hostname"], "%n": ssh.target, "%p": str(port), "%r": one["user"]}
    out, rest = "", command
    while rest:
        pair = rest[:2]
        if pair[0] == "%" and pair not in values:
            raise TransportError(Stage.SETTINGS, f"ProxyCommand has {pair!r}, which this library does not know")
        out, rest = out + values.get(pair, rest[0]), rest[2 if pair in values else 1 :]
    return out
