"""verify.sh and check.sh themselves, by every shell a worker may have."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from fdl_tasks.builds import judge, verify
from fdl_tasks.builds.artifact import read
from fdl_tasks.builds.plan import Job
from fdl_tasks.builds.readback import Readback, Seen, Start, parse
from fdl_tasks.builds.verify import Subject
from fdl_tasks.cluster.model import Command, Ssh, Worker
from fdl_tasks.outcome import Level
from fdl_tasks.scripts import Script, Scripts
from tests.builds.elves import cc, library, program

pytestmark = pytest.mark.subprocess
SHELLS = [["dash"], ["bash"], ["busybox", "sh"]]
MARK = "fdl-0123456789abcdef"
Run = Callable[..., Readback]


@pytest.fixture(params=SHELLS, ids=lambda shell: shell[0])
def shell(request: pytest.FixtureRequest) -> list[str]:
    if missing := [tool for tool in (request.param[0], "cc") if not shutil.which(tool)]:
        pytest.skip(f"not installed: {', '.join(missing)}")
    return list(request.param)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify, "LOOKS", 3)
    monkeypatch.setattr(verify, "PAUSE", "0.01")


@pytest.fixture
def subject(tmp_path: Path) -> Subject:
    """A program that needs a library of its variant, in a place whose name needs every care."""
    root = tmp_path / "mö 'x' $(touch pwned) \"q\""
    torch = library(root / "libtorch/a/lib/libtorch.so", "torch")
    program(root / "target/bench", "torch", needs=[torch])
    job = Job("a", Command("bench"), "a", root, "", f"{root}/libtorch/a/lib")
    return Subject(job, Worker("a", f"{root}/", Ssh("a")), "target/bench")


def perform(shell: list[str], script: Script, path: str = "") -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PATH": f"{path}:{os.environ['PATH']}"} if path else dict(os.environ)
    return subprocess.run(
        [*shell, "-c", script.text], capture_output=True, text=True, env=env, stdin=subprocess.DEVNULL
    )


@pytest.fixture
def run(shell: list[str], tmp_path: Path) -> Run:
    (tmp_path / "bin").mkdir()

    def look(subject: Subject, sha256: str = "", size: int = 0) -> Readback:
        made = read(subject.job.root / subject.path, subject.job.libtorch / "lib")
        script = verify.script(subject, Scripts(), MARK, size or made.size, sha256 or made.sha256, made.loader)
        done = perform(shell, script, str(tmp_path / "bin"))
        assert (done.returncode, done.stderr) == (0, "")
        return parse(MARK, done.stdout)

    return look


def judged(subject: Subject, answer: Readback) -> dict[str, Level]:
    made = read(subject.job.root / subject.path, subject.job.libtorch / "lib")
    found = [*judge.fits(made, answer.facts), *judge.read_back(subject.there, made, answer)]
    return {verdict.rule: verdict.level for verdict in found}


def stand_in(folder: Path, name: str, body: str) -> None:
    (folder / "bin" / name).write_text(f"#!/bin/sh\n{body}\n")
    (folder / "bin" / name).chmod(0o755)


def test_a_good_binary_is_proven_to_be_one(run: Run, subject: Subject, tmp_path: Path) -> None:
    answer = run(subject)
    assert judged(subject, answer) == dict.fromkeys(
        ["machine", "glibc", "file", "start", "libraries", "answer"], Level.OK
    )
    assert not list(tmp_path.rglob("pwned")) and not Path("pwned").exists()


def test_a_library_that_is_not_found_is_named(run: Run, subject: Subject) -> None:
    lost = replace(subject, job=replace(subject.job, loader_path="/nowhere"))
    loaded = run(lost).loaded
    assert loaded and loaded.troubles == ("library libtorch.so", "symbol torch")


def test_a_symbol_that_the_library_there_lacks_is_named(run: Run, subject: Subject, tmp_path: Path) -> None:
    library(tmp_path / "other/libtorch.so", "something_else")
    lost = replace(subject, job=replace(subject.job, loader_path=str(tmp_path / "other")))
    loaded = run(lost).loaded
    assert loaded and loaded.troubles == ("symbol torch",)


@pytest.mark.parametrize("needs", [True, False], ids=["dynamic", "no libraries"])
def test_a_loader_that_is_not_there_though_ldd_finds_all_with_its_own(run: Run, subject: Subject, needs: bool) -> None:
    file, nix = subject.job.root / subject.path, "-Wl,--dynamic-linker=/nix/store/none/ld.so"
    if needs:
        cc(nix, source="int main(void) { return 0; }", at=file)
    else:
        cc(nix, "-nostdlib", "-pie", "-fPIE", source="void _start(void) { for (;;) {} }", at=file)
    with pytest.raises(FileNotFoundError):
        subprocess.run([file])
    found = judged(subject, run(subject))
    assert (found["start"], found["libraries"]) == (Level.ERROR, Level.OK)


def test_a_directory_to_start_in_that_is_not_there(run: Run, subject: Subject) -> None:
    answer = run(replace(subject, job=replace(subject.job, cwd_subpath="not shared")))
    assert answer.start == Start(False, True)


def test_a_relative_loader_path_is_below_the_directory_to_start_in(run: Run, subject: Subject) -> None:
    own = replace(subject, worker=replace(subject.worker, env={"LD_LIBRARY_PATH": "a/lib"}))
    assert judged(own, run(own))["libraries"] is Level.ERROR
    there = replace(own, job=replace(own.job, cwd_subpath="libtorch"))
    assert judged(there, run(there))["libraries"] is Level.OK


def test_the_users_loader_path_wins_and_the_users_names_are_only_names(run: Run, subject: Subject) -> None:
    own = {"LD_LIBRARY_PATH": "/nowhere", "FDL_FILE": "x", "fdl_line": "y", "FDL_MARK": "z", "1": "w"}
    del own["1"]
    loaded = run(replace(subject, worker=replace(subject.worker, env=own))).loaded
    assert loaded and "library libtorch.so" in loaded.troubles
    del own["LD_LIBRARY_PATH"]
    answer = run(replace(subject, worker=replace(subject.worker, env={**own, "A": "two words' \" $(x) \\"})))
    assert set(judged(subject, answer).values()) == {Level.OK}


def test_the_language_of_the_users_variables_is_not_the_loaders(run: Run, subject: Subject, tmp_path: Path) -> None:
    stand_in(tmp_path, "ldd", 'printf "\\tlanguage %s => not found\\n" "$LC_ALL"')
    loaded = run(replace(subject, worker=replace(subject.worker, env={"LC_ALL": "de_DE.UTF-8"}))).loaded
    assert loaded and loaded.troubles == ("library language C",)


def test_a_static_binary(run: Run, subject: Subject) -> None:
    program(subject.job.root / subject.path, static=True)
    assert judged(subject, run(subject)) == dict.fromkeys(["machine", "file", "start", "libraries", "answer"], Level.OK)


@pytest.mark.parametrize("kind", ["absent", "folder", "cut", "old", "mode"])
def test_another_file_or_none_is_seen_for_what_it_is(run: Run, subject: Subject, kind: str) -> None:
    file = subject.job.root / subject.path
    made = read(file, subject.job.libtorch / "lib")
    data = file.read_bytes()
    expected = Seen(True, len(data), True, made.sha256)
    elsewhere = replace(subject, worker=replace(subject.worker, path=str(subject.job.root / "worker")))
    there = Path(elsewhere.there)
    there.parent.mkdir(parents=True)
    if kind == "folder":
        there.mkdir()
    if kind in ("cut", "old", "mode"):
        there.write_bytes({"cut": data[:-7], "old": data[:-7] + b"another", "mode": data}[kind])
        there.chmod(0o644 if kind == "mode" else 0o755)
    answer = run(elsewhere)
    assert (
        answer.file
        == {
            "absent": Seen(False),
            "folder": Seen(False),
            "cut": Seen(True, len(data) - 7, True, None),  # of another size: not hashed
            "old": replace(expected, sha256=hashlib.sha256(data[:-7] + b"another").hexdigest()),
            "mode": replace(expected, executable=False),
        }[kind]
    )
    assert answer.whole and judged(elsewhere, answer)["file"] is Level.ERROR
    assert (answer.loaded is None) is (kind in ("absent", "folder"))


def test_a_file_that_comes_late_is_waited_for(
    run: Run, subject: Subject, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(verify, "LOOKS", 200)
    elsewhere = replace(subject, worker=replace(subject.worker, path=str(tmp_path / "late")))
    Path(elsewhere.there).parent.mkdir(parents=True)
    Path(elsewhere.there).write_bytes(b"old")

    def arrive() -> None:
        time.sleep(0.2)
        shutil.copy2(subject.job.root / subject.path, f"{elsewhere.there}.new")
        Path(f"{elsewhere.there}.new").replace(elsewhere.there)

    thread = threading.Thread(target=arrive)
    thread.start()
    answer = run(elsewhere)
    thread.join()
    assert judged(elsewhere, answer)["file"] is Level.OK


@pytest.mark.parametrize("tool", ["shasum", "openssl"])
def test_the_hash_is_made_by_whatever_the_worker_has(
    shell: list[str], subject: Subject, tmp_path: Path, tool: str
) -> None:
    if shell[0] == "busybox" or not shutil.which(tool):
        pytest.skip("has a sha256sum of its own" if shell[0] == "busybox" else f"not installed: {tool}")
    assert bare(shell, subject, tmp_path, tool, "perl").file == Seen(
        True, (size := (subject.job.root / subject.path).stat().st_size), True,
        hashlib.sha256((subject.job.root / subject.path).read_bytes()).hexdigest(),
    ), size  # fmt: skip


def bare(shell: list[str], subject: Subject, tmp_path: Path, *tools: str) -> Readback:
    """The answer of a machine that has these tools and no more."""
    few = tmp_path / "few"
    few.mkdir()
    for name in ("wc", "uname", "sed", "sleep", *tools):
        (few / name).symlink_to(str(shutil.which(name)))
    made = read(subject.job.root / subject.path, subject.job.libtorch / "lib")
    text = verify.script(subject, Scripts(), MARK, made.size, made.sha256, made.loader).text
    script = text[: text.index("PATH=${PATH")] + text[text.index("export PATH") :]
    argv = [str(shutil.which(shell[0])), *shell[1:], "-c", script]
    return parse(MARK, subprocess.run(argv, capture_output=True, text=True, env={"PATH": str(few)}).stdout)


def test_a_worker_without_hash_tools_and_ldd_proves_nothing(
    shell: list[str], subject: Subject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if shell[0] == "busybox":
        pytest.skip("has a sha256sum of its own")
    monkeypatch.setattr(verify, "LOOKS", 5000)
    began = time.monotonic()
    answer = bare(shell, subject, tmp_path)
    assert time.monotonic() - began < 20  # no look will show more than the first one did
    size = (subject.job.root / subject.path).stat().st_size
    assert (answer.file, answer.facts.ldd, answer.loaded, answer.whole) == (
        Seen(True, size, True, None),
        "",
        None,
        True,
    )
    found = judged(subject, answer)
    assert (found["file"], found["libraries"]) == (Level.WARNING, Level.WARNING)


def test_a_silent_ldd_proves_nothing(run: Run, subject: Subject, tmp_path: Path) -> None:
    stand_in(tmp_path, "ldd", "exit 0")
    assert judged(subject, run(subject))["libraries"] is Level.WARNING


def test_an_older_glibc_is_seen_by_its_banner(run: Run, subject: Subject, tmp_path: Path) -> None:
    real = shutil.which("ldd")
    stand_in(tmp_path, "ldd", f'[ "$1" != --version ] || {{ echo "ldd (GNU libc) 2.1"; exit; }}; exec {real} "$@"')
    assert judged(subject, run(subject))["glibc"] is Level.ERROR


def test_under_set_x_into_the_same_stream_nothing_false_is_read(
    shell: list[str], subject: Subject, tmp_path: Path
) -> None:
    made = read(subject.job.root / subject.path, subject.job.libtorch / "lib")
    script = verify.script(subject, Scripts(), MARK, made.size, made.sha256, made.loader)
    noisy = subprocess.run(
        [*shell, "-x", "-c", script.text], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert "+ " in noisy.stdout
    assert Level.ERROR not in judged(subject, parse(MARK, noisy.stdout)).values()


def checked(shell: list[str], subject: Subject, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = replace(subject.job.command, check=arguments)
    asked = replace(subject, job=replace(subject.job, command=command))
    return perform(shell, verify.check_script(asked, Scripts()))


def test_a_check_starts_the_binary_as_the_launcher_does(shell: list[str], subject: Subject, tmp_path: Path) -> None:
    (subject.job.root / "bench dir").mkdir()
    program_text = '#!/bin/sh\nprintf "%s\\n" "$PWD" "$A" "$LD_LIBRARY_PATH" "$@"\ncat\nexit 7\n'
    Path(subject.there).write_text(program_text)
    worker = replace(subject.worker, env={"A": "it's $(x)", "LD_LIBRARY_PATH": "/own:/x"})
    asked = replace(subject, worker=worker, job=replace(subject.job, cwd_subpath="bench dir"))
    done = checked(shell, asked, "--version", "two words", "--")
    assert done.returncode == 7
    place = f"{subject.job.root}/bench dir"
    assert done.stdout.splitlines() == [place, "it's $(x)", "/own:/x", "--version", "two words", "--"]


def test_a_check_finds_the_variants_libraries(shell: list[str], subject: Subject) -> None:
    assert checked(shell, subject, "-v").returncode == 0
    (subject.job.root / "libtorch/a/lib/libtorch.so").unlink()
    assert checked(shell, subject, "-v").returncode == 127
