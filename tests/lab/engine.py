"""A real Docker engine of the lab, with an image store of either kind and no network.

It runs in process and mount namespaces of its own: when it is killed, its containers and mounts go too.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tarfile
from collections.abc import Sequence
from enum import StrEnum
from io import BytesIO
from pathlib import Path

from .system import LabError, run, wait_until, write

TINY = "tiny:1"
# The cgroupfs driver takes any group name, whatever starts the machine.
FIXED = ("--bridge=none", "--iptables=false", "--exec-opt=native.cgroupdriver=cgroupfs")


class Store(StrEnum):
    """Where an engine keeps images; the value is what ``docker info`` calls it, roughly."""

    GRAPHDRIVER = "graphdriver"
    CONTAINERD = "containerd"


class Engine:
    """One dockerd; made by ``Lab.engine``. ``socket`` is its socket, ``host`` what goes in DOCKER_HOST.

    ``enter`` is the command line that puts it where it lives; ``seen_as`` is how its folder is called there.
    """

    def __init__(self, folder: Path, seen_as: str, enter: Sequence[str], group: str, store: Store):
        self.dir, self.store, self.socket = folder, store, folder / "docker.sock"
        self._seen_as, self._enter, self._group = seen_as, enter, group
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
        """Run the docker client against this engine."""
        return run("docker", *args, check=check, limit=limit, env=self.env, cwd=cwd)

    def containers(self) -> list[str]:
        """Names of all containers, running or not."""
        return self.docker("ps", "-a", "--format", "{{.Names}}").stdout.split()

    def load_tiny(self, tag: str = TINY) -> str:
        """Make the base image: a static busybox and its links. Gives the tag."""
        archive = write_tiny(self.dir / "tiny.tar")
        self.docker("import", archive, tag)
        return tag

    def start(self) -> None:
        """Start the daemon and wait until it answers (1 s or so)."""
        self.dir.mkdir(parents=True)
        settings = {"features": {"containerd-snapshotter": self.store is Store.CONTAINERD}}
        write(self.dir / "daemon.json", json.dumps(settings))
        at = self._seen_as
        places = [
            f"--data-root={at}/data",
            f"--exec-root={at}/exec",
            f"--pidfile={at}/pid",
            f"-H=unix://{at}/docker.sock",
        ]
        dockerd = ["dockerd", f"--config-file={at}/daemon.json", *places, *FIXED, f"--cgroup-parent={self._group}"]
        log = self.dir / "log"
        with log.open("wb") as out:
            self._daemon = subprocess.Popen(
                [*self._enter, *dockerd], stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
            )
        wait_until(self._answers, f"the engine in {self.dir} answers", limit=60, log=log)

    def stop(self) -> None:
        """Ask the daemon to end, and kill it with its containers when it has not after 3 s."""
        if self._daemon is None:
            return
        with contextlib.suppress(OSError, IndexError):
            children = Path(f"/proc/{self._daemon.pid}/task/{self._daemon.pid}/children").read_text().split()
            os.kill(int(children[0]), signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._daemon.wait(timeout=3)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._daemon.pid, signal.SIGKILL)
        self._daemon.wait()
        self._daemon = None

    def _answers(self) -> bool:
        if self._daemon is None or self._daemon.poll() is not None:
            raise LabError(f"the engine ended: {(self.dir / 'log').read_text(errors='replace')[-2000:]}")
        return self.socket.exists() and self.docker("version", check=False).returncode == 0


def alone(space: str) -> list[str]:
    """Enter a network namespace with processes and mounts of its own: killed as one."""
    spaces = ["unshare", "-m", "-p", "--fork", "--kill-child", "--propagation", "slave", "--mount-proc"]
    return ["nsenter", f"--net=/var/run/netns/{space}", *spaces]


def write_tiny(archive: Path) -> Path:
    """A root file system as a tar file: ``/bin/busybox`` with a link for each applet, and empty folders."""
    busybox = Path(run("which", "busybox").stdout.strip())
    applets = run(busybox, "--list").stdout.split()
    with tarfile.open(archive, "w") as tar:
        for folder, mode in (("bin", 0o755), ("etc", 0o755), ("root", 0o700), ("tmp", 0o1777), ("workspace", 0o755)):
            tar.addfile(_entry(folder, tarfile.DIRTYPE, mode))
        tar.add(busybox, "bin/busybox")
        for applet in applets:
            if applet != "busybox":
                tar.addfile(_entry(f"bin/{applet}", tarfile.SYMTYPE, 0o777, link="busybox"))
        content = b"root:x:0:0:root:/root:/bin/sh\n"
        passwd = _entry("etc/passwd", tarfile.REGTYPE, 0o644)
        passwd.size = len(content)
        tar.addfile(passwd, BytesIO(content))
    return archive


def _entry(name: str, kind: bytes, mode: int, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.mode, info.linkname = kind, mode, link
    return info
