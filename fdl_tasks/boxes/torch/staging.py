"""How a variant of libtorch gets to its place: out of a staging directory beside it, in one rename."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from ...errors import PermanentError
from ..room import full, is_full

LOCK, STAGING = ".fdl-lock", ".fdl-staging-"


@contextlib.contextmanager
def staging(place: Path, *, clean: bool) -> Iterator[Path]:
    """A private directory on the same file system; what killed runs left is removed where no other can be at work."""
    for old in place.glob(f"{STAGING}*") if clean else ():
        shutil.rmtree(old, ignore_errors=True)
    made = Path(tempfile.mkdtemp(prefix=STAGING, dir=place))
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


def move(new: Path, to: Path, *, aside: Path) -> None:
    """``new`` in the place of whatever is there; whatever happens, one of the two is there then."""
    try:
        with contextlib.suppress(FileNotFoundError):
            to.rename(aside)
        new.rename(to)
    except BaseException:
        if not to.exists() and aside.exists():
            aside.rename(to)
        raise


@contextlib.contextmanager
def writing(place: Path) -> Iterator[None]:
    """What can't be written below ``place`` is permanent: waiting gives no permission and no room."""
    try:
        yield
    except OSError as error:
        where = Path(str(error.filename or place))
        if is_full(error):
            raise full(where, "libtorch") from error
        raise PermanentError(
            f"libtorch can't be installed: {error.strerror or error}",
            where=str(where),
            hint="the global root (FLODL_HOME, else ~/.flodl) has to be a writable directory",
        ) from error
