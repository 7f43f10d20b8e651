"""Which libtorch this is: an identity that changes when a variant is replaced in place.

cargo does not notice such a change (measured: facts/bootstrap.md): it says "Finished", and the
binary then dies with ``undefined symbol``.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from .errors import BuildError

STAMP = ".fdl-libtorch"  # in a target directory: the identity that it was filled against (build.sh)


def identity(variant: Path) -> str:
    """A digest of ``build-version`` and of name, size and mtime of everything in ``lib/``.

    Raises:
        BuildError: the variant could not be read.
    """
    digest = hashlib.sha256()
    try:
        digest.update(_version(variant))
        for path in sorted((variant / "lib").rglob("*")):
            digest.update(_facts(variant, path))
    except OSError as error:
        raise BuildError(f"libtorch can't be read: {error}", where=str(variant)) from error
    return digest.hexdigest()


def _version(variant: Path) -> bytes:
    try:
        return (variant / "build-version").read_bytes()
    except FileNotFoundError:
        return b""


def _facts(variant: Path, path: Path) -> bytes:
    """Of a link, what it points at: libraries hide behind ``libtorch.so -> libtorch.so.2``."""
    stat = path.stat() if path.exists() else path.lstat()
    name = str(path.relative_to(variant)).encode("utf-8", "surrogateescape")
    return b"\0%s\0%d\0%d" % (name, stat.st_size, stat.st_mtime_ns)
