from __future__ import annotations

from pathlib import Path

import pytest

from fdl_tasks.boxes.distribution import install_line

CASES = Path(__file__).resolve().parents[1] / "cases" / "boxes" / "os-release"
EVERYTHING = ("rsync", "git", "ssh", "sshfs", "c++", "hip-dev", "hipblas-common-dev", "cuda-toolkit", "libnccl-dev")
APT = "sudo apt install -y rsync git openssh-client sshfs g++ hip-dev hipblas-common-dev cuda-toolkit libnccl-dev"
DNF = (
    "sudo dnf install -y rsync git openssh-clients fuse-sshfs gcc-c++ hip-devel hipblas-common-devel "
    "cuda-toolkit libnccl-devel"
)


@pytest.mark.parametrize(
    ("box", "line"),
    [
        *((box, APT) for box in ("debian-12", "ubuntu-22.04", "mint-21", "nixos")),
        *((box, DNF) for box in ("rhel-9", "rocky-9", "almalinux-9", "centos-9", "fedora-40", "amazon-2023")),
        ("oracle-9", DNF),
    ],
)
def test_a_box_is_told_its_own_command_and_names(box: str, line: str) -> None:
    assert install_line(*EVERYTHING, os_release=(CASES / box).read_text()) == line


@pytest.mark.parametrize(
    ("packages", "os_release", "line"),
    [
        (("hip-dev-6.3",), "ID=rocky", "sudo dnf install -y hip-devel-6.3"),
        (("x-develop",), "ID=rocky", "sudo dnf install -y x-develop"),
        (("c++", "g++"), "", "sudo apt install -y g++"),
        (("fusermount",), "", "sudo apt install -y fuse3"),
        (("cargo",), "", "install Rust from https://rustup.rs"),
        (("cargo", "c++"), "ID='fedora'", "sudo dnf install -y gcc-c++; install Rust from https://rustup.rs"),
        (("rsync", "rsync"), "", "sudo apt install -y rsync"),
        (("git",), "NAME=rhel\nVARIANT_ID=fedora\nID=debian", "sudo apt install -y git"),
        (("git",), "ID=other\nID_LIKE='x RHEL'\r\n", "sudo dnf install -y git"),
    ],
)
def test_names_are_those_of_packages(packages: tuple[str, ...], os_release: str, line: str) -> None:
    assert install_line(*packages, os_release=os_release) == line


def test_this_box_is_asked_where_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        Path, "read_text", lambda path, *_: "ID=rocky" if str(path) == "/usr/lib/os-release" else gone()
    )
    assert install_line("git") == "sudo dnf install -y git"
    monkeypatch.setattr(Path, "read_text", lambda *_: gone())
    assert install_line("git") == "sudo apt install -y git"


def gone() -> str:
    raise FileNotFoundError
