"""An ssh server on loopback that behaves badly on purpose, in one way a time."""

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import paramiko
from paramiko.common import AUTH_FAILED, AUTH_SUCCESSFUL, OPEN_SUCCEEDED

from fdl_tasks.cluster.model import Ssh

KEY = paramiko.ECDSAKey.generate()
BEFORE_SSH = {
    "greets with a line that never ends": (b"", b"x", 0.05),
    "greets with lines without end": (b"", b"welcome\r\n", 0.05),
    "is silent after its greeting": (b"SSH-2.0-hostile\r\n", b"", 0.05),
}


class Server(paramiko.ServerInterface):
    def __init__(self, way: str):
        self.way, self.ends = way, threading.Event()

    def check_channel_request(self, kind: str, chanid: int) -> int:
        return self._stall("never opens a session") or OPEN_SUCCEEDED

    def get_allowed_auths(self, username: str) -> str:
        return "password" if self.way == "takes passwords only" else "publickey"

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:
        if self.way == "takes passwords only":
            return AUTH_FAILED
        return self._stall("never answers a login") or AUTH_SUCCESSFUL

    def check_channel_exec_request(self, channel: paramiko.Channel, command: bytes) -> bool:
        self._stall("never starts a command")
        threading.Thread(target=self._run, args=(channel,), daemon=True).start()
        return self.way != "refuses commands"

    def _run(self, channel: paramiko.Channel) -> None:
        time.sleep(0.05)
        with contextlib.suppress(OSError, EOFError):  # the other side may have had enough
            if self.way == "prints a line without end":
                channel.sendall(b"__FDL_START__\n")
                for _ in range(400):
                    channel.sendall(b"x" * 32768)
                channel.send_exit_status(0)
            channel.close()

    def _stall(self, way: str) -> int:
        return 0 if self.way != way else int(self.ends.wait(20))


@contextlib.contextmanager
def hostile(way: str, folder: Path) -> Iterator[Ssh]:
    """A server that is hostile in that way, as cluster.yml would name it."""
    key = folder / "id"
    KEY.write_private_key_file(str(key))
    with socket.create_server(("127.0.0.1", 0)) as listener, contextlib.ExitStack() as held:
        threading.Thread(target=_accept, args=(listener, way, held), daemon=True).start()
        files = ("UserKnownHostsFile=/dev/null", "GlobalKnownHostsFile=/dev/null")
        options = (*files, "StrictHostKeyChecking=no", "IdentitiesOnly=yes", "IdentityAgent=none")
        yield Ssh("127.0.0.1", listener.getsockname()[1], "root", str(key), options=options)
        listener.shutdown(socket.SHUT_RDWR)


def _accept(listener: socket.socket, way: str, held: contextlib.ExitStack) -> None:
    with contextlib.suppress(OSError):
        while True:
            connection = held.enter_context(listener.accept()[0])
            target, args = (_trickle, BEFORE_SSH[way]) if way in BEFORE_SSH else (_serve, (way, held))
            threading.Thread(target=target, args=(connection, *args), daemon=True).start()


def _trickle(connection: socket.socket, first: bytes, then: bytes, pause: float) -> None:
    with contextlib.suppress(OSError):
        connection.sendall(first)
        while True:
            connection.sendall(then)
            time.sleep(pause)


def _serve(connection: socket.socket, way: str, held: contextlib.ExitStack) -> None:
    server, transport = Server(way), paramiko.Transport(connection)
    held.callback(transport.close)
    held.callback(server.ends.set)
    transport.add_server_key(KEY)
    with contextlib.suppress(paramiko.SSHException, EOFError, OSError):
        transport.start_server(server=server)
