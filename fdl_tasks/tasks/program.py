"""The console script ``fdl-tasks``: the same tasks, for boxes without a task file and for service units."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version

from invoke.exceptions import Exit, ParseError
from invoke.program import Program

from .mount import collection

USAGE = 2  # Invoke itself ends with 1 on a wrong flag


class FdlProgram(Program):
    """Invoke's program, with exit code 2 for a command line that can't be understood."""

    def parse_core(self, argv: list[str] | None) -> None:
        with _usage():
            super().parse_core(argv)

    def parse_tasks(self) -> None:
        with _usage():
            super().parse_tasks()

    def print_help(self) -> None:
        """The tasks, which are what a person looks for; Invoke's own options stay out of the way."""
        print("Usage: fdl-tasks TASK [--options] [TASK ...]\n")
        self.list_tasks()
        print("fdl-tasks --help TASK tells a task's options, fdl-tasks prebuild --cmd NAME is the main job.")


@contextlib.contextmanager
def _usage() -> Iterator[None]:
    try:
        yield
    except ParseError as error:
        raise Exit(f"{error}\n  next: fdl-tasks --list, or fdl-tasks --help TASK", code=USAGE) from None


def _version() -> str:
    try:
        return version("fdl-tasks")
    except PackageNotFoundError:  # run from a checkout that is not installed
        return "0 (not installed)"


def main() -> None:
    """Run ``fdl-tasks`` and leave with its exit code."""
    FdlProgram(name="fdl-tasks", binary="fdl-tasks", namespace=collection(), version=_version()).run()
