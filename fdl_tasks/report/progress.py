"""Progress on stderr: a live row per host on a terminal, whole lines with ``[host]`` elsewhere."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TextIO

from ..outcome import Event, Kind, Progress

if TYPE_CHECKING:
    from rich.table import Table

Mask = Callable[[str], str]
PREFIX = {Kind.STATE: "", Kind.LINE: "", Kind.NOTE: "note: ", Kind.DONE: "done: "}


@contextlib.contextmanager
def progress_on(stream: TextIO | None, mask: Mask) -> Iterator[Progress]:
    """The progress that suits ``stream``, stderr as a rule, for as long as the work runs."""
    if stream is None:
        yield lambda event: None
    elif _is_terminal(stream):
        with _live(stream, mask) as progress:
            yield progress
    else:
        yield Lines(stream, mask)


def _is_terminal(stream: TextIO) -> bool:
    return stream.isatty() and os.environ.get("TERM", "dumb") != "dumb"


def one_line(text: str, mask: Mask) -> str:
    """Text as one harmless line of the screen; what a carriage return would have overwritten stays out."""
    return " ".join(mask(text.rstrip("\r\n").rpartition("\r")[2]).splitlines())


class Lines:
    """Whole lines, whichever threads they come from. A stream that is gone ends no build."""

    def __init__(self, stream: TextIO, mask: Mask):
        self._stream, self._mask, self._lock = stream, mask, threading.Lock()

    def __call__(self, event: Event) -> None:
        line = f"[{event.host}] {PREFIX[event.kind]}{one_line(event.text, self._mask)}\n"
        with self._lock, contextlib.suppress(OSError, ValueError):
            self._stream.write(line)
            self._stream.flush()


@dataclass
class _Row:
    state: str = ""
    line: str = ""
    began: float = field(default_factory=time.monotonic)
    ended: float | None = None

    @property
    def seconds(self) -> float:
        return (self.ended or time.monotonic()) - self.began


class Rows:
    """What is known of each host, for the live display: those at work first, so that they are seen."""

    def __init__(self, mask: Mask):
        self._rows: dict[str, _Row] = {}
        self._mask, self._lock = mask, threading.Lock()

    def take(self, event: Event) -> str:
        """Keep what the event says; returns the line to show for good above the rows, often none."""
        text = one_line(event.text, self._mask)
        with self._lock:
            row = self._rows.setdefault(event.host, _Row())
            if event.kind is Kind.NOTE:
                return f"[{event.host}] {PREFIX[event.kind]}{text}"
            if event.kind is Kind.LINE:
                row.line = text
            else:
                row.state, row.line = text, ""
                row.ended = time.monotonic() if event.kind is Kind.DONE else None
        return ""

    def __rich__(self) -> Table:
        from rich.table import Table
        from rich.text import Text

        table = Table.grid(padding=(0, 2))
        table.add_column(no_wrap=True)
        table.add_column(no_wrap=True, justify="right")
        table.add_column(no_wrap=True)
        table.add_column(no_wrap=True, overflow="ellipsis", style="dim")
        with self._lock:
            for host, row in sorted(self._rows.items(), key=lambda item: item[1].ended is not None):
                table.add_row(Text(host), f"{row.seconds:.0f} s", Text(row.state), Text(row.line))
        return table


@contextlib.contextmanager
def _live(stream: TextIO, mask: Mask) -> Iterator[Progress]:
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    console = Console(file=stream, highlight=False, markup=False, emoji=False)
    rows = Rows(mask)
    live = Live(rows, console=console, transient=True, redirect_stdout=False, redirect_stderr=False)

    def progress(event: Event) -> None:
        if line := rows.take(event):
            with contextlib.suppress(OSError, ValueError):
                console.print(Text(line))

    with live:
        yield progress
