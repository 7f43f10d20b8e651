"""The result, and nothing else, on stdout: a table for people or one JSON object for programs."""

from __future__ import annotations

import json
import os
import re
import sys

from ..errors import FdlError

_OBEYED = re.compile("[\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")  # by a terminal, and left as it is by json


def dumps(value: object, *, ascii_only: bool = False) -> str:
    """One line of JSON, keys in their order, UTF-8 unescaped but for what a terminal would obey."""
    text = json.dumps(value, ensure_ascii=ascii_only, separators=(",", ":"))
    return _OBEYED.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def emit_json(value: object) -> None:
    """Print one JSON object; escaped where stdout's encoding, or a file name that is no text, asks for it."""
    try:
        text = dumps(value)
        text.encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except UnicodeEncodeError:
        text = dumps(value, ascii_only=True)
    emit(text)


def emit(text: str) -> None:
    """Print text and a newline now. A reader that has gone away, as ``head`` does, is no failure.

    Raises:
        FdlError: stdout can't be written, as on a full disk.
    """
    if sys.stdout is None:  # the caller closed it
        return
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    try:
        sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding) + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        _discard()
    except OSError as error:
        _discard()
        raise FdlError(f"the result can't be written to stdout: {error.strerror}") from None


def _discard() -> None:
    """What is still in stdout's buffer goes nowhere, so that Python's own exit does not stumble on it."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
