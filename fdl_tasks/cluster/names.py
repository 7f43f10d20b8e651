"""What a name, a path or a text must look like before it may reach a script or a file system (pure).

Each function gives its argument back, or raises ValueError with a sentence that says what was
expected. None of them repeats a value that may be a secret.
"""

from __future__ import annotations

import posixpath
import re
import unicodedata

_ENV_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PIN = re.compile(r"SHA256:[A-Za-z0-9+/]{43}=?")
_OPTION = re.compile(r"[A-Za-z][A-Za-z0-9]*(\s*=\s*|\s+)\S.*")
_ENDPOINT = re.compile(r"unix:///.+|(tcp|ssh|http|https)://[^/].*")
RESERVED_PREFIX = "FLODL_INTERNAL_"
RESERVED_ENV = frozenset(  # the launcher assigns these per rank; a written value would pin every rank
    (
        "CUDA_VISIBLE_DEVICES",
        "CUDA_DEVICE_ORDER",
        "HIP_VISIBLE_DEVICES",
        "ROCR_VISIBLE_DEVICES",
        "GPU_DEVICE_ORDINAL",
        "FLODL_HOST_NAME",
        "FDL_ENV",
    )
)


def _unprintable(value: str, allowed: str = "") -> str:
    """The first character that no script should meet, as ``U+XXXX``; empty when there is none."""
    bad = (ch for ch in value if unicodedata.category(ch) in ("Cc", "Cs") and ch not in allowed)
    return next((f"U+{ord(ch):04X}" for ch in bad), "")


def text(value: str) -> str:
    """Text of one line, without control characters. May be empty."""
    if bad := _unprintable(value):
        raise ValueError(f"expected text of one line, found the control character {bad}")
    return value


def filled(value: str) -> str:
    """Text of one line that is not blank."""
    if not value.strip():
        raise ValueError("expected text, found only blanks" if value else "expected text, found none")
    return text(value)


def shell_lines(value: str) -> str:
    """A shell line, which YAML's block style may have broken into several."""
    if bad := _unprintable(value, allowed="\n\t"):
        raise ValueError(f"expected a shell line, found the control character {bad}")
    if not value.strip():
        raise ValueError("expected a shell line, found none")
    return value


def word(value: str) -> str:
    """A word that a program takes as an operand: not empty, no blanks, no leading ``-``."""
    if not value:
        raise ValueError("expected a name, found an empty text")
    if any(ch.isspace() or not ch.isprintable() for ch in value):
        raise ValueError(f"{value!r} has a blank or a control character in it")
    if value.startswith("-"):
        raise ValueError(f"{value!r} begins with '-': it would be taken for an option")
    return value


def segment(value: str) -> str:
    """A name that is one safe path segment: labels, groups, commands, recipes (they name directories)."""
    word(value)
    if value in (".", ".."):
        raise ValueError(f"{value!r} is a directory of its own, not a name")
    if bad := next((ch for ch in value if ch in "/\\:"), ""):
        raise ValueError(f"{value!r} has {bad!r} in it: it must be usable as one directory name")
    return value


def variant(value: str) -> str:
    """A libtorch variant below ``libtorch/``, such as ``precompiled/cu128``."""
    if value.startswith("/"):
        raise ValueError(f"{value!r} is absolute: expected a variant under libtorch/, as precompiled/cu128")
    if "" in value.split("/"):
        raise ValueError(f"{value!r} has an empty part: expected a variant as precompiled/cu128")
    return "/".join(segment(part) for part in value.split("/"))


def inside(value: str) -> str:
    """A relative path that stays below the directory it is relative to; normalised."""
    filled(value)
    if value.startswith(("/", "~")):
        raise ValueError(f"{value!r} is not relative: expected a path below its root")
    if ".." in value.split("/"):
        raise ValueError(f"{value!r} may lead outside: expected a path without '..'")
    return posixpath.normpath(value)


def absolute(value: str) -> str:
    """An absolute path, without slashes at its end."""
    filled(value)
    if not value.startswith("/"):
        raise ValueError(f"{value!r} is not absolute: expected a path that begins with '/'")
    return value.rstrip("/") or "/"


def here(value: str) -> str:
    """A path that is absolute, or relative to the file it is written in."""
    if filled(value).startswith("~"):
        raise ValueError(f"{value!r} begins with '~', which nothing expands here: write the path in full")
    return value


def search_path(value: str) -> str:
    """A directory to look in: absolute, or below the file it is written in."""
    return absolute(value) if value.startswith("/") else inside(value)


def env_key(value: str) -> str:
    """A name for an environment variable that the launcher does not keep for itself."""
    if not _ENV_KEY.fullmatch(value):
        raise ValueError(f"{value!r} is no name of a variable: expected letters, digits and '_'")
    if value in RESERVED_ENV or value.startswith(RESERVED_PREFIX):
        raise ValueError(f"{value} is reserved: the launcher sets it for each rank")
    return value


def pin(value: str) -> str:
    """A host key's fingerprint as ``ssh-keygen -lf`` prints it."""
    if not _PIN.fullmatch(value):
        raise ValueError("expected SHA256: and 43 characters, as `ssh-keygen -lf` prints a fingerprint")
    return value.rstrip("=")


def ssh_option(value: str) -> str:
    """One ssh_config line, as for ``ssh -o``."""
    if not _OPTION.fullmatch(text(value)):
        raise ValueError("expected an ssh option as Keyword=value")
    return value


def endpoint(value: str) -> str:
    """A Docker endpoint, as for ``DOCKER_HOST``."""
    if not _ENDPOINT.fullmatch(text(value)):
        raise ValueError("expected an endpoint as unix:///run/docker.sock, tcp://host:port or ssh://host")
    return value
