"""Long messages on a terminal: broken between words, as its width allows. Files and pipes get whole lines."""

from __future__ import annotations

import shutil
import textwrap
from typing import TextIO

QUOTED = "  | "  # lines of a program's output: they stay as they are


def wrapped(text: str, stream: TextIO | None) -> str:
    """``text`` as it goes to ``stream``; what continues a line is indented below it."""
    if stream is None or not stream.isatty():
        return text
    width = shutil.get_terminal_size().columns
    return "\n".join(line if line.startswith(QUOTED) else _fill(line, width) for line in text.split("\n"))


def _fill(line: str, width: int) -> str:
    indent = " " * (len(line) - len(line.lstrip()) + 2)
    return textwrap.fill(line, max(width, 20), subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
