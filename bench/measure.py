"""Running programs and taking their time: wall, and the CPU and memory of everything they started."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from resource import struct_rusage
from typing import IO

from tests.lab import files

ROOT = Path(__file__).resolve().parents[1]
FOREIGN = ("CARGO_", "FDL_", "FLODL_", "INVOKE_", "LIBTORCH_", "RUSTC", "RUSTFLAGS", "DOCKER_", "COMPOSE_")


class BenchError(RuntimeError):
    """What was to be measured did not do its work, so that its time means nothing."""


class LeftOut(Exception):
    """This machine lacks what a measurement needs."""


@dataclass(frozen=True)
class Program:
    """A command line, the folder it is called from, and variables beside the usual ones."""

    argv: Sequence[str | Path]
    cwd: Path
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Ran:
    """Seconds by the clock, seconds of CPU (user and system, children's too), and what each program printed.

    ``memory``: the most bytes that the largest of their processes had resident.
    """

    wall: float
    cpu: float
    out: list[str]
    err: list[str]
    memory: int = 0


def run(*programs: Program) -> Ran:
    """Start all of them at once and wait for the last.

    Raises:
        BenchError: one of them failed.
    """
    started, began = [_Started(program) for program in programs], time.perf_counter()
    for one in started:
        one.start()
    used = [one.wait() for one in started]
    wall, cpu = time.perf_counter() - began, sum(one.ru_utime + one.ru_stime for one in used)
    texts = [one.texts() for one in started]
    memory = max(one.ru_maxrss for one in used) << 10
    return Ran(wall, cpu, [out for out, _ in texts], [err for _, err in texts], memory)


def alternate(what: str, rounds: int, *deeds: Callable[[], Ran], warm: bool = True) -> list[tuple[Ran, ...]]:
    """A B A B …: every deed once a round, so that what the machine does beside it meets all of them alike.

    Args:
        warm: go through them once before, without measuring.
    """
    if warm:
        say(f"{what}: warming up")
        for deed in deeds:
            deed()
    done = []
    for number in range(1, rounds + 1):
        done.append(tuple(deed() for deed in deeds))
        say(f"{what}: {number} of {rounds}: {', '.join(f'{ran.wall:.2f} s' for ran in done[-1])}")
    return done


def say(text: str) -> None:
    print(f"bench: {text}", file=sys.stderr, flush=True)


def usual_env() -> dict[str, str]:
    """This process's variables without those that change what is measured; cargo and the library are found."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
    homes = {"CARGO_HOME": str(files.CARGO), "RUSTUP_HOME": str(files.RUSTUP)}
    return {**kept, **homes, "PYTHONPATH": str(ROOT), "FLODL_HOST_NAME": "ctrl"}


class _Started:
    """One program, its output in files, since nobody reads it while it runs."""

    def __init__(self, program: Program):
        self._program = program
        self._out, self._err = (tempfile.TemporaryFile() for _ in range(2))  # noqa: SIM115 - closed when read

    def start(self) -> None:
        self._process = subprocess.Popen(
            [str(word) for word in self._program.argv],
            cwd=self._program.cwd,
            env={**usual_env(), **self._program.env},
            stdin=subprocess.DEVNULL,
            stdout=self._out,
            stderr=self._err,
        )

    def wait(self) -> struct_rusage:
        _, status, used = os.wait4(self._process.pid, 0)
        self._process.returncode = os.waitstatus_to_exitcode(status)
        return used

    def texts(self) -> tuple[str, str]:
        out, err = _text(self._out), _text(self._err)
        if code := self._process.returncode:
            tail = "\n".join([*out.splitlines(), *err.splitlines()][-12:])
            raise BenchError(f"{' '.join(map(str, self._program.argv[:6]))} … ended with {code}:\n{tail}")
        return out, err


def _text(file: IO[bytes]) -> str:
    with file:
        file.seek(0)
        return file.read().decode("utf-8", "replace")
