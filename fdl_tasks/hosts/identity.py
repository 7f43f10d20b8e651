"""Logging in with a key, as OpenSSH would: the agent's copy of a named key, the key file, the agent's others."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import paramiko
from paramiko.agent import AgentKey, AgentSSH
from paramiko.pkey import PublicBlob

from ..errors import Stage, TransportError
from .settings import Settings


class _Agent(AgentSSH):
    """The agent at a socket of our choosing (Paramiko's own reads SSH_AUTH_SOCK only)."""

    def __init__(self, path: str, seconds: float):
        super().__init__()
        self._connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._connection.settimeout(seconds)
        self._connection.connect(path)
        self._connect(self._connection)  # type: ignore[attr-defined]

    def close(self) -> None:
        self._connection.close()


class Login:
    """Tries every key in order and remembers what became of each; never asks for anything."""

    def __init__(self, settings: Settings):
        self._settings = settings
        self.tried: list[str] = []

    def authenticate(self, transport: paramiko.Transport) -> list[str]:
        """Log in; Paramiko calls it as an ``auth_strategy``.

        Raises:
            TransportError: AUTH, with what became of every key that was there to try.
        """
        if not self._settings.public_key:
            raise self._refused("PubkeyAuthentication is off, and this library logs in with keys only")
        agent = self._agent()
        try:
            for name, key in self._keys(agent):
                if self._accepted(transport, name, key):
                    return []
                if not transport.is_active():
                    raise self._refused("the server hung up: too many keys, perhaps (IdentitiesOnly=yes limits them)")
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
            return _Agent(self._settings.identity_agent, self._settings.connect_limit)
        except (OSError, paramiko.SSHException) as error:
            self.tried.append(f"agent {self._settings.identity_agent}: {_reason(error)}")
            return None

    def _keys(self, agent: _Agent | None) -> Iterator[tuple[str, paramiko.PKey]]:
        held: dict[bytes, AgentKey] = {key.asbytes(): key for key in agent.get_keys()} if agent else {}
        for path in self._settings.identity_files:
            if not path.is_file():
                continue
            if key := held.pop(_public_blob(path), None):
                yield f"{path} by the agent", key
            elif loaded := self._load(path, bool(held)):
                if key := held.pop(loaded.asbytes(), None):
                    yield f"{path} by the agent", key
                yield str(path), loaded
        if not self._settings.identities_only:
            yield from ((f"agent key {key.fingerprint}", key) for key in held.values())

    def _load(self, path: Path, agent_has_others: bool) -> paramiko.PKey | None:
        try:
            return paramiko.PKey.from_path(path)
        except (paramiko.PasswordRequiredException, TypeError):
            where = "the agent does not hold it" if agent_has_others else "no agent holds it"
            self.tried.append(f"{path}: is encrypted, and {where}")
        except (paramiko.SSHException, ValueError, OSError) as error:
            self.tried.append(f"{path}: {_reason(error)}")
        return None


def _reason(error: Exception) -> str:
    return "refused" if isinstance(error, paramiko.AuthenticationException) else str(error) or type(error).__name__


def _public_blob(path: Path) -> bytes:
    try:
        return PublicBlob.from_file(str(path.with_name(f"{path.name}.pub"))).key_blob
    except (OSError, ValueError, IndexError):
        return b""
