"""What a proxy program said when the way through it failed."""

from __future__ import annotations

import io
import socket

import pytest

from fdl_tasks.hosts.sockets import Link

ADDED = b"Warning: Permanently added 'jump' (ED25519) to the list of known hosts.\r\n"


@pytest.mark.parametrize(
    ("said", "complaint"),
    [
        (b"", ""),
        (ADDED, ""),  # no reason: what this side met is told instead
        (ADDED + b"Welcome to jump\nchannel 0: open failed: connect failed: No route to host\r\n",
         "channel 0: open failed: connect failed: No route to host"),
        (b"caf\xe9", "caf\ufffd"),
    ],
)  # fmt: skip
def test_the_complaint_is_the_last_line_that_is_no_warning(said: bytes, complaint: str) -> None:
    with socket.socket() as sock:
        assert Link(sock, said=io.BytesIO(said)).complaint() == complaint
    assert Link(sock).complaint() == ""
