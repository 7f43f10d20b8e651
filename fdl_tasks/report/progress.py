"""Progress on stderr: a live row per host on a terminal, whole lines with ``[host]`` elsewhere.

The rows fit the terminal as it is at each moment: what has no room in a line is cut off, hosts that have no
line are counted in the last one, and what a resize has wrapped is drawn over.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, TextIO, cast

from ..outcome import Event, Kind, Progress, Status
from .table import STYLES, counted

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderHook
    from rich.text import Text

Mask = Callable[[str], str]
PREFIX = {Kind.STATE: "", Kind.LINE: "", Kind.NOTE: "note: ", Kind.DONE: "done: "}


@contextlib.contextmanager
def progress_on(stream: TextIO | None, mask: Mask, task: str = "") -> Iterator[Progress]:
    """The progress that suits ``stream``, stderr as a rule, for as long as the work runs.

    With ``task``, whose work concerns one machine, its lines begin with that name instead of ``[host]``.
    """
    if stream is None:
        yield lambda event: None
    elif _is_terminal(stream):
        with _live(stream, mask, task) as progress:
            yield progress
    else:
        yield Lines(stream, mask, task)


def _is_terminal(stream: TextIO) -> bool:
    return stream.isatty() and os.environ.get("TERM", "dumb").lower() not in ("", "dumb", "unknown")


def one_line(text: str, mask: Mask) -> str:
    """Text as one harmless line of the screen; what a carriage return would have overwritten stays out."""
    return " ".join(mask(text.rstrip("\r\n").rpartition("\r")[2]).splitlines())


def _head(event: Event, task: str) -> str:
    return f"{task}: " if task else f"[{event.host}] {PREFIX[event.kind]}"


class Lines:
    """Whole lines, whichever threads they come from. A stream that is gone ends no build."""

    def __init__(self, stream: TextIO, mask: Mask, task: str = ""):
        self._stream, self._mask, self._task, self._lock = stream, mask, task, threading.Lock()

    def __call__(self, event: Event) -> None:
        line = f"{_head(event, self._task)}{one_line(event.text, self._mask)}\n"
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
    """What is known of each host, for the live display: those at work first, so that they are seen.

    ``drawn`` has the widths of the lines that the terminal shows now.
    """

    def __init__(self, mask: Mask, task: str = ""):
        self._rows: dict[str, _Row] = {}
        self._mask, self._task, self._lock = mask, task, threading.Lock()
        self.drawn: tuple[int, ...] = ()

    def take(self, event: Event) -> str:
        """Keep what the event says; returns the line to show for good above the rows, often none."""
        text = one_line(event.text, self._mask)
        with self._lock:
            row = self._rows.setdefault(event.host, _Row())
            if event.kind is Kind.NOTE:
                return f"{_head(event, self._task)}{text}"
            if event.kind is Kind.LINE:
                row.line = text
                return ""
            if row.ended:  # the next job of the same host
                row.began = time.monotonic()
            row.state, row.line = text, ""
            row.ended = time.monotonic() if event.kind is Kind.DONE else None
        return f"[{event.host}] {text} after {duration(row.seconds)}" if row.ended and text == Status.FAILED else ""

    def lines(self, width: int, height: int) -> list[Text]:
        """The rows for a terminal of so many columns and rows; one row is left for what stands above."""
        with self._lock:
            rows = sorted(self._rows.items(), key=lambda item: item[1].ended is not None)
        room = max(1, height - 1)
        shown, rest = (rows, rows[:0]) if len(rows) <= room else (rows[: room - 1], rows[room - 1 :])
        lines = _aligned(shown, width)
        return [*lines, _rest(rest, bool(shown), width)] if rest else lines

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        lines = self.lines(options.max_width, console.height)
        self.drawn = tuple(line.cell_len for line in lines)
        yield from lines


def _aligned(rows: Sequence[tuple[str, _Row]], width: int) -> list[Text]:
    """Host, seconds, state and last line of output; a narrow terminal has the first of these."""
    from rich.text import Text

    hosts = [Text(host) for host, _ in rows]
    states = [Text(row.state, style=STYLES.get(row.state, "")) for _, row in rows]
    widest = min(max((host.cell_len for host in hosts), default=0), max(8, width // 3))
    beside = max((state.cell_len for state, (_, row) in zip(states, rows, strict=True) if row.line), default=0)
    lines = []
    for host, state, (_, row) in zip(hosts, states, rows, strict=True):
        host.truncate(widest, overflow="ellipsis", pad=True)
        state.truncate(max(beside, state.cell_len), pad=bool(row.line))
        line = Text.assemble(
            host, f"  {duration(row.seconds):>6}  ", state, ("  " + row.line if row.line else "", "dim")
        )
        line.truncate(width, overflow="ellipsis")
        lines.append(line)
    return lines


def _rest(rows: Sequence[tuple[str, _Row]], more: bool, width: int) -> Text:
    from rich.text import Text

    done = sum(row.ended is not None for _, row in rows)
    found = counted([(len(rows) - done, "at work"), (done, "done")])
    line = Text(f"… and {len(rows)} more: {found}" if more else found)
    line.truncate(width, overflow="ellipsis")
    return line


def duration(seconds: float) -> str:
    """``7 s``, ``2m05s``, ``1h02m``."""
    whole = int(seconds)
    if whole < 60:
        return f"{whole} s"
    return f"{whole // 60}m{whole % 60:02}s" if whole < 3600 else f"{whole // 3600}h{whole % 3600 // 60:02}m"


class _Patient:
    """A stream whose reader may go away at any moment: that ends no build."""

    def __init__(self, stream: TextIO):
        self._stream, self.encoding = stream, stream.encoding

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError, ValueError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._stream.flush()

    def isatty(self) -> bool:
        return True


def _wrapped(console: Console, rows: Rows) -> RenderHook:
    """Rich's hook before each frame: a terminal that became narrower shows the last frame in more lines.

    Rich moves up by the lines it drew; this moves up by those that wrapping added. xterm and GNU screen cut
    lines off instead.
    """
    from rich.console import RenderHook
    from rich.control import Control
    from rich.segment import ControlType

    cuts = "XTERM_VERSION" in os.environ or "STY" in os.environ

    class Wrapped(RenderHook):
        def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
            added = 0 if cuts else sum((wide - 1) // console.width for wide in rows.drawn if wide)
            up = Control(*[(ControlType.ERASE_IN_LINE, 2), (ControlType.CURSOR_UP, 1)] * added)
            return [up, *renderables] if added else renderables

    return Wrapped()


@contextlib.contextmanager
def _live(stream: TextIO, mask: Mask, task: str) -> Iterator[Progress]:
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    patient = cast(IO[str], _Patient(stream))
    console = Console(
        file=patient, force_terminal=True, force_interactive=True, highlight=False, markup=False, emoji=False
    )
    rows = Rows(mask, task)
    live = Live(rows, console=console, transient=True, redirect_stdout=False, redirect_stderr=False)

    def progress(event: Event) -> None:
        if line := rows.take(event):
            console.print(Text(line))

    with live:
        console.push_render_hook(_wrapped(console, rows))
        try:
            yield progress
        finally:
            live.refresh()
            console.pop_render_hook()  # Live takes the last hook for its own
