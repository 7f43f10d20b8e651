"""Script text from templates: every value quoted by the renderer, every template linted.

A template is ordinary shell under a short head. Only the head may hold values, and only as
``NAME={{ value }}`` (one word) or ``set -- {{ values }}`` (any number of words), outside any
quotes, comment or heredoc; there Jinja's output can't be anything but words (the measurements
behind the rule: facts/bootstrap.md). The body reads ``"$NAME"`` and ``"$@"``.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from .errors import TemplateError

if TYPE_CHECKING:
    from jinja2 import Environment

Value = str | int | Path | Sequence[str | int | Path]

_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=\{\{ ([a-z][a-z0-9_]*) \}\}")
_WORDS = re.compile(r"set -- \{\{ ([a-z][a-z0-9_]*) \}\}")
_INCLUDE = re.compile(r'\{% include "([a-z/_-]+\.sh)" %\}')
_MARKS = ("{{", "{%", "{#")
END = "#fdl"  # last line of every script: the bootstrap refuses one that does not arrive whole


@dataclass(frozen=True)
class Script:
    """One deed, ready to run. ``name`` is its template, such as ``checks/probe.sh``."""

    name: str
    text: str


@dataclass(frozen=True)
class Slots:
    """The names a template takes, one word each or any number of words each, and what it includes."""

    word: frozenset[str]
    words: frozenset[str]
    includes: tuple[str, ...] = ()


def lint(name: str, source: str) -> Slots:
    """Check one template against the quoting rule and return the names it takes.

    Raises:
        TemplateError: a value, statement or comment of Jinja's stands where it could go wrong.
    """
    word, words, includes, head = set(), set(), [], True
    for number, line in enumerate(source.split("\n"), 1):  # as a shell counts lines
        if not any(mark in line for mark in _MARKS):
            head = head and (not line.strip() or line.startswith("#"))
        elif head and (found := _WORD.fullmatch(line)):
            word.add(found[1])
        elif head and (found := _WORDS.fullmatch(line)):
            words.add(found[1])
        elif head and (found := _INCLUDE.fullmatch(line)):
            includes.append(found[1])
        else:
            raise _misplaced(name, number, line)
    return Slots(frozenset(word), frozenset(words), tuple(includes))


def _misplaced(name: str, number: int, line: str) -> TemplateError:
    return TemplateError(
        f"Jinja where a value could break out of its quotes: {line.strip()!r}",
        where=f"{name}:{number}",
        hint="put it at the head of the template, alone on its line, as NAME={{ value }} or "
        'set -- {{ values }}, and write "$NAME" or "$@" below (${#x} is read as a Jinja comment: use another way)',
    )


def quote(value: object) -> str:
    """One shell word, or the words of a sequence: Jinja's ``finalize``.

    Raises:
        TemplateError: the value is of a type that has no certain spelling, or holds a NUL.
    """
    if isinstance(value, str | Path) or type(value) is int:
        text = str(value)
        if "\0" in text or _unencodable(text):
            raise TemplateError(f"a shell word can't hold {text!r} (NUL, or not valid text)")
        return shlex.quote(text)
    if isinstance(value, list | tuple):
        return " ".join(quote(item) for item in value)
    raise TemplateError(f"a template takes str, int, Path and sequences of them, not {type(value).__name__}")


def _unencodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def folders(overrides: Path | None) -> tuple[Path, ...]:
    """Where templates are looked for: the user's folder, then the library's own."""
    here = Path(__file__).parent
    shipped = here / "templates"  # in a wheel; beside the package in a checkout
    own = shipped if shipped.is_dir() else here.parent / "templates"
    return (overrides, own) if overrides else (own,)


class Scripts:
    """Renders the library's templates, and a user's own where their folder has the same name."""

    def __init__(self, overrides: Path | None = None):
        if overrides and not overrides.is_dir():
            raise TemplateError(
                "the folder of own templates is not there", where=str(overrides), hint="mend fdl.templates"
            )
        self._folders = folders(overrides)
        self._slots: dict[str, Slots] = {}

    def render(self, name: str, /, **values: Value) -> Script:
        """The script of template ``name`` with every value quoted.

        Raises:
            TemplateError: no such template, it breaks the rule, or the values are not the ones it takes.
        """
        slots = self.slots(name)
        for key, value in values.items():
            if key not in slots.word | slots.words:
                raise TemplateError(f"takes no value named {key!r}", where=name)
            if isinstance(value, list | tuple) != (key in slots.words):
                raise TemplateError(
                    f"{key!r} must be {'a sequence' if key in slots.words else 'one value'}", where=name
                )
        if missing := (slots.word | slots.words) - values.keys():
            raise TemplateError(f"was given no {', '.join(sorted(missing))}", where=name)
        body = _environment(self._folders).get_template(name).render(values)
        return Script(name, f"{body.rstrip()}\n{END}\n")

    def slots(self, name: str) -> Slots:
        """What the template and all that it includes take, the lint passed; a file is read once."""
        if name not in self._slots:
            self._slots[name] = self._read(name)
        return self._slots[name]

    def _read(self, name: str) -> Slots:
        own = lint(str(self.path(name)), self.path(name).read_text("utf-8"))
        for part in map(self.slots, own.includes):
            own = Slots(own.word | part.word, own.words | part.words, own.includes)
        return own

    def path(self, name: str) -> Path:
        """The file of a template: the user's own where there is one."""
        for folder in self._folders:
            if (path := folder / name).is_file():
                return path
        raise TemplateError("no such template", where=name, hint=f"looked in {', '.join(map(str, self._folders))}")


@cache
def _environment(places: tuple[Path, ...]) -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    return Environment(  # noqa: S701 - this is shell: finalize quotes
        loader=FileSystemLoader([str(place) for place in places]),
        undefined=StrictUndefined,
        finalize=quote,
        keep_trailing_newline=True,
    )
