"""One large file over HTTP: streamed, resumed where it broke off, tried again, and checked.

A part is continued only where the server says, by its ETag or date, that the file is still the same one
(``If-Range``, RFC 9110): two versions are never put together. Proxies and ``.netrc`` are the environment's, as
everywhere with requests.
"""

from __future__ import annotations

import contextlib
import hashlib
import random
import re
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from importlib.metadata import PackageNotFoundError, version
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit, urlunsplit

from ...errors import PermanentError, TransientError
from ...sizes import human_size
from ..room import free, full, is_full

if TYPE_CHECKING:
    from requests import Response, Session

Progress = Callable[[int, int | None], None]  # bytes done, and of how many; None: nobody knows

CHUNK = 1 << 20  # bytes; less costs more CPU, more gains nothing (measured); what breaks off in one comes again
TIMEOUT = (15.0, 60.0)  # seconds to connect, and between two pieces of an answer
TRIES = 5  # in a row that bring nothing more: not one further chunk
PAUSE = 1.0  # seconds before the second try, doubled before each further one
LONGEST = 60.0  # seconds that a server may ask to wait
MOST = 32 << 30  # bytes: an answer without an end fills no disk
AGAIN = (408, 425, 429)  # and all from 500 on: the next try may work
WHAT = "the archive of libtorch"
STEP, EVERY, UNKNOWN = 0.02, 0.5, 64 << 20  # progress is told after this share, these seconds; of no total: these bytes


def silent(done: int, total: int | None) -> None:
    """The progress of whoever wants none."""


def steps(progress: Progress) -> Progress:
    """Told now and then: a pipe gets a few lines of a download, not one a block."""
    last = [-1, 0.0]

    def told(done: int, total: int | None) -> None:
        now, step = time.monotonic(), total * STEP if total else UNKNOWN
        if done == total or done < last[0] or last[0] < 0 or (done - last[0] >= step and now - last[1] >= EVERY):
            last[:] = [done, now]
            progress(done, total)

    return told


def download(
    url: str, file: Path, *, sha256: str | None = None, progress: Progress = silent, disk: Path | None = None
) -> None:
    """Bring what ``url`` names into ``file``.

    Args:
        sha256: what it has to hash to.
        disk: what a full disk is named by; default: the directory of ``file``.

    Raises:
        TransientError: it did not come, not whole, or it is something else.
        PermanentError: there is no room for it, or ``file`` can't be written.
    """
    import requests

    disk = disk or file.parent
    with _written(disk, None):
        out = FileIO(file, "w")
    with out, requests.Session() as session:
        part = _Part(url, disk, out, progress, hashed=bool(sha256))
        _until_whole(session, part)
    if sha256 and (found := part.digest.hexdigest()) != sha256.lower():
        raise _failed(url, f"its SHA-256 is {found}, and {sha256} is pinned", "is the pin that of this very file?")


def _until_whole(session: Session, part: _Part) -> None:
    left = TRIES
    while True:
        before = part.furthest
        try:
            return _receive(session, part)
        except _Again as again:
            left = TRIES if part.furthest > before else left - 1
            if not left or again.after > LONGEST:
                tried = "" if left else f" ({TRIES} tries in a row)"
                hint = "run it again, or name a mirror (fdl.libtorch.base_url)"
                raise _failed(part.url, f"{again}{tried}", hint) from again
            time.sleep(again.after or _pause(TRIES - left))


def _pause(failed: int) -> float:
    """Seconds before another try; of many boxes that were cut off at once, not all come back at once."""
    return PAUSE * float(2 ** max(0, failed - 1)) * random.uniform(0.7, 1.3)  # noqa: S311 - no secret


class _Again(Exception):
    """A try that failed as the next one may not. ``after``: seconds that the server asks to wait."""

    def __init__(self, why: str, after: float = 0.0):
        super().__init__(why)
        self.after = after


def _receive(session: Session, part: _Part) -> None:
    """One request and all that it brings."""
    import requests

    headers = {"User-Agent": _agent(), "Accept-Encoding": "identity", **part.rest()}
    try:
        with session.get(part.url, headers=headers, stream=True, timeout=TIMEOUT) as response:
            part.begin(response)
            for chunk in response.iter_content(CHUNK):
                part.add(chunk)
    except (requests.RequestException, ValueError) as error:  # ValueError: it was sent on to what is no address
        raise _Again(f"{_why(error)}, after {part}" if part.done else _why(error)) from error
    if part.total is not None and part.done < part.total:  # urllib3 looks at that since 2.0
        raise _Again(f"it ended after {part}")


def _agent() -> str:
    """The official server answers 403 to whoever names none."""
    try:
        return f"fdl-tasks/{version('fdl-tasks')}"
    except PackageNotFoundError:  # run from a checkout that is not installed
        return "fdl-tasks"


def _why(error: BaseException) -> str:
    """The innermost reason; those around it tell of pools and objects."""
    while inner := error.__cause__ or error.__context__:
        error = inner
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


class _Part:
    """What has come so far, and how to know what belongs to it."""

    def __init__(self, url: str, disk: Path, out: FileIO, progress: Progress, *, hashed: bool):
        self.url, self._disk, self._out, self._progress, self._hashed = url, disk, out, progress, hashed
        self.done, self.furthest = 0, 0
        self.total: int | None = None
        self._validator, self.digest = "", hashlib.sha256()

    def __str__(self) -> str:
        return human_size(self.done) if self.total is None else f"{human_size(self.done)} of {human_size(self.total)}"

    def rest(self) -> dict[str, str]:
        """The headers that ask for what is missing; none where all of it has to come anew."""
        if not self.done or not self._validator:
            return {}
        return {"Range": f"bytes={self.done}-", "If-Range": self._validator}

    def begin(self, response: Response) -> None:
        """Take the head of an answer.

        Raises:
            _Again: it is of no use, and the next one may be.
        """
        code, asked = response.status_code, self.rest()
        if urlsplit(self.url).scheme == "https" != urlsplit(response.url).scheme:
            raise _failed(self.url, f"it leads to an address without TLS: {bare(response.url)}", "name another mirror")
        if code == 200:
            self._anew(response)
        elif code == 206 and asked and self._goes_on(response.headers.get("Content-Range", "")):
            return
        elif code in (206, 416):
            self._validator = ""  # so that the next one asks for all of it
            raise _Again(f"the server does not go on after {self} (answer {code})")
        elif code in AGAIN or code >= 500:
            raise _Again(_answer(response), seconds(response.headers.get("Retry-After", "")))
        else:
            raise _failed(self.url, _answer(response), "does the mirror have this release and this variant?")

    def _anew(self, response: Response) -> None:
        """All of it comes: the first answer, or the file is another one now, or the server can't go on."""
        plain = {} if "Content-Encoding" in response.headers else response.headers
        length, etag = plain.get("Content-Length", ""), plain.get("ETag", "")
        self.total = int(length) if re.fullmatch("[0-9]{1,18}", length) else None
        self._validator = etag if etag.startswith('"') else plain.get("Last-Modified", "")  # a weak ETag can't be used
        self.done, self.digest = 0, hashlib.sha256()
        if self.furthest:
            with _written(self._disk, self.total):
                self._out.seek(0)
                self._out.truncate()
        self._fits(self.total or 0)
        if self.total and self.total > free(self._disk):
            raise full(self._disk, WHAT, self.total)

    def _fits(self, size: int) -> None:
        if size > MOST:
            raise _failed(self.url, f"it is larger than any libtorch: {human_size(size)}", "is it the right mirror?")

    def _goes_on(self, content_range: str) -> bool:
        found = re.fullmatch(r"bytes ([0-9]+)-[0-9]+/([0-9]+|\*)", content_range)
        return found is not None and int(found[1]) == self.done and found[2] in ("*", str(self.total))

    def add(self, chunk: bytes) -> None:
        self._fits(self.done + len(chunk))
        with _written(self._disk, self.total):
            rest = memoryview(chunk)
            while rest:
                rest = rest[self._out.write(rest) :]
        if self._hashed:  # on the way: 0.5 s a GB, and no second reading
            self.digest.update(chunk)
        self.done += len(chunk)
        self.furthest = max(self.furthest, self.done)
        self._progress(self.done, self.total)


@contextlib.contextmanager
def _written(disk: Path, size: int | None) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if is_full(error):
            raise full(disk, WHAT, size) from error
        raise PermanentError(f"{WHAT} can't be written: {error.strerror}", where=str(error.filename or disk)) from error


def _answer(response: Response) -> str:
    return f"the server answers {response.status_code} {response.reason or ''}".rstrip()


def seconds(retry_after: str) -> float:
    """What a ``Retry-After`` asks for, as a number of seconds or a date; 0 where it says nothing useful."""
    if re.fullmatch("[0-9]{1,9}", retry_after.strip()):
        return float(retry_after)
    try:
        asked = parsedate_to_datetime(retry_after)
    except ValueError:
        return 0.0
    return max(0.0, (asked.replace(tzinfo=asked.tzinfo or UTC) - datetime.now(UTC)).total_seconds())


def bare(url: str) -> str:
    """An address without the name and password that may stand in it."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def _failed(url: str, why: str, hint: str) -> TransientError:
    return TransientError(f"the download failed: {why}", where=bare(url), hint=hint)
