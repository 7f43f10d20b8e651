"""Logging in with a key, as OpenSSH would: the agent's copy of a named key, the key file, the agent's others."""

from __future__ import annotations

import io
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import paramiko
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from paramiko.agent import AgentKey, AgentSSH

from ..errors import Stage, TransportError
from .settings import Settings

_KINDS: dict[type, type[paramiko.PKey]] = {
    RSAPrivateKey: paramiko.RSAKey,
    EllipticCurvePrivateKey: paramiko.ECDSAKey,
    Ed25519PrivateKey: paramiko.Ed25519Key,
}


class _Agent(AgentSSH):
    """The agent at a socket of our choosing (Paramiko's own reads SSH_AUTH_SOCK only)."""

    def __init__(self, path: str, seconds: float, sign_seconds: float):
        super().__init__()
        self._connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._connection.settimeout(seconds)
        self._connection.connect(path)
        self._connect(self._connection)  # type: ignore[attr-defined]
        self._connection.settimeout(sign_seconds)  # a person may have to touch the key

    def _send_message(self, msg: paramiko.Message) -> tuple[int, paramiko.Message]:
        try:
            return super()._send_message(msg)  # type: ignore[misc, no-any-return]
        except OSError as error:  # Paramiko's thread would die of it, with a traceback
            raise paramiko.SSHException(f"the agent gave no answer ({error})") from error

    def close(self) -> None:
        self._connection.close()


class Login:
    """Tries every key in order and remembers what became of each; never asks for anything."""

    def __init__(self, settings: Settings, limit: float):
        self._settings, self._limit = settings, limit
        self.tried: list[str] = []

    def authenticate(self, transport: paramiko.Transport) -> list[str]:
        """Log in; Paramiko calls it as an ``auth_strategy``.

        Raises:
            TransportError: AUTH, with what became of every key that was there to try.
        """
        if not self._settings.public_key:
            raise self._refused("PubkeyAuthentication is off, and this library logs in with keys only")
        agent, end = self._agent(), time.monotonic() + self._limit
        try:
            for name, key in self._keys(agent):
                transport.auth_timeout = max(0.1, end - time.monotonic())  # Paramiko's limit is for each key anew
                if self._accepted(transport, name, key):
                    return []
                if time.monotonic() >= end:
                    raise self._refused(f"the server had let nobody in after {self._limit:g} s")
                if not transport.is_active():
                    raise self._refused("the link was closed: too many keys, perhaps (IdentitiesOnly=yes limits them)")
        finally:
            if agent:
                agent.close()
        raise self._refused("no key was accepted" if self.tried else "there is no key to log in with")

    def _accepted(self, transport: paramiko.Transport, name: str, key: paramiko.PKey) -> bool:
        try:
            transport.auth_publickey(self._settings.user, key)
        except (paramiko.SSHException, EOFError, OSError) as error:
            self.tried.append(f"{name}: {_reason(error)}")
            return False
        if not transport.is_authenticated():
            self.tried.append(f"{name}: accepted, but the server wants a second factor")
            return False
        return True

    def _refused(self, what: str) -> TransportError:
        tried = f" ({'; '.join(self.tried)})" if self.tried else ""
        hint = "give the worker an identity_file, or load the key into ssh-agent; try by hand with ssh -o BatchMode=yes"
        return TransportError(
            Stage.AUTH, f"{what}, as {self._settings.user} at {self._settings.address}{tried}", hint=hint
        )

    def _agent(self) -> _Agent | None:
        if not self._settings.identity_agent:
            return None
        try:
            return _Agent(self._settings.identity_agent, self._settings.connect_limit, 0.8 * self._limit)
        except (OSError, paramiko.SSHException) as error:
            self.tried.append(f"agent {self._settings.identity_agent}: {_reason(error)}")
            return None

    def _keys(self, agent: _Agent | None) -> Iterator[tuple[str, paramiko.PKey]]:
        held: dict[str, AgentKey] = {key.fingerprint: key for key in agent.get_keys()} if agent else {}
        for path in self._settings.identity_files:
            if held and (key := held.pop(_fingerprint(path), None)):
                yield f"{path} by the agent", key
            elif path.is_file() and path.suffix != ".pub" and (loaded := self._load(path, bool(held))):
                yield from self._certified(path)
                yield str(path), loaded
        if not self._settings.identities_only:
            yield from ((f"agent key {key.fingerprint}", key) for key in held.values())

    def _certified(self, path: Path) -> Iterator[tuple[str, paramiko.PKey]]:
        """The key with the certificate that lies beside it, as OpenSSH tries it first."""
        certificate = path.with_name(f"{path.name}-cert.pub")
        if certificate.is_file():
            try:
                key = read_key(path)
                key.load_certificate(str(certificate))
                yield f"{path} with its certificate", key
            except (paramiko.SSHException, ValueError, OSError) as error:
                self.tried.append(f"{certificate}: {_reason(error)}")

    def _load(self, path: Path, agent_has_others: bool) -> paramiko.PKey | None:
        try:
            if path.stat().st_uid == os.getuid() and path.stat().st_mode & 0o077:
                self.tried.append(f"{path}: others may read it, so ssh would not use it either (chmod 600)")
                return None
            return read_key(path)
        except (paramiko.PasswordRequiredException, TypeError):
            where = "the agent does not hold it" if agent_has_others else "no agent holds it"
            self.tried.append(f"{path}: is encrypted, and {where}")
        except (paramiko.SSHException, UnsupportedAlgorithm, ValueError, OSError) as error:
            self.tried.append(f"{path}: {_reason(error)}")
        return None


def read_key(path: Path) -> paramiko.PKey:
    """A private key in any form that OpenSSH reads; Paramiko's own reader knows no PKCS8.

    Raises:
        TypeError: it is encrypted.
        ValueError: it is no private key, or of a kind that can't be used here.
    """
    data = path.read_bytes()
    try:
        found = serialization.load_ssh_private_key(data, None)
    except ValueError:
        found = serialization.load_pem_private_key(data, None)  # type: ignore[assignment]
    for kind, made in _KINDS.items():
        if isinstance(found, kind):
            text = found.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()).decode()
            return made.from_private_key(io.StringIO(text))
    raise ValueError(f"is a key of a kind that can't be used here ({type(found).__name__})")


def _reason(error: Exception) -> str:
    if isinstance(error, paramiko.BadAuthenticationType):
        return f"the server takes only {', '.join(error.allowed_types)}"
    return "refused" if isinstance(error, paramiko.AuthenticationException) else str(error) or type(error).__name__


def _fingerprint(path: Path) -> str:
    """Of a key whose private half may be encrypted, or with the agent alone; empty when nothing tells."""
    for file in (path, path.with_name(f"{path.name}.pub")):
        if file.is_file():
            argv = ["ssh-keygen", "-l", "-E", "sha256", "-f", str(file)]
            done = subprocess.run(argv, capture_output=True, stdin=subprocess.DEVNULL, timeout=5, check=False)
            if done.returncode == 0:
                return done.stdout.decode("utf-8", "replace").split()[1]
    return ""
