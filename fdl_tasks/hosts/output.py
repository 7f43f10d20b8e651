"""Bytes from a host, as lines: whole, decoded whatever they hold, noise set apart."""

from __future__ import annotations

import codecs
from collections.abc import Iterable

from .base import OnLine

START = "__FDL_START__"  # printed by templates/hosts/bootstrap.sh on both streams
_WARNING = ("Warning: ", "** ")  # how ssh's lines begin that are no errors; the second since OpenSSH 10.1
KEEP = 4 << 20  # bytes of each stream that are kept: no host can fill this machine's memory


def reason(lines: Iterable[str], last: int = 3) -> str:
    """Why ssh, or another program, failed: its last words in one line; empty where it said nothing that tells.

    ssh warns before it does anything, of a known_hosts file or of a key file that is not there. The latter
    stands behind the reason where that is a refused login.
    """
    said = [line.strip() for line in lines if line.strip()]
    words = [line for line in said if not line.startswith(_WARNING)][-last:]
    refused = any("Permission denied" in line for line in words)
    missing = [line.removeprefix("Warning: ") for line in said if line.startswith("Warning: Identity file ")]
    return "; ".join([*words, *(missing if refused else ())])


class Lines:
    """Whole lines from chunks of bytes that may split a line, or a character, anywhere."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._rest = ""

    def feed(self, data: bytes, *, final: bool = False) -> list[str]:
        """The lines that ``data`` completes; with ``final`` also the one left without an end."""
        *whole, self._rest = (self._rest + self._decoder.decode(data, final)).split("\n")
        if (final and self._rest) or len(self._rest) > KEEP:
            whole, self._rest = [*whole, self._rest], ""
        return [line.removesuffix("\r") for line in whole]


class Stream:
    """One stream of a script: what the login printed before it, and what the script printed."""

    def __init__(self, name: str, on_line: OnLine | None, *, keep_end: bool):
        self.name, self.on_line, self.keep_end = name, on_line, keep_end
        self.started = False
        self.noise: list[str] = []
        self._lines, self._kept, self._size = Lines(), bytearray(), 0
        self._whole = True

    def feed(self, data: bytes) -> None:
        for line in self._lines.feed(data):
            self._take(line, "\n")

    def finish(self) -> str:
        """The script's text; its last line ends in a newline only if it did on the host."""
        for line in self._lines.feed(b"", final=True):
            self._take(line, "")
        return self._kept.decode("utf-8", "replace")

    def _take(self, line: str, end: str) -> None:
        if not self.started:
            if line.endswith(START):
                self.started = True
            else:
                self.noise = [*self.noise[-19:], line[:500]]
            return
        self._keep((line + end).encode())
        if self.on_line:
            self.on_line(self.name, line)

    def _keep(self, data: bytes) -> None:
        if self.keep_end:
            self._kept += data
            del self._kept[: max(0, len(self._kept) - KEEP)]
        elif self._whole and len(self._kept) + len(data) <= KEEP:
            self._kept += data
        else:
            self._whole = False
