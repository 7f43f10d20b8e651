"""How a host is reached, as OpenSSH itself resolves it: ``ssh -G`` and a pure reading of its answer.

Port, user and identity file of cluster.yml stand first on the command line, then its ``options``,
then our defaults; OpenSSH keeps the first value of a keyword, and its own files come last.
``Match exec`` lines of the user's ssh configuration run, as they do for ``ssh``.
"""

from __future__ import annotations

import getpass
import os
import re
import subprocess
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ..cluster.model import Ssh
from ..errors import Stage, TransportError
from .once import once
from .proxy import ALIVE_COUNT, ALIVE_INTERVAL, filled, proxy

CONNECT_LIMIT = 10.0  # seconds, when ConnectTimeout is not set
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
    rsa_bits: int  # the shortest RSA key that may be used
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
    if ssh.identity_file and not Path(ssh.identity_file).expanduser().is_file():
        raise TransportError(  # ssh would only warn, and go on with other keys
            Stage.SETTINGS,
            f"identity_file {ssh.identity_file} is not there",
            hint="mend it in cluster.yml; of a key that only the agent has, name the .pub file",
        )
    answer = _ask(("ssh", "-G", *options_of(ssh), "-o", "BatchMode=yes", "--", ssh.target))
    return parse(ssh, answer, os.environ.get("SSH_AUTH_SOCK"))


@once
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
    tokens = _tokens(ssh, one)
    alive = int(one.get("serveraliveinterval", "0"))
    limit = float(one.get("connecttimeout", "none").replace("none", "0")) or CONNECT_LIMIT
    return Settings(
        target=ssh.target,
        hostname=one["hostname"],
        port=int(one["port"]),
        user=one["user"],
        identity_files=tuple(_identity(name, tokens) for name in found["identityfile"] if name != "none"),
        identities_only=one.get("identitiesonly") == "yes",
        identity_agent=_agent(one.get("identityagent"), agent),
        known_hosts=_files(one.get("userknownhostsfile", "")),
        global_known_hosts=_files(one.get("globalknownhostsfile", "")),
        alias=one.get("hostkeyalias"),
        strict={"accept-new": "accept-new", "no": "no", "false": "no", "off": "no"}.get(
            one["stricthostkeychecking"], "yes"
        ),
        hash_known_hosts=one.get("hashknownhosts") == "yes",
        rsa_bits=int(one.get("requiredrsasize", "0")),
        connect_limit=limit,
        alive_interval=min(alive, ALIVE_INTERVAL) or ALIVE_INTERVAL,
        alive_count=int(one.get("serveralivecountmax", "0")) or ALIVE_COUNT,
        family=one.get("addressfamily", "any"),
        bind_address=one.get("bindaddress"),
        compression=one.get("compression") == "yes",
        public_key=one.get("pubkeyauthentication", "yes") not in ("no", "false"),
        environment=tuple((name, value) for name, _, value in (line.partition("=") for line in found["setenv"])),
        proxy=proxy(ssh, one, tokens, limit),
        algorithms=tuple((ours, tuple(one[k].split(","))) for k, ours in _ALGORITHMS.items() if k in one),
        pins=ssh.host_keys,
        batch_overruled=one.get("batchmode") == "no",
    )


def _tokens(ssh: Ssh, one: Mapping[str, str]) -> dict[str, str]:
    """Values of the tokens of ssh_config(5), but for those that no proxy or key file has a use for."""
    return {
        "%%": "%",
        "%d": str(Path.home()),
        "%h": one["hostname"],
        "%k": one.get("hostkeyalias", one["hostname"]),
        "%n": ssh.target,
        "%p": one["port"],
        "%r": one["user"],
        "%u": getpass.getuser(),
    }


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
    """Paths from a line of ``ssh -G``, which prints no quotes: a word that starts no path goes on with the last."""
    names = re.split(r" (?=[/~]|none$)", value)
    return tuple(Path(name).expanduser() for name in names if name not in ("", "none", "/dev/null"))


def _identity(name: str, tokens: Mapping[str, str]) -> Path:
    """A key file; tokens and ``${NAME}`` stand in it as they were written (ssh -G expands them in other keywords)."""
    known = re.sub(r"\$\{(\w+)\}", lambda found: os.environ.get(found[1], found[0]), name)
    return Path(filled("IdentityFile", known, tokens)).expanduser()
