"""The edge between the library and its user: flags come in, and every end is a message and an exit code.

The one place that prints an error. 0 ok, 1 something failed, 2 usage or configuration, 130 Ctrl-C.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from invoke.exceptions import Exit

from ..errors import FdlError, UsageError
from ..report.masking import Masker, masker_of
from ..report.wrap import wrapped
from ..settings import count, setting

if TYPE_CHECKING:
    from ..cluster.model import Cluster
    from ..outcome import Progress
    from ..scripts import Scripts

INTERRUPTED = 130


class Edge:
    """What a running task has: its settings, its progress, and a ``mask`` for all that is shown."""

    def __init__(self, c: Any):
        self._c = c
        self.mask = Masker()

    def cluster(self, flag: str | Path | None) -> Cluster:
        """cluster.yml, as ``--cluster``, FDL_CLUSTER or ``fdl.cluster`` name it, or the nearest upwards."""
        from ..cluster.load import load_cluster

        cluster = load_cluster(self._chosen(flag))
        self.mask = masker_of(cluster)
        for note in cluster.notes:
            self.say(f"note: {note}")
        return cluster

    def cluster_if_any(self, flag: str | Path | None) -> Cluster | None:
        """The same for a task whose flags may say everything; None where no file is named and none is found."""
        from ..cluster.discovery import search

        chosen = self._chosen(flag)
        return self.cluster(chosen) if search(chosen, start=Path.cwd(), env=os.environ) else None

    def _chosen(self, flag: str | Path | None) -> str | None:
        if flag is not None and not str(flag):
            raise UsageError("--cluster names no file", hint="is a variable of your script empty?")
        below = None if os.environ.get("FDL_CLUSTER", "").strip() else setting(self._c, "cluster")
        chosen = flag or below
        return None if chosen is None else str(chosen)

    def scripts(self) -> Scripts:
        """The templates, with those of the user's folder (``fdl.templates``) in front."""
        from ..scripts import Scripts

        folder = setting(self._c, "templates")
        return Scripts(None if folder is None else Path(str(folder)).expanduser())

    def width(self, flag: str | int | None) -> int:
        """How many hosts at once."""
        from ..hosts.fanout import WIDTH

        return count("--width (fdl.width)", setting(self._c, "width", flag)) or WIDTH

    @contextlib.contextmanager
    def progress(self, task: str = "") -> Iterator[Progress]:
        """Events to stderr while the work runs; of a task that concerns one machine, under the task's name."""
        from ..report.progress import progress_on

        with progress_on(sys.stderr, self.mask, task) as progress:
            yield progress

    def say(self, text: str) -> None:
        """A line for people, on stderr."""
        if sys.stderr is not None:
            with contextlib.suppress(OSError):
                print(wrapped(self.mask(text), sys.stderr), file=sys.stderr, flush=True)

    def fail(self, text: str, code: int = 1) -> Exit:
        """The end of a task that did its work and found it bad; Invoke prints ``text`` to stderr."""
        return Exit(wrapped(self.mask(text), sys.stderr), code=code)


@contextlib.contextmanager
def edge(c: Any) -> Iterator[Edge]:
    """Run a task's body; whatever ends it early leaves as Invoke's ``Exit`` with a message and a code."""
    edge = Edge(c)
    try:
        with _ended_as_by_ctrl_c():
            yield edge
    except Exit:
        raise
    except KeyboardInterrupt as error:
        raise _exit(edge, "ended by Ctrl-C or a signal", INTERRUPTED, error) from None
    except FdlError as error:
        raise _exit(edge, str(error), error.exit_code, error) from None
    except OSError as error:
        raise _exit(edge, _os_error(error), 1, error) from None
    except Exception as error:  # noqa: BLE001 - a bug of ours is a message too
        raise _exit(edge, _bug(error), 1, error) from None


def _exit(edge: Edge, text: str, code: int, error: BaseException) -> Exit:
    if os.environ.get("FDL_DEBUG") == "1":
        text = "".join([*traceback.format_exception(error), text])
    return edge.fail(text, code)


def _os_error(error: OSError) -> str:
    what = error.strerror or str(error) or type(error).__name__
    return f"{error.filename}: {what}" if error.filename else f"{what} ({_place(error)}; FDL_DEBUG=1 shows more)"


def _bug(error: Exception) -> str:
    said = " ".join(f"{type(error).__name__}: {error}".split())
    return f"a bug in fdl-tasks: {said} ({_place(error)}); FDL_DEBUG=1 shows the traceback; please report it"


def _place(error: BaseException) -> str:
    last = traceback.extract_tb(error.__traceback__)[-1:]
    return "".join(f"{Path(frame.filename).name}:{frame.lineno}" for frame in last)


@contextlib.contextmanager
def _ended_as_by_ctrl_c() -> Iterator[None]:
    """SIGTERM, and SIGHUP of a closed terminal, end a task in order, unless the caller handles them."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    ours = [s for s in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(s) is signal.SIG_DFL]
    for number in ours:
        signal.signal(number, _interrupt)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
