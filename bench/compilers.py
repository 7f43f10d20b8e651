"""Cold builds, and how many compilers they start: counted through cargo's ``RUSTC_WRAPPER``."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from .measure import BenchError, Program, Ran, run

# The order of the lines is the order of the events, so their sum from the top is how many run at that time.
WRAPPER = """#!/bin/sh
before="" crate=""
for word do [ "$before" != --crate-name ] || crate=$word; before=$word; done
case $crate in '' | ___) exec "$@" ;; esac
echo "+ $crate" >>"$COMPILERS_LOG"
"$@"
code=$?
echo "- $crate" >>"$COMPILERS_LOG"
exit "$code"
"""


class Compilers:
    """The record of one build after the other; ``env`` is what cargo must be given."""

    def __init__(self, folder: Path):
        self._log, self._wrapper = folder / "compilers.log", folder / "rustc-wrapper"
        self._wrapper.write_text(WRAPPER)
        self._wrapper.chmod(0o755)

    @property
    def env(self) -> dict[str, str]:
        return {"RUSTC_WRAPPER": str(self._wrapper), "COMPILERS_LOG": str(self._log)}

    def forget(self) -> None:
        self._log.unlink(missing_ok=True)

    def _events(self) -> list[list[str]]:
        return [line.split() for line in self._log.read_text().splitlines()]

    def peak(self) -> int:
        """The most that ran at once."""
        running = most = 0
        for sign, _ in self._events():
            running += 1 if sign == "+" else -1
            most = max(most, running)
        if running:
            raise BenchError(f"{running} compilers were begun and not ended")
        return most

    def compiled(self, crate: str) -> int:
        """How often a crate was compiled."""
        return self._events().count(["+", crate])


class Cold:
    """Builds everything anew at each call; ``seen`` keeps what ``look`` says of each one's compilers."""

    def __init__(self, project: Path, compilers: Compilers, look: Callable[[], float], *programs: Program):
        self._project, self._compilers, self._look, self._programs = project, compilers, look, programs
        self.seen: list[float] = []

    def __call__(self) -> Ran:
        shutil.rmtree(self._project / "target", ignore_errors=True)
        self._compilers.forget()
        ran = run(*self._programs)
        self.seen.append(self._look())
        return ran
