"""What is wrong in a document, in our words: pydantic's errors as faults with file, line and path."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from ..errors import ConfigError, Fault
from . import scalars
from .crosscheck import Found, Place

M = TypeVar("M", bound=BaseModel)

_EXPECTED = {
    "string_type": "text",
    "int_type": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "list_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
}
_SENTENCE = {"finite_number": "expected a finite number", "too_short": "expected at least one entry"}
_GOT = {str: "text", bool: "true or false", float: "a fraction", list: "a list", dict: "a mapping"}
_NOT_OURS = {
    "ranks": "is assigned by the launcher from the devices, not written: remove it",
    "inherit-from": "is not supported, as overlays are not: write the cluster in one file",
}


@dataclass(frozen=True)
class Document:
    """A YAML file as plain values. ``lines`` has the 1-based line of every place that was read."""

    file: str
    value: dict[str, Any]
    lines: Mapping[Place, int]
    faults: tuple[Fault, ...]

    def fault(self, place: Place, message: str) -> Fault:
        """A fault at a place, in its line or that of the nearest place around it that is written."""
        around = (place[:n] for n in range(len(place), -1, -1))
        line = next((self.lines[known] for known in around if known in self.lines), 0)
        return Fault(self.file, line, spelled(place), message)


def spelled(place: Place) -> str:
    """A place as people write it: ``workers[0].ssh.port``."""
    steps = (f"[{step}]" if isinstance(step, int) else f".{_key(step)}" for step in place)
    return "".join(steps).removeprefix(".")


def _key(name: str) -> str:
    short = name if len(name) <= 60 else name[:57] + "…"
    return short if re.fullmatch(r"[\w-][\w.…-]*", short) else ascii(short)


def checked(model: type[M], value: object, document: Document, place: Place = (), extra: Iterable[Found] = ()) -> M:
    """The block that ``value``, found at ``place``, holds.

    Raises:
        ConfigError: with the document's faults, those that the model finds, and ``extra``, by line.
    """
    faults = [document.fault(place + at, message) for at, message in extra]
    try:
        block = model.model_validate(value)
    except ValidationError as error:
        faults += [_fault(model, problem, document, place) for problem in error.errors()]
    unread = {fault.path for fault in document.faults}  # what stands there instead is no second fault
    faults = [*document.faults, *(fault for fault in faults if fault.path not in unread)]
    if faults:
        raise _refused(document.file, faults)
    return block


def _refused(file: str, faults: list[Fault]) -> ConfigError:
    faults = sorted(dict.fromkeys(faults), key=lambda fault: (fault.line, fault.path))
    count = "one fault" if len(faults) == 1 else f"{len(faults)} faults"
    return ConfigError(f"{count} in it", where=file, faults=faults)


def _fault(model: type[BaseModel], problem: ErrorDetails, document: Document, place: Place) -> Fault:
    at = tuple(step for step in problem["loc"] if step != "[key]")
    return document.fault(place + at, _message(model, problem, at))


def _message(model: type[BaseModel], problem: ErrorDetails, at: Place) -> str:
    """What was expected. Never the value: it may be a token, or a variable's."""
    kind, context = problem["type"], problem.get("ctx", {})
    if kind == "extra_forbidden":
        return _unknown(str(at[-1]), list(_fields(model, at[:-1])))
    if kind == "missing":
        return f"is missing. {_fields(model, at[:-1])[str(at[-1])].description}"
    if kind == "value_error":
        return str(context["error"])
    if kind == "literal_error":
        return f"expected {context['expected']}"
    if kind in _EXPECTED:
        return f"expected {_EXPECTED[kind]}, found {_got(problem['input'], kind)}"
    return _SENTENCE.get(kind) or problem["msg"].replace("Input should be", "expected a value", 1)


def _got(value: object, kind: str) -> str:
    hint = ": put it in quotes" if kind == "string_type" and isinstance(value, int | float) else ""
    if value is None or isinstance(value, scalars.Whole):
        return f"a number{hint}" if value is not None else "nothing"
    return _GOT[type(value)] + hint


def _unknown(key: str, known: list[str]) -> str:
    if key in _NOT_OURS:
        return _NOT_OURS[key]
    near = difflib.get_close_matches(key.lower().replace("-", "_"), known, n=1)
    return f"unknown key: did you mean `{near[0]}`?" if near else f"unknown key: expected one of {', '.join(known)}"


def _fields(model: type[BaseModel], at: Place) -> dict[str, FieldInfo]:
    """The keys that the block at this place may have, with what is known of them."""
    kind: Any = model
    for step in at:
        kind = _inner(kind, step)
    return _by_key(kind)


def _by_key(model: type[BaseModel]) -> dict[str, FieldInfo]:
    return {field.alias or name: field for name, field in model.model_fields.items()}


def _inner(kind: Any, step: str | int) -> Any:
    """The type one step down: a block's key, or a list's or a mapping's element; None is left out."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        kind = _by_key(kind)[str(step)].annotation
    else:
        kind = get_args(kind)[-1]
    while type(None) in get_args(kind):
        kind = next(part for part in get_args(kind) if part is not type(None))
    return kind
