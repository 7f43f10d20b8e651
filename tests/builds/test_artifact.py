"""What is read from ELF files: real ones made by cc, and damaged ones."""

from __future__ import annotations

import hashlib
import os
import random
import shutil
from pathlib import Path

import pytest

from fdl_tasks.builds.artifact import read
from fdl_tasks.builds.readback import Artifact
from fdl_tasks.checks.probe import spelling
from fdl_tasks.errors import BuildError
from tests.builds.elves import NEWER, cc, library, program

pytestmark = pytest.mark.subprocess


@pytest.fixture(autouse=True)
def _compiler() -> None:
    if not shutil.which("cc"):
        pytest.skip("not installed: cc")


def test_a_program_of_this_machine(tmp_path: Path) -> None:
    made = program(tmp_path / "bench")
    found = read(made, tmp_path / "lib")
    assert found.machine == spelling(os.uname().machine)
    assert Path(found.loader).is_file()
    assert (found.size, found.sha256) == (made.stat().st_size, hashlib.sha256(made.read_bytes()).hexdigest())
    assert (found.shipped, found.system, found.demanded_by) == ((), ("libc.so.6",), "bench")
    here = tuple(int(part) for part in str(os.confstr("CS_GNU_LIBC_VERSION")).split()[1].split("."))
    assert found.glibc and (2,) < found.glibc <= here


def test_libraries_of_the_variant_are_told_from_the_systems_all_the_way_down(tmp_path: Path) -> None:
    lib = tmp_path / "lib"
    c10 = library(lib / "libc10.so", "c10")
    cpu = library(lib / "libtorch_cpu.so", "cpu", needs=[c10])
    other = library(tmp_path / "system/libcudart.so", "cudart")
    top = library(lib / "libtorch.so", "torch", needs=[cpu, other])
    library(lib / "libunused.so", "unused", versions=NEWER.replace("newer", "unused"))
    found = read(program(tmp_path / "bench", "torch", needs=[top]), lib)
    assert found.shipped == ("libtorch.so", "libtorch_cpu.so", "libc10.so")
    assert found.system == ("libc.so.6", "libcudart.so")


def test_the_newest_glibc_is_found_wherever_it_is_demanded(tmp_path: Path) -> None:
    libm = library(tmp_path / "system/libm.so.6", "newer", versions=NEWER)
    own = read(program(tmp_path / "bench", "newer", needs=[libm]), tmp_path / "lib")
    assert (own.glibc, own.demanded_by) == ((2, 99), "bench")
    deep = library(tmp_path / "lib/libdeep.so", "deep", needs=[libm])
    # only a library that really refers to the version demands it
    assert read(program(tmp_path / "b2", "deep", needs=[deep]), tmp_path / "lib").glibc != (2, 99)
    words = ("-shared", "-fPIC", "-Wl,-soname,libdeep.so")
    cc(*words, libm, source="int newer(void); int deep(void) { return newer(); }", at=tmp_path / "lib/libdeep.so")
    found = read(tmp_path / "b2", tmp_path / "lib")
    assert (found.glibc, found.demanded_by) == ((2, 99), "libdeep.so")


def test_a_version_that_the_variant_itself_has_is_not_demanded_of_the_system(tmp_path: Path) -> None:
    own = library(tmp_path / "lib/libm.so.6", "newer", versions=NEWER)
    found = read(program(tmp_path / "bench", "newer", needs=[own]), tmp_path / "lib")
    assert found.glibc and found.glibc < (2, 99)
    assert found.shipped == ("libm.so.6",)


@pytest.mark.parametrize("node", ["GLIBC_PRIVATE", "GLIBC_ABI_DT_RELR", "GLIBC_ABI_GNU_TLS", "GLIBCXX_9.9.9"])
def test_what_is_no_version_of_glibc_is_not_taken_for_one(tmp_path: Path, node: str) -> None:
    libm = library(tmp_path / "libm.so.6", "newer", versions=NEWER.replace("GLIBC_2.99", node))
    found = read(program(tmp_path / "bench", "newer", needs=[libm]), tmp_path / "lib")
    assert found.glibc and found.glibc < (2, 99)


def test_a_static_program_needs_nothing(tmp_path: Path) -> None:
    found = read(program(tmp_path / "bench", static=True), tmp_path / "lib")
    assert (found.needs, found.glibc, found.demanded_by, found.loader) == ((), None, "", "")


@pytest.mark.parametrize(("number", "name"), [(183, "aarch64"), (62, "x86_64"), (3, "x86"), (243, "riscv64")])
def test_the_machine_is_told_as_uname_does(tmp_path: Path, number: int, name: str) -> None:
    made = program(tmp_path / "bench")
    data = bytearray(made.read_bytes())
    data[18:20] = number.to_bytes(2, "little")
    made.write_bytes(data)
    assert read(made, tmp_path).machine == name


@pytest.mark.parametrize("content", [b"#!/bin/sh\nexit 0\n", b"", b"\x7fEL", b"MZ\x90\x00"])
def test_what_is_no_elf_file_is_refused_by_name(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "bench").write_bytes(content)
    with pytest.raises(BuildError, match=r"bench is not an ELF file"):
        read(tmp_path / "bench", tmp_path)


@pytest.mark.parametrize("words", [["-shared", "-fPIC"], ["-c"], ["-shared", "-fPIC", "-nostdlib"]])
def test_a_library_or_an_object_file_is_no_program(tmp_path: Path, words: list[str]) -> None:
    made = cc(*words, source="int x(void) { return 0; }", at=tmp_path / "bench")
    with pytest.raises(BuildError, match=r"bench is a library or an object file"):
        read(made, tmp_path)


def test_a_static_program_at_any_address_is_one(tmp_path: Path) -> None:
    made = cc("-static-pie", source="int main(void) { return 0; }", at=tmp_path / "bench")
    assert read(made, tmp_path).needs == ()


def test_a_library_of_the_variant_that_is_no_elf_file_is_refused_by_name(tmp_path: Path) -> None:
    torch = library(tmp_path / "lib/libtorch.so", "torch")
    made = program(tmp_path / "bench", "torch", needs=[torch])
    torch.write_text("INPUT(libtorch_cpu.so)\n")
    with pytest.raises(BuildError, match=r"libtorch.so is not an ELF file"):
        read(made, tmp_path / "lib")


def test_a_binary_that_is_gone_is_an_error_of_its_own(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="can't be read"):
        read(tmp_path / "bench", tmp_path)


def test_a_damaged_file_is_an_error_or_read_and_never_a_traceback(tmp_path: Path) -> None:
    whole = program(tmp_path / "bench").read_bytes()
    chance, path = random.Random(7), tmp_path / "damaged"
    for number in range(300):
        data = bytearray(whole[: chance.randrange(4, len(whole))] if number % 2 else whole)
        for _ in range(chance.randrange(6)):
            data[chance.randrange(4, min(len(data), 1000)) if len(data) > 5 else 4 - 1] = chance.randrange(256)
        path.write_bytes(b"\x7fELF" + data[4:])
        try:
            assert isinstance(read(path, tmp_path), Artifact)
        except BuildError as error:
            assert any(words in error.what for words in ("damaged", "can't be read", "no program"))
