"""Sends an image to many nodes at once: a program of its own, run by the source node's ``python3``.

Standard library of Python 3.8 and later only, one file: the controller sends its text with ``templates/images/send.sh``
and nothing of it is installed. One ``docker save`` is read once; every group of targets gets a copy of the stream
without the entries that it has already; every target is a child process (``ssh … docker load``) with a queue of its
own. No temporary file; memory is bounded by the queues, whatever the image's size. Rules: spec/sync-image.md, 5.

stdin: one JSON object: ``save`` (argv), ``groups`` (``targets``, ``omit``: entry names, ``base``: argv of a
``docker save`` whose blobs are left out, or null), ``targets`` (name: the argvs of its pipeline), ``content``
(folders where the store may keep its blobs), ``read`` (how a command line begins that may read there), ``stall``,
``load_stall``, ``lag`` (seconds).
stdout: lines of JSON: ``{"target", "bytes"}`` every second, ``{"target", "bytes", "seconds", "code", "said", "error",
"late"}`` when a target ends, ``{"end": true, "error"}`` last. ``error`` of the end is the source's.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import select
import signal
import subprocess
import threading
import time
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

BLOCK, CHUNK, SLICE, QUEUE = 512, 1 << 20, 1 << 18, 8 << 20
LINES, DOCUMENT = 40, 8 << 20  # last lines kept of each child; the largest JSON document that is read
PADDING = 1 << 16  # of zeros behind the end of an archive that are passed on
TAIL = {"manifest.json", "index.json", "oci-layout", "repositories"}  # held back until the archive is known to be whole
BLOB = re.compile(r"blobs/(sha256|sha512)/([0-9a-f]+)")
CHANGED = threading.Condition()  # guards every Target's fields
CHILDREN: list[subprocess.Popen[bytes]] = []


class SourceError(Exception):
    """The source's archive is no good: nobody gets it."""


# -- children ------------------------------------------------------------------------------------


def start(argv: list[str], **pipes: Any) -> subprocess.Popen[bytes]:
    """A child of this process group: what ends the group ends it."""
    child = subprocess.Popen(argv, bufsize=0, **pipes)
    CHILDREN.append(child)
    for pipe in (child.stdin, child.stdout):
        with contextlib.suppress(OSError, AttributeError):
            fcntl.fcntl(pipe.fileno(), 1031, CHUNK)  # type: ignore[union-attr] # F_SETPIPE_SZ
    return child


def kill(children: Iterable[subprocess.Popen[bytes]]) -> None:
    for child in children:
        with contextlib.suppress(OSError):  # root's, under sudo: it dies of its closed pipe
            child.kill()


def tell(**facts: Any) -> None:
    """One line on stdout. Nobody there to read it: all ends."""
    line = json.dumps(facts).encode() + b"\n"
    try:
        while line:
            line = line[os.write(1, line) :]
    except OSError:
        leave()


def leave(*_: Any) -> None:
    kill(CHILDREN)
    os._exit(143)


def spawn(deed: Callable[[], None]) -> None:
    threading.Thread(target=deed, daemon=True).start()


# -- targets -------------------------------------------------------------------------------------


class Target:
    """One target: its pipeline, a bounded queue, and what became of it. ``bytes`` is what its pipe took."""

    def __init__(self, name: str, pipeline: list[list[str]]):
        self.name, self.queued, self.bytes = name, 0, 0
        self.queue: deque[memoryview] = deque()
        self.closing = self.closed = self.done = False
        self.waited = 0.0  # seconds that its group stood still for it alone
        self.began = self.moved = time.monotonic()
        self.said: deque[str] = deque(maxlen=LINES)
        self.children: list[subprocess.Popen[bytes]] = []
        for argv in pipeline:
            before = self.children[-1].stdout if self.children else subprocess.PIPE
            out = subprocess.STDOUT if argv is pipeline[-1] else subprocess.DEVNULL
            self.children.append(start(argv, stdin=before, stdout=subprocess.PIPE, stderr=out))
            if before is not subprocess.PIPE:
                before.close()  # type: ignore[union-attr]
        spawn(self._write)
        spawn(self._listen)

    def put(self, data: memoryview, last: bool) -> None:
        if not self.done:
            self.closing = last
            self.moved = self.moved if self.queue else time.monotonic()
            self.queue.append(data)
            self.queued += len(data)

    def end(self, error: str | None = None, code: int | None = None, late: bool = False) -> None:
        """Say what became of it, once; ``CHANGED`` is held."""
        if self.done:
            return
        self.done = True
        self.queue.clear()
        kill(self.children)
        CHANGED.notify_all()
        seconds = round(time.monotonic() - self.began, 3)
        said = list(self.said)
        tell(target=self.name, bytes=self.bytes, seconds=seconds, code=code, said=said, error=error, late=late)

    def judge(self, now: float, stall: float, load_stall: float) -> None:
        """Give it up when nothing moves any more; ``CHANGED`` is held."""
        if self.queued and now - self.moved > stall:
            self.end(f"it took no byte for {stall:g} s, {self.bytes} bytes in all")
        elif self.closed and now - self.moved > load_stall:
            self.end(f"it had all {self.bytes} bytes, and its load made no progress for {load_stall:g} s")

    def _next(self) -> memoryview | None:
        with CHANGED:
            CHANGED.wait_for(lambda: self.queue or self.closing or self.done)
            return self.queue[0] if self.queue else None

    def _write(self) -> None:
        pipe = self.children[0].stdin
        assert pipe
        with contextlib.suppress(OSError, ValueError):  # a broken pipe: its end tells why
            while True:
                data = self._next()
                if data is None:
                    break
                self._pass(pipe.fileno(), data)
        with CHANGED:
            self.closed, self.moved = True, time.monotonic()
            self.queue.clear()
            self.queued = 0
            CHANGED.notify_all()
        with contextlib.suppress(OSError):
            pipe.close()

    def _pass(self, fd: int, data: memoryview) -> None:
        while data:
            count = os.write(fd, data[:SLICE])  # all of it, unless the machine slept meanwhile
            data = data[count:]
            with CHANGED:
                self.bytes, self.queued, self.moved = self.bytes + count, self.queued - count, time.monotonic()
                if not data and self.queue:
                    self.queue.popleft()
                CHANGED.notify_all()

    def _listen(self) -> None:
        pipe = self.children[-1].stdout
        assert pipe
        with os.fdopen(os.dup(pipe.fileno()), "rb") as lines:
            for line in iter(lambda: lines.readline(4096), b""):
                self.said.append(line.decode("utf-8", "replace").rstrip("\r\n"))
                self.moved = time.monotonic()
        code = self.children[-1].wait()
        with CHANGED:
            early = not (code or self.closing)
            self.end("it ended before it had everything" if early else None, code if code >= 0 else 128 - code)


class Group:
    """Targets that get the same, and the names of what they have already."""

    def __init__(self, targets: list[Target], omit: set[str]):
        self.targets, self.omit = targets, omit

    @property
    def full(self) -> list[Target]:
        return [target for target in self.targets if not target.done and target.queued >= QUEUE]

    @property
    def idle(self) -> bool:
        return any(not target.done and not target.queued for target in self.targets)


class FanOut:
    """All targets, and the rule of who waits for whom.

    The slowest living target sets the pace. One that its whole group stood still for, ``lag`` seconds and more
    than half of the time, is given up for a pass of its own (``late``).
    """

    def __init__(self, targets: list[Target], stall: float, load_stall: float, lag: float):
        self.targets, self._stall, self._load_stall, self._lag = targets, stall, load_stall, lag

    @property
    def alive(self) -> list[Target]:
        return [target for target in self.targets if not target.done]

    def put(self, groups: Iterable[Group], data: memoryview, last: bool = False) -> None:
        """Queue ``data``, the last one or not, for all targets of ``groups`` as soon as every queue has room."""
        with CHANGED:
            while full := [group for group in groups if group.full]:
                slow = [target for group in full if group.idle for target in group.full]
                began = time.monotonic()
                CHANGED.wait(0.5)
                self._charge(slow, time.monotonic() - began)
            for group in groups:
                for target in group.targets:
                    target.put(data, last)
            CHANGED.notify_all()

    def fail(self, why: str) -> None:
        with CHANGED:
            for target in self.targets:
                target.end(why)

    def wait(self) -> None:
        with CHANGED:
            CHANGED.wait_for(lambda: not self.alive)

    def watch(self) -> None:
        """Every second: say how far each is, give up what stands still."""
        while True:
            time.sleep(min(1.0, self._stall / 4))
            with CHANGED:
                if not self.alive:
                    kill(CHILDREN)  # the source's too
                for target in self.alive:
                    tell(target=target.name, bytes=target.bytes)
                    target.judge(time.monotonic(), self._stall, self._load_stall)

    def _charge(self, slow: list[Target], seconds: float) -> None:
        for target in slow:
            target.waited += seconds
            if target.waited > max(self._lag, (time.monotonic() - target.began) / 2):
                target.end(f"the others stood still for it for {target.waited:.0f} s", late=True)


# -- the archive ---------------------------------------------------------------------------------


class Saved:
    """A ``docker save`` that runs, read in pieces of what arrived; ``limit`` is how many seconds nothing may come."""

    def __init__(self, argv: list[str], limit: float = 900.0):
        self.child = start(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.bytes, self._limit = 0, limit
        self._rest = memoryview(b"")
        self._said: deque[str] = deque(maxlen=LINES)
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def read(self, most: int) -> memoryview:
        """Up to ``most`` bytes, none at the end."""
        if not self._rest:
            assert self.child.stdout
            if not select.select([self.child.stdout], [], [], self._limit)[0]:
                kill([self.child])  # under sudo, or behind a script, it may well live on
                raise SourceError(f"docker save gave no byte for {self._limit:g} s, {self.bytes} bytes in all")
            self._rest = memoryview(os.read(self.child.stdout.fileno(), CHUNK))
        data, self._rest = self._rest[:most], self._rest[most:]
        self.bytes += len(data)
        return data

    def exactly(self, count: int) -> bytes:
        """Exactly so many bytes, or what there was before the end."""
        parts = []
        while count and (data := self.read(count)):
            parts.append(data)
            count -= len(data)
        return b"".join(parts)

    def drain(self) -> None:
        while self.read(CHUNK):
            pass

    def check(self) -> None:
        """Wait for its end, and raise SourceError when that was not a good one."""
        code = self.child.wait()
        self._listener.join(2)
        if code:
            why = f"ended with {code}" if code > 0 else f"was killed by signal {-code}"
            raise SourceError(": ".join([f"docker save {why} after {self.bytes} bytes", *list(self._said)[-3:]]))

    def _listen(self) -> None:
        assert self.child.stderr
        for line in iter(lambda: self.child.stderr.readline(4096), b""):  # type: ignore[union-attr]
            self._said.append(line.decode("utf-8", "replace").strip())


class Entry:
    """One entry of an archive: ``head`` is its raw header blocks, ``left`` the bytes of data and padding."""

    def __init__(self, name: str, size: int, head: bytes):
        self.name, self.size, self.head = name, size, head
        self.left = size + -size % BLOCK


def entries(saved: Saved) -> Iterator[Entry]:
    """Every entry of the archive; whoever takes one reads its data to the end. The last has the name ``""``.

    Raises:
        SourceError: it stops early, or is no archive.
    """
    extended: dict[str, str] = {}
    head = b""
    while True:
        block = whole(saved, BLOCK)
        if block == bytes(BLOCK):
            if whole(saved, BLOCK) != block:
                raise SourceError(f"docker save gave no tar archive: see byte {saved.bytes}")
            yield Entry("", 0, head + block + block)
            return
        kind, size = block[156:157], number(saved, block, extended)
        head += block
        if kind in b"xgLK":
            if size > DOCUMENT:
                raise SourceError(f"docker save gave a header of {size} bytes")
            data = whole(saved, size + -size % BLOCK)
            head += data
            try:
                extended.update(extension(kind, data[:size]))
            except ValueError:
                raise SourceError(f"docker save gave an odd extended header: see byte {saved.bytes}") from None
            continue
        yield Entry(extended.get("path") or plain_name(block), 0 if kind in b"123456" else size, head)
        head, extended = b"", {}


def whole(saved: Saved, count: int) -> bytes:
    data = saved.exactly(count)
    if len(data) < count:
        raise cut(saved)
    return data


def cut(saved: Saved) -> SourceError:
    """What to say of an archive that stops early."""
    saved.check()
    return SourceError(f"docker save ended well, but its archive stops after {saved.bytes} bytes")


def number(saved: Saved, block: bytes, extended: dict[str, str]) -> int:
    """The size in a header whose checksum is right."""
    field, total = block[124:136], sum(block) - sum(block[148:156]) + 8 * 32
    try:
        if int(block[148:156].split(b"\0")[0].strip() or b"0", 8) != total:
            raise ValueError
        if "size" in extended and block[156:157] not in b"xgLK":
            size = int(extended["size"])
        elif field[0] & 0x80:
            size = int.from_bytes(field[1:], "big")
        else:
            size = int(field.split(b"\0")[0].strip() or b"0", 8)
        if size < 0:
            raise ValueError
        return size
    except ValueError:
        raise SourceError(f"docker save gave no tar archive: see byte {saved.bytes}") from None


def extension(kind: bytes, data: bytes) -> dict[str, str]:
    """What an extended header says of the entry behind it: pax records, or GNU's long name."""
    if kind == b"L":
        return {"path": data.split(b"\0")[0].decode("utf-8", "replace")}
    found, at = {}, 0
    while kind == b"x" and at < len(data) and b" " in data[at:]:
        length = int(data[at : data.index(b" ", at)])
        key, _, value = data[data.index(b" ", at) + 1 : at + length - 1].decode("utf-8", "replace").partition("=")
        found[key] = value
        at += max(length, 1)
    return found


def plain_name(block: bytes) -> str:
    name, prefix = (block[at : at + size].split(b"\0")[0] for at, size in ((0, 100), (345, 155)))
    prefix = prefix if block[257:263] == b"ustar\0" else b""  # GNU's form has other things there
    return (prefix + b"/" + name if prefix else name).decode("utf-8", "replace")


# -- what is in it -------------------------------------------------------------------------------


class Content:
    """What an archive has, and what its manifests say that it must have."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        self._documents: dict[str, Any] = {}

    def add(self, name: str, text: bytes) -> None:
        """An entry; ``text`` is its data when that may be a JSON document, else empty."""
        self.names.add(name)
        with contextlib.suppress(ValueError, RecursionError):
            found = json.loads(text) if text else None
            if name in TAIL or (isinstance(found, dict) and ("manifests" in found or "layers" in found)):
                self._documents[name] = found

    def missing(self) -> list[str]:
        """Names of entries that are named and not there."""
        try:
            return sorted(set(self._named()) - self.names)
        except (KeyError, TypeError, AttributeError) as error:
            raise SourceError(f"docker save gave manifests of another form: {error!r}") from error

    def parts(self, name: str) -> list[str]:
        """The digests that an index names."""
        return [str(part["digest"]) for part in (self._documents.get(name) or {}).get("manifests", ())]

    def below(self, digest: str) -> set[str]:
        """Names of a manifest and all below it; none when the manifest itself is not known."""
        described = {"digest": digest}
        return set(self._below(described)) if place(described) in self._documents else set()

    def _named(self) -> Iterator[str]:
        yield "manifest.json"
        images = self._documents.get("manifest.json")
        if "manifest.json" in self.names and not images:
            raise TypeError("manifest.json names no image")
        for image in images or ():
            yield from (image["Config"], *(image["Layers"] or ()))
        index = self._documents.get("index.json")
        for described in index["manifests"] if index else ():
            yield from self._below(described)

    def _below(self, described: dict[str, Any]) -> Iterator[str]:
        """A manifest and all below it; of an index, those of its manifests that are there, and at least one.

        Other platforms are seldom pulled, and nothing runs an attestation.
        """
        yield place(described)
        document = self._documents.get(place(described)) or {}
        parts = [part for part in document.get("manifests", ()) if not attests(part)]
        there = [part for part in parts if place(part) in self.names]
        for part in there or parts[:1]:
            yield from self._below(part)
        if "layers" in document:
            yield from map(place, (document["config"], *document["layers"]))


def place(described: dict[str, Any]) -> str:
    return "blobs/" + str(described["digest"]).replace(":", "/", 1)


def attests(described: dict[str, Any]) -> bool:
    return (described.get("annotations") or {}).get("vnd.docker.reference.type") == "attestation-manifest"


# -- the work ------------------------------------------------------------------------------------


def transfer(saved: Saved, groups: list[Group], out: FanOut) -> None:
    """Pass the archive on to every group without what it has. The documents at its end come when all was checked."""
    content, held = Content(), b""
    for entry in entries(saved):
        if not out.alive:
            return
        if not entry.name:
            break
        name = (entry.name[2:] if entry.name.startswith("./") else entry.name).rstrip("/")
        if name in TAIL:
            text = document(saved, entry)
            content.add(name, text[: entry.size])
            held += entry.head + text
            continue
        if held:
            out.put(groups, memoryview(held))
            held = b""
        wanted = [group for group in groups if name not in group.omit]
        out.put(wanted, memoryview(entry.head))
        content.add(name, body(saved, name, entry, partial(out.put, wanted)))
    rest = finish(saved, content)
    out.put(groups, memoryview(held + entry.head + rest), last=True)


def document(saved: Saved, entry: Entry) -> bytes:
    if entry.left > DOCUMENT:
        raise SourceError(f"docker save gave a {entry.name} of {entry.size} bytes")
    return whole(saved, entry.left)


def body(saved: Saved, name: str, entry: Entry, put: Callable[[memoryview], None]) -> bytes:
    """Pass an entry's data on, and check it against the digest in its name. Gives it back when it may be JSON."""
    blob, kept, left = BLOB.fullmatch(name), b"", entry.size
    digest = hashlib.new(blob[1]) if blob else None
    while entry.left:
        data = saved.read(entry.left)
        if not data:
            raise cut(saved)
        put(data)
        if digest:
            digest.update(data[:left])
        if entry.size <= DOCUMENT and (kept or (left == entry.size and data[0] == ord("{"))):
            kept += data[:left]
        left, entry.left = max(0, left - len(data)), entry.left - len(data)
    if digest and blob and digest.hexdigest() != blob[2]:
        raise SourceError(f"docker save gave {name} with other content than that: the source's copy is damaged")
    return kept


def finish(saved: Saved, content: Content) -> bytes:
    """What stands behind the end, after a good end of ``docker save`` and with nothing missing."""
    rest = saved.exactly(PADDING)
    saved.drain()
    saved.check()
    missing = content.missing()
    if missing:
        what = f"{missing[0]}" + (f" and {len(missing) - 1} more" if len(missing) > 1 else "")
        raise SourceError(f"docker save ended well, but its archive lacks {what}: the source's copy is incomplete")
    return rest


def known(group: dict[str, Any], content: list[str], read: list[str], limit: float) -> set[str]:
    """Names of entries that a group has: those it was said to have, and the blobs of its base."""
    base = group["base"]
    try:
        return set(group["omit"]) | ((stored(base[-1], content, read) or blobs(base, limit)) if base else set())
    except SourceError as error:
        tell(targets=group["targets"], note=f"nothing is left out, since the base can't be read: {error}")
        return set(group["omit"])


def stored(base: str, content: list[str], read: list[str]) -> set[str]:
    """Names of an image's blobs by the store's own files; none where this login may not read them.

    A ``docker save`` of the base tells the same, and reads all of it for a list of names.
    """
    found, digests = Content(), [base]
    for digest in digests:
        name = place({"digest": digest})
        texts = (kept([*read, "head", "-c", str(DOCUMENT), f"{folder}/{name}"]) for folder in content)
        text = next((text for text in texts if digest == f"sha256:{hashlib.sha256(text).hexdigest()}"), b"")
        if text:
            found.add(name, text)
            digests += found.parts(name)
    return found.below(base)


def kept(argv: list[str]) -> bytes:
    with contextlib.suppress(OSError):
        return subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True).stdout
    return b""


def blobs(argv: list[str], limit: float) -> set[str]:
    """Names of the blobs that an image's archive has."""
    saved, found = Saved(argv, limit), set()
    for entry in entries(saved):
        found.add(entry.name)
        while entry.left:
            data = saved.read(entry.left)
            if not data:
                raise cut(saved)
            entry.left -= len(data)
    saved.drain()
    saved.check()
    return set(filter(BLOB.fullmatch, found))


def main() -> None:
    with open(0, encoding="utf-8") as stdin:
        job = json.load(stdin)
    for number_ in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number_, leave)
    error, limit = None, job["load_stall"]
    out = FanOut([], job["stall"], limit, job["lag"])
    try:
        omits = [known(group, job.get("content", []), job.get("read", []), limit) for group in job["groups"]]
        saved = Saved(job["save"], limit)
        made = {name: Target(name, pipeline) for name, pipeline in job["targets"].items()}
        out.targets = list(made.values())
        groups = [Group([made[name] for name in group["targets"]], omits[at]) for at, group in enumerate(job["groups"])]
        spawn(out.watch)
        transfer(saved, groups, out)
    except (SourceError, OSError) as found:
        error = str(found) if out.alive or not out.targets else None
        out.fail(f"the source failed: {error}")
    out.wait()
    kill(CHILDREN)
    tell(end=True, error=error)


if __name__ == "__main__":
    main()
