"""Reads a running script to its end: output, end, time limits and Ctrl-C in one loop.

The library has its own reader because Invoke's corrupts text at chunk borders, is quadratic in
the output's size and cannot be left on Ctrl-C (facts/fabric.md, rules 3, 6, 13).
"""

from __future__ import annotations

import select
import time
from collections.abc import Iterable
from typing import Protocol

from ..errors import ScriptError, Stage, TransportError
from ..scripts import Script
from .base import Completed, OnLine
from .fanout import Cancel
from .output import Stream

NAP = 0.25  # seconds between looks at what no file descriptor tells
GRACE = 0.5  # seconds of output still taken after the script's end, from children it left behind
START_LIMIT = 15.0  # seconds for the login shell to come up and start the script
NOT_WHOLE = "__FDL_NOT_WHOLE__"


class Source(Protocol):
    """A started script: its output as it comes, then its exit code."""

    def fds(self) -> Iterable[int]:
        """File descriptors that become readable when there is something to read."""
        ...

    def read(self) -> Iterable[tuple[str, bytes]]:
        """What can be read now without waiting, as (stream, data)."""
        ...

    def ended(self) -> bool:
        """Whether the script itself has ended; its output may not be drained yet."""
        ...

    def drained(self) -> bool:
        """Whether both streams are at their end."""
        ...

    def code(self) -> int:
        """Exit code of the ended script. Raises TransportError when it has none."""
        ...


def packed(script: Script) -> bytes:
    """What travels on the bootstrap's stdin: a byte count and the script."""
    body = script.text.encode()
    return b"%d\n%s" % (len(body), body)


def follow(source: Source, where: str, *, limit: float, cancel: Cancel, on_line: OnLine | None) -> Completed:
    """Read ``source`` to its end and judge how it ended.

    Raises:
        TransportError: the limit passed, the login never started the script, or the link was lost.
        ScriptError: the script did not arrive whole.
        Cancelled: the user ended the run.
    """
    began = time.monotonic()
    streams = {"out": Stream("out", on_line, keep_end=False), "err": Stream("err", on_line, keep_end=True)}
    _drain(source, streams, where, began, limit, cancel)
    out, err = streams["out"].finish(), streams["err"].finish()
    noise = [*streams["out"].noise, *streams["err"].noise]
    code = source.code()
    if not streams["out"].started:
        raise ScriptError(
            f"the login shell ended with {code} before it started the script",
            where=where,
            hint="log in by hand and look at what the login shell and its start-up files do",
            tail=noise[-10:],
        )
    if code == 97 and NOT_WHOLE in err:
        raise ScriptError(
            "the script did not arrive whole, so none of it was run",
            where=where,
            hint="a start-up file of the login (.bashrc, say) reads stdin: let only interactive shells do that",
        )
    return Completed(code, out, err, time.monotonic() - began)


def _drain(source: Source, streams: dict[str, Stream], where: str, began: float, limit: float, cancel: Cancel) -> None:
    ended: float | None = None
    while not source.drained():
        cancel.check()
        now = time.monotonic()
        if source.ended() and now - (ended := ended or now) > GRACE:
            return
        _check_limits(streams, where, now - began, limit)
        _wait(source, cancel, min(NAP, limit - (now - began)))
        for stream, data in source.read():
            streams[stream].feed(data)
    while not source.ended():
        cancel.check()
        _check_limits(streams, where, time.monotonic() - began, limit)
        time.sleep(0.01)


def _wait(source: Source, cancel: Cancel, seconds: float) -> None:
    poll = select.poll()
    for fd in (*source.fds(), cancel.fd):
        poll.register(fd, select.POLLIN)
    poll.poll(max(1, int(seconds * 1000)))


def _check_limits(streams: dict[str, Stream], where: str, seconds: float, limit: float) -> None:
    if seconds > limit:
        raise TransportError(Stage.DEADLINE, f"the script was ended after {limit:g} s", where=where)
    if seconds > START_LIMIT and not streams["out"].started:
        raise TransportError(
            Stage.DEADLINE,
            f"the login shell had not started the script after {START_LIMIT:g} s",
            where=where,
            hint="something in its start-up files hangs or waits for input (stdin is not a terminal)",
        )
