"""How this box's distribution installs things: its command, and its names for packages.

Tools and packages go by Debian's names here; the RPM family has its own (facts/upstream.md, section 8).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

RPM_FAMILY = {"rhel", "fedora", "centos", "rocky", "almalinux"}  # words of ID and ID_LIKE in os-release
RUST = "Rust from https://rustup.rs"  # what distributions package is often too old to build with

_OF_TOOL = {"c++": "g++", "ssh": "openssh-client", "ssh-keyscan": "openssh-client", "ssh-keygen": "openssh-client"}
_OF_TOOL |= {"fusermount": "fuse3", "fusermount3": "fuse3"}
_RPM = {"g++": "gcc-c++", "sshfs": "fuse-sshfs", "openssh-client": "openssh-clients"}


def install_line(*packages: str, os_release: str | None = None) -> str:
    """The command that installs these on this box, ready to be copied.

    Args:
        packages: tools (``c++``, ``rsync``, ``cargo``) or packages by Debian's names (``hip-dev``).
        os_release: the text of os-release(5); default: this box's. A distribution that is not known is taken
            for one of Debian's family.
    """
    text = _read() if os_release is None else os_release
    rpm = bool(RPM_FAMILY & set(_ids(text)))
    names = dict.fromkeys(_package(name, rpm) for name in packages if name not in ("cargo", "rustc"))
    command = f"sudo {'dnf' if rpm else 'apt'} install -y {' '.join(names)}"
    rust = f"install {RUST}" if {"cargo", "rustc"} & set(packages) else ""
    return "; ".join(filter(None, [command if names else "", rust]))


def _package(name: str, rpm: bool) -> str:
    name = _OF_TOOL.get(name, name)
    return _RPM.get(name, re.sub("-dev(?=-|$)", "-devel", name)) if rpm else name


def _ids(os_release: str) -> Iterator[str]:
    for value in re.findall(r"^ID(?:_LIKE)?=(.*)$", os_release, re.M):
        yield from value.strip().strip("\"'").lower().split()


def _read() -> str:
    for path in (Path("/etc/os-release"), Path("/usr/lib/os-release")):
        try:
            return path.read_text("utf-8", "replace")
        except OSError:
            continue
    return ""
