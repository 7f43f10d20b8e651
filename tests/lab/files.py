"""A node's own folders and its account files: nothing of this machine's own accounts is changed."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from .system import write

LOGIN_PATH = "/lab/bin:/usr/local/bin:/usr/bin:/bin:/usr/games"  # sshd's own default, stand-ins first
ROOT_PATH = "/lab/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
USER = "lab"
DOCKER_USER = "lab-docker"  # in the group that owns an engine's socket
SUDO_USER = "lab-sudo"  # not in it, but may do anything by sudo, unasked
DOCKER_GID = 60999
FIRST_UID = 61000
OWN = {"home": 0o755, "media": 0o755, "mnt": 0o755, "root": 0o700, "run": 0o755, "srv": 0o755, "tmp": 0o1777}
SHELLS = ("bash", "dash", "zsh", "fish", "tcsh", "busybox")
_HOME = Path(shutil.which("cargo") or "~/.cargo/bin/cargo").expanduser().parents[1]
_CARGO = _HOME if _HOME.name == ".cargo" else Path("~/.cargo").expanduser()  # rustup's, whatever HOME is now
CARGO = Path(os.environ.get("CARGO_HOME") or _CARGO)
RUSTUP = Path(os.environ.get("RUSTUP_HOME") or CARGO.with_name(".rustup"))


def logins() -> dict[str, str]:
    """Unprivileged login -> shell: ``lab`` and those for Docker (bash), ``lab-zsh`` and so on for each shell."""
    found = {f"{USER}-{shell}": _shell(shell) for shell in SHELLS if shutil.which(shell)}
    return {USER: "/bin/bash", **found, DOCKER_USER: "/bin/bash", SUDO_USER: "/bin/bash"}


def _shell(name: str) -> str:
    # BusyBox is a shell only by the name it is called by.
    return "/lab/busybox/sh" if name == "busybox" else str(shutil.which(name))


def home_of(user: str) -> str:
    return f"/home/{user}" if user and user != "root" else "/root"


def lay_out(node: Path, name: str, root_shell: str) -> None:
    """Make a node's folders: ``own/`` its private top folders, ``lab/`` what the lab puts there."""
    for folder, mode in OWN.items():
        (node / "own" / folder).mkdir(parents=True)
        (node / "own" / folder).chmod(mode)
    for folder in ("root", "lab/bin", "lab/busybox", "lab/etc", "lab/keep/host", "own/run/sshd"):
        (node / folder).mkdir(parents=True, exist_ok=True)
    (node / "lab/keep").chmod(0o700)
    (node / "lab/busybox/sh").symlink_to(shutil.which("busybox") or "/bin/busybox")
    _accounts(node / "lab/etc", root_shell)
    write(node / "lab/etc/hostname", f"{name}\n")
    write(node / "lab/etc/hosts", f"127.0.0.1 localhost\n::1 localhost\n127.0.1.1 {name}\n")
    for number, user in enumerate(logins()):
        home = node / "own/home" / user
        home.mkdir(mode=0o755)
        os.chown(home, FIRST_UID + number, FIRST_UID + number)


def _accounts(etc: Path, root_shell: str) -> None:
    users = list(enumerate(logins().items(), start=FIRST_UID))
    passwd = [line for line in Path("/etc/passwd").read_text().splitlines() if not line.startswith(("root:", "lab"))]
    rows = [f"{user}:x:{uid}:{uid}::/home/{user}:{shell}" for uid, (user, shell) in users]
    write(etc / "passwd", "\n".join([f"root:x:0:0:root:/root:{root_shell}", *passwd, *rows]) + "\n")
    groups = [line for line in Path("/etc/group").read_text().splitlines() if not line.startswith(("lab", "docker:"))]
    docker = f"docker:x:{DOCKER_GID}:{DOCKER_USER}"
    write(etc / "group", "\n".join([*groups, docker, *(f"{user}:x:{uid}:" for uid, (user, _) in users)]) + "\n")
    write(etc / "sudoers", f"root ALL=(ALL:ALL) ALL\n{SUDO_USER} ALL=(ALL:ALL) NOPASSWD: ALL\n", 0o440)
    # "*": no password, yet not locked, which sshd without PAM would refuse.
    names = [line.partition(":")[0] for line in passwd] + [user for _, (user, _) in users]
    write(etc / "shadow", "".join(f"{name}:*:19000:0:99999:7:::\n" for name in ["root", *names]), 0o600)
