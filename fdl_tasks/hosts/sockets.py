"""The byte stream to a host's sshd: a TCP connection, or a jump or proxy program's stdin and stdout."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import tempfile
import threading
from types import TracebackType
from typing import IO

from ..errors import Stage, TransportError
from .fanout import Cancel
from .output import reason
from .settings import Settings

_FAMILIES = {"any": socket.AF_UNSPEC, "inet": socket.AF_INET, "inet6": socket.AF_INET6}
PROXY_WAIT = 0.5  # seconds between SIGTERM and SIGKILL for a proxy program


class Link:
    """An open byte stream and what keeps it open."""

    def __init__(
        self, sock: socket.socket, proxy: subprocess.Popen[bytes] | None = None, said: IO[bytes] | None = None
    ):
        self.sock, self._proxy, self._said = sock, proxy, said

    def complaint(self) -> str:
        """The last line that the proxy program wrote on its stderr and that is no warning, if any."""
        if not self._said:
            return ""
        self._said.seek(0)
        return reason(self._said.read(65536).decode("utf-8", "replace").splitlines(), last=1)

    def close(self) -> None:
        """End the stream, and the proxy program with everything it started."""
        self.sock.close()
        if self._proxy:
            _end(self._proxy)
        if self._said:
            self._said.close()


class Watchdog:
    """Ends a link when ``seconds`` have passed or the user ends the run: Paramiko waits without an end in places.

    Whoever waits on the link is then told that it is closed; ``expired`` says that it was the time.
    """

    def __init__(self, link: Link, cancel: Cancel, seconds: float):
        self._link, self._cancel, self._seconds = link, cancel, seconds
        self._thread = threading.Thread(target=self._watch, daemon=True, name="fdl-watchdog")
        self.expired = False

    def __enter__(self) -> Watchdog:
        self._reader, self._writer = os.pipe()
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        os.close(self._writer)
        self._thread.join()
        os.close(self._reader)

    def _watch(self) -> None:
        poll = select.poll()
        for fd in (self._reader, self._cancel.fd):
            poll.register(fd, select.POLLIN)
        woken = [fd for fd, _ in poll.poll(self._seconds * 1000)]
        if self._reader not in woken:
            self.expired = not woken
            with contextlib.suppress(OSError):
                self._link.sock.shutdown(socket.SHUT_RDWR)


def open_link(settings: Settings) -> Link:
    """Connect, or start the proxy program.

    Raises:
        TransportError: CONNECT, with the address and the reason.
    """
    return _through(settings.proxy) if settings.proxy else Link(_direct(settings))


def _direct(settings: Settings) -> socket.socket:
    failures = []
    for family, address in _addresses(settings):
        try:
            return _dial(family, address, settings)
        except OSError as error:
            reason = f"no answer in {settings.connect_limit:g} s" if isinstance(error, TimeoutError) else error.strerror
            failures.append(f"{address[0]}: {reason or error}")
    raise TransportError(
        Stage.CONNECT,
        f"can't reach {settings.address} ({'; '.join(failures)})",
        hint=f"is it up, and is the address right? try: ssh -p {settings.port} {settings.user}@{settings.hostname}",
    )


def _addresses(settings: Settings) -> list[tuple[int, tuple[str, int]]]:
    try:
        found = socket.getaddrinfo(settings.hostname, settings.port, _FAMILIES[settings.family], socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        what = f"can't find the address of {settings.hostname!r}: {getattr(error, 'strerror', None) or error}"
        raise TransportError(Stage.CONNECT, what, hint="mend ssh.target in cluster.yml, or the name's entry") from None
    return [(family, address) for family, _, _, _, address in found]  # type: ignore[misc]


class _Prompt(socket.socket):
    """A TCP socket that acknowledges at once.

    sshd uses Nagle's algorithm until a channel runs: its first answers wait for the acknowledgement of what
    it said before, which the kernel would withhold for 40 ms (measured: 43 ms a connection, 2 with this).
    """

    def recv(self, size: int, flags: int = 0) -> bytes:
        data = super().recv(size, flags)
        if hasattr(socket, "TCP_QUICKACK"):
            self.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
        return data


def _dial(family: int, address: tuple[str, int], settings: Settings) -> socket.socket:
    sock = _Prompt(family, socket.SOCK_STREAM)
    try:
        sock.settimeout(settings.connect_limit)
        if settings.bind_address:
            sock.bind((settings.bind_address, 0))
        sock.connect(address)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):  # a peer that vanished is noticed by unanswered keepalives
            patience = settings.alive_interval * settings.alive_count * 1000
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, patience)
    except OSError:
        sock.close()
        raise
    return sock


def _through(argv: tuple[str, ...]) -> Link:
    ours, theirs = socket.socketpair()
    said = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the link
    with theirs:
        try:
            proxy = subprocess.Popen(
                argv,
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=said,
                start_new_session=True,
                env=os.environ | {"SSH_ASKPASS_REQUIRE": "never"},  # BatchMode does not reach a ProxyCommand's own ssh
            )
        except OSError as error:
            ours.close()
            said.close()
            raise TransportError(Stage.CONNECT, f"can't start {argv[0]}: {error.strerror}") from None
    return Link(ours, proxy, said)


def _end(proxy: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(proxy.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            proxy.wait(PROXY_WAIT)
            return
    proxy.wait()
