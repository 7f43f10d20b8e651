"""What a script of templates/images/ answered (pure).

A line is ``__FDL_<NAME>__ <bytes> <value>`` and counts only when its value has that many bytes: what was cut, or
has other output in it, is not there.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from typing import Any

from ..errors import ScriptError
from ..hosts.output import reason

_LINE = re.compile(r"__FDL_([A-Z]+)__ (\d{1,8}) (.*)")


def said(text: str) -> dict[str, list[str]]:
    """Every value that was said whole, by name."""
    found: dict[str, list[str]] = defaultdict(list)
    for line in text.split("\n")[:-1]:
        match = _LINE.fullmatch(line)
        if match and len(match[3].encode("utf-8", "surrogatepass")) == int(match[2]):
            found[match[1]].append(match[3])
    return found


def whole(text: str, where: str, err: str = "") -> dict[str, str]:
    """Of an answer that came to its end: each value that was said once, or always alike.

    Raises:
        ScriptError: it did not; ``err`` is what the script said on stderr.
    """
    found = said(text)
    if "END" not in found:
        raise ScriptError("the script's answer was cut off", where=where, tail=err.splitlines()[-5:])
    return {name: values[0] for name, values in found.items() if len(set(values)) == 1}


def words(value: str) -> str:
    """A program's output, a tab for each end of a line, as one line for people."""
    return reason(value.split("\t"))


def json_object(text: str | None) -> dict[str, Any] | None:
    """The object that a value is; None when it is none."""
    try:
        shown = json.loads(text or "")
    except (ValueError, RecursionError):
        return None
    return shown if isinstance(shown, dict) else None
