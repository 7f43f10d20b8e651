"""A real HTTP server on the loopback that can be as bad as servers are, and archives to serve."""

from __future__ import annotations

import _socket
import contextlib
import io
import socket
import stat
import threading
import time
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

RELEASE = "2.10.0"


@dataclass(frozen=True)
class Answer:
    """How one request is answered.

    Args:
        ranges: whether a Range is honoured (where If-Range, if given, is the ETag or the date).
        shift: a range begins so many bytes later than asked for.
        length: what Content-Length says in place of the truth; ``-1``: none is sent.
        stop: the connection is cut after so many bytes of the body.
        stall: seconds without a word after these bytes.
        total: what Content-Range says the whole is.
    """

    body: bytes = b""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    etag: str = '"one"'
    date: str = ""
    ranges: bool = True
    shift: int = 0
    length: int | None = None
    stop: int | None = None
    stall: float = 0.0
    total: str = ""


@dataclass
class Server:
    """``answers`` in their order, the last one for all that follow; ``requests`` has the headers that came."""

    url: str
    answers: list[Answer] = field(default_factory=list)
    requests: list[dict[str, str]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)

    def next(self) -> Answer:
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


@contextlib.contextmanager
def serving(monkeypatch: pytest.MonkeyPatch, *answers: Answer) -> Iterator[Server]:
    """A server, and the way to it for the test that asks: the loopback, and nothing else, without a proxy."""
    monkeypatch.setattr(socket.socket, "connect", _loopback_only)
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    web = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    web.daemon_threads = True
    web.made = Server(f"http://127.0.0.1:{web.server_port}", list(answers))  # type: ignore[attr-defined]
    thread = threading.Thread(target=web.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield web.made  # type: ignore[attr-defined]
    finally:
        web.shutdown()
        web.server_close()
        thread.join()


def _loopback_only(self: socket.socket, address: Any) -> None:
    if address[0] != "127.0.0.1":
        pytest.fail(f"this test tried to reach {address}")
    _socket.socket.connect(self, address)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - its name there
        pass

    def do_GET(self) -> None:
        server: Server = self.server.made  # type: ignore[attr-defined]
        server.requests.append(dict(self.headers.items()))
        server.paths.append(self.path)
        answer = server.next()
        if "User-Agent" not in self.headers or "python" in self.headers["User-Agent"]:
            answer = Answer(status=403)
        with contextlib.suppress(OSError):  # who asked has gone
            self._send(answer)

    def _send(self, answer: Answer) -> None:
        first = self._first(answer)
        body = answer.body if first is None else answer.body[first:]
        self.send_response(answer.status if first is None else 206)
        for name, value in {**self._usual(answer, body, first), **answer.headers}.items():
            if value:
                self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body[: answer.stop])
        self.wfile.flush()
        time.sleep(answer.stall)
        if answer.stop is not None or answer.length is not None:
            self.close_connection = True

    def _first(self, answer: Answer) -> int | None:
        """Where a range that is honoured begins; None: the whole is sent."""
        asked, same = self.headers.get("Range", ""), self.headers.get("If-Range")
        if not asked or not answer.ranges or answer.status != 200 or same not in (None, answer.etag, answer.date):
            return None
        return int(asked.removeprefix("bytes=").rstrip("-")) + answer.shift

    def _usual(self, answer: Answer, body: bytes, first: int | None) -> dict[str, str]:
        length = len(body) if answer.length is None else answer.length
        last = len(answer.body)
        content_range = "" if first is None else f"bytes {first}-{last - 1}/{answer.total or last}"
        return {
            "Content-Length": "" if length < 0 else str(length),
            "ETag": answer.etag,
            "Last-Modified": answer.date,
            "Content-Range": content_range,
            "Connection": "close" if length < 0 else "",
        }


@dataclass(frozen=True)
class Member:
    """What a zip holds under a name; ``mode`` as ``st_mode``."""

    data: bytes = b""
    mode: int = stat.S_IFREG | 0o644


def sound(bucket: str) -> dict[str, Member]:
    """What a small libtorch holds."""
    return {
        "libtorch/": Member(mode=stat.S_IFDIR | 0o755),
        "libtorch/build-version": Member(f"{RELEASE}+{bucket}\n".encode()),
        "libtorch/lib/libtorch.so": Member(b"\x7fELF not really", stat.S_IFREG | 0o755),
        "libtorch/include/torch/torch.h": Member(b"#pragma once\n" * 100),
    }


SOUND: Mapping[str, Member] = sound("cpu")


def archive(members: Mapping[str, Member], compression: int = zipfile.ZIP_DEFLATED) -> bytes:
    """A zip of these members, whatever their names."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", compression) as zipped:
        for name, member in members.items():
            info = zipfile.ZipInfo("x")
            info.filename = info.orig_filename = name
            info.external_attr = member.mode << 16
            info.compress_type = compression
            zipped.writestr(info, member.data)
    return out.getvalue()
