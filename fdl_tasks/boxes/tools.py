"""The programs that a box is made ready with (rsync, git, sshfs, cargo): run here, never asking, never left behind."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ..errors import PermanentError
from ..hosts.base import Completed, OnLine
from ..hosts.fanout import Cancel
from ..hosts.local import Local
from ..scripts import Scripts
from .distribution import install_line

Note = Callable[[str], None]  # takes one thing worth telling, not a failure
LIMIT = 86400.0  # seconds; a build takes what it takes, and what waits for input gets /dev/null


class Tools:
    """Runs programs on this box, in a process group of their own that ends with a Ctrl-C."""

    def __init__(self, label: str, cancel: Cancel | None = None, scripts: Scripts | None = None):
        self.label, self._cancel, self._scripts = label, cancel or Cancel(), scripts or Scripts()

    def need(self, *tools: str) -> None:
        """Raise PermanentError when one of these is not installed, with the line that installs it."""
        for tool in tools:
            if not shutil.which(tool):
                raise PermanentError(f"{tool} is not installed", where=self.label, hint=install_line(tool))

    def run(
        self,
        argv: Sequence[str | Path],
        *,
        directory: Path = Path("/"),
        env: Mapping[str, str] | None = None,
        limit: float = LIMIT,
        on_line: OnLine | None = None,
        template: str = "boxes/run.sh",
    ) -> Completed:
        """Run ``argv`` to its end; ``env`` is laid over this process's. A signal that ended it is 128 + its number.

        ``template`` is the script around it; boxes/mount.sh is for a program that stays.

        Raises:
            PermanentError: the program is not installed.
            TransportError: the limit passed.
        """
        if "/" not in str(argv[0]):
            self.need(str(argv[0]))
        script = self._scripts.render(template, directory=directory, words=list(argv))
        return Local(self.label, self._cancel, env).run(script, limit=limit, on_line=on_line)
