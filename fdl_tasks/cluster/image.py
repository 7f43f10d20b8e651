"""An image reference, parsed once (pure). Grammar: https://pkg.go.dev/github.com/distribution/reference"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ..errors import UsageError

_PART = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_REPOSITORY = re.compile(rf"{_PART}(?:/{_PART})*")
_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?"
_REGISTRY = re.compile(rf"(?:{_LABEL}(?:\.{_LABEL})*|\[[0-9a-fA-F:]+\])(?::[0-9]{{1,5}})?")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}|sha512:[0-9a-f]{128}")
_ID = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class ImageRef:
    """An image as somebody named it. ``registry`` is empty, ``tag`` and ``digest`` None, when not written."""

    registry: str
    repository: str
    tag: str | None = None
    digest: str | None = None

    @property
    def name(self) -> str:
        """Registry and repository, without tag and digest."""
        return f"{self.registry}/{self.repository}" if self.registry else self.repository

    @property
    def tagged(self) -> str:
        """The name with its tag, ``latest`` when neither tag nor digest is written (as Docker reads it)."""
        tag = self.tag or ("" if self.digest else "latest")
        return f"{self.name}:{tag}" if tag else self.name

    def __str__(self) -> str:
        tag = f":{self.tag}" if self.tag else ""
        return self.name + tag + (f"@{self.digest}" if self.digest else "")

    @classmethod
    def parse(cls, text: str) -> ImageRef:
        """Read ``[registry/]repository[:tag][@digest]``.

        Raises:
            UsageError: blanks, a leading ``-``, an empty part, or what Docker would not take.
        """
        _refuse_unsafe(text)
        rest, at, digest = text.partition("@")
        name, tag = _split_tag(rest)
        registry, repository = _split_registry(name)
        _check(text, "registry", registry or None, _REGISTRY, "a host name, with a port or without")
        _check(text, "repository", repository, _REPOSITORY, "lower-case letters, digits, and . _ - between them")
        _check(text, "tag", tag, _TAG, "up to 128 letters, digits, and . _ - after the first")
        _check(text, "digest", digest if at else None, _DIGEST, "sha256: and 64 hexadecimal digits")
        if not registry and _ID.fullmatch(repository):
            raise _bad(text, "it is an image's id", "name the image by repository and tag")
        return cls(registry, repository, tag, digest if at else None)


def _bad(text: str, why: str, hint: str = "") -> UsageError:
    return UsageError(f"{text!r} is no image reference: {why}", hint=hint)


def _refuse_unsafe(text: str) -> None:
    if not text:
        raise _bad(text, "it is empty", "write it as repository:tag")
    if any(ch.isspace() or not ch.isprintable() for ch in text):
        raise _bad(text, "it has a blank or a control character in it")
    if text.startswith("-"):
        raise _bad(text, "it begins with '-'")


def _split_tag(text: str) -> tuple[str, str | None]:
    """A colon after the last slash begins a tag; one before it belongs to the registry's port."""
    name, colon, tag = text.rpartition(":")
    return (name, tag) if colon and "/" not in tag else (text, None)


def _split_registry(name: str) -> tuple[str, str]:
    """The first part is a registry when it could be no repository: a dot, a port, or ``localhost``."""
    first, slash, rest = name.partition("/")
    is_registry = slash and (any(ch in ".:" for ch in first) or first == "localhost" or first != first.lower())
    return (first, rest) if is_registry else ("", name)


def _check(text: str, part: str, value: str | None, form: re.Pattern[str], expected: str) -> None:
    if value == "":
        raise _bad(text, f"its {part} is empty")
    if value is not None and not form.fullmatch(value):
        raise _bad(text, f"its {part} is {value!r}", f"expected {expected}")
