"""Running programs for the lab, and what this machine lacks for it."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

SSHD = "/usr/sbin/sshd"
GET = "run `.ci/run install` as root on Debian"


class LabError(RuntimeError):
    """The lab could not do what it was asked for; says which command and what it printed."""


def run(
    *argv: str | Path,
    check: bool = True,
    stdin: str = "",
    limit: float = 60,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end within ``limit`` seconds; ``env`` is added to this process's.

    Raises:
        LabError: it failed and ``check`` is set, or the limit passed.
    """
    words = [str(word) for word in argv]
    merged = {**os.environ, **env} if env else None
    try:
        done = subprocess.run(
            words, input=stdin, capture_output=True, text=True, errors="replace", timeout=limit, env=merged, cwd=cwd
        )
    except subprocess.TimeoutExpired as error:
        raise LabError(f"{words} took more than {limit} s; it printed {error.stdout!r}") from error
    if check and done.returncode:
        raise LabError(f"{words} ended with {done.returncode}: {done.stderr.strip() or done.stdout.strip()}")
    return done


def wait_until(ready: Callable[[], bool], what: str, *, limit: float = 10, log: Path | None = None) -> None:
    """Wait for a condition, looking every 20 ms.

    Raises:
        LabError: it did not come true within ``limit`` seconds; carries the end of ``log``.
    """
    end = time.monotonic() + limit
    while not ready():
        if time.monotonic() > end:
            tail = log.read_text(errors="replace")[-2000:] if log and log.exists() else ""
            raise LabError(f"{what}: not within {limit} s\n{tail}".rstrip())
        time.sleep(0.02)


def alive(pid: int) -> bool:
    """Whether a process of that number exists and has not ended (a zombie has)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def missing_for_lab() -> list[str]:
    """What nodes need and this machine lacks, each with the way to get it; empty when all is there."""
    if os.geteuid() != 0:
        return ["root (network namespaces are made by root only)"]
    tools = [SSHD, "ssh", "ssh-keygen", "ssh-agent", "ip", "nsenter", "unshare", "busybox"]
    lacks = [f"{tool} ({GET})" for tool in tools if not shutil.which(tool)]
    return lacks or _missing_namespaces()


def _missing_namespaces() -> list[str]:
    tried = run("unshare", "--net", "--mount", "--pid", "--uts", "--fork", "true", check=False)
    return [f"namespaces (unshare: {tried.stderr.strip()})"] if tried.returncode else []


def missing_for_docker() -> list[str]:
    """What engines need beside the nodes' own needs."""
    lacks = [f"{tool} ({GET})" for tool in ("dockerd", "docker") if not shutil.which(tool)]
    if lacks or run("docker", "compose", "version", check=False).returncode == 0:
        return lacks
    return [f"docker compose ({GET})"]


def write(path: Path, text: str, mode: int = 0o644) -> Path:
    """Write a file with exactly that mode, making its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)
    return path


def fingerprint(public_key: Path) -> str:
    """The ``SHA256:…`` of a public key file."""
    words: Sequence[str] = run("ssh-keygen", "-lf", public_key).stdout.split()
    return words[1]


def new_key(path: Path, *, kind: str = "ed25519", passphrase: str = "") -> Path:
    """Make a key pair at ``path`` and ``path.pub``, in place of one that was there."""
    for old in (path, path.with_name(path.name + ".pub")):
        old.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    run("ssh-keygen", "-q", "-t", kind, "-N", passphrase, "-C", path.name, "-f", path)
    return path
