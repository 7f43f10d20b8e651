from __future__ import annotations

import contextlib
import hashlib
import os
import socket
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path

import pytest

from fdl_tasks.boxes.torch import download as subject
from fdl_tasks.boxes.torch.download import bare, download, seconds, steps
from fdl_tasks.errors import PermanentError, TransientError
from tests.boxes.server import Answer, Server, serving

BODY = os.urandom(3 << 20)
OTHER = os.urandom(3 << 20)
HALF = 2 << 20  # a whole number of chunks: what is torn off in the middle of one comes again
DATE = "Mon, 02 Nov 2026 10:00:00 GMT"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(subject, "PAUSE", 0.001)
    with serving(monkeypatch, Answer(BODY)) as made:
        yield made


def fetched(server: Server, folder: Path, *answers: Answer, sha256: str | None = None) -> bytes:
    if answers:
        server.answers[:] = answers
    download(f"{server.url}/x.zip", folder / "x", sha256=sha256)
    return (folder / "x").read_bytes()


def ranges(server: Server) -> list[str]:
    return [headers.get("Range", "") for headers in server.requests]


def test_a_whole_file_comes_in_one_request_that_names_who_asks(server: Server, tmp_path: Path) -> None:
    assert fetched(server, tmp_path) == BODY
    [headers] = server.requests
    assert headers["User-Agent"].startswith("fdl-tasks")
    assert headers["Accept-Encoding"] == "identity"
    assert "Range" not in headers


def test_progress_ends_with_all_of_it(server: Server, tmp_path: Path) -> None:
    told = list[tuple[int, int | None]]()
    download(server.url, tmp_path / "x", progress=lambda done, total: told.append((done, total)))
    assert told[-1] == (len(BODY), len(BODY))
    assert [done for done, _ in told] == sorted(done for done, _ in told)


def test_a_file_of_unknown_length_ends_where_the_server_ends(server: Server, tmp_path: Path) -> None:
    assert fetched(server, tmp_path, Answer(BODY, length=-1)) == BODY


def test_what_broke_off_goes_on_where_it_was(server: Server, tmp_path: Path) -> None:
    assert fetched(server, tmp_path, Answer(BODY, stop=HALF), Answer(BODY)) == BODY
    assert ranges(server) == ["", f"bytes={HALF}-"]
    assert server.requests[1]["If-Range"] == '"one"'


def test_it_goes_on_as_often_as_it_brings_something(server: Server, tmp_path: Path) -> None:
    pieces = [Answer(BODY, stop=100)] * 3 + [Answer(BODY, stop=1 << 20)] * 2
    again = [Answer(BODY, stop=100)] * 3
    assert fetched(server, tmp_path, *pieces, *again, Answer(BODY)) == BODY
    assert len(server.requests) == 9


@pytest.mark.parametrize(
    ("answers", "asked"),
    [
        ([Answer(BODY, stop=HALF, ranges=False), Answer(BODY, ranges=False)], ["", f"bytes={HALF}-"]),
        ([Answer(BODY, stop=HALF, etag=""), Answer(BODY, etag="")], ["", ""]),
        ([Answer(BODY, stop=HALF, etag='W/"one"'), Answer(BODY)], ["", ""]),
        ([Answer(BODY, stop=HALF, etag='W/"one"', date=DATE), Answer(BODY, date=DATE)], ["", f"bytes={HALF}-"]),
        ([Answer(OTHER, stop=HALF), Answer(BODY, etag='"two"')], ["", f"bytes={HALF}-"]),
        ([Answer(OTHER, stop=HALF), Answer(BODY, etag='"two"', stop=HALF), Answer(BODY, etag='"two"')],
         ["", f"bytes={HALF}-", f"bytes={HALF}-"]),
        ([Answer(OTHER + OTHER, stop=4 << 20), Answer(BODY, etag='"two"')], ["", f"bytes={4 << 20}-"]),
        ([Answer(BODY, stop=HALF), Answer(BODY, shift=7), Answer(BODY)], ["", f"bytes={HALF}-", ""]),
        ([Answer(OTHER, stop=HALF), Answer(OTHER, total="9"), Answer(BODY)], ["", f"bytes={HALF}-", ""]),
        ([Answer(BODY, stop=HALF), Answer(status=416), Answer(BODY)], ["", f"bytes={HALF}-", ""]),
        ([Answer(BODY, stop=HALF), Answer(BODY, status=206, headers={"Content-Range": "nonsense"}), Answer(BODY)],
         ["", f"bytes={HALF}-", ""]),
        ([Answer(OTHER, status=206, headers={"Content-Range": f"bytes 0-9/{len(BODY)}"}), Answer(BODY)], ["", ""]),
        ([Answer(BODY, stop=HALF), Answer(BODY, total="*")], ["", f"bytes={HALF}-"]),
        ([Answer(BODY, stop=HALF, length=len(BODY) + 5), Answer(BODY)], ["", f"bytes={HALF}-", ""]),
    ],
    ids=["no ranges", "no validator", "weak ETag", "date", "changed", "changed, then cut",
         "changed to a shorter one", "wrong place", "wrong size",
         "416", "no range told", "unasked", "size untold", "lied about its length"],
)  # fmt: skip
def test_whatever_the_server_does_the_file_is_one_version_whole(
    server: Server, tmp_path: Path, answers: list[Answer], asked: list[str]
) -> None:
    assert fetched(server, tmp_path, *answers) == BODY
    assert ranges(server) == asked


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 504])
def test_a_server_in_trouble_is_asked_again(server: Server, tmp_path: Path, status: int) -> None:
    assert fetched(server, tmp_path, Answer(status=status), Answer(BODY)) == BODY


@pytest.mark.parametrize("status", [204, 304, 400, 401, 403, 404, 410])
def test_a_server_that_refuses_is_asked_once_and_told(server: Server, tmp_path: Path, status: int) -> None:
    with pytest.raises(TransientError, match=f"the server answers {status}") as told:
        fetched(server, tmp_path, Answer(status=status))
    assert told.value.where == f"{server.url}/x.zip"
    assert len(server.requests) == 1


def test_it_waits_as_long_as_it_is_asked_to(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slept = list[float]()
    monkeypatch.setattr("fdl_tasks.boxes.torch.download.time.sleep", slept.append)
    busy = [Answer(status=503, headers={"Retry-After": "7"}), Answer(status=429, headers={"Retry-After": "9"})]
    assert fetched(server, tmp_path, *busy, Answer(BODY)) == BODY
    assert [second for second in slept if second > 1] == [7, 9]


def test_a_server_that_asks_to_wait_for_long_is_left(server: Server, tmp_path: Path) -> None:
    with pytest.raises(TransientError, match="the server answers 503"):
        fetched(server, tmp_path, Answer(status=503, headers={"Retry-After": "3600"}))
    assert len(server.requests) == 1


def test_pauses_grow() -> None:
    assert [0.7 * n <= subject._pause(tried) <= 1.3 * n for n, tried in [(1, 0), (1, 1), (2, 2), (8, 4)]] == [True] * 4


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (Answer(BODY, stop=0), "0 bytes read, 3145728 more expected"),
        (Answer(BODY, stop=1000), "1000 bytes read, 3144728 more expected"),
        (Answer(BODY, stop=HALF, ranges=False), r"after 2\.0 MiB of 3\.0 MiB"),
        (Answer(status=503), "the server answers 503 Service Unavailable"),
    ],
)
def test_what_never_comes_whole_is_transient_after_some_tries(
    server: Server, tmp_path: Path, answer: Answer, why: str
) -> None:
    with pytest.raises(TransientError, match=why) as told:
        fetched(server, tmp_path, answer)
    assert f"({subject.TRIES} tries in a row)" in told.value.what
    assert len(server.requests) in (subject.TRIES, subject.TRIES + 1)  # the first may have brought something


def test_an_answer_that_ends_early_without_a_word_is_no_whole_one(tmp_path: Path) -> None:
    class Short:
        """As urllib3 before 2.0 takes it."""

        status_code, url, headers = 200, "http://m/x", {"Content-Length": "9"}

        def get(self, url: str, **how: object) -> contextlib.nullcontext[Short]:
            return contextlib.nullcontext(self)

        def iter_content(self, size: int) -> list[bytes]:
            return [b"four"]

    with (tmp_path / "x").open("wb", buffering=0) as out:
        part = subject._Part("http://m/x", tmp_path, out, lambda done, total: None, hashed=False)
        with pytest.raises(subject._Again, match="it ended after 0 KiB of 0 KiB"):
            subject._receive(Short(), part)  # type: ignore[arg-type]


def test_a_server_that_falls_silent_is_given_up(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subject, "TIMEOUT", (1, 0.2))
    monkeypatch.setattr(subject, "TRIES", 2)
    with pytest.raises(TransientError, match="timed out"):
        fetched(server, tmp_path, Answer(BODY, stop=1000, stall=1))


def test_a_server_that_is_not_there_is_told_in_plain_words(server: Server, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    with pytest.raises(TransientError) as told:
        download(f"http://someone:secret@127.0.0.1:{port}/x", tmp_path / "x")
    assert told.value.what.startswith("the download failed: Connection refused")
    assert "secret" not in str(told.value)
    assert told.value.where == f"http://127.0.0.1:{port}/x"


def test_redirects_are_followed(server: Server, tmp_path: Path) -> None:
    there = Answer(status=302, headers={"Location": "/elsewhere"}, etag="")
    assert fetched(server, tmp_path, there, Answer(BODY)) == BODY
    assert server.paths == ["/x.zip", "/elsewhere"]


@pytest.mark.parametrize("location", ["file:///etc/passwd", "ftp://127.0.0.1/x", "http://[::1", ""])
def test_a_redirect_to_something_else_brings_nothing(server: Server, tmp_path: Path, location: str) -> None:
    with pytest.raises(TransientError):
        fetched(server, tmp_path, Answer(status=302, headers={"Location": location}))
    assert (tmp_path / "x").read_bytes() == b""


def test_a_redirect_without_end_is_transient(server: Server, tmp_path: Path) -> None:
    with pytest.raises(TransientError, match="redirects"):
        fetched(server, tmp_path, Answer(status=302, headers={"Location": "/x.zip"}))


def test_an_encrypted_address_never_leads_to_an_open_one() -> None:
    from requests import Response

    answer = Response()
    answer.status_code, answer.url = 200, "http://m.example/x"
    part = subject._Part("https://m.example/x", Path("x"), None, subject.silent, hashed=False)  # type: ignore[arg-type]
    with pytest.raises(TransientError, match=r"without TLS: http://m\.example/x"):
        part.begin(answer)


@pytest.mark.parametrize("spelled", [str.lower, str.upper])
def test_a_pinned_hash_that_is_right_is_no_hindrance(
    server: Server, tmp_path: Path, spelled: Callable[[str], str]
) -> None:
    digest = spelled(hashlib.sha256(BODY).hexdigest())
    changed = [Answer(OTHER, stop=HALF), Answer(BODY, etag='"two"', stop=HALF), Answer(BODY, etag='"two"')]
    assert fetched(server, tmp_path, *changed, sha256=digest) == BODY


def test_a_pinned_hash_that_differs_is_transient_and_names_both(server: Server, tmp_path: Path) -> None:
    with pytest.raises(TransientError) as told:
        fetched(server, tmp_path, sha256="0" * 64)
    assert hashlib.sha256(BODY).hexdigest() in told.value.what
    assert "0" * 64 in told.value.what


def test_a_file_that_can_be_no_libtorch_is_refused_before_it_comes(server: Server, tmp_path: Path) -> None:
    with pytest.raises(TransientError, match="larger than any libtorch"):
        fetched(server, tmp_path, Answer(BODY, length=1 << 50))
    assert (tmp_path / "x").read_bytes() == b""


def test_a_full_disk_is_permanent_before_it_is_full(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subject, "free", lambda path: len(BODY) - 1)
    with pytest.raises(PermanentError, match=r"no room: 3\.0 MiB needed, .* free") as told:
        fetched(server, tmp_path)
    assert told.value.where == str(tmp_path)
    assert (tmp_path / "x").stat().st_size == 0


def test_a_full_disk_is_permanent_when_it_happens(server: Server) -> None:
    server.answers[:] = [Answer(BODY, length=-1)]
    with pytest.raises(PermanentError, match=r"no room: more needed, .* free"):
        download(server.url, Path("/dev/full"))


def test_an_answer_without_an_end_fills_no_disk(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subject, "MOST", 2 << 20)
    with pytest.raises(TransientError, match="larger than any libtorch"):
        fetched(server, tmp_path, Answer(BODY, length=-1))
    assert (tmp_path / "x").stat().st_size <= 2 << 20


def test_a_place_that_cannot_be_written_is_permanent(server: Server, tmp_path: Path) -> None:
    with pytest.raises(PermanentError, match="can't be written: No such file"):
        download(server.url, tmp_path / "nowhere" / "x")
    assert server.requests == []


def test_a_compressed_answer_is_taken_but_never_gone_on_with(server: Server, tmp_path: Path) -> None:
    import gzip

    packed = gzip.compress(BODY)
    half = Answer(packed, stop=1000, headers={"Content-Encoding": "gzip"})
    assert fetched(server, tmp_path, half, Answer(packed, headers={"Content-Encoding": "gzip"})) == BODY
    assert ranges(server) == ["", ""]


@pytest.mark.parametrize(
    ("asked", "least", "most"),
    [("", 0, 0), ("7", 7, 7), (" 7 ", 7, 7), ("soon", 0, 0), ("-3", 0, 0), ("1e9", 0, 0), (DATE, 0, 0),
     (format_datetime(datetime.now(UTC) + timedelta(hours=2), usegmt=True), 6000, 7200)],
    ids=["none", "7", "blanks", "soon", "-3", "1e9", "past", "in two hours"],
)  # fmt: skip
def test_what_a_server_asks_to_wait(asked: str, least: float, most: float) -> None:
    assert least <= seconds(asked) <= most


@pytest.mark.parametrize(
    ("url", "shown"),
    [("http://m/x", "http://m/x"), ("https://u:p@m:1/x", "https://m:1/x"), ("http://a@b@m/x", "http://m/x")],
)
def test_no_password_is_shown(url: str, shown: str) -> None:
    assert bare(url) == shown


def test_a_pipe_is_told_of_a_download_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    told, clock = list[int](), iter(range(10_000))
    monkeypatch.setattr("fdl_tasks.boxes.torch.download.time.monotonic", lambda: next(clock) / 10)
    tell = steps(lambda done, total: told.append(done))
    for done in range(0, 1001):
        tell(done, 1000)
    assert told == [*range(0, 1000, 20), 1000]


def test_a_download_that_begins_anew_is_told() -> None:
    told = list[int]()
    tell = steps(lambda done, total: told.append(done))
    for done in (10, 500, 0):
        tell(done, None)
    assert told == [10, 0]
