"""One transfer of an image at a time from a source: the lock by itself, and in both ways to send."""

from __future__ import annotations

import os
import select
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fdl_tasks.hosts.fanout import Cancel
from fdl_tasks.hosts.local import Local
from fdl_tasks.images.archive import Sending, render
from fdl_tasks.images.facts import NodeFacts
from fdl_tasks.images.plan import Step
from fdl_tasks.images.sent import Sent, Turn
from fdl_tasks.images.transfer import LOCKS, Waited, send
from fdl_tasks.outcome import Event, Kind
from fdl_tasks.scripts import Scripts
from tests.e2e.site import eventually
from tests.images.test_archive import NODES, OLD, PINNED, SOURCE, WAYS, Bench

TAKE = (Path(__file__).parents[2] / "templates/images/lock.sh").read_text()
NAME = "image-1.lock"
WAITING, WAITED, NONE = (f'{{"lock": "{word}"}}\n' for word in ("waiting", "waited", "none"))
MINE = "mine\n"
TOOLS = ("sh", "mkdir", "chmod", "cat", "sleep")

pytestmark = pytest.mark.subprocess
needs_flock = pytest.mark.skipif(shutil.which("flock") is None, reason="flock is not installed")
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")


class Home:
    """A login's home, and scripts of that login that take the lock in it and keep it until they are let go."""

    def __init__(self, folder: Path, shell: list[str]):
        self.home, self.shell = folder / "home", shell
        self.env = {"HOME": str(self.home), "PATH": os.environ["PATH"]}
        self.started = list[subprocess.Popen[str]]()
        self.home.mkdir()

    @property
    def locks(self) -> Path:
        return self.home / ".cache/fdl-tasks"

    def take(self, *, yields: int = 0, name: str = NAME) -> subprocess.Popen[str]:
        text = f"FDL_LOCK={name}\nFDL_YIELD={yields}\n{TAKE}\ntake_lock\necho mine\nexec cat >/dev/null\n"
        argv, pipe = [*self.shell, "-c", text], subprocess.PIPE
        made = subprocess.Popen(argv, env=self.env, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
        self.started.append(made)
        return made


@pytest.fixture(params=[["dash"], ["bash"], ["busybox", "sh"]], ids=lambda shell: shell[0])
def home(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Home]:
    if not (found := shutil.which(request.param[0])):
        pytest.skip(f"{request.param[0]} is not installed")
    made = Home(tmp_path, [found, *request.param[1:]])
    yield made
    for process in made.started:
        with process:
            process.kill()


def line(process: subprocess.Popen[str]) -> str:
    """The next line that it says; empty when it ended."""
    assert process.stdout
    return process.stdout.readline()


def silent(process: subprocess.Popen[str], seconds: float = 0.4) -> bool:
    """Whether it is still there, and says nothing in that time."""
    assert process.stdout
    return not select.select([process.stdout], [], [], seconds)[0] and process.poll() is None


def let_go(process: subprocess.Popen[str]) -> None:
    assert process.stdin
    process.stdin.close()


ENDS: list[Callable[[subprocess.Popen[str]], None]] = [let_go, subprocess.Popen.kill]


@needs_flock
@pytest.mark.parametrize("ends", ENDS, ids=["done", "killed"])
def test_the_second_says_that_it_waits_and_goes_on_when_the_first_has_ended(
    ends: Callable[[subprocess.Popen[str]], None], home: Home
) -> None:
    first = home.take()
    assert line(first) == MINE
    second = home.take()
    assert line(second) == WAITING and silent(second)
    ends(first)
    assert [line(second), line(second)] == [WAITED, MINE]


@needs_flock
def test_who_yields_ends_after_the_wait_and_whoever_did_not_wait_goes_on(home: Home) -> None:
    first = home.take(yields=1)
    assert line(first) == MINE
    second = home.take(yields=1)
    assert line(second) == WAITING
    let_go(first)
    assert [line(second), line(second), second.wait(5)] == [WAITED, "", 0]


@needs_flock
def test_another_image_does_not_wait(home: Home) -> None:
    first, other = home.take(), home.take(name="image-2.lock")
    assert [line(first), line(other)] == [MINE, MINE]


@needs_flock
def test_only_empty_files_stay_that_nobody_else_can_read(home: Home) -> None:
    home.locks.mkdir(parents=True, mode=0o755)
    assert line(home.take()) == MINE
    [file] = home.locks.iterdir()
    assert (file.name, file.stat().st_size, file.stat().st_mode & 0o777) == (NAME, 0, 0o600)
    assert home.locks.stat().st_mode & 0o777 == 0o700


# -- where no lock can be had: said, and nothing is kept from going on ----------------------------


def unlocked(home: Home) -> None:
    for process in (home.take(), home.take()):
        assert [line(process), line(process)] == [NONE, MINE]


def test_without_flock(home: Home, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    for tool in TOOLS:
        (tmp_path / "bin" / tool).symlink_to(str(shutil.which(tool)))
    home.env["PATH"] = str(tmp_path / "bin")
    unlocked(home)
    assert list(home.home.iterdir()) == []


@needs_flock
@pytest.mark.parametrize("place", ["", "/dev/null/home", "/proc/home"])
def test_in_a_home_that_cannot_be_written(place: str, home: Home) -> None:
    home.env["HOME"] = place
    unlocked(home)


@needs_flock
def test_on_a_file_system_without_locks(home: Home, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    flock = tmp_path / "bin/flock"
    flock.write_text("#!/bin/sh\necho 'flock: 9: No locks available' >&2\nexit 71\n")
    flock.chmod(0o755)
    home.env["PATH"] = f"{flock.parent}:{home.env['PATH']}"
    unlocked(home)


@needs_flock
@pytest.mark.parametrize("link", [f".cache/fdl-tasks/{NAME}", ".cache/fdl-tasks"], ids=["file", "directory"])
def test_no_link_is_followed(link: str, home: Home, tmp_path: Path) -> None:
    planted, victim = home.home / link, tmp_path / "victim"
    planted.parent.mkdir(parents=True)
    planted.symlink_to(victim)
    if link.endswith("tasks"):
        victim.mkdir(mode=0o755)
    unlocked(home)
    assert not victim.exists() or (list(victim.iterdir()), victim.stat().st_mode & 0o777) == ([], 0o755)


@needs_flock
@needs_root
def test_a_directory_of_somebody_elses_is_left_alone(home: Home) -> None:
    home.locks.mkdir(parents=True, mode=0o777)
    os.chown(home.locks, 65534, 65534)
    mode = home.locks.stat().st_mode
    unlocked(home)
    assert (list(home.locks.iterdir()), home.locks.stat().st_mode) == ([], mode)


# -- in both ways to send --------------------------------------------------------------------------


class Run(threading.Thread):
    """A transfer to ``a`` from the bench, beside the test."""

    def __init__(self, bench: Bench, source: NodeFacts, *, yields: bool):
        super().__init__(daemon=True)
        self.bench, self.notes, self.found, self.waited = bench, list[str](), dict[str, Sent](), False
        self.sending = Sending(source, "app:1", NODES, PINNED, yields=yields)
        self.start()

    def run(self) -> None:
        def note(event: Event) -> None:
            if event.kind is Kind.NOTE:
                self.notes.append(event.text)

        try:
            with Local("s", Cancel(), self.bench.env) as host:
                self.found = send(host, self.sending, [Step("a", "full")], WAYS, progress=note)
        except Waited:
            self.waited = True


@pytest.fixture(params=["dash", "bash", "busybox sh"])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Bench:
    name, *words = request.param.split()
    if not (found := shutil.which(name)):
        pytest.skip(f"{name} is not installed")
    return Bench(tmp_path, " ".join([found, *words]))


@pytest.fixture
def held(bench: Bench) -> Iterator[subprocess.Popen[bytes]]:
    """Another run has the lock of the image, until it is killed."""
    text = render(Scripts(), Sending(SOURCE, "app:1", NODES, PINNED), [Turn(Step("a", "full"), WAYS["a"])]).text
    name = next(row.removeprefix("FDL_LOCK=") for row in text.splitlines() if row.startswith("FDL_LOCK="))
    file = bench.folder / "home/.cache/fdl-tasks" / name
    file.parent.mkdir(parents=True)
    holder = subprocess.Popen(["flock", "--no-fork", file, "sh", "-c", "echo held; exec sleep 1000"], stdout=-1)
    assert holder.stdout and holder.stdout.readline() == b"held\n"
    with holder:
        yield holder
        holder.kill()


@needs_flock
@pytest.mark.parametrize("source", [SOURCE, OLD], ids=["stream", "file"])
@pytest.mark.parametrize("yields", [True, False])
def test_each_way_waits_for_the_other_run_and_touches_nothing_meanwhile(
    source: NodeFacts, yields: bool, bench: Bench, held: subprocess.Popen[bytes]
) -> None:
    run = Run(bench, source, yields=yields)
    assert eventually(lambda: run.notes == [LOCKS["waiting"]], 10)
    run.join(0.4)
    assert run.is_alive() and bench.left() == [] and not (bench.folder / "a").exists()
    held.kill()
    run.join(20)
    assert run.notes == [LOCKS["waiting"], LOCKS["waited"]]
    assert run.waited is yields and (bench.folder / "a").exists() is not yields
    assert {sent.error for sent in run.found.values()} == (set() if yields else {None})
    assert bench.left() == []


@needs_flock
@pytest.mark.parametrize("source", [SOURCE, OLD], ids=["stream", "file"])
def test_each_way_frees_the_lock_when_it_ends(source: NodeFacts, bench: Bench) -> None:
    for _ in range(2):
        run = Run(bench, source, yields=True)
        run.join(30)
        assert (run.found["a"].error, run.notes, run.waited) == (None, [], False)
    [file] = (bench.folder / "home/.cache/fdl-tasks").iterdir()
    assert subprocess.run(["flock", "-n", file, "true"]).returncode == 0


@needs_flock
@pytest.mark.parametrize("source", [SOURCE, OLD], ids=["stream", "file"])
def test_each_way_says_that_there_is_no_lock_and_sends(source: NodeFacts, bench: Bench) -> None:
    bench.env["HOME"] = "/proc/home"
    run = Run(bench, source, yields=True)
    run.join(30)
    assert (run.found["a"].error, run.notes) == (None, [LOCKS["none"]])
