"""A node: a machine of the lab, with its own network, files, processes, host name, users and sshd.

Of this machine a node sees only ``SYSTEM`` (read from the same files); every other path is its own
(``/tmp``, ``/root``, ``/home``, ``/srv``, ``/run``, …), and what it shares is mounted on request.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from . import files
from .network import Network, namespace
from .sshd import Sshd
from .system import LabError, run, wait_until, write

SYSTEM = ("bin", "dev", "etc", "lib", "lib32", "lib64", "libx32", "opt", "sbin", "sys", "usr", "var")
IDLE = ("sshd: /usr/sbin/sshd", "sleep 86400", "ps -eo pid=", "dockerd ", "containerd ", "/usr/bin/containerd-shim")
ENGINE = "/lab/engine"  # the folder of a node's own engine
ENGINE_SOCKET = f"{ENGINE}/docker.sock"  # where it listens; /run/docker.sock leads there
HOST = "/lab/keep/host"  # this machine's root, seen from a node by root alone

# Process 1 of a node: builds the root, enters it, then reaps orphans until it is killed.
INIT = r"""
set -eu
cd "$1"; name=$2; shift 2
mount -t tmpfs -o mode=755 fdl-node root
for top in "$@"; do
  if [ -L "/$top" ]; then cp -P "/$top" root/
  elif [ -d "/$top" ]; then mkdir "root/$top"; mount --rbind "/$top" "root/$top"; fi
done
mkdir root/proc root/lab
mount -t proc proc root/proc
for own in own/*; do mkdir "root/${own#own/}"; mount --bind "$own" "root/${own#own/}"; done
mount --bind lab root/lab
for name_file in passwd group shadow hosts hostname sudoers; do
  [ ! -e "root/etc/$name_file" ] || mount --bind "lab/etc/$name_file" "root/etc/$name_file"
done
hostname "$name"
cd root
pivot_root . lab/keep/host
cd /
: >/lab/ready
trap '' TERM INT HUP
exec >/dev/null 2>&1 </dev/null
while :; do sleep 86400 & wait; done
"""


@dataclass(frozen=True)
class NodeOptions:
    """What may differ between nodes.

    ``shell`` is root's login shell; ``fabric`` plugs it into the second network; ``toolchain`` shows it
    this machine's cargo; ``banner`` is sshd's; ``env`` is set for every login; ``sshd`` holds keywords of
    sshd_config; ``share`` is path on the node -> folder of this machine.
    """

    port: int = 22
    shell: str = "/bin/bash"
    fabric: bool = False
    toolchain: bool = False
    banner: str = ""
    host_key_types: tuple[str, ...] = ("ed25519",)
    env: Mapping[str, str] = field(default_factory=dict)
    sshd: Mapping[str, str] = field(default_factory=dict)
    share: Mapping[str, Path] = field(default_factory=dict)


class Node:
    """One running node; made by ``Lab.node``. ``dir`` is its folder on this machine."""

    def __init__(self, name: str, last: int, home: Path, network: Network, keys: str, options: NodeOptions):
        self.name, self.options, self.dir = name, options, home
        self.address, self.port = network.management(last), options.port
        self.fabric_address = network.fabric(last) if options.fabric else None
        self.netns = namespace(network.run_id, name)
        self.sshd = Sshd(home / "lab" / "ssh", self.enter, options.host_key_types)
        self._network, self.last, self._keys = network, last, keys
        self._holder: subprocess.Popen[bytes] | None = None

    # -- what it is ---------------------------------------------------------------------------

    @property
    def users(self) -> dict[str, str]:
        """Login name -> shell, of the unprivileged logins; ``lab`` is the usual one (bash)."""
        return files.logins()

    @property
    def host_key_fingerprints(self) -> tuple[str, ...]:
        """The ``SHA256:…`` of the keys it shows now, one for each of ``host_key_types``."""
        return self.sshd.fingerprints()

    @property
    def host_key_fingerprint(self) -> str:
        return self.host_key_fingerprints[0]

    @property
    def known_hosts_lines(self) -> tuple[str, ...]:
        where = self.address if self.port == 22 else f"[{self.address}]:{self.port}"
        publics = [key.read_text().split()[:2] for key in self.sshd.public_keys()]
        return tuple(f"{where} {kind} {key}" for kind, key in publics)

    @property
    def known_hosts_line(self) -> str:
        return self.known_hosts_lines[0]

    def path(self, inside: str) -> Path:
        """Where this machine sees one of the node's own files (not those under a mount)."""
        top = inside.strip("/").partition("/")[0]
        below = inside.strip("/").partition("/")[2]
        if top == "lab":
            return self.dir / "lab" / below
        if not (self.dir / "own" / top).is_dir():
            raise LabError(f"{inside} is not one of {self.name}'s own folders: use exec()")
        return self.dir / "own" / top / below

    # -- doing things on it -------------------------------------------------------------------

    def enter(self, *argv: str, user: str = "") -> list[str]:
        """The command line, on this machine, that runs ``argv`` on the node without ssh."""
        who = ["setpriv", f"--reuid={user}", f"--regid={user}", "--init-groups"] if user else []
        inside = ["env", "-i", f"PATH={files.ROOT_PATH}", f"HOME={files.home_of(user)}", "LANG=C.UTF-8", *who, *argv]
        return ["nsenter", "-t", str(self.init_pid()), "-m", "-n", "-p", "-u", "--wd", *inside]

    def exec(
        self, *argv: str, check: bool = True, stdin: str = "", user: str = "", limit: float = 60
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on the node, not by ssh, as root or as ``user``."""
        return run(*self.enter(*argv, user=user), check=check, stdin=stdin, limit=limit)

    def write(self, path: str, text: str, *, mode: str = "644", user: str = "") -> None:
        """Write a file on the node, owned by ``user`` or root."""
        script = 'mkdir -p -- "$(dirname -- "$1")" && cat >"$1" && chmod -- "$2" "$1"'
        self.exec("sh", "-c", script, "sh", path, mode, stdin=text, user=user)

    def read(self, path: str) -> str:
        return self.exec("cat", "--", path).stdout

    def find(self, *words: str) -> list[str]:
        """What ``find`` lists on the node; it may be at work there, so what goes away meanwhile is left out."""
        return self.exec("sh", "-c", 'find "$@" 2>/dev/null; true', "sh", *words).stdout.split()

    def stand_in(self, command: str, script: str) -> None:
        """Put an executable of that name first on every login's PATH."""
        write(self.dir / "lab" / "bin" / command, script, 0o755)

    def mount(self, source: Path, at: str, *, read_only: bool = False) -> None:
        """Show a folder of this machine at ``at`` on the node."""
        self.exec("sh", "-c", 'mkdir -p -- "$2" && mount --bind -- "$1" "$2"', "sh", f"{HOST}{source.resolve()}", at)
        if read_only:
            self.exec("mount", "-o", "remount,bind,ro", at)

    def tmpfs(self, at: str, size: str = "1m") -> None:
        """Mount an empty file system of that size: a disk that fills up soon."""
        self.exec("sh", "-c", 'mkdir -p -- "$1" && mount -t tmpfs -o "size=$2" fdl-small "$1"', "sh", at, size)

    def unmount(self, at: str) -> None:
        self.exec("umount", "-l", at)

    def processes(self) -> list[str]:
        """The command lines that run on the node, without those of every idle node."""
        shown = self.exec("ps", "-eo", "pid=,stat=,args=").stdout.splitlines()
        rows = [row.split(None, 2) for row in shown]
        return [args for pid, stat, args in rows if pid != "1" and not _idle(args) and not stat.startswith("Z")]

    # -- what befalls it ----------------------------------------------------------------------

    def cut(self) -> None:
        """Pull the management cable: nothing answers any more, open connections hang."""
        self._network.link(self.last, up=False)

    def mend(self) -> None:
        self._network.link(self.last, up=True)

    def cut_fabric(self) -> None:
        self._network.link(self.last, up=False, fabric=True)

    def mend_fabric(self) -> None:
        self._network.link(self.last, up=True, fabric=True)

    def black_hole_fabric(self, *, on: bool = True) -> None:
        """Its fabric address swallows what is sent to it: who connects there hangs. ``on=False`` ends it."""
        self.exec("iptables", "-I" if on else "-D", "INPUT", "-i", "fabric0", "-j", "DROP")

    def kill_sessions(self) -> int:
        """SIGKILL the sshd process of every session: clients lose the connection at once. How many."""
        return self.sshd.kill_sessions()

    def swap_host_key(self) -> None:
        """Become an impostor: other host keys at the same address. ``restore_host_key`` ends it."""
        self.stop_sshd()
        self.sshd.swap_keys()
        self.start_sshd()

    def restore_host_key(self) -> None:
        self.stop_sshd()
        self.sshd.restore_keys()
        self.start_sshd()

    def configure(self, **sshd: str) -> None:
        """Change keywords of sshd_config (``MaxStartups="2:100:2"``) and restart sshd."""
        self.sshd.settings.update(sshd)
        self.stop_sshd()
        self.start_sshd()

    def stop_sshd(self) -> None:
        """End the listener: new connections are refused, sessions go on."""
        self.sshd.stop()

    def start_sshd(self) -> None:
        self.sshd.start(self.options.env)

    # -- birth and death ----------------------------------------------------------------------

    def start(self) -> None:
        """Bring it up, sshd included (0.1 s)."""
        files.lay_out(self.dir, self.name, self.options.shell)
        self._prepare_sshd()
        self._boot()
        for at, source in self.options.share.items():
            self.mount(source, at)
        if self.options.toolchain:
            self._mount_toolchain()
        self.start_sshd()

    def _prepare_sshd(self) -> None:
        self.sshd.make_keys()
        write(self.sshd.folder / "authorized_keys", self._keys)
        self.sshd.settings["ListenAddress"] = f"0.0.0.0:{self.port}"
        if self.options.banner:
            write(self.sshd.folder / "banner", self.options.banner)
            self.sshd.settings["Banner"] = "/lab/ssh/banner"
        self.sshd.settings.update(self.options.sshd)

    def _boot(self) -> None:
        run("ip", "netns", "add", self.netns)
        self._network.plug(self.netns, self.last)
        if self.options.fabric:
            self._network.plug(self.netns, self.last, fabric=True)
        spaces = ["unshare", "-m", "-p", "-u", "--fork", "--kill-child", "--propagation", "slave"]
        init = ["sh", "-c", INIT, "init", str(self.dir), self.name, *SYSTEM]
        log = self.dir / "boot.log"
        with log.open("wb") as out:
            self._holder = subprocess.Popen(
                ["nsenter", f"--net=/var/run/netns/{self.netns}", *spaces, *init],
                stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True,
            )  # fmt: skip
        wait_until(lambda: (self.dir / "lab" / "ready").exists() or self._dead(), f"{self.name} boots", log=log)
        if self._dead():
            raise LabError(f"{self.name} did not boot: {log.read_text(errors='replace').strip()}")

    def close(self) -> None:
        """Kill everything on it and remove its network; its mounts go with its processes."""
        if self._holder:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._holder.pid, signal.SIGKILL)
            self._holder.wait()
        wait_until(lambda: not _pids(self.netns), f"{self.name}'s processes end")
        run("ip", "netns", "del", self.netns, check=False)

    def _dead(self) -> bool:
        return self._holder is None or self._holder.poll() is not None

    def init_pid(self) -> int:
        """Its process 1, as this machine numbers it."""
        if self._holder is None:
            raise LabError(f"{self.name} is not up")
        children = Path(f"/proc/{self._holder.pid}/task/{self._holder.pid}/children").read_text().split()
        return int(children[0])

    def _mount_toolchain(self) -> None:
        for name, at in ((".cargo", files.CARGO), (".rustup", files.RUSTUP)):
            if at.is_dir():
                self.mount(at, f"/root/{name}")


def _idle(args: str) -> bool:
    return args.startswith(IDLE)


def _pids(netns: str) -> Sequence[str]:
    return run("ip", "netns", "pids", netns, check=False).stdout.split()
