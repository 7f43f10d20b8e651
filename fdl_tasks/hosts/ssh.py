"""Another machine as a host: Fabric's connection, the library's own settings, key check, login and reader."""

from __future__ import annotations

import contextlib
import logging
import random
import shlex
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType

import fabric
import paramiko

from ..cluster.model import Ssh
from ..errors import Stage, TransportError
from ..scripts import Script
from .base import Completed, OnLine
from .fanout import Cancel
from .follow import follow, packed
from .identity import Login
from .keys import Policy, key_types, known_keys
from .local import bootstrap
from .settings import Settings, resolve
from .sockets import Link, Watchdog, open_link

BANNER_LIMIT, HANDSHAKE_LIMIT, AUTH_LIMIT, CHANNEL_LIMIT = 15.0, 15.0, 30.0, 15.0  # seconds
Order = Callable[[Sequence[str]], list[str]]  # of host-key algorithms
TRIES = 6  # of the connect stage: an sshd under MaxStartups drops connections at random
TURN = 0.2  # seconds between two requests for a session that sshd refuses
TURNS = 5  # requests when no other session is open: sshd may count an ended one for a moment yet
PAUSE = 0.3  # seconds before the second try; doubles, with jitter

logging.getLogger("paramiko").setLevel(logging.CRITICAL)  # its log would print tracebacks of handled errors


class SshHost:
    """Scripts on a machine behind ssh. Connects at the first ``run``, and once: later ones may run side by side.

    ``settings`` are what was resolved for the last connection, ``host_key`` is the kind and the base64 text of
    the key that was accepted there; both are None before, and stay after ``close``.
    """

    def __init__(self, label: str, ssh: Ssh, cancel: Cancel, note: Callable[[str], None]):
        self.label, self._ssh, self._cancel, self._note = label, ssh, cancel, note
        self._door, self._channels = threading.Lock(), set[paramiko.Channel]()
        self._link: Link | None = None
        self._connection: fabric.Connection | None = None
        self._settings: Settings
        self.settings: Settings | None = None
        self.host_key: tuple[str, str] | None = None

    def run(self, script: Script, *, limit: float, on_line: OnLine | None = None) -> Completed:
        """See ``Host.run``."""
        self._cancel.check()
        try:
            channel = self._begin(script)
            try:
                return follow(_Channel(channel), self.label, limit=limit, cancel=self._cancel, on_line=on_line)
            finally:
                with contextlib.suppress(paramiko.SSHException, EOFError, OSError):
                    channel.close()  # ends the lifeline: whatever still runs there is ended
                self._channels.discard(channel)
        except TransportError as error:
            error.where = error.where or self.label
            raise

    def close(self) -> None:
        """Close the connection, its transport thread and its proxy program."""
        if self._connection:
            self._connection.client.close()  # Fabric's own close leaves a failed open's thread behind
            self._connection = None
        if self._link:
            self._link.close()
            self._link = None

    def __enter__(self) -> SshHost:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def _begin(self, script: Script) -> paramiko.Channel:
        """A session that runs it; where sshd grants none beside the others (MaxSessions), after one of them."""
        turns = TURNS
        while True:
            try:
                with self._door:
                    channel = self._start(script)
                    self._channels.add(channel)
                return channel
            except _Again as refused:
                turns = TURNS if self._channels else turns - 1
                if not turns:
                    raise refused.error from None
            self._cancel.pause(TURN)

    def _start(self, script: Script) -> paramiko.Channel:
        transport = self._connection.client.get_transport() if self._connection else None
        if not (transport and transport.is_active()):  # lost since the last script, while nothing ran
            self.close()
            transport = self._open()
        assert self._link
        with Watchdog(self._link, self._cancel, CHANNEL_LIMIT) as watchdog:
            try:
                channel = transport.open_session(timeout=CHANNEL_LIMIT)
                for name, value in self._settings.environment:
                    channel.set_environment_variable(name, value)
                channel.exec_command(f"exec sh -c {shlex.quote(bootstrap())}")
                with contextlib.suppress(OSError):  # a login that has ended already: ``follow`` reads what it said
                    channel.sendall(packed(script))
            except (paramiko.SSHException, EOFError, OSError) as error:
                self._cancel.check()
                stage = Stage.CHANNEL if transport.is_active() or watchdog.expired else Stage.LOST
                failed = TransportError(stage, f"sshd started no script ({_text(error)})", where=self.label)
                raise _Again(failed) if isinstance(error, paramiko.ChannelException) else failed from error
        return channel

    def _open(self) -> paramiko.Transport:
        self.settings = self._settings = resolve(self._ssh)
        if self._settings.batch_overruled:
            self._note("BatchMode=no in its ssh options is overruled: nothing here ever prompts")
        known = [] if self._settings.pins else known_keys(self._settings)
        policy = Policy(self._settings, known, self._note)
        for attempt in range(1, TRIES + 1):
            try:
                return self._connect(policy, lambda ours: key_types(known, ours))
            except _Again as dropped:
                self.close()
                if attempt == TRIES:
                    raise dropped.error from None
                self._cancel.pause(PAUSE * 2 ** (attempt - 1) * random.uniform(0.5, 1.5))  # noqa: S311
            except BaseException:
                self.close()
                raise
        raise AssertionError("unreachable")

    def _connect(self, policy: Policy, order: Order) -> paramiko.Transport:
        self._link = open_link(self._settings)
        made: list[paramiko.Transport] = []
        self._connection = fabric.Connection(
            self._settings.hostname,
            user=self._settings.user,
            port=self._settings.port,
            config=fabric.Config(ssh_config=paramiko.SSHConfig(), lazy=True),
            connect_kwargs={
                "sock": self._link.sock,
                "transport_factory": lambda sock, **kwargs: _transport(made, self._settings, order, sock),
                "auth_strategy": Login(self._settings, AUTH_LIMIT),
                "banner_timeout": BANNER_LIMIT,
                "channel_timeout": CHANNEL_LIMIT,
                "compress": self._settings.compression,
            },
        )
        self._connection.client.set_missing_host_key_policy(policy)
        began = time.monotonic()
        try:
            with Watchdog(self._link, self._cancel, BANNER_LIMIT + HANDSHAKE_LIMIT + AUTH_LIMIT):
                self._connection.open()
        except (paramiko.SSHException, EOFError, OSError, TransportError) as error:
            self._cancel.check()
            if isinstance(error, TransportError):
                raise
            raise self._failure(error, made[0] if made else None, time.monotonic() - began) from error
        made[0].set_keepalive(self._settings.alive_interval)
        if key := made[0].host_key:  # not get_remote_server_key(): that raises when the link is lost already
            self.host_key = key.get_name(), key.get_base64()
        return made[0]

    def _failure(self, error: Exception, transport: paramiko.Transport | None, seconds: float) -> Exception:
        """Which stage a failed opening had come to: told by the transport's state, not by the error's text."""
        assert self._link
        said = self._link.complaint()
        reason, where = said or _text(error), self._settings.address
        if transport and transport.remote_version:
            return TransportError(Stage.HANDSHAKE, f"with {where} failed: {reason}", where=self.label)
        if self._settings.proxy:
            what = f"no way through the proxy to {where} in {seconds:.0f} s: {reason}"
            return TransportError(
                Stage.CONNECT, what, where=self.label, hint="try the jump by hand with ssh -o BatchMode=yes"
            )
        if seconds >= BANNER_LIMIT:
            what = f"{where} accepted the connection but said nothing of ssh for {seconds:.0f} s"
            return TransportError(Stage.BANNER, what, where=self.label, hint="is it an sshd that answers there?")
        what = f"{where} closed the connection before it said anything"
        hint = "is it an sshd? one with too low a MaxStartups drops connections like this"
        return _Again(TransportError(Stage.BANNER, what, where=self.label, hint=hint))


class _Again(Exception):
    """A connection that was closed before the banner, or a session that was refused: worth another try."""

    def __init__(self, error: TransportError):
        super().__init__(str(error))
        self.error = error


def _transport(made: list[paramiko.Transport], settings: Settings, order: Order, sock: object) -> paramiko.Transport:
    """A transport that offers only algorithms that OpenSSH's settings allow, keys we know first."""
    allowed = dict(settings.algorithms)
    logins = paramiko.Transport._preferred_pubkeys  # type: ignore[attr-defined]  # no public list has them
    unwanted = [name for name in logins if name not in allowed.get("pubkeys", logins)]
    plain = paramiko.Transport(sock, disabled_algorithms={"pubkeys": unwanted})  # type: ignore[arg-type]
    made.append(plain)
    options = plain.get_security_options()
    for kind, name in (("ciphers", "ciphers"), ("macs", "digests"), ("kex", "kex"), ("keys", "key_types")):
        ours = getattr(options, name)
        both = [item for item in ours if item in allowed.get(kind, ours)]
        if not both:
            raise TransportError(
                Stage.SETTINGS, f"none of the {kind} that ssh -G allows is known here: {allowed[kind]}"
            )
        setattr(options, name, order(both) if kind == "keys" else sorted(both, key=_costly))
    return plain


def _costly(algorithm: str) -> bool:
    """Ciphers without GCM need a MAC as well, which Paramiko compares in Python."""
    return "gcm" not in algorithm


def _text(error: BaseException) -> str:
    return str(error).strip() or type(error).__name__


class _Channel:
    """A running remote script, as a ``follow.Source``."""

    def __init__(self, channel: paramiko.Channel):
        self._channel = channel
        channel.setblocking(False)

    def fds(self) -> Iterable[int]:
        return (self._channel.fileno(),)

    def read(self) -> Iterable[tuple[str, bytes]]:
        if self._channel.recv_ready():
            yield "out", self._channel.recv(65536)
        if self._channel.recv_stderr_ready():
            yield "err", self._channel.recv_stderr(65536)
        if self._channel.eof_received and not self.ended():
            self._channel.status_event.wait(0.05)  # its file descriptor stays readable from now on

    def ended(self) -> bool:
        return bool(self._channel.exit_status_ready() or self._channel.closed)

    def drained(self) -> bool:
        channel = self._channel
        if not (channel.eof_received or channel.closed):
            return False
        return not (channel.recv_ready() or channel.recv_stderr_ready())  # looked at after the end was seen

    def code(self) -> int:
        code = self._channel.exit_status
        if code < 0:
            transport = self._channel.get_transport()
            alive = transport is not None and transport.is_active()
            what = (
                "the remote shell ended without an exit code: by a signal, most likely"
                if alive
                else "the link broke while the script ran"
            )
            raise TransportError(Stage.LOST, what)
        return code
