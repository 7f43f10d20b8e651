"""Connects one ``docker push`` to many ``docker pull``s: a program of its own, run by the source node's ``python3``.

Standard library of Python 3.8 and later only, one file: the controller sends its text with ``templates/images/send.sh``
and nothing of it is installed. It speaks as much of the OCI distribution protocol as Docker's containerd store needs,
on 127.0.0.1, to whoever has a password of this run. No blob is ever whole here or on a disk. Rules: spec/sync-image.md,
5; protocol and traps: facts/relay.md.

learn: a push in which every blob is said to be there already brings the manifests. ask: the targets pull, and their
requests for blobs wait. send: a second push is told to send what somebody waits for; each body goes to all who wait as
it arrives. A question of that push stays open while somebody may still ask, so one push serves late targets too; for
what comes later still there is another round.

stdin: one JSON object: ``docker`` (how a command line begins), ``image``, ``name`` (``<random>/app``), ``vouched``
(digests that the source's own inspect knows), ``targets`` (name: argv, in whose words ``@PORT@`` is the port here and
``@THERE@`` one that is picked at random on the target), ``stall``, ``load_stall``, and if wished ``lag`` (seconds).
A target's child reads two lines from its stdin: its password, and the reference to pull.
stdout: lines of JSON: ``{"target", "bytes"}`` every second, ``{"target", "total"}`` (bytes) when what it asks for is
known or has grown, ``{"targets", "note"}``, ``{"target", "bytes", "seconds", "code", "said", "error", "late"}`` when a
target ends, ``{"end": true, "error", "learnt"}`` last. ``error`` of the end is the source's; ``learnt`` (``digest``,
``manifests``) is null when its push was no good, and then no target was started.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import functools
import hashlib
import hmac
import json
import os
import random
import re
import resource
import secrets
import signal
import subprocess
import time
import urllib.parse
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable

CHUNK, QUEUE, BUFFERS = 1 << 18, 1 << 20, 24 << 20  # a piece; what may lie here for one connection, for all of them
SLOTS = 4  # bodies that are passed on at the same time
HEAD, LINES_OF_HEAD, HEAD_LIMIT = 1 << 14, 100, 10.0  # bytes, lines and seconds of a request without its body
DOCUMENT, SMALL, KEPT = 4 << 20, 1 << 14, 12 << 20  # the largest manifest; a blob that is kept; all that are kept
CONNECTIONS = 4096
TICK, QUIET, SETTLE, HOLD, RATE = 0.02, 0.3, 1.0, 20.0, 100e6  # seconds; bytes per second
LINES, LINE, PORTS = 40, 4096, 3  # last lines kept of each child, bytes of one; ports that are tried on a target
DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
RANGE = re.compile(r"bytes=(\d{1,18})-(\d{0,18})")
SINGLE = {"content-length", "transfer-encoding", "authorization", "host", "range"}  # headers that stand once
REQUEST = re.compile(r"([A-Z]{1,16}) (/[\x21-\x7e]*) HTTP/1\.[01]")
TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
WORDS = {200: "OK", 201: "Created", 202: "Accepted", 206: "Partial Content", 400: "Bad Request", 401: "Unauthorized"}
STARTED, LOADED = "__FDL_LOAD__", "__FDL_LOADED__"  # templates/images/pull-relay.sh
# has the image's name for the push as long as its stdin is open
KEEPER = '"$@" tag -- "$IMAGE" "$NAME" 2>&1 && echo tagged; cat >/dev/null; exec "$@" rmi "$NAME" >/dev/null 2>&1'
CURE = (  # Docker 26; docs/images.md
    "it was pulled, and its attestations or other platforms were not; a build of nothing but that image can be pushed: "
    "echo FROM IMAGE | docker build --provenance=false -t IMAGE -"
)
PICK = random.SystemRandom().randrange
CHILDREN: set[subprocess.Popen[bytes]] = set()


class SourceError(Exception):
    """The source's Docker cannot give the image: nobody gets it."""


class Refused(Exception):
    """A request that gets no more than a status."""

    def __init__(self, status: int, why: str = "", **headers: str):
        super().__init__(why)
        self.status, self.headers = status, headers


def tell(**facts: Any) -> None:
    """One line on stdout. Nobody there to read it: all ends."""
    line = json.dumps(facts).encode() + b"\n"
    try:
        while line:
            line = line[os.write(1, line) :]
    except OSError:
        leave()


def leave() -> None:
    kill(CHILDREN)
    os._exit(143)  # the keeper sees its pipe closed, and takes the name away


def kill(children: Iterable[subprocess.Popen[bytes]]) -> None:
    for child in children:
        with contextlib.suppress(OSError):  # root's, under sudo: it dies of its closed connection
            child.kill()


def start(argv: list[str], **options: Any) -> subprocess.Popen[bytes]:
    """A child of this process group; nothing comes between its start and its place among CHILDREN."""
    options = {"stdin": subprocess.DEVNULL, **options}
    child = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **options)
    CHILDREN.add(child)
    return child


async def reading(child: subprocess.Popen[bytes]) -> asyncio.StreamReader:
    reader = asyncio.StreamReader()
    protocol = asyncio.StreamReaderProtocol(reader)
    await asyncio.get_event_loop().connect_read_pipe(lambda: protocol, child.stdout)
    return reader


async def ended(child: subprocess.Popen[bytes], limit: float = 1e9) -> int | None:
    """Its exit code, None when it runs after ``limit`` seconds."""
    until = time.monotonic() + limit
    while child.poll() is None and time.monotonic() < until:
        await asyncio.sleep(TICK)
    return child.returncode


async def listen(child: subprocess.Popen[bytes], said: deque[str], heard: Callable[[str], object]) -> int:
    """The child's lines, and its exit code as a shell gives it."""
    reader, rest = await reading(child), b""
    while data := await reader.read(LINE):
        *lines, rest = (rest + data).replace(b"\r", b"\n").split(b"\n")
        lines, rest = (lines, rest) if len(rest) < LINE else ([*lines, rest], b"")
        for line in lines:
            said.append(line.decode("utf-8", "replace").rstrip())
            heard(said[-1])
    if rest:
        said.append(rest.decode("utf-8", "replace"))
    code = await ended(child) or 0
    CHILDREN.discard(child)
    return code if code >= 0 else 128 - code


# -- what is known, who waits --------------------------------------------------------------------


class Blob:
    """A blob that a manifest names, and who waits for it. ``data`` is there when it is small enough to be kept."""

    def __init__(self, digest: str, size: int):
        self.digest, self.size, self.keep = digest, size, False
        self.data: bytes | None = None
        self.coming = False  # this round's push was told to send it, and who waits will be served
        self.waiters: list[Waiter] = []


class Waiter:
    """One request for bytes ``first`` to ``end`` of a blob; ``done`` when it has them, or will not get them."""

    def __init__(self, target: Target, blob: Blob, first: int, end: int, writer: asyncio.StreamWriter, head: bytes):
        self.target, self.blob, self.first, self.end, self.writer, self.head = target, blob, first, end, writer, head
        self.since, self.blocked = time.monotonic(), 0.0
        self.done: asyncio.Future[bool] = asyncio.get_event_loop().create_future()

    @property
    def queued(self) -> int:
        return self.writer.transport.get_write_buffer_size()

    def write(self, at: int, data: bytes) -> None:
        """What of ``data``, which stands at ``at`` in the blob, was asked for."""
        wanted = data[max(0, self.first - at) : max(0, self.end - at)]
        self.writer.write(wanted)
        self.target.bytes += len(wanted)

    def finish(self, good: bool) -> None:
        if not good:
            self.writer.transport.abort()
        if not self.done.done():
            self.done.set_result(good)


class Target:
    """One target: its child, what it asked for, and what became of it."""

    def __init__(self, name: str, words: list[str]):
        self.name, self.words, self.password = name, words, secrets.token_hex(24)
        self.child: subprocess.Popen[bytes] | None = None
        self.said: deque[str] = deque(maxlen=LINES)
        self.asked: dict[str, int] = {}  # digest: size
        self.open: set[Waiter] = set()
        self.bytes = self.total = self.mark = 0
        self.late = self.done = self.started = False
        self.began = self.moved = self.heard = time.monotonic()

    def ask(self, waiter: Waiter) -> None:
        self.asked[waiter.blob.digest] = waiter.blob.size
        self.open.add(waiter)
        self.heard = self.moved = time.monotonic()

    def quiet(self, now: float) -> bool:
        """It has said what it lacks."""
        return bool(self.asked) and now - self.heard > QUIET

    @property
    def starves(self) -> bool:
        """It waits for the source, or for the others."""
        return bool(self.open) and not any(waiter.queued or waiter.done.done() for waiter in self.open)

    def end(self, error: str | None = None, code: int | None = None) -> None:
        if self.done:
            return
        self.done = True
        kill([self.child] if self.child else [])
        self.hang_up()
        self.tell_total()
        seconds = round(time.monotonic() - self.began, 3)
        said = [*([STARTED] if self.started and STARTED not in self.said else []), *self.said]  # a pull says much
        facts = {"seconds": seconds, "code": code, "said": said, "error": error, "late": False}
        tell(target=self.name, bytes=self.bytes, **facts)

    def tell_total(self) -> None:
        total = sum(self.asked.values())
        if total != self.total:
            self.total = total
            tell(target=self.name, total=total)

    def hang_up(self) -> None:
        """Idle connections would keep its ssh from ending."""
        for waiter in list(self.open):
            waiter.finish(False)

    def judge(self, now: float, stall: float, load_stall: float) -> None:
        """Give it up when nothing moves any more."""
        queued = sum(waiter.queued for waiter in self.open)
        if self.bytes - queued != self.mark or self.starves:
            self.mark, self.moved = self.bytes - queued, now
        if queued and now - self.moved > stall:
            self.end(f"it took no byte for {stall:g} s, {self.bytes} bytes in all")
        elif now - self.moved > load_stall:
            self.end(f"it had {self.bytes} bytes, and its pull made no progress for {load_stall:g} s")


class Image:
    """The image as the source's Docker pushes it: its manifests, and the blobs that they name."""

    def __init__(self) -> None:
        self.manifests: dict[str, tuple[str, bytes]] = {}  # digest: media type, text
        self.blobs: dict[str, Blob] = {}
        self.digest = ""  # of the last one, which is the image's

    def add(self, kind: str, text: bytes) -> str:
        """Keep a manifest; gives its digest. Raises ValueError, KeyError or TypeError when it is none."""
        found = json.loads(text)
        configs = [found["config"]] if "config" in found else []
        parts = [*configs, *found.get("layers", ())]
        if not parts and "manifests" not in found:
            raise ValueError("neither an image nor an index")
        for part in parts:
            digest, size = str(part["digest"]), int(part["size"])
            if not DIGEST.fullmatch(digest) or size < 0:
                raise ValueError(f"no blob of this form is served: {digest}, {size} bytes")
            blob = self.blobs.setdefault(digest, Blob(digest, size))
            blob.keep = blob.keep or part in configs or size <= SMALL
        self.digest = f"sha256:{hashlib.sha256(text).hexdigest()}"
        self.manifests[self.digest] = (kind, text)
        return self.digest

    def limit_kept(self) -> None:
        """Keep configs, without which no target asks for a layer, and what is as small; not more than KEPT in all."""
        total = 0
        for blob in sorted(self.blobs.values(), key=lambda blob: blob.size):
            total += blob.size
            blob.keep = blob.keep and total <= KEPT


class Hold:
    """A question of the push, whether a blob is there: the answer waits until somebody wants the blob, or nobody."""

    def __init__(self, blob: Blob):
        self.blob, self.since = blob, time.monotonic()
        self.send: asyncio.Future[bool] = asyncio.get_event_loop().create_future()


# -- HTTP ----------------------------------------------------------------------------------------


class Request:
    """One request's head. Its body, when it has one, is still to be read from ``reader``."""

    def __init__(self, method: str, target: str, headers: dict[str, str], reader: asyncio.StreamReader):
        self.method, self.headers, self.reader = method, headers, reader
        self.path, _, query = target.partition("?")
        self.query = dict(urllib.parse.parse_qsl(query))
        self.chunked = headers.get("transfer-encoding", "").lower() == "chunked"
        length = headers.get("content-length", "")
        if (length and not re.fullmatch(r"[0-9]{1,18}", length)) or (length and self.chunked):
            raise Refused(400, "no single length")
        if "transfer-encoding" in headers and not self.chunked:
            raise Refused(400, "an unknown transfer encoding")
        self.length = int(length or 0)

    @property
    def password(self) -> str:
        kind, _, text = self.headers.get("authorization", "").partition(" ")
        with contextlib.suppress(ValueError):
            if kind.lower() == "basic":
                return base64.b64decode(text.strip(), validate=True).decode().partition(":")[2]
        return ""

    async def body(self, piece: int, most: int) -> AsyncIterator[bytes]:
        """The body as it arrives, in pieces. Raises Refused, and EOFError when it is cut."""
        left = self.length
        while True:
            if self.chunked:
                left = await self._next_chunk()
            if left > most:
                raise Refused(413, "a body that is too large")
            while left:
                data = await self.reader.read(min(left, piece))
                if not data:
                    raise EOFError
                left, most = left - len(data), most - len(data)
                yield data
            if not self.chunked or not await self._ends_chunk():
                return

    async def _next_chunk(self) -> int:
        size = (await line_of(self.reader)).partition(b";")[0].strip()
        if not re.fullmatch(rb"[0-9a-fA-F]{1,15}", size):
            raise Refused(400, "no chunk")
        self._last = not int(size, 16)
        return int(size, 16)

    async def _ends_chunk(self) -> bool:
        """Whether there is another one."""
        for _ in range(LINES_OF_HEAD):
            line = await line_of(self.reader)
            if not line:
                return not self._last
            if not self._last:
                break
        raise Refused(400, "no end of a chunk")


async def line_of(reader: asyncio.StreamReader) -> bytes:
    try:
        line = await reader.readline()
    except ValueError:
        raise Refused(431, "a line that is too long") from None
    if not line.endswith(b"\n"):
        raise EOFError
    if not line.endswith(b"\r\n"):
        raise Refused(400, "a line without its end")
    return line[:-2]


async def read_request(reader: asyncio.StreamReader) -> Request:
    """Raises Refused, and EOFError when the connection ends before."""
    first = await reader.readexactly(1)
    if first == b"\x16":  # the client tries TLS, and falls back when it sees that this is HTTP
        raise Refused(400, "no TLS")
    headers: dict[str, str] = {}
    line, size = first + await line_of(reader), 0
    while field := await line_of(reader):
        size += len(field)
        if size > HEAD or len(headers) > LINES_OF_HEAD:
            raise Refused(431, "a head that is too large")
        name, colon, value = field.decode("latin-1").partition(":")
        key = name.lower()
        if not colon or not TOKEN.fullmatch(name) or (key in headers and key in SINGLE):
            raise Refused(400, "an odd header")
        headers[key] = value.strip()
    words = REQUEST.fullmatch(line.decode("latin-1"))
    if not words or len(line) > HEAD:
        raise Refused(400, "no HTTP request")
    return Request(words[1], words[2], headers, reader)


def answer(status: int, length: int | None = 0, **headers: str) -> bytes:
    """The head of an answer; ``length`` None where the true one is not known (HEAD)."""
    lines = [f"HTTP/1.1 {status} {WORDS.get(status, 'Refused')}", "Connection: close"]
    lines += [] if length is None else [f"Content-Length: {length}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode()


def part_of(size: int, asked: str) -> tuple[int, int, int, dict[str, str]]:
    """Status, first byte, end and headers for a blob of ``size`` and a ``Range`` header; of an odd one: all of it."""
    found = RANGE.fullmatch(asked.strip())
    if not found or (found[2] and int(found[2]) < int(found[1])):
        return 200, 0, size, {}
    first, end = int(found[1]), min(size, int(found[2]) + 1) if found[2] else size
    if first >= size:
        raise Refused(416, "behind the end", Content_Range=f"bytes */{size}")
    return 206, first, end, {"Content_Range": f"bytes {first}-{end - 1}/{size}"}


# -- the relay -----------------------------------------------------------------------------------


class Relay:
    """The server, and the state that its requests share. All of it runs in one thread."""

    def __init__(self, job: dict[str, Any]):
        self.job, self.prefix, self.password = job, f"/v2/{job['name']}/", secrets.token_hex(24)
        self.targets = [Target(name, words) for name, words in job["targets"].items()]
        self.image, self.learnt = Image(), False
        self.holds: list[Hold] = []
        self.answered: set[str] = set()  # digests that this round's push was told of
        self.uploads: set[str] = set()
        self.streams: set[Stream] = set()
        self.asked = self.moved = time.monotonic()  # when the push last asked, and last gave something
        self.most, self.connections, self.port, self.broken = CONNECTIONS, 0, 0, False
        self.slots = asyncio.Semaphore(SLOTS)
        self.queue = max(1 << 16, min(QUEUE, BUFFERS // (SLOTS * max(1, len(self.targets)))))
        self.failed: asyncio.Future[None] = asyncio.get_event_loop().create_future()

    @property
    def alive(self) -> list[Target]:
        return [target for target in self.targets if not target.done]

    @property
    def first(self) -> list[Target]:
        """Who is served now: whoever was too slow for the others comes after them."""
        return [target for target in self.alive if not target.late] or self.alive

    def fail(self, error: Exception) -> None:
        if not self.failed.done():
            self.failed.set_exception(error)

    # what is asked for

    def wanted(self, blob: Blob) -> list[Waiter]:
        """Who waits for it now."""
        first = self.first
        return [waiter for waiter in blob.waiters if not waiter.done.done() and waiter.target in first]

    def missing(self) -> list[Blob]:
        """What somebody waits for and this round does not bring."""
        held = {hold.blob.digest for hold in self.holds}
        blobs = self.image.blobs.values()
        return [blob for blob in blobs if not blob.coming and blob.digest not in held and self.wanted(blob)]

    def owes(self) -> bool:
        """Whether somebody still gets a body of the push: who takes it slowly hides that the push has died."""
        return any(stream.living() for stream in self.streams)

    def settled(self, blob: Blob, now: float) -> bool:
        """Whether everybody who may want it with the others has said so, or was waited for long enough."""
        waiters = self.wanted(blob)
        others = set(self.first) - {waiter.target for waiter in waiters}
        patience = min(SETTLE, 0.2 + blob.size / RATE)  # about what another round would cost
        return all(target.quiet(now) for target in others) or now - min(w.since for w in waiters) > patience

    def decide(self, now: float) -> None:
        """Answer the push's questions that can be answered."""
        missing = self.missing()
        stuck = any(blob.digest in self.answered for blob in missing) or (missing and now - self.asked > QUIET)
        for hold in self.holds:
            blob = hold.blob
            if hold.send.done():
                continue
            if (blob.keep and blob.data is None) or (self.wanted(blob) and self.settled(blob, now)):
                blob.coming = True
                hold.send.set_result(True)
            elif not self.wanted(blob) and (stuck or not self.alive or now - hold.since > HOLD):
                hold.send.set_result(False)

    # requests

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            if self.connections <= self.most:
                await self._serve(reader, writer)
        except (OSError, EOFError):
            writer.transport.abort()
        finally:
            self.connections -= 1
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.set_write_buffer_limits(self.queue)
        try:
            request = await asyncio.wait_for(read_request(reader), HEAD_LIMIT)
            await self.respond(request, writer)
            await writer.drain()
        except asyncio.TimeoutError:  # noqa: UP041 # another class before 3.11
            writer.transport.abort()
        except Refused as refused:
            version = b"HTTP/1.0" if str(refused) == "no TLS" else b"HTTP/1.1"
            writer.write(version + answer(refused.status, 0, **refused.headers)[8:])
            await linger(reader, writer)

    async def respond(self, request: Request, writer: asyncio.StreamWriter) -> None:
        """Whoever has a target's password may read, the source's push may do all."""
        who, target = self.who(request.password)
        if not who:
            raise Refused(401, "no password of this run", WWW_Authenticate='Basic realm="fdl"')
        if request.path == "/v2/" and request.method in ("GET", "HEAD"):
            writer.write(answer(200, 0, Docker_Distribution_API_Version="registry/2.0"))
            return
        if not request.path.startswith(self.prefix):
            raise Refused(404, "another name")
        kind, _, rest = request.path[len(self.prefix) :].partition("/")
        deeds: dict[tuple[str, str], Callable[..., Awaitable[None]]] = {
            ("GET", "manifests"): self.manifest,
            ("HEAD", "manifests"): self.manifest,
        }
        deeds[("GET", "blobs")] = deeds[("HEAD", "blobs")] = functools.partial(self.blob, target)
        if not target:
            deeds[("HEAD", "blobs")] = self.ask
            deeds[("PUT", "manifests")] = self.learn
            deeds[("POST", "blobs")], deeds[("PUT", "blobs")] = self.upload, self.take
        if kind not in ("manifests", "blobs"):
            raise Refused(404, "no such thing")
        if (request.method, kind) not in deeds:
            raise Refused(405, "no such deed")
        await deeds[(request.method, kind)](request, rest, writer)

    def who(self, password: str) -> tuple[bool, Target | None]:
        """Whether that is a password of this run, and whose; None: the source's. All are compared, each in full."""
        given, found, target = password.encode(), hmac.compare_digest(password.encode(), self.password.encode()), None
        for one in self.targets:
            if hmac.compare_digest(given, one.password.encode()):
                found, target = True, one
        return found, target

    async def manifest(self, request: Request, name: str, writer: asyncio.StreamWriter) -> None:
        digest = name if DIGEST.fullmatch(name) else self.image.digest
        if not self.learnt or digest not in self.image.manifests:
            raise Refused(404, "no such manifest")
        kind, text = self.image.manifests[digest]
        writer.write(answer(200, len(text), Content_Type=kind, Docker_Content_Digest=digest))
        if request.method == "GET":
            writer.write(text)

    async def learn(self, request: Request, name: str, writer: asyncio.StreamWriter) -> None:
        """A manifest of the source's; afterwards only those that were learnt."""
        kind = request.headers.get("content-type", "")
        pieces = asyncio.wait_for(gathered(request), 3 * HEAD_LIMIT)
        text = await pieces
        digest = f"sha256:{hashlib.sha256(text).hexdigest()}"
        if digest not in self.image.manifests:
            if self.learnt or (DIGEST.fullmatch(name) and name != digest):
                raise Refused(400, "another manifest")
            if len(self.image.manifests) >= 1000 or sum(len(text) for _, text in self.image.manifests.values()) > KEPT:
                raise Refused(413, "too many manifests")
            try:
                self.image.add(kind, text)
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
                raise Refused(400, "no manifest") from None
        elif not self.learnt:
            self.image.digest = digest
        writer.write(answer(201, 0, Location=f"{self.prefix}manifests/{digest}", Docker_Content_Digest=digest))

    async def ask(self, request: Request, digest: str, writer: asyncio.StreamWriter) -> None:
        """The push asks whether a blob is there."""
        blob = self.image.blobs.get(digest)
        if not DIGEST.fullmatch(digest) or (self.learnt and not blob):
            raise Refused(404, "no such blob")
        send = False
        if self.learnt and blob:
            hold = Hold(blob)
            self.holds.append(hold)
            self.asked = self.moved = time.monotonic()
            self.decide(self.asked)
            send = await hold.send
            self.holds.remove(hold)
            self.answered.add(digest)
        if send:
            raise Refused(404, "wanted")
        writer.write(answer(200, blob.size if blob else None, Docker_Content_Digest=digest))

    async def upload(self, request: Request, rest: str, writer: asyncio.StreamWriter) -> None:
        if rest != "uploads/" or len(self.uploads) > CONNECTIONS:
            raise Refused(404, "no such place")
        place = secrets.token_hex(16)
        self.uploads.add(place)
        where = f"{self.prefix}blobs/uploads/{place}"
        writer.write(answer(202, 0, Location=where, Docker_Upload_UUID=place, Range="0-0"))

    async def take(self, request: Request, rest: str, writer: asyncio.StreamWriter) -> None:
        """A blob's body, passed on to all who wait for it."""
        blob = self.image.blobs.get(request.query.get("digest", ""))
        if not rest.startswith("uploads/") or rest[8:] not in self.uploads or not blob or not self.learnt:
            raise Refused(404, "no such upload")
        self.uploads.remove(rest[8:])
        if not request.chunked and request.length != blob.size:
            raise Refused(400, "another length")
        async with self.slots:
            await Stream(self, blob).run(request.body(min(CHUNK, self.queue), blob.size))
        writer.write(answer(201, 0, Location=f"{self.prefix}blobs/{blob.digest}", Docker_Content_Digest=blob.digest))

    async def blob(self, target: Target | None, request: Request, digest: str, writer: asyncio.StreamWriter) -> None:
        """A target asks for a blob, and waits until the push brings it."""
        blob = self.image.blobs.get(digest)
        if not target or not self.learnt or not blob:
            raise Refused(404, "no such blob")
        if request.method == "HEAD":
            writer.write(answer(200, blob.size, Docker_Content_Digest=digest, Accept_Ranges="bytes"))
            return
        status, first, end, headers = part_of(blob.size, request.headers.get("range", ""))
        head = answer(status, end - first, Docker_Content_Digest=digest, **headers)
        waiter = Waiter(target, blob, first, end, writer, head)
        target.ask(waiter)
        if blob.data is not None:
            deliver(waiter, blob.data)
        else:
            blob.waiters.append(waiter)
            self.decide(time.monotonic())
        gone: asyncio.Future[Any] = asyncio.ensure_future(
            request.reader.read(1)
        )  # it says nothing more, or it has gone
        try:
            await asyncio.wait([waiter.done, gone], return_when=asyncio.FIRST_COMPLETED)
            while waiter.queued and not gone.done():
                await asyncio.sleep(TICK)
        finally:
            waiter.finish(waiter.done.done() and waiter.done.result())
            target.open.discard(waiter)
            target.heard = time.monotonic()
            blob.waiters = [other for other in blob.waiters if other is not waiter]
            gone.cancel()


def deliver(waiter: Waiter, data: bytes) -> None:
    waiter.writer.write(waiter.head)
    waiter.write(0, data)
    waiter.finish(True)


async def gathered(request: Request) -> bytes:
    return b"".join([data async for data in request.body(CHUNK, DOCUMENT)])


async def linger(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Unread bytes at the close would take the answer from the client."""
    with contextlib.suppress(asyncio.TimeoutError, OSError):
        writer.write_eof()
        for _ in range(16):
            if not await asyncio.wait_for(reader.read(1 << 12), 0.5):
                return


# -- streams -------------------------------------------------------------------------------------


class Stream:
    """A body of the push, and who gets it as it arrives.

    The slowest sets the pace. One that others stood still for, ``lag`` seconds and more than half of the time, is cut
    off; its Docker asks again for the rest, and gets it after the others.
    """

    def __init__(self, relay: Relay, blob: Blob):
        self.relay, self.blob, self.began = relay, blob, time.monotonic()
        self.waiters = relay.wanted(blob)
        blob.waiters = [waiter for waiter in blob.waiters if waiter not in self.waiters]
        blob.coming = False
        for waiter in self.waiters:
            waiter.writer.write(waiter.head)

    async def run(self, pieces: AsyncIterator[bytes]) -> None:
        """Raises SourceError when it is not what its digest says: nobody has its last piece then."""
        digest, at, held, kept = hashlib.sha256(), 0, b"", []
        self.relay.streams.add(self)
        try:
            async for data in pieces:
                self.relay.moved = time.monotonic()
                await self.put(at - len(held), held)
                held, at = data, at + len(data)
                if self.blob.keep:
                    kept.append(data)
                await hashed(digest, data)
            if f"sha256:{digest.hexdigest()}" != self.blob.digest or at != self.blob.size:
                what = f"docker push gave {self.blob.digest} with other content than that: the source's copy is damaged"
                self.relay.fail(SourceError(what))
                raise EOFError
            await self.put(at - len(held), held)
        except BaseException:
            self.relay.broken = True
            for waiter in self.waiters:
                waiter.finish(False)
            raise
        finally:
            self.relay.streams.discard(self)
        self.end(b"".join(kept))

    def end(self, data: bytes) -> None:
        for waiter in self.waiters:
            waiter.finish(True)
        if self.blob.keep:
            self.blob.data = data
            for waiter in self.blob.waiters:  # who came meanwhile
                deliver(waiter, data)

    async def put(self, at: int, data: bytes) -> None:
        """Write as soon as there is room with everybody."""
        pause = 0.001
        while full := [waiter for waiter in self.living() if waiter.queued > self.relay.queue]:
            before = time.monotonic()
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, TICK)
            self.charge(full, time.monotonic() - before)
        for waiter in self.living():
            waiter.write(at, data)

    def living(self) -> list[Waiter]:
        self.waiters = [waiter for waiter in self.waiters if not waiter.done.done()]
        return self.waiters

    def charge(self, full: list[Waiter], seconds: float) -> None:
        """Leave behind whom others stood still for too long: it keeps what it has, and its Docker asks for the rest."""
        slow, lag = {waiter.target for waiter in full}, self.relay.job.get("lag", 60)
        idle = [target for target in self.relay.first if target.starves and target not in slow]
        for waiter in full:
            waiter.blocked += seconds if idle else 0
            if waiter.blocked > max(lag, (time.monotonic() - self.began) / 2) and not waiter.target.late:
                waiter.target.late = True
                note = f"the others waited {lag:g} s for it: it gets the rest after them"
                tell(targets=[waiter.target.name], note=note)
            if waiter.target.late and waiter.target not in self.relay.first:
                waiter.finish(True)


async def hashed(digest: Any, data: bytes) -> None:
    """Beside what else is to be done: a large update leaves the interpreter to others."""
    if len(data) < 1 << 16:
        digest.update(data)
    else:
        await asyncio.get_event_loop().run_in_executor(None, digest.update, data)


# -- the work ------------------------------------------------------------------------------------


class Source:
    """The source's Docker. Its ``name`` for the image is kept by a process that outlives this one, to remove it."""

    def __init__(self, relay: Relay):
        self.relay, self.docker = relay, list(relay.job["docker"])
        self.name = f"127.0.0.1:{relay.port}/{relay.job['name']}"
        self.keeper: subprocess.Popen[bytes] | None = None
        self.pushing: subprocess.Popen[bytes] | None = None
        self.tagged = False

    async def inspect(self, form: str, *flags: str) -> list[str]:
        """Lines of what its Docker says of the image. Raises SourceError."""
        child = start([*self.docker, "image", "inspect", *flags, "--format", form, "--", self.relay.job["image"]])
        said: deque[str] = deque(maxlen=10000)
        if code := await listen(child, said, str):
            raise SourceError(f"docker image inspect ended with {code}: {' '.join(list(said)[-3:])}")
        return [line for line in said if line]

    async def named(self) -> bool:
        """Whether it has a name beside the relay's: a Docker that takes away the last one takes the image."""
        lines = await self.inspect("{{range .RepoTags}}{{println .}}{{end}}{{range .RepoDigests}}{{println .}}{{end}}")
        return any(not line.startswith((self.name, "<none>")) for line in lines)

    async def vouches(self, digest: str) -> bool:
        """Whether it knows the image by that digest; a platform's own manifest since API 1.49 (Docker 28.1)."""
        if digest in self.relay.job["vouched"]:
            return True
        with contextlib.suppress(SourceError, IndexError):
            form = "{{.Os}}/{{.Architecture}}{{with .Variant}}/{{.}}{{end}}"
            platform = (await self.inspect(form))[-1]
            return digest in await self.inspect("{{.Id}}", "--platform", platform)
        return False

    async def tag(self) -> None:
        if not await self.named():
            raise SourceError("the image has no name on the source: give it one (docker tag), or send it by archive")
        names = {"IMAGE": self.relay.job["image"], "NAME": f"{self.name}:latest"}
        pipes = {"stdin": subprocess.PIPE, "start_new_session": True, "env": {**os.environ, **names}}
        self.keeper = start(["sh", "-c", KEEPER, "keeper", *self.docker], **pipes)
        CHILDREN.discard(self.keeper)
        said = (await (await reading(self.keeper)).readline()).decode("utf-8", "replace").strip()
        self.tagged = said == "tagged"
        if not self.tagged:
            raise SourceError(f"docker tag: {said}")

    async def untag(self) -> str:
        """Take its name away; what to say when that failed."""
        if self.pushing:
            await ended(self.pushing, 2)
            kill([self.pushing])
        if not self.keeper or not self.keeper.stdin:
            return ""
        self.keeper.stdin.close()
        code = await ended(self.keeper, 20)
        if code == 0 or not self.tagged:
            return ""
        return f"docker rmi {self.name} ended with {code}: that name may be left there"

    async def push(self) -> None:
        """One push, to its end. Raises SourceError when that was not a good one."""
        said: deque[str] = deque(maxlen=LINES)
        argv = [*self.docker, "--config", settings(self.relay), "push", f"{self.name}:latest"]
        self.pushing = start(argv)
        code = await listen(self.pushing, said, str)
        if code:
            lines = [line for line in said if line][-3:]
            lines += [CURE] if any("missing content" in line for line in said) else []
            raise SourceError(": ".join([f"docker push ended with {code}", *lines]))


def settings(relay: Relay) -> str:
    """A folder that is Docker's configuration with the push's password, which no other login of the node can read."""
    folder, own = Path("docker").resolve(), Path(os.environ.get("DOCKER_CONFIG") or "~/.docker").expanduser()
    if not folder.is_dir():
        folder.mkdir(0o700)
        auth = base64.b64encode(f"fdl:{relay.password}".encode()).decode()
        found: dict[str, Any] = {"auths": {f"127.0.0.1:{relay.port}": {"auth": auth}}}
        with contextlib.suppress(OSError, ValueError, AttributeError):  # the same engine as without this folder
            current = json.loads((own / "config.json").read_text("utf-8")).get("currentContext")
            if current:
                found["currentContext"] = current
                (folder / "contexts").symlink_to(own / "contexts")
        handle = os.open(folder / "config.json", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(handle, "w", encoding="utf-8") as file:
            json.dump(found, file)
    return str(folder)


async def learn(relay: Relay, source: Source) -> None:
    """Raises SourceError when the source's Docker cannot push the image, or pushes one that it was not asked for."""
    await source.tag()
    await source.push()
    image = relay.image
    if not image.digest:
        raise SourceError("docker push ended well, but it gave no manifest")
    if not await source.vouches(image.digest):
        raise SourceError(f"docker push gave {image.digest}, which the source's own inspect does not know")
    if image.digest not in relay.job["vouched"][:1]:
        note = "the source pushed one platform's manifest alone: what it has of the others is not whole"
        tell(targets=list(relay.job["targets"]), note=note)
    image.limit_kept()
    relay.learnt = True


async def rounds(relay: Relay, source: Source) -> None:
    """A push, and another one whenever somebody waits for what it does not bring."""
    idle = 0
    while True:
        relay.asked = relay.moved = time.monotonic()
        before = sum(target.bytes for target in relay.targets)
        try:
            await source.push()
        except SourceError:
            if relay.broken or relay.owes() or any(target.starves for target in relay.alive):
                raise
        relay.answered.clear()
        for blob in relay.image.blobs.values():
            blob.coming = False
        idle = idle + 1 if before == sum(target.bytes for target in relay.targets) else 0
        if idle > 3 and (missing := relay.missing()):
            raise SourceError(f"docker push ended well, but it does not send {missing[0].digest}")
        while not relay.missing():
            await asyncio.sleep(TICK)


async def pull(relay: Relay, target: Target) -> None:
    """A target's child, to its end; with another port on the target when one is taken."""
    target.began = target.moved = time.monotonic()
    code, error, picks = 0, None, any("@THERE@" in word for word in target.words)
    for _ in range(PORTS):
        there = PICK(20000, 32000) if picks else relay.port
        argv = [word.replace("@PORT@", str(relay.port)).replace("@THERE@", str(there)) for word in target.words]
        target.said.clear()
        try:
            target.child = start(argv, stdin=subprocess.PIPE)
        except OSError as failed:
            code, error = 127, str(failed)
            break
        assert target.child.stdin
        lines = f"{target.password}\n127.0.0.1:{there}/{relay.job['name']}@{relay.image.digest}\n"
        with contextlib.suppress(OSError), target.child.stdin as stdin:
            stdin.write(lines.encode())
        code = await listen(target.child, target.said, functools.partial(heard, target))
        if code != 255 or target.started or "forwarding failed" not in "\n".join(target.said):
            break
    target.end(error, code)


def heard(target: Target, line: str) -> None:
    target.moved, target.started = time.monotonic(), target.started or line == STARTED
    if line.startswith(LOADED):
        target.hang_up()


async def watch(relay: Relay) -> None:
    """Answer what can be answered; every second: say how far each is, give up what stands still."""
    parent, then, stall, load_stall = os.getppid(), 0.0, relay.job["stall"], relay.job["load_stall"]
    while True:
        await asyncio.sleep(TICK)
        now = time.monotonic()
        relay.decide(now)
        if os.getppid() != parent:
            leave()
        for target in relay.alive:
            if target.quiet(now):
                target.tell_total()
        if now - then > min(1.0, stall / 4):
            then = now
            for target in relay.alive if relay.learnt else ():
                tell(target=target.name, bytes=target.bytes)
                target.judge(now, stall, load_stall)
            waits = not relay.learnt or any(target.starves for target in relay.first)
            if waits and now - relay.moved > load_stall:
                relay.fail(SourceError(f"docker push gave nothing for {load_stall:g} s"))


async def work(relay: Relay) -> str | None:
    """All of it; gives the source's error."""
    loop = asyncio.get_event_loop()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, leave)
    server = await asyncio.start_server(relay.serve, "127.0.0.1", 0, limit=CHUNK, backlog=1024)
    relay.port = server.sockets[0].getsockname()[1]
    source, watching = Source(relay), asyncio.ensure_future(watch(relay))
    try:
        await first_of(relay.failed, watching, learn(relay, source))
        pulls = asyncio.gather(*(pull(relay, target) for target in relay.targets))
        await first_of(relay.failed, watching, rounds(relay, source), pulls)
        return None
    except (SourceError, OSError) as error:
        said = "; ".join(filter(None, [str(error), await source.untag()]))
        for target in relay.alive if relay.learnt else ():
            target.end(f"the source failed: {said}")
        return said
    finally:
        relay.decide(time.monotonic())
        await source.untag()
        kill(CHILDREN)


async def first_of(*deeds: Any) -> None:
    """Until one of them is done; its exception is ours."""
    done, _ = await asyncio.wait([asyncio.ensure_future(deed) for deed in deeds], return_when=asyncio.FIRST_COMPLETED)
    for deed in done:
        deed.result()


async def main() -> None:
    with open(0, encoding="utf-8") as stdin:
        job = json.load(stdin)
    os.environ["DOCKER_CONTENT_TRUST"] = "0"
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    soft = max(soft, min(hard, 2 * CONNECTIONS))
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    relay = Relay(job)
    relay.most = min(CONNECTIONS, soft - 100)
    error = await work(relay)
    learnt = {"digest": relay.image.digest, "manifests": list(relay.image.manifests)} if relay.learnt else None
    tell(end=True, error=error, learnt=learnt)
    os._exit(0)


if __name__ == "__main__":
    asyncio.run(main())
