"""The lab: a cluster of real nodes on this machine, and everything that goes wrong with one.

    with Lab() as lab:
        a = lab.node("a", share={"/srv/mono": project})
        run("ssh", *lab.ssh_argv(a), "hostname")

Needs root. All of it is under one private folder and gone after ``close``.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any

import yaml

from . import runs
from .engine import Engine, Store, alone
from .network import BLACK_HOLE, CONTROLLER, NODES, make_network, namespace
from .node import Node, NodeOptions
from .releases import Release, made
from .system import LabError, new_key, run, write

PASSPHRASE = "open sesame"


class Lab:
    """A context manager; ``close`` may also be called by hand, any number of times.

    Attributes:
        dir: the private folder of this run.
        client_key: authorised on every node; ``encrypted_key`` is too, behind ``PASSPHRASE``;
            ``stranger_key`` nowhere.
        known_hosts: has the key of every node as it was when the node was made.
        controller_address: this machine's address in the management network.
    """

    def __init__(self, lacking: Callable[[str], object] | None = None) -> None:
        """``lacking`` is told, in a test run, which release of Docker could not be had: it skips the test."""
        self._lacking = lacking
        self._run = runs.begin()
        self.dir = self._run.dir
        self._open = contextlib.ExitStack()
        self._open.callback(self._run.end)
        try:
            with runs.one_at_a_time():
                self._network = make_network(self._run.id)
            self._make_keys()
        except BaseException:
            self._open.close()
            raise
        self.nodes: dict[str, Node] = {}
        self.engines: dict[str, Engine] = {}
        self.controller_address = self._network.management(CONTROLLER)
        self.black_hole = self._network.management(BLACK_HOLE)

    @property
    def run_id(self) -> str:
        return self._run.id

    def node(self, name: str, **options: Any) -> Node:
        """A new node with these ``NodeOptions``; without options, the one of that name if it is there.

        Raises:
            LabError: the name is taken and options were given, or all addresses are.
        """
        if name in self.nodes and not options:
            return self.nodes[name]
        if name in self.nodes or len(self.nodes) == len(NODES):
            raise LabError(f"node {name}: {'is there already' if name in self.nodes else 'no address is free'}")
        node = Node(
            name,
            NODES[len(self.nodes)],
            self.dir / "nodes" / name,
            self._network,
            self._authorized,
            NodeOptions(**options),
        )
        self.nodes[name] = node
        self._open.callback(node.close)
        node.start()
        with self.known_hosts.open("a") as known:
            known.write("".join(f"{line}\n" for line in node.known_hosts_lines))
        return node

    def engine(
        self,
        name: str,
        *,
        store: Store = Store.GRAPHDRIVER,
        release: Release = Release.D26,
        node: Node | None = None,
        disk: str = "",
    ) -> Engine:
        """A Docker engine of its own, started once a name: this machine's, or a node's.

        A node's engine sees the node's network and files, and listens at ``node.ENGINE_SOCKET`` and the usual
        ``/var/run/docker.sock`` there. ``disk`` ("200m") puts its data on a file system of that size.

        Raises:
            LabError: it did not start; or that release is not there and could not be made.
        """
        if name not in self.engines:
            self._need(release)
            group = f"fdl{self._run.id}"
            folder = node.dir / "lab" / "engine" if node else self.dir / "engines" / name
            enter = node.enter() if node else self._alone(name)
            engine = Engine(folder, enter, group, store, release, disk, node)
            self.engines[name] = engine
            self._open.callback(engine.kill)
            engine.start()
        return self.engines[name]

    def start_engines(self, wanted: Mapping[str, Mapping[str, Any]]) -> dict[str, Engine]:
        """Engines under these names with the options of ``engine``, side by side; each has ``tiny:1``."""
        with ThreadPoolExecutor() as pool:
            started = pool.map(lambda name: self.engine(name, **wanted[name]), wanted)
            engines = dict(zip(wanted, started, strict=True))
            list(pool.map(Engine.load_tiny, engines.values()))
        return engines

    def _need(self, release: Release) -> None:
        try:
            if release is Release.D28:
                made()
        except LabError as error:
            if self._lacking:
                self._lacking(f"needs {error}")
            raise

    def _alone(self, name: str) -> list[str]:
        space = namespace(self._run.id, f"engine-{name}")
        run("ip", "netns", "add", space)
        return alone(space)

    # -- how to reach the nodes ---------------------------------------------------------------

    def ssh_options(self) -> list[str]:
        """What stands behind ``-o``, or in ``ssh.options`` of cluster.yml: this lab's keys and no other."""
        return [
            f"UserKnownHostsFile={self.known_hosts}",
            "GlobalKnownHostsFile=/dev/null",
            "IdentitiesOnly=yes",
            "IdentityAgent=none",
        ]

    def ssh_argv(self, node: Node, *, user: str = "root", key: Path | None = None) -> list[str]:
        """Arguments of ``ssh`` up to the command; reads no configuration of this machine's."""
        options = [word for option in [*self.ssh_options(), "BatchMode=yes"] for word in ("-o", option)]
        where = ["-p", str(node.port), f"{user}@{node.address}"]
        return ["-F", "/dev/null", *options, "-i", str(key or self.client_key), *where]

    def worker(self, node: Node, path: str, *, user: str = "root", **fields: Any) -> dict[str, Any]:
        """A worker's block of cluster.yml for a node; ``fields`` are added, ``ssh`` is merged in."""
        ssh: dict[str, Any] = {
            "target": node.address,
            "user": user,
            "identity_file": str(self.client_key),
            "options": self.ssh_options(),
            **({"port": node.port} if node.port != 22 else {}),
            **fields.pop("ssh", {}),
        }
        fabric = {"fabric_ip": node.fabric_address} if node.fabric_address else {}
        return {"host": node.name, "path": path, "ssh": ssh, **fabric, **fields}

    def cluster_yml(
        self, folder: Path, *, workers: Sequence[Mapping[str, Any]], controller: Mapping[str, Any], **top: Any
    ) -> Path:
        """Write ``folder/cluster.yml`` with these blocks, ``top`` beside them."""
        document = {"controller": dict(controller), "workers": [dict(w) for w in workers], **top}
        return write(folder / "cluster.yml", yaml.safe_dump(document, sort_keys=False, allow_unicode=True))

    # -- what goes wrong ----------------------------------------------------------------------

    @contextlib.contextmanager
    def listener(self, says: bytes = b"") -> Iterator[tuple[str, int]]:
        """An address and port that accepts every connection, says ``says`` and then nothing."""
        with socket.create_server((self.controller_address, 0), backlog=64) as server:
            held: list[socket.socket] = []
            threading.Thread(target=_accept, args=(server, says, held), daemon=True).start()
            yield self.controller_address, server.getsockname()[1]
            with contextlib.suppress(OSError):
                server.shutdown(socket.SHUT_RDWR)
            for connection in held:
                connection.close()

    @contextlib.contextmanager
    def fabric_impostor(self, node: Node) -> Iterator[Node]:
        """Another node, with keys of its own, that answers at the fabric address of ``node`` meanwhile."""
        name = f"impostor-of-{node.name}"
        taker = self.nodes.get(name) or self.node(name, fabric=True)
        on_fabric = [each.netns for each in self.nodes.values() if each.fabric_address]
        self._network.take_fabric(taker.netns, node.last)
        self._network.forget_neighbours(on_fabric)
        try:
            yield taker
        finally:
            self._network.take_fabric(taker.netns, node.last, back=True)
            self._network.forget_neighbours(on_fabric)

    def give_key(self, node: Node, user: str = "root") -> None:
        """Let that login of a node log in to every other node: it has ``client_key`` as its own key."""
        home = node.exec("getent", "passwd", user).stdout.split(":")[5]
        node.write(
            f"{home}/.ssh/id_ed25519", self.client_key.read_text(), mode="600", user="" if user == "root" else user
        )

    @contextlib.contextmanager
    def agent(self, *keys: Path) -> Iterator[str]:
        """An ssh-agent that holds ``keys`` (default: the encrypted one); its socket's path."""
        folder = self.dir / "agent"
        folder.mkdir(exist_ok=True)
        path = folder / f"{len(list(folder.iterdir()))}.sock"
        started = run("ssh-agent", "-s", "-a", path).stdout
        pid = int(started.partition("SSH_AGENT_PID=")[2].partition(";")[0])
        try:
            for key in keys or [self.encrypted_key]:
                self._add_to_agent(key, path)
            yield str(path)
        finally:
            run("ssh-agent", "-k", env={"SSH_AGENT_PID": str(pid), "SSH_AUTH_SOCK": str(path)})

    @contextlib.contextmanager
    def small_disk(self, at: Path, size: str = "1m") -> Iterator[Path]:
        """An empty file system of that size at a folder of this machine: it fills up soon."""
        at.mkdir(parents=True, exist_ok=True)
        run("mount", "-t", "tmpfs", "-o", f"size={size}", "fdl-small", at)
        try:
            yield at
        finally:
            run("umount", "-l", at)

    # -- birth and death ----------------------------------------------------------------------

    def close(self) -> None:
        """End and remove everything of this lab."""
        self._open.close()

    def __enter__(self) -> Lab:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def _make_keys(self) -> None:
        keys = self.dir / "keys"
        self.client_key = new_key(keys / "client")
        self.encrypted_key = new_key(keys / "encrypted", passphrase=PASSPHRASE)
        self.stranger_key = new_key(keys / "stranger")
        self.known_hosts = write(self.dir / "known_hosts", "", 0o600)
        self._authorized = "".join(key.with_suffix(".pub").read_text() for key in (self.client_key, self.encrypted_key))

    def _add_to_agent(self, key: Path, agent: Path) -> None:
        ask = write(self.dir / "askpass", f"#!/bin/sh\necho '{PASSPHRASE}'\n", 0o700)
        env = {"SSH_AUTH_SOCK": str(agent), "SSH_ASKPASS": str(ask), "SSH_ASKPASS_REQUIRE": "force"}
        run("ssh-add", "-q", key, env=env)


def _accept(server: socket.socket, says: bytes, held: list[socket.socket]) -> None:
    with contextlib.suppress(OSError):
        while True:
            connection, _ = server.accept()
            held.append(connection)
            with contextlib.suppress(OSError):
                connection.sendall(says)
