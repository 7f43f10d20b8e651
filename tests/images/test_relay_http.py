"""What the relay answers to requests, good and bad: over a socket of this process's own, without any Docker."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import json
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from fdl_tasks.images import relay

SOURCE, TARGET = "s" * 48, "t" * 48
CONFIG, LAYER, LARGE = b'{"a":1}', b"layer" * 1000, bytes(range(256)) * 4000


def sha(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


TEXT = json.dumps(
    {
        "config": {"digest": sha(CONFIG), "size": len(CONFIG)},
        "layers": [{"digest": sha(data), "size": len(data)} for data in (LAYER, LARGE)],
    }
).encode()


def basic(password: str, user: str = "fdl") -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def request(line: str, body: bytes = b"", password: str = TARGET, **headers: str) -> bytes:
    fields = {"Host": "127.0.0.1:5", "Authorization": basic(password), **headers}
    if body:
        fields.setdefault("Content_Length", str(len(body)))
    lines = [f"{line} HTTP/1.1", *(f"{name.replace('_', '-')}: {value}" for name, value in fields.items() if value)]
    return "\r\n".join([*lines, "", ""]).encode() + body


class Answer:
    def __init__(self, data: bytes):
        head, _, self.body = data.partition(b"\r\n\r\n")
        self.line, *lines = head.decode("latin-1").split("\r\n")
        self.status = int(self.line.split()[1]) if data else 0
        self.fields = [line.partition(": ")[::2] for line in lines]
        self.headers = {name.lower(): value for name, value in self.fields}


@pytest.fixture
def place() -> Iterator[Path]:
    """A path for the socket, which may not be long."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder) / "s"


class Server:
    """A relay that has learnt an image, or not, and serves at a socket of this machine."""

    def __init__(self, place: Path, learnt: bool = True):
        self.place, self.learnt = place, learnt

    def run(self, *deeds: Any) -> list[Any]:
        """Do them at the same time: bytes to send, or functions of this server; what came of each."""
        odd: list[dict[str, Any]] = []
        found = asyncio.run(asyncio.wait_for(self._run(deeds, lambda _, what: odd.append(what)), 10))
        assert [what for what in odd if not isinstance(what.get("exception"), asyncio.CancelledError)] == []
        return found

    async def _run(self, deeds: Any, odd: Any) -> list[Any]:
        asyncio.get_running_loop().set_exception_handler(odd)
        job = {"name": "x/app", "docker": [], "image": "", "vouched": [], "targets": {"a": []}, "lag": 60}
        self.relay = relay.Relay(job)
        self.relay.password, self.relay.targets[0].password = SOURCE, TARGET
        if self.learnt:
            self.relay.image.add("application/json", TEXT)
            self.relay.image.limit_kept()
            self.relay.learnt = True
        self.place.unlink(missing_ok=True)
        server = await asyncio.start_unix_server(self.relay.serve, str(self.place), limit=relay.CHUNK)
        ticks = asyncio.ensure_future(self._tick())
        try:
            return list(await asyncio.gather(*(self.send(d) if isinstance(d, bytes) else d(self) for d in deeds)))
        finally:
            ticks.cancel()
            server.close()

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(0.01)
            self.relay.decide(time.monotonic())

    async def send(self, data: bytes, wait: float = 0) -> Answer:
        await asyncio.sleep(wait)
        reader, writer = await asyncio.open_unix_connection(str(self.place))
        writer.write(data)
        found = b""
        with contextlib.suppress(ConnectionError):
            found = await reader.read(-1)
        writer.close()
        return Answer(found)

    async def push(self, data: bytes, *, wait: float = 0, body: bytes | None = None, chunked: bool = False) -> Any:
        """As Docker: ask, then send when it is wanted. Gives the statuses; after the question only when it is there."""
        await asyncio.sleep(wait)
        asked = await self.send(request(f"HEAD /v2/x/app/blobs/{sha(data)}", password=SOURCE))
        if asked.status == 200:
            return [200]
        where = (await self.send(request("POST /v2/x/app/blobs/uploads/", password=SOURCE))).headers["location"]
        body = data if body is None else body
        line = f"PUT {where}?digest={sha(data).replace(':', '%3A')}"
        if chunked:
            pieces = [
                b"%x;odd=1\r\n%s\r\n" % (len(body[n : n + 700]), body[n : n + 700]) for n in range(0, len(body), 700)
            ]
            head = request(line, password=SOURCE, Transfer_Encoding="chunked")
            return [asked.status, (await self.send(head + b"".join([*pieces, b"0\r\nTrailer: x\r\n\r\n"]))).status]
        return [
            asked.status,
            (await self.send(request(line, body, password=SOURCE, Content_Length=str(len(data))))).status,
        ]


@pytest.fixture
def server(place: Path) -> Server:
    return Server(place)


def get(data: bytes, **headers: str) -> bytes:
    return request(f"GET /v2/x/app/blobs/{sha(data)}", b"", TARGET, **headers)


def pushing(data: bytes, **options: Any) -> Any:
    return lambda server: server.push(data, **options)


# -- good requests -------------------------------------------------------------------------------


@pytest.mark.parametrize("chunked", [False, True])
def test_a_blob_goes_from_the_push_to_who_waits(chunked: bool, server: Server) -> None:
    got, same, pushed = server.run(get(LARGE), get(LARGE), pushing(LARGE, wait=0.1, chunked=chunked))
    assert pushed == [404, 201]
    assert (got.status, got.body) == (same.status, same.body) == (200, LARGE)
    assert got.headers["docker-content-digest"] == sha(LARGE)
    assert server.relay.targets[0].bytes == 2 * len(LARGE)


def test_the_push_may_ask_first(server: Server) -> None:
    pushed, got = server.run(pushing(LARGE), lambda s: s.send(get(LARGE), wait=0.3))
    assert (pushed, got.body) == ([404, 201], LARGE)


def test_a_config_is_kept_for_later(server: Server) -> None:
    pushed, got, again = server.run(pushing(CONFIG), *[lambda s: s.send(get(CONFIG), wait=0.4)] * 2)
    assert (pushed, got.body, again.body) == ([404, 201], CONFIG, CONFIG)


@pytest.mark.parametrize(
    ("asked", "status", "body", "span"),
    [
        ("bytes=5-", 206, LARGE[5:], f"bytes 5-{len(LARGE) - 1}/{len(LARGE)}"),
        ("bytes=0-", 206, LARGE, f"bytes 0-{len(LARGE) - 1}/{len(LARGE)}"),
        (f"bytes={len(LARGE) - 1}-", 206, LARGE[-1:], f"bytes {len(LARGE) - 1}-{len(LARGE) - 1}/{len(LARGE)}"),
        ("bytes=300000-600000", 206, LARGE[300000:600001], f"bytes 300000-600000/{len(LARGE)}"),
        ("bytes=7-99999999", 206, LARGE[7:], f"bytes 7-{len(LARGE) - 1}/{len(LARGE)}"),
        ("bytes=9-3", 200, LARGE, None),
        ("bytes=-5", 200, LARGE, None),
        ("bytes=1-2,4-5", 200, LARGE, None),
        ("lines=1-2", 200, LARGE, None),
    ],
)
def test_a_range_is_served(asked: str, status: int, body: bytes, span: str | None, server: Server) -> None:
    got, pushed = server.run(get(LARGE, Range=asked), pushing(LARGE, wait=0.05))
    assert (got.status, got.body == body, got.headers.get("content-range")) == (status, True, span)
    assert got.headers["content-length"] == str(len(body))
    assert pushed == [404, 201]


def test_a_range_behind_the_end_is_refused(server: Server) -> None:
    [got] = server.run(get(LARGE, Range=f"bytes={len(LARGE)}-"))
    assert (got.status, got.headers["content-range"]) == (416, f"bytes */{len(LARGE)}")


@pytest.mark.parametrize(
    ("line", "password", "status", "length"),
    [
        ("GET /v2/", TARGET, 200, "0"),
        (f"HEAD /v2/x/app/blobs/{sha(LARGE)}", TARGET, 200, str(len(LARGE))),
        (f"HEAD /v2/x/app/manifests/{sha(TEXT)}", TARGET, 200, str(len(TEXT))),
        (f"GET /v2/x/app/manifests/{sha(TEXT)}", TARGET, 200, str(len(TEXT))),
        ("GET /v2/x/app/manifests/latest", SOURCE, 200, str(len(TEXT))),
        (f"GET /v2/x/app/manifests/{sha(b'other')}", TARGET, 404, "0"),
        (f"GET /v2/x/app/blobs/{sha(b'other')}", TARGET, 404, "0"),
        (f"HEAD /v2/x/app/blobs/{sha(b'other')}", SOURCE, 404, "0"),
        ("GET /v2/x/app/blobs/sha256:1", TARGET, 404, "0"),
        (f"GET /v2/y/app/blobs/{sha(LARGE)}", TARGET, 404, "0"),
        ("GET /v2/x/app/referrers/1", TARGET, 404, "0"),
        ("GET /", TARGET, 404, "0"),
        ("POST /v2/x/app/blobs/uploads/", TARGET, 405, "0"),
        (f"PUT /v2/x/app/manifests/{sha(TEXT)}", TARGET, 405, "0"),
        ("PATCH /v2/x/app/blobs/uploads/1", SOURCE, 405, "0"),
        ("DELETE /v2/x/app/manifests/latest", SOURCE, 405, "0"),
        (f"PUT /v2/x/app/blobs/uploads/1?digest={sha(LARGE)}", SOURCE, 404, "0"),
        ("POST /v2/x/app/blobs/uploads/", SOURCE, 202, "0"),
        ("GET /v2/", "x" * 48, 401, "0"),
        ("GET /v2/x/app/manifests/latest", "", 401, "0"),
    ],
)
def test_every_answer_has_one_length_and_ends_the_connection(
    line: str, password: str, status: int, length: str, server: Server
) -> None:
    [got] = server.run(request(line, password=password))
    names = [name for name, _ in got.fields]
    assert (got.status, got.headers["content-length"]) == (status, length)
    assert names.count("Content-Length") == names.count("Connection") == 1
    assert got.headers["connection"] == "close"
    assert len(got.body) == (int(length) if line.startswith("GET") else 0)


@pytest.mark.parametrize(
    "given",
    ["", "Basic", "Basic !!", "Bearer " + TARGET, "Basic " + base64.b64encode(b"\xff:\xff").decode(), TARGET]
    + [basic(password) for password in ("", TARGET[:-1], TARGET + "t", TARGET.upper(), f"{TARGET}\0")],
)
def test_without_the_password_there_is_nothing(given: str, server: Server) -> None:
    for line in ("GET /v2/", "GET /v2/x/app/manifests/latest", f"GET /v2/x/app/blobs/{sha(CONFIG)}", "GET /odd"):
        [got] = server.run(request(line, Authorization=given))
        assert (got.status, got.headers["www-authenticate"], got.body) == (401, 'Basic realm="fdl"', b"")


def test_any_user_name_will_do(server: Server) -> None:
    assert [got.status for got in server.run(request("GET /v2/", Authorization=basic(TARGET, "any")))] == [200]


@pytest.mark.parametrize(
    ("own", "current"),
    [
        ('{"currentContext": "far", "credsStore": "x"}', "far"),
        ("{}", None),
        ("[]", None),
        ("no json", None),
        (None, None),
    ],
)
def test_the_push_goes_to_the_engine_of_the_logins_own_configuration(
    own: str | None, current: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own").mkdir()
    if own is not None:
        (tmp_path / "own/config.json").write_text(own)
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "own"))
    monkeypatch.chdir(tmp_path)
    one: Any = SimpleNamespace(password=SOURCE, port=5)
    folder = Path(relay.settings(one))
    found = json.loads((folder / "config.json").read_text())
    assert found.pop("auths") == {"127.0.0.1:5": {"auth": basic(SOURCE).split()[1]}}
    assert found == ({"currentContext": current} if current else {})
    assert (folder / "contexts").is_symlink() is bool(current)
    assert relay.settings(one) == str(folder)  # the second push uses it again


# -- learn ---------------------------------------------------------------------------------------


def test_while_it_learns_every_blob_is_there_and_manifests_are_kept(place: Path) -> None:
    server = Server(place, learnt=False)
    asked, missing, put = server.run(
        request(f"HEAD /v2/x/app/blobs/{sha(b'any')}", password=SOURCE),
        request("HEAD /v2/x/app/manifests/latest", password=SOURCE),
        request("PUT /v2/x/app/manifests/latest", TEXT, password=SOURCE, Content_Type="a/b"),
    )
    assert (asked.status, asked.headers["docker-content-digest"]) == (200, sha(b"any"))
    assert "content-length" not in asked.headers  # not known, and none that contradicts
    assert missing.status == 404
    assert (put.status, put.headers["docker-content-digest"]) == (201, sha(TEXT))
    assert server.relay.image.manifests == {sha(TEXT): ("a/b", TEXT)}


@pytest.mark.parametrize(
    ("reference", "text", "status"),
    [
        (sha(b"other"), TEXT, 400),
        ("latest", b"no json", 400),
        ("latest", b"[]", 400),
        ("latest", b"[" * 90_000, 400),
        ("latest", b'{"config": 1, "layers": []}', 400),
        ("latest", b'{"layers": [{"digest": "sha256:..%2f", "size": 1}]}', 400),
        ("latest", TEXT.replace(b'"size": 7', b'"size": -7'), 400),
        ("latest", bytes(relay.DOCUMENT + 1), 413),
    ],
)
def test_what_is_no_manifest_is_refused(reference: str, text: bytes, status: int, place: Path) -> None:
    [got] = Server(place, learnt=False).run(request(f"PUT /v2/x/app/manifests/{reference}", text, password=SOURCE))
    assert got.status == status


def test_afterwards_no_other_manifest_is_taken(server: Server) -> None:
    other = json.dumps({"manifests": []}).encode()
    same, another = server.run(
        *[request("PUT /v2/x/app/manifests/latest", text, password=SOURCE) for text in (TEXT, other)]
    )
    assert (same.status, another.status) == (201, 400)
    assert list(server.relay.image.manifests) == [sha(TEXT)]


# -- bad requests --------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 5, 517, 30_000])
def test_tls_is_answered_in_plain_http_so_that_the_client_falls_back(size: int, server: Server) -> None:
    [got] = server.run((b"\x16\x03\x01\x02\x00\x01" + bytes(size))[: max(1, size)])
    assert got.line == "HTTP/1.0 400 Bad Request"


LINE = b"GET /v2/ HTTP/1.1\r\n"


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"GET /v2/ HTTP/2.0\r\n\r\n", 400),
        (b"GET http://x/v2/ HTTP/1.1\r\n\r\n", 400),
        (b"GET  /v2/ HTTP/1.1\r\n\r\n", 400),
        (b"get /v2/ HTTP/1.1\r\n\r\n", 400),
        (b"GET /v2/\x00 HTTP/1.1\r\n\r\n", 400),
        (b"\r\n\r\n", 400),
        (b"GET /v2/ HTTP/1.1\n\n", 400),
        (LINE + b"no colon\r\n\r\n", 400),
        (LINE + b"odd name: x\r\n\r\n", 400),
        (LINE + b"A: b\r\n folded\r\n\r\n", 400),
        (LINE + b"Content-Length: 1\r\nContent-Length: 1\r\n\r\n", 400),
        (LINE + b"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
        (LINE + b"Content-Length: -1\r\n\r\n", 400),
        (LINE + b"Content-Length: 1e9\r\n\r\n", 400),
        (LINE + b"Transfer-Encoding: gzip, chunked\r\n\r\n", 400),
        (LINE + b"Authorization: Basic x\r\nAuthorization: Basic y\r\n\r\n", 400),
        (LINE + b"X: " + b"x" * 20_000 + b"\r\n\r\n", 431),
        (LINE + b"X: " + b"x" * 2_000_000 + b"\r\n\r\n", 431),
        (LINE + b"".join(b"X-%d: x\r\n" % n for n in range(200)) + b"\r\n", 431),
        (b"GET /" + b"x" * 20_000 + b" HTTP/1.1\r\n\r\n", 400),
    ],
)
def test_an_odd_request_is_refused(data: bytes, status: int, server: Server) -> None:
    odd, good = server.run(data, request("GET /v2/"))
    assert (odd.status, good.status) == (status, 200)


def upload(body: bytes, **headers: str) -> Any:
    async def deed(server: Server) -> Any:
        where = (await server.send(request("POST /v2/x/app/blobs/uploads/", password=SOURCE))).headers["location"]
        return await server.send(request(f"PUT {where}?digest={sha(LAYER)}", body, password=SOURCE, **headers))

    return deed


CHUNKED = {"Transfer_Encoding": "chunked", "Content_Length": ""}


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        (LAYER[:-1], {}, 400),
        (LAYER + b"x", {}, 400),
        (b"%x\r\n%s\r\n0\r\n\r\n" % (len(LAYER) + 1, LAYER + b"x"), CHUNKED, 413),
        (b"no size\r\n", CHUNKED, 400),
        (b"-5\r\n", CHUNKED, 400),
        (b"5\r\nlayerlayer\r\n", CHUNKED, 400),
        (b"ffffffffffffffffffff\r\n", CHUNKED, 400),
    ],
)
def test_a_body_of_another_length_is_refused(body: bytes, headers: dict[str, str], status: int, server: Server) -> None:
    got, waits = server.run(upload(body, **headers), lambda s: leaving(s, LAYER))
    assert got.status == status
    assert LAYER not in waits


async def leaving(server: Server, data: bytes) -> bytes:
    """Ask for a blob, and go after a while with what came."""
    reader, writer = await asyncio.open_unix_connection(str(server.place))
    writer.write(get(data))
    found = b""
    with contextlib.suppress(asyncio.TimeoutError, ConnectionError):
        while piece := await asyncio.wait_for(reader.read(1 << 16), 0.5):
            found += piece
    writer.close()
    return found


def test_content_that_is_not_what_its_digest_says_is_never_whole_and_the_sources_error(server: Server) -> None:
    wrong = LARGE[:-1] + b"x"
    got, pushed = server.run(lambda s: leaving(s, LARGE), pushing(LARGE, wait=0.05, body=wrong))
    assert pushed == [404, 0]
    assert len(got.partition(b"\r\n\r\n")[2]) < len(LARGE)
    assert isinstance(server.relay.failed.exception(), relay.SourceError)


def test_a_body_that_is_cut_is_cut_for_who_waits(server: Server) -> None:
    async def cut(one: Server) -> None:
        where = (await one.send(request("POST /v2/x/app/blobs/uploads/", password=SOURCE))).headers["location"]
        _, writer = await asyncio.open_unix_connection(str(one.place))
        writer.write(
            request(f"PUT {where}?digest={sha(LARGE)}", LARGE[:500_000], SOURCE, Content_Length=str(len(LARGE)))
        )
        await writer.drain()
        writer.close()

    got, _ = server.run(get(LARGE), cut)
    assert len(got.body) < len(LARGE)


def test_a_request_that_never_ends_is_cut_off(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay, "HEAD_LIMIT", 0.3)

    async def silent(one: Server) -> bytes:
        reader, writer = await asyncio.open_unix_connection(str(one.place))
        writer.write(b"GET ")
        found = b""
        with contextlib.suppress(ConnectionError):
            found = await reader.read()
        writer.close()
        return found

    began = time.monotonic()
    assert server.run(silent, request("GET /v2/"))[0] == b""
    assert time.monotonic() - began < 2


def test_more_connections_than_are_allowed_are_closed_at_once(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay, "CONNECTIONS", 2)
    waiting = [lambda s: leaving(s, LAYER)] * 2
    assert server.run(*waiting, lambda s: s.send(request("GET /v2/"), wait=0.2))[-1].status == 0


def test_one_that_has_gone_is_not_waited_for(server: Server) -> None:
    pushed = server.run(lambda s: leaving(s, LARGE), pushing(LARGE, wait=0.8), lambda s: stop(s, 1.2))[1]
    assert pushed == [200]


async def stop(server: Server, wait: float) -> None:
    """The targets are all done: the push's questions are answered."""
    await asyncio.sleep(wait)
    server.relay.targets[0].done = True


# -- any requests at all -------------------------------------------------------------------------

DIGESTS = [sha(CONFIG), sha(LAYER), sha(LARGE), sha(b"unknown"), "sha256:1", ""]
PATHS = ["/v2/", "/v2/x/app/", "/v2/x/app/manifests/", "/v2/x/app/blobs/", "/v2/x/app/blobs/uploads/", "/v2/y/", "/x"]
wholes = st.builds(
    lambda method, path, digest, body, password, span: request(
        f"{method} {path}{digest}", body, password=password, Range=span
    ),
    st.sampled_from(["GET", "HEAD", "PUT", "POST", "PATCH", "DELETE", "OPTIONS", "G\0T"]),
    st.sampled_from(PATHS),
    st.sampled_from([*DIGESTS, "latest", *(f"?digest={digest}" for digest in DIGESTS)]),
    st.sampled_from([b"", b"x", LAYER, TEXT, b"{}", bytes(100_000)]),
    st.sampled_from([SOURCE, TARGET, "", "x"]),
    st.sampled_from(["", "bytes=0-", "bytes=5-9", "bytes=99999999-", "x"]),
)


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """A request: whole, cut, doubled, with bytes of it put in or taken out."""
    data = draw(wholes)
    kind = draw(st.sampled_from(["whole", "cut", "doubled", "flipped", "filled", "noise"]))
    at = draw(st.integers(0, len(data)))
    return {
        "whole": data,
        "cut": data[:at],
        "doubled": data + data[:at],
        "flipped": data[:at] + draw(st.binary(max_size=4)) + data[at + 1 :],
        "filled": data[:at] + draw(st.sampled_from([b"x", b"\r\n", b"\0", b"A: b\r\n"])) * 5000 + data[at:],
        "noise": draw(st.binary(max_size=600)),
    }[kind]


@seed(20240229)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(requests=st.lists(damaged(), min_size=1, max_size=8))
def test_whatever_is_sent_a_good_request_is_served_afterwards_and_no_secret_is_told(
    requests: list[bytes], place: Path
) -> None:
    server = Server(place)
    found = server.run(*(throwing(data) for data in requests), then)
    for data in found[:-1]:
        assert not data or data.startswith((b"HTTP/1.1 ", b"HTTP/1.0 400 "))
        assert SOURCE.encode() not in data and TARGET.encode() not in data
    assert found[-1] == [200, LARGE, [404, 201]]
    assert list(server.relay.image.manifests) == [sha(TEXT)]
    assert server.relay.image.digest == sha(TEXT)
    assert not server.relay.holds or all(hold.blob.digest != sha(LARGE) for hold in server.relay.holds)


def throwing(data: bytes) -> Any:
    """Send that and close the sending side at once; what is answered within a moment."""

    async def deed(server: Server) -> bytes:
        reader, writer = await asyncio.open_unix_connection(str(server.place))
        found = b""
        with contextlib.suppress(ConnectionError, asyncio.TimeoutError):
            writer.write(data)
            writer.write_eof()
            found = await asyncio.wait_for(reader.read(-1), 0.05)
        writer.close()
        return found

    return deed


async def then(server: Server) -> Any:
    await asyncio.sleep(0.06)
    pull = asyncio.ensure_future(server.send(get(LARGE)))
    await asyncio.sleep(0.01)
    pushed = await server.push(LARGE)
    got = await pull
    return [got.status, got.body, pushed]
