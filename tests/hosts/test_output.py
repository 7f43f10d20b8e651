"""Lines from bytes, whatever the bytes are."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fdl_tasks.hosts import output
from fdl_tasks.hosts.output import START, Lines, Stream, reason

ANY = b"caf\xc3\xa9 \xe2\x82\xac\r\n\xff\xfe broken\n\nlast"


@given(cuts=st.lists(st.integers(0, len(ANY)), max_size=6))
def test_lines_are_the_same_wherever_the_bytes_are_cut(cuts: list[int]) -> None:
    lines, edges = Lines(), [0, *sorted(cuts), len(ANY)]
    got = [line for a, b in pairwise(edges) for line in lines.feed(ANY[a:b])]
    assert got + lines.feed(b"", final=True) == ["café €", "\ufffd\ufffd broken", "", "last"]


def test_a_line_without_end_is_passed_on_before_it_fills_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "KEEP", 10)
    lines = Lines()
    assert lines.feed(b"x" * 11) == ["x" * 11]
    assert lines.feed(b"y") == []


def stream(*chunks: bytes, keep_end: bool = False) -> tuple[Stream, str]:
    made = Stream("out", None, keep_end=keep_end)
    for chunk in chunks:
        made.feed(chunk)
    return made, made.finish()


def test_what_the_login_prints_before_the_script_is_set_apart() -> None:
    made, text = stream(b"Welcome\nno newline", START.encode() + b"\nmine\nend")
    assert (made.started, made.noise, text) == (True, ["Welcome"], "mine\nend")


def test_a_script_that_never_started_leaves_only_noise() -> None:
    made, text = stream(b"This account is not available.\n")
    assert (made.started, made.noise, text) == (False, ["This account is not available."], "")


@pytest.mark.parametrize(("keep_end", "text"), [(False, "1\n2\n3\n4\n"), (True, "6\n7\n8\n9\n")])
def test_no_more_than_keep_bytes_are_kept(monkeypatch: pytest.MonkeyPatch, keep_end: bool, text: str) -> None:
    monkeypatch.setattr(output, "KEEP", 8)
    chunks = [f"{n}\n".encode() for n in range(1, 10)]
    assert stream(f"{START}\n".encode(), *chunks, keep_end=keep_end)[1] == text


def test_lines_are_handed_on_as_they_come() -> None:
    seen: list[tuple[str, str]] = []
    made = Stream("err", lambda name, line: seen.append((name, line)), keep_end=True)
    made.feed(f"{START}\none\ntw".encode())
    assert seen == [("err", "one")]
    made.finish()
    assert seen == [("err", "one"), ("err", "tw")]


NO_KEY = "Warning: Identity file /k/id not accessible: No such file or directory."
ADDED = "Warning: Permanently added 'jump' (ED25519) to the list of known hosts."
WEAK = [
    "** WARNING: connection is not using a post-quantum key exchange algorithm.",
    '** This session may be vulnerable to "store now, decrypt later" attacks.',
]
DENIED = "root@10.0.0.2: Permission denied (publickey)."


@pytest.mark.parametrize(
    ("lines", "last", "why"),
    [
        ([], 3, ""),
        (["", "  \r"], 3, ""),
        (["one", "two", "three", "four\r"], 3, "two; three; four"),
        (["banner", "ssh: connect to host b port 22: Connection refused"], 1,
         "ssh: connect to host b port 22: Connection refused"),
        ([NO_KEY, "ssh: connect to host b port 22: Connection timed out"], 3,
         "ssh: connect to host b port 22: Connection timed out"),
        ([NO_KEY, ADDED, "a", "b", "c"], 3, "a; b; c"),
        (["why", ADDED], 1, "why"),
        ([ADDED], 1, ""),
        ([*WEAK, "Connection closed by 10.0.0.2 port 22"], 3, "Connection closed by 10.0.0.2 port 22"),
        ([NO_KEY, ADDED, DENIED], 3,
         f"{DENIED}; Identity file /k/id not accessible: No such file or directory."),
        ([ADDED, DENIED], 3, DENIED),
    ],
)  # fmt: skip
def test_the_reason_is_what_tells_why_and_no_warning(lines: list[str], last: int, why: str) -> None:
    assert reason(lines, last) == why
