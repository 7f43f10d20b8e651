"""The two Docker releases of the lab: this machine's own, and a newer one from Debian's next release.

The newer one would bring its own libc, so it lives in a folder of its own, made once by debootstrap and kept
between test runs. ``python3 -m tests.lab.releases`` makes it (standard library only).
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path

from .system import GET, LabError, run

CACHE = Path("/var/cache/fdl-tasks")
SUITE = "forky"
PACKAGES = "docker.io,docker-cli,docker-buildx,docker-compose,iptables,ca-certificates"
# "sid" is the one script that every debootstrap has and that fits a suite younger than itself.
SCRIPT = "/usr/share/debootstrap/scripts/sid"
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
MINUTES_AT_MOST = 10
# Process 1 of what it is started in: the release's system folders, everything else as it was seen before.
# The release's folders stay as they are: they are read-only, and the root is a tmpfs.
ENTER = r"""
set -eu
release=$1; shift
new=$release/mnt
mount -t tmpfs -o mode=755 fdl-release "$new"
for at in /*; do
  top=${at#/}
  [ ! -e "$release/$top" ] || case $top in bin|etc|lib*|sbin|usr|var) at=$release/$top ;; esac
  if [ -L "$at" ]; then cp -P "$at" "$new/"
  elif ! [ -d "$at" ]; then :
  elif [ "$top" = proc ]; then mkdir "$new/proc"; mount -t proc proc "$new/proc"
  elif [ "$at" = "/$top" ]; then mkdir "$new/$top"; mount --rbind "$at" "$new/$top"
  else mkdir "$new/$top"; mount --bind -o ro "$at" "$new/$top"; fi
done
mkdir "$new/before"
cd "$new"
pivot_root . before
cd /
umount -l /before
exec "$@"
"""
_failed: list[str] = []  # tried once a process: the second test need not wait for the same failure


class Release(StrEnum):
    """Which Docker an engine is; the value is the first number of its version on Debian 12 with `.ci/run`."""

    D26 = "26"
    D28 = "28"


def entering(release: Release) -> list[str]:
    """The words before a command line that is to run with that release's programs, in its own mounts.

    Raises:
        LabError: the release is not there and could not be made.
    """
    if release is Release.D26:
        return []
    spaces = ["unshare", "-m", "--propagation", "slave"]
    return [*spaces, "sh", "-c", ENTER, "enter", str(made())]


def client(release: Release) -> str:
    """A script that runs that release's own docker client where this machine's ``/usr`` and ``/var`` are seen."""
    if release is Release.D26:
        own = "/usr/bin/docker"  # another one may be earlier on the PATH
        return f'#!/bin/sh\nexec {own if os.access(own, os.X_OK) else shutil.which("docker")} "$@"\n'
    root = made()
    loader = next(root.glob("usr/lib64/ld-linux*"), None) or next(root.glob("usr/lib/ld-linux*"))
    libraries = next(root.glob("usr/lib/*-linux-gnu"))
    start = shlex.join([str(loader), "--library-path", str(libraries), str(root / "usr/bin/docker")])
    return f'#!/bin/sh\nexec {start} "$@"\n'


def made() -> Path:
    """The newer release's folder, made now when it is not there (half a minute, 0.5 GB).

    Raises:
        LabError: it could not be made; the next call in this process fails at once.
    """
    folder = CACHE / f"{SUITE}-{_recipe()}"
    if not folder.is_dir():
        with _alone():
            if not folder.is_dir() and not _failed:
                _try(folder)
    if _failed:
        raise LabError(_failed[0])
    return folder


def _try(folder: Path) -> None:
    try:
        _make(folder)
    except (LabError, OSError) as error:
        _failed.append(f"Docker 28 of Debian {SUITE}: {error}")


def _make(folder: Path) -> None:
    if not (program := shutil.which("debootstrap")):
        raise LabError(f"debootstrap is missing ({GET})")
    mirror = _mirror()
    for left in CACHE.glob("half-made-*"):
        shutil.rmtree(left, ignore_errors=True)
    half_made = Path(tempfile.mkdtemp(prefix="half-made-", dir=CACHE))
    half_made.chmod(0o755)
    words = [
        "--variant=minbase",
        f"--include={PACKAGES}",
        f"--keyring={KEYRING}",
        SUITE,
        str(half_made),
        mirror,
        SCRIPT,
    ]
    # What debootstrap mounts in there is gone with it, however it ends.
    run("unshare", "-m", "--propagation", "private", program, *words, limit=60 * MINUTES_AT_MOST)
    shutil.rmtree(half_made / "var/cache/apt/archives")
    half_made.rename(folder)


def _mirror() -> str:
    """The Debian archive that this machine's own packages come from."""
    own = next(
        line.partition("=")[2].strip('"')
        for line in Path("/etc/os-release").read_text().splitlines()
        if line.startswith("VERSION_CODENAME=")
    )
    sources = run("apt-get", "indextargets", "--format", "$(REPO_URI) $(RELEASE)", "Created-By: Packages").stdout
    for uri, _, release in (line.partition(" ") for line in sources.splitlines()):
        if release == own:
            return uri
    raise LabError(f"apt has no source for {own}: cannot tell which Debian archive this machine uses")


def _recipe() -> str:
    """Changes with what is in the folder, so that an older one is not taken for it."""
    return hashlib.sha256(f"{SUITE} {PACKAGES}".encode()).hexdigest()[:8]


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


if __name__ == "__main__":
    try:
        print(made())
    except LabError as error:
        sys.exit(f"{error}")
