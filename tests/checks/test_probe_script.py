"""The probe itself, run by every shell a host may have, with stand-ins for the programs it asks."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import pytest

from fdl_tasks.checks.probe import ABSENT, Facts, Seen, parse, render
from fdl_tasks.scripts import Scripts

pytestmark = pytest.mark.subprocess
SHELLS = [["dash"], ["bash"], ["busybox", "sh"]]
Run = Callable[..., Facts]


@pytest.fixture(params=SHELLS, ids=lambda shell: shell[0])
def shell(request: pytest.FixtureRequest) -> list[str]:
    if not shutil.which(request.param[0]):
        pytest.skip(f"{request.param[0]} is not installed")
    return list(request.param)


@pytest.fixture
def run(shell: list[str], tmp_path: Path) -> Run:
    (tmp_path / "data").mkdir()
    (tmp_path / "root/target/cluster").mkdir(parents=True)

    def probe(
        data: str = "data", root: str = "root", abi: bool = True, fresh: tuple[str, ...] = (), path: str | None = None
    ) -> Facts:
        script = render(Scripts(), str(tmp_path / data), str(tmp_path / root), abi=abi, fresh=fresh, pause="0.01")
        env = os.environ | {"PATH": f"{tmp_path}/bin:{os.environ['PATH']}" if path is None else path}
        done = subprocess.run(
            [*shell, "-c", script.text], capture_output=True, text=True, env=env, stdin=subprocess.DEVNULL
        )
        assert done.returncode == 0
        return parse(done.stdout)

    return probe


def stand_in(folder: Path, name: str, body: str) -> None:
    (folder / "bin").mkdir(exist_ok=True)
    (folder / "bin" / name).write_text(f"#!/bin/sh\n{body}\n")
    (folder / "bin" / name).chmod(0o755)


def test_this_machine_tells_all_of_it(run: Run) -> None:
    facts = run()
    assert (facts.data_dir, facts.data_read, facts.root, facts.shared, facts.ended) == (True, True, True, None, True)
    assert facts.free_kib is not None and facts.machine == os.uname().machine and facts.pkill in ("present", "absent")
    assert facts.glibc == tuple(int(part) for part in str(os.confstr("CS_GNU_LIBC_VERSION")).split()[1].split("."))


def test_without_abi_nothing_of_it_is_asked(run: Run) -> None:
    facts = run(abi=False)
    assert (facts.machine, facts.ldd, facts.pkill, facts.ended) == (None, None, None, True)


def test_a_musl_machine_of_another_cpu_says_so(run: Run, shell: list[str], tmp_path: Path) -> None:
    stand_in(tmp_path, "ldd", "printf 'musl libc (aarch64)\\nVersion 1.2.4\\n' >&2; exit 1")
    stand_in(tmp_path, "uname", "echo aarch64")
    facts = run()
    assert (facts.ldd, facts.libc) == ("musl libc (aarch64)", "musl")
    assert facts.machine == (os.uname().machine if shell[0] == "busybox" else "aarch64")  # it has its own uname


def test_programs_that_are_missing_are_said_to_be(shell: list[str], tmp_path: Path) -> None:
    script = render(Scripts(), "/", "/", abi=True, fresh=(), pause="0").text.replace("/usr/local/sbin:", "/x:")
    for name in ("ls", "df", "tail", "uname", "sed"):
        (tmp_path / name).symlink_to(str(shutil.which(name)))
    bare = script[: script.index("PATH=${PATH")] + script[script.index("export PATH") :]
    env = {"PATH": str(tmp_path)}
    command = [str(shutil.which(shell[0])), *shell[1:], "-c", bare]
    facts = parse(subprocess.run(command, capture_output=True, text=True, env=env).stdout)
    if shell[0] != "busybox":  # which has a pkill of its own
        assert facts.pkill == "absent"
    assert (facts.ldd, facts.ended) == ("", True)


def test_a_file_is_no_data_directory(run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    facts = run(data="file")
    assert (facts.data_dir, facts.data_read) == (False, False)


def test_a_directory_that_ls_cannot_list_is_not_readable(run: Run, shell: list[str], tmp_path: Path) -> None:
    stand_in(tmp_path, "ls", "echo 'ls: reading directory: Stale file handle' >&2; exit 2")
    facts = run()
    ours = shell[0] != "busybox"  # it may prefer its own ls
    assert facts.data_dir is True and (facts.data_read is False or not ours)


def test_a_path_that_is_not_there_is_told_at_once(run: Run) -> None:
    began = time.monotonic()
    facts = run(root="nowhere", fresh=tuple(f".fdl-probe-ab-{n}" for n in range(500)))
    assert facts.root is False and facts.shared is None and facts.ended
    assert time.monotonic() - began < 3


@pytest.mark.parametrize("name", ["two words", "a'b\"c", "$(touch evil)", "-n", "é\u00a0ü", "a\nb"])
def test_any_name_of_a_directory_is_looked_at_as_it_is(run: Run, tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    (tmp_path / name / "target/cluster").mkdir(parents=True)
    (tmp_path / name / "target/cluster/.fdl-probe-ab-0").write_text("token\n")
    facts = run(data=name, root=name, fresh=(".fdl-probe-ab-0",))
    assert (facts.data_dir, facts.data_read, facts.root) == (True, True, True)
    assert facts.shared is not None and facts.shared.content == "token"
    assert not (tmp_path / "evil").exists()


def test_the_first_fresh_file_that_shows_is_told_with_its_time_and_content(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "root/target/cluster/.fdl-probe-ab-2"
    file.write_text("token of today\n")
    os.utime(file, (1700000000, 1700000000))
    (tmp_path / "root/target/cluster/.fdl-probe-ab-1").write_text("")  # there, but nothing in it yet
    facts = run(fresh=(".fdl-probe-ab-0", ".fdl-probe-ab-1", ".fdl-probe-ab-2", ".fdl-probe-ab-3"))
    assert facts.shared == Seen(".fdl-probe-ab-2", 1700000000, "token of today")


def test_none_of_the_fresh_files_is_absent(run: Run) -> None:
    assert run(fresh=(".fdl-probe-ab-0", ".fdl-probe-ab-1")).shared == ABSENT


def test_the_time_is_read_where_stat_is_not_gnus(run: Run, shell: list[str], tmp_path: Path) -> None:
    if shell[0] == "busybox":
        pytest.skip("busybox may prefer its own stat")
    (tmp_path / "root/target/cluster/.fdl-probe-ab-0").write_text("token\n")
    stand_in(tmp_path, "stat", '[ "$1" = -f ] || exit 1; echo 1600000000')
    assert run(fresh=(".fdl-probe-ab-0",)).shared == Seen(".fdl-probe-ab-0", 1600000000, "token")
    stand_in(tmp_path, "stat", "echo 'File: \"x\"'; exit 1")
    assert run(fresh=(".fdl-probe-ab-0",)).shared == Seen(".fdl-probe-ab-0", None, "token")


def test_a_sleep_that_takes_no_fraction_is_made_up_for(run: Run, shell: list[str], tmp_path: Path) -> None:
    if shell[0] == "busybox":
        pytest.skip("busybox may prefer its own sleep")
    stand_in(tmp_path, "sleep", f'case $1 in *.*) exit 1 ;; esac; echo "$1" >>{tmp_path}/slept')
    assert run(fresh=(".fdl-probe-ab-0", ".fdl-probe-ab-1", ".fdl-probe-ab-2")).shared == ABSENT
    assert (tmp_path / "slept").read_text() == "1\n1\n"


def test_under_set_x_into_the_same_stream_the_facts_are_the_same_or_unknown(shell: list[str], tmp_path: Path) -> None:
    script = render(Scripts(), "/", str(tmp_path), abi=True, fresh=(".fdl-probe-ab-0",), pause="0")
    command = [*shell, "-x", "-c", script.text]
    noisy = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True).stdout
    quiet = parse(subprocess.run([*shell, "-c", script.text], capture_output=True, text=True).stdout)
    found = parse(noisy)
    assert "+ " in noisy and (found.ended, found.machine, found.data_read) == (True, quiet.machine, True)
    for one in fields(Facts):  # two programs of a pipe may write their echoes into one line: unknown, then
        if one.name != "free_kib":
            assert getattr(found, one.name) in (getattr(quiet, one.name), None), one.name
