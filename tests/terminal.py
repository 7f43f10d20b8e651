"""A small terminal: a real pty whose output is drawn on a screen that can be looked at.

It knows what the library's output uses: text, CR, LF, cursor up and down, erasing, colours, showing and hiding
the cursor. Like most terminals of today it wraps old lines anew when it becomes narrower.
"""

from __future__ import annotations

import codecs
import contextlib
import fcntl
import os
import pty
import re
import struct
import subprocess
import termios
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

TOKEN = re.compile(
    r"\x1b\[([?0-9;]*)([A-Za-z])|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[^\[\]]|[\r\n\b\x07]|[^\x1b\r\n\b\x07]+"
)
Cell = tuple[str, str]  # a character, and the codes of its style


@dataclass
class Screen:
    """What a terminal of this size shows. ``history`` is what scrolled off its top."""

    columns: int = 80
    rows: int = 24
    history: list[str] = field(default_factory=list)
    cursor_shown: bool = True
    _lines: list[list[Cell]] = field(default_factory=lambda: [[]])
    _row: int = 0
    _column: int = 0
    _style: str = ""
    _rest: str = ""

    @property
    def lines(self) -> list[str]:
        """The lines on the screen as plain text, without empty ones at the end."""
        shown = ["".join(char for char, _ in line).rstrip() for line in self._lines]
        while shown and not shown[-1]:
            shown.pop()
        return shown

    def styled(self) -> str:
        """The same with their colours, as text with SGR sequences."""
        return "\n".join("".join(_runs(line)) for line in self._lines[: len(self.lines)])

    def feed(self, text: str) -> None:
        """Draw this output; an escape sequence that is cut off waits for its rest."""
        text = self._rest + text
        cut = text.rfind("\x1b")
        whole = cut < 0 or TOKEN.match(text, cut)
        text, self._rest = (text, "") if whole else (text[:cut], text[cut:])
        for token in TOKEN.finditer(text):
            if token[2]:
                self._control(token[1], token[2])
            elif token[0] in ("\r", "\n", "\b", "\x07"):
                self._move(token[0])
            elif not token[0].startswith("\x1b"):
                self._write(token[0])

    def resize(self, columns: int, rows: int) -> None:
        """Take another size; longer lines wrap, and the cursor stays where it is in its line."""
        lines: list[list[Cell]] = []
        for number, line in enumerate(self._lines):
            parts = [line[at : at + columns] for at in range(0, len(line), columns)] or [[]]
            if number == self._row:
                self._row, self._column = (
                    len(lines) + min(self._column // columns, len(parts) - 1),
                    self._column % columns,
                )
            lines += parts
        self.columns, self.rows, self._lines = columns, rows, lines
        self._scroll()

    def _write(self, text: str) -> None:
        for char in text:
            if self._column >= self.columns:
                self._move("\r")
                self._move("\n")
            line = self._lines[self._row]
            line += [(" ", "")] * (self._column + 1 - len(line))
            line[self._column] = (char, self._style)
            self._column += 1

    def _move(self, char: str) -> None:
        if char == "\r":
            self._column = 0
        elif char == "\b":
            self._column = max(0, self._column - 1)
        elif char == "\n":
            self._row += 1
            self._grow()

    def _grow(self) -> None:
        self._lines += [[] for _ in range(self._row + 1 - len(self._lines))]
        self._scroll()

    def _scroll(self) -> None:
        over = max(0, len(self._lines) - self.rows)
        self.history += ["".join(char for char, _ in line).rstrip() for line in self._lines[:over]]
        del self._lines[:over]
        self._row = max(0, self._row - over)

    def _control(self, given: str, kind: str) -> None:
        number = int(given) if given.isdigit() else 0
        line = self._lines[self._row]
        if kind == "A":
            self._row = max(0, self._row - (number or 1))
        elif kind == "B":
            self._row = min(self.rows - 1, self._row + (number or 1))
            self._grow()
        elif kind == "K":
            del line[0 if number == 2 else self._column :]
        elif kind == "m":
            self._style = "" if given in ("", "0") else f"{self._style};{given}".lstrip(";")
        elif given == "?25":
            self.cursor_shown = kind == "h"
        else:
            raise AssertionError(f"this terminal does not know CSI {given}{kind}")


def _runs(line: Sequence[Cell]) -> Iterator[str]:
    style = ""
    for char, wanted in line:
        if wanted != style:
            yield f"\x1b[0;{wanted}m" if wanted else "\x1b[0m"
            style = wanted
        yield char
    if style:
        yield "\x1b[0m"


class Terminal:
    """A program with a pty for stderr, or for all three streams. Its output is on ``screen`` and in ``raw``."""

    def __init__(
        self,
        argv: Sequence[str | Path],
        *,
        columns: int = 80,
        rows: int = 24,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        stdin: int | None = None,
        all_streams: bool = False,
    ):
        self.screen, self.raw = Screen(columns, rows), ""
        self._master, slave = pty.openpty()
        self._lock, self._open, self._frozen = threading.Lock(), True, False
        self._set_size(columns, rows)
        shown = {"TERM": "xterm-256color", **(os.environ if env is None else env)}
        out: Any = slave if all_streams else subprocess.PIPE
        self.process = subprocess.Popen(
            argv, stdin=slave if all_streams else stdin, stdout=out, stderr=slave, env=shown, cwd=cwd,
            start_new_session=True,
        )  # fmt: skip
        os.close(slave)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def resize(self, columns: int, rows: int) -> None:
        """What a window manager does."""
        with self._lock:
            self.screen.resize(columns, rows)
            self._set_size(columns, rows)

    def until(self, holds: Callable[[Screen], bool], seconds: float = 10) -> list[str]:
        """The lines on the screen as soon as this holds; fails when it does not within the time."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            with self._lock:
                if holds(self.screen):
                    return self.screen.lines
            time.sleep(0.02)
        raise AssertionError("not seen; on the screen:\n" + "\n".join(self.screen.lines))

    def hang_up(self) -> None:
        """What closing the window does, for a program that is in no session of this terminal."""
        os.close(self._master)
        self._open = False

    def freeze(self) -> None:
        """Keep what is on the screen now, whatever the program goes on to write."""
        with self._lock:
            self._frozen = True

    def ended(self, seconds: float = 30) -> int:
        """The exit code, once it ended and everything was drawn."""
        code = self.process.wait(seconds)
        self._reader.join(seconds)
        return code

    def _set_size(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def _read(self) -> None:
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        with contextlib.suppress(OSError):  # the other side is closed
            while data := os.read(self._master, 65536):
                text = decoder.decode(data)
                with self._lock:
                    self.raw += text
                    if not self._frozen:
                        self.screen.feed(text)

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *error: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        if self._open:
            self._reader.join()
            os.close(self._master)
        for stream in (self.process.stdin, self.process.stdout):
            if stream:
                stream.close()
