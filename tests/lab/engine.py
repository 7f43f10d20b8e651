"""A real Docker engine of the lab, of either release, with an image store of either kind and no network.

This machine's run in process and mount namespaces of their own: when one is killed, its containers and mounts
go too. A node's runs among the node's processes.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any

from . import files
from .images import TINY, Files, write_context, write_program, write_tiny
from .node import ENGINE, Node
from .releases import Release, client, entering
from .system import LabError, alive, run, wait_until, write

# The cgroupfs driver takes any group name, whatever starts the machine. The group owns the socket.
FIXED = ("--bridge=none", "--iptables=false", "--exec-opt=native.cgroupdriver=cgroupfs", f"--group={files.DOCKER_GID}")


class Store(StrEnum):
    """Where an engine keeps images; the value is what ``docker info`` calls it, roughly."""

    GRAPHDRIVER = "graphdriver"
    CONTAINERD = "containerd"


class Engine:
    """One dockerd; made by ``Lab.engine``. ``socket`` is its socket, ``host`` what goes in DOCKER_HOST.

    ``node`` is whose it is (None: this machine's); ``enter`` is the command line that puts it where it lives.
    """

    def __init__(
        self,
        folder: Path,
        enter: Sequence[str],
        group: str,
        store: Store,
        release: Release,
        disk: str,
        node: Node | None,
    ):
        self.dir, self.store, self.release, self.node = folder, store, release, node
        self.socket = folder / "docker.sock"
        self._at = ENGINE if node else str(folder)  # its folder, as it sees it
        self._enter, self._group, self._disk = [*enter, *entering(release)], group, disk
        self._daemon: subprocess.Popen[bytes] | None = None

    @property
    def host(self) -> str:
        return f"unix://{self.socket}"

    @property
    def env(self) -> dict[str, str]:
        """What makes any Docker client of this process's children speak to this engine."""
        return {"DOCKER_HOST": self.host}

    def docker(
        self, *args: str | Path, check: bool = True, limit: float = 120, cwd: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run this machine's docker client against this engine."""
        return run("docker", *args, check=check, limit=limit, env=self.env, cwd=cwd)

    def containers(self) -> list[str]:
        """Names of all containers, running or not."""
        return self.docker("ps", "-a", "--format", "{{.Names}}").stdout.split()

    # -- images -------------------------------------------------------------------------------

    def load_tiny(self, tag: str = TINY) -> str:
        """Make the base image, a static busybox and its links: the same one on every engine. Gives the tag."""
        self.docker("load", "-i", write_tiny(self.dir / "tiny.tar"))
        self.docker("tag", TINY, tag)
        return tag

    def build(
        self,
        tag: str,
        layers: Sequence[int | Files] = (),
        *,
        from_: str = TINY,
        seed: str = "",
        created: int | None = None,
        attested: bool = False,
        **config: Any,
    ) -> str:
        """Build an image with `docker build`, one layer for each of ``layers``; gives its id.

        A layer is a number of random bytes (the same for the same place and ``seed``), or ``{path: bytes, size
        or file}``. Build again with another last layer: the ones below stay. ``created`` (seconds since 1970)
        is what it says of its age; ``attested`` adds provenance (containerd store); ``config`` holds
        instructions: ``env={…}``, ``label={…}``, ``cmd=[…]``, ``entrypoint=[…]``, ``user="lab"``.
        """
        with tempfile.TemporaryDirectory(dir=self.dir) as folder:
            write_context(Path(folder), layers, from_, seed, config)
            dated = [] if created is None else [f"--build-arg=SOURCE_DATE_EPOCH={created}"]
            proof = f"--provenance={str(attested).lower()}"
            words = ("build", "--network=none", "--pull=false", "-q", proof, *dated, "-t", tag, folder)
            self.docker(*words, limit=900)  # some build gigabytes
        return str(self.image(tag)["Id"])

    def build_without_shell(self, tag: str) -> str:
        """An image of one static program (it says ``started``) and nothing else; gives its id."""
        program = write_program(self.dir)
        return self.build(tag, [{"/started": program}], from_="scratch", entrypoint=["/started"])

    def image(self, reference: str) -> dict[str, Any]:
        """What ``docker image inspect`` says of it."""
        found: list[dict[str, Any]] = json.loads(self.docker("image", "inspect", reference).stdout)
        return found[0]

    def names(self) -> list[str]:
        """Every tag and digest of every image, as ``REPOSITORY:TAG`` and ``REPOSITORY@DIGEST``. ``docker image ls``
        leaves digests out of an image that has tags of another repository."""
        for tries in range(10, 0, -1):  # a containerd store can't list them while one is being removed
            done = self.docker("image", "ls", "-q", "--no-trunc", check=tries == 1)
            if not done.returncode:
                break
            time.sleep(0.2)
        ids = set(done.stdout.split())
        found = json.loads(self.docker("image", "inspect", *ids, check=False).stdout) if ids else []
        return [name for image in found for key in ("RepoTags", "RepoDigests") for name in image[key] or []]

    def give(self, other: Engine, *references: str) -> None:
        """Bring images to another engine, by ``docker save`` and ``docker load`` in full."""
        archive = self.dir / "given.tar"
        self.docker("save", "-o", archive, *references)
        other.docker("load", "-i", archive)
        archive.unlink()

    # -- its life -----------------------------------------------------------------------------

    def start(self) -> None:
        """Start the daemon and wait until it answers (1 s or so). After ``stop`` or ``kill``: with what it had."""
        if self._daemon is not None:
            raise LabError(f"the engine in {self.dir} runs already")
        self._prepare()
        places = {"config-file": "daemon.json", "data-root": "data", "exec-root": "exec", "pidfile": "pid"}
        flags = [f"--{flag}={self._at}/{name}" for flag, name in places.items()]
        words = ["dockerd", *flags, f"-H=unix://{self._at}/docker.sock", *FIXED, f"--cgroup-parent={self._group}"]
        log = self.dir / "log"
        with log.open("ab") as out:
            self._daemon = subprocess.Popen(
                [*self._enter, *words], stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
            )
        wait_until(self._answers, f"the engine in {self.dir} answers", limit=60, log=log)

    def stop(self, limit: float = 3) -> None:
        """Ask the daemon to end, and kill it when it has not after ``limit`` seconds: nothing listens then."""
        if self._daemon is not None:
            self._end(signal.SIGTERM, limit)

    def kill(self) -> None:
        """SIGKILL the daemon, as when it crashes: what it was doing stays half done. ``start`` brings it back."""
        if self._daemon is not None:
            self._end(signal.SIGKILL, 3)

    def grow(self, size: str) -> None:
        """Give the file system of an engine made with ``disk`` that size, while it runs."""
        self._mount("-o", f"remount,size={size}")

    # -----------------------------------------------------------------------------------------

    def _prepare(self) -> None:
        if not self.dir.exists():
            self.dir.mkdir(parents=True)
            (self.dir / "data").mkdir()
            if self._disk:
                self._mount("-t", "tmpfs", "-o", f"size={self._disk}", "fdl-engine")
            if self.node:
                self._show_on(self.node)
        settings = {"features": {"containerd-snapshotter": self.store is Store.CONTAINERD}}
        write(self.dir / "daemon.json", json.dumps(settings))
        for left in ("pid", "exec/containerd/containerd.pid"):  # that number may be another process's by now
            (self.dir / left).unlink(missing_ok=True)

    def _show_on(self, node: Node) -> None:
        """Its own release's client first on every login's PATH, its socket where clients look for it."""
        write(self.dir / "docker", client(self.release), 0o755)
        node.stand_in("docker", f'#!/bin/sh\nexec {ENGINE}/docker "$@"\n')
        node.path("/run/docker.sock").symlink_to(f"{ENGINE}/docker.sock")

    def _mount(self, *words: str) -> None:
        argv = ["mount", *words, f"{self._at}/data"]
        run(*(self.node.enter(*argv) if self.node else argv))

    def _end(self, how: signal.Signals, limit: float) -> None:
        daemon = self._daemon
        assert daemon
        family = [child for first in _children(daemon.pid)[:1] for child in (first, *_children(first))]
        with contextlib.suppress(OSError, IndexError):
            os.kill(family[0], how)
        with contextlib.suppress(subprocess.TimeoutExpired):
            daemon.wait(timeout=limit)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(daemon.pid, signal.SIGKILL)
        daemon.wait()
        # Its containerd ends by itself, a moment later, and would be taken for a new daemon's.
        wait_until(lambda: not any(map(alive, family)), f"the processes of the engine in {self.dir} end")
        self._daemon = None

    def _answers(self) -> bool:
        if self._daemon is None or self._daemon.poll() is not None:
            raise LabError(f"the engine ended: {(self.dir / 'log').read_text(errors='replace')[-2000:]}")
        return self.socket.exists() and self.docker("version", check=False).returncode == 0


def _children(pid: int) -> list[int]:
    """Of all its threads: a daemon's child belongs to the thread that started it."""
    found: list[int] = []
    for thread in Path(f"/proc/{pid}/task").glob("*"):
        with contextlib.suppress(OSError):
            found += map(int, (thread / "children").read_text().split())
    return found


def alone(space: str) -> list[str]:
    """Enter a network namespace with processes and mounts of its own: killed as one."""
    spaces = ["unshare", "-m", "-p", "--fork", "--kill-child", "--propagation", "slave", "--mount-proc"]
    return ["nsenter", f"--net=/var/run/netns/{space}", *spaces]
