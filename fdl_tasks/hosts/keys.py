"""Host keys: a pin, else the known_hosts files as OpenSSH reads them; strict unless the user's settings relax it.

Fabric's own policy trusts any key, a changed one too (facts/fabric.md 1.1), so it is replaced before
a connection opens. The policy runs after the key exchange and before any authentication.
"""

from __future__ import annotations

import fcntl
import os
import re
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import paramiko

from ..errors import Stage, TransportError
from .once import once
from .settings import Settings

KEYGEN_LIMIT = 15.0  # seconds


@dataclass(frozen=True)
class KnownKey:
    """One line of a known_hosts file that is about this host."""

    marker: str  # "", "@revoked" or "@cert-authority"
    kind: str
    blob: str
    place: str  # file:line


@dataclass(frozen=True)
class Offered:
    """The key that a server proved to hold; ``fingerprint`` as ``ssh-keygen -l`` prints it."""

    kind: str
    blob: str
    fingerprint: str


class Judgement(StrEnum):
    """What a host key is, measured against the pins or the known keys."""

    KNOWN = "known"
    ADD = "add"
    IGNORED = "ignored"
    UNKNOWN = "unknown"
    CHANGED = "changed"


def judge(offered: Offered, pins: Sequence[str], known: Sequence[KnownKey], strict: str) -> Judgement:
    """A pin alone decides where there is one; else the known keys; else how strict the user is (pure)."""
    if pins:
        return Judgement.KNOWN if offered.fingerprint in pins else Judgement.CHANGED
    if any(key.blob == offered.blob for key in known):
        return Judgement.KNOWN
    if known:
        return Judgement.IGNORED if strict == "no" else Judgement.CHANGED
    return {"accept-new": Judgement.ADD, "no": Judgement.IGNORED}.get(strict, Judgement.UNKNOWN)


def parse_keygen(answer: str, file: str) -> list[KnownKey]:
    """The keys that ``ssh-keygen -F`` printed (pure)."""
    keys, line = [], "0"
    for row in answer.splitlines():
        if row.startswith("#"):
            found = re.search(r"found: line (\d+)", row)
            line = found[1] if found else "0"
            continue
        fields = row.split()
        marker = fields.pop(0) if fields and fields[0].startswith("@") else ""
        if len(fields) >= 3:
            keys.append(KnownKey(marker, fields[1], fields[2], f"{file}:{line}"))
    return keys


def known_keys(settings: Settings) -> list[KnownKey]:
    """What the user's and the system's known_hosts say of this host, wildcards and hashes included.

    Raises:
        TransportError: a certificate authority or a revoked key stands there: not to be honoured.
    """
    files = [file for file in (*settings.known_hosts, *settings.global_known_hosts) if file.is_file()]
    keys = [key for file in files for key in _look_up(settings.key_name, file, file.stat().st_mtime_ns)]
    for key in keys:
        if key.marker:
            raise TransportError(
                Stage.SETTINGS,
                f"{key.place} has {key.marker} for {settings.key_name}, and this library can't honour it",
                hint="give the worker a host_key: pin in cluster.yml",
            )
    return keys


@once
def _look_up(name: str, file: Path, mtime_ns: int) -> list[KnownKey]:
    argv = ["ssh-keygen", "-F", name, "-f", str(file)]
    try:
        done = subprocess.run(argv, capture_output=True, stdin=subprocess.DEVNULL, timeout=KEYGEN_LIMIT, check=False)
    except (FileNotFoundError, subprocess.TimeoutExpired) as error:
        raise TransportError(Stage.SETTINGS, f"ssh-keygen can't read {file}: {error}") from None
    return parse_keygen(done.stdout.decode("utf-8", "replace"), str(file))


class Policy(paramiko.MissingHostKeyPolicy):
    """Judges the server's key. Paramiko asks it for every key, as no known_hosts is given to Paramiko."""

    def __init__(self, settings: Settings, known: Sequence[KnownKey], note: Callable[[str], None]):
        self._settings, self._known, self._note = settings, known, note

    def missing_host_key(self, client: paramiko.SSHClient, hostname: str, key: paramiko.PKey) -> None:
        """Returns when the key may be trusted.

        Raises:
            TransportError: KEY_CHANGED or KEY_UNKNOWN; nothing was sent that could run or log in.
        """
        offered = Offered(key.get_name(), key.get_base64(), key.fingerprint)
        if offered.kind == "ssh-rsa" and key.get_bits() < self._settings.rsa_bits:
            what = f"{self._settings.key_name} shows an RSA key of {key.get_bits()} bits"
            raise TransportError(
                Stage.HANDSHAKE,
                f"{what}, and RequiredRSASize is {self._settings.rsa_bits}",
                hint="give it a longer key",
            )
        match judge(offered, self._settings.pins, self._known, self._settings.strict):
            case Judgement.CHANGED:
                raise self._changed(offered)
            case Judgement.UNKNOWN:
                raise self._unknown(offered)
            case Judgement.ADD:
                self._add(offered)
            case Judgement.IGNORED:
                self._note(
                    f"the host key {offered.fingerprint} of {self._settings.address} was NOT checked "
                    "(StrictHostKeyChecking=no): anybody could be answering there"
                )
            case _:
                pass

    def _changed(self, offered: Offered) -> TransportError:
        name = self._settings.key_name
        if self._settings.pins:
            expected, hint = (
                ", ".join(self._settings.pins),
                "if the new key is right, mend host_key: in cluster.yml",
            )
        else:
            expected = ", ".join(f"{key.kind} at {key.place}" for key in self._known)
            hint = f"find out why; if the new key is right: ssh-keygen -R '{name}', then connect once by hand"
        what = f"{name} shows {offered.kind} {offered.fingerprint}, expected {expected}; nothing was run there"
        return TransportError(Stage.KEY_CHANGED, what, hint=hint)

    def _unknown(self, offered: Offered) -> TransportError:
        what = f"{self._settings.key_name} shows {offered.kind} {offered.fingerprint}, which no known_hosts file has"
        hint = (
            f"compare it on the machine itself, then pin it as host_key: {offered.fingerprint} or connect once by hand"
        )
        return TransportError(Stage.KEY_UNKNOWN, what, hint=hint)

    def _add(self, offered: Offered) -> None:
        if not self._settings.known_hosts:
            return
        name, file = self._settings.key_name, self._settings.known_hosts[0]
        shown = paramiko.HostKeys.hash_host(name) if self._settings.hash_known_hosts else name
        try:
            append_line(file, f"{shown} {offered.kind} {offered.blob}")
        except OSError as error:  # as ssh does: the user has said that a new key is good
            self._note(f"host key {offered.fingerprint} of {name} is new; can't add it to {file}: {error.strerror}")
        else:
            self._note(f"host key {offered.fingerprint} of {name} is new; added to {file}")


def append_line(file: Path, line: str) -> None:
    """Append one whole line, one writer at a time, never joining a line that has no end."""
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "r+b") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        size = stream.seek(0, os.SEEK_END)
        joined = size and (stream.seek(size - 1), stream.read(1))[1] != b"\n"
        stream.write((b"\n" if joined else b"") + line.encode() + b"\n")


def key_types(known: Sequence[KnownKey], ours: Sequence[str]) -> list[str]:
    """Our host-key algorithms, those of known keys first, so that the server shows a key we can check (pure)."""
    kinds = {key.kind for key in known}
    if "ssh-rsa" in kinds:
        kinds |= {"rsa-sha2-512", "rsa-sha2-256"}
    return sorted(ours, key=lambda name: name not in kinds)
