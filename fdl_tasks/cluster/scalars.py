"""What a plain YAML scalar is: the core schema of YAML 1.2, without its surprises (pure).

``NO``, ``on``, ``12:30:45`` and ``012`` are text; source: https://yaml.org/spec/1.2.2/#103-core-schema,
except that a number with a leading zero stays text too (labels, ports written ``022``, hexadecimal tokens).
"""

from __future__ import annotations

import re

PREFIX = "tag:yaml.org,2002:"
# kind -> its form, and the characters it may begin with ("" for an empty scalar)
FORMS: dict[str, tuple[re.Pattern[str], list[str]]] = {
    "null": (re.compile(r"(?:~|null|Null|NULL|)\Z"), ["~", "n", "N", ""]),
    "bool": (re.compile(r"(?:true|True|TRUE|false|False|FALSE)\Z"), list("tTfF")),
    "int": (re.compile(r"(?:[-+]?(?:0|[1-9][0-9]*)|0o[0-7]+|0x[0-9a-fA-F]+)\Z"), list("-+0123456789")),
    "float": (
        re.compile(
            r"(?:[-+]?(?:\.[0-9]+|(?:0|[1-9][0-9]*)(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?"
            r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))\Z"
        ),
        list("-+.0123456789"),
    ),
}
MOST_DIGITS = 100


class Whole(int):
    """A whole number that remembers how it was written, for where text is wanted (``env:``)."""

    written: str

    def __new__(cls, written: str) -> Whole:
        number = super().__new__(cls, written, 0)
        number.written = written
        return number


def typed(tag: str, text: str) -> object:
    """The value of a scalar whose full tag is known.

    Raises:
        ValueError: an unknown tag, or a text that is not of the tag's form.
    """
    kind = tag.removeprefix(PREFIX)
    if kind == "str":
        return text
    if kind not in FORMS:
        raise ValueError(f"the tag {tag!r} is not read here: expected text, a number, true, false or null")
    if not FORMS[kind][0].match(text):
        raise ValueError(f"expected the form that YAML 1.2 has for {kind}")
    if len(text) > MOST_DIGITS:
        raise ValueError(f"expected a number of at most {MOST_DIGITS} digits")
    return _value(kind, text)


def _value(kind: str, text: str) -> object:
    if kind == "int":
        return Whole(text)
    if kind == "float":
        return float(text.replace(".", "", 1) if text.lstrip("+-.")[0] in "iInN" else text)
    return text.lower() == "true" if kind == "bool" else None
