"""The tokens of the jobserver, as its clients see them: never too many, never lost, never kept from who needs one."""

from __future__ import annotations

import contextlib
import os
import re
import select
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fdl_tasks.builds.jobserver import FIRST_FD, Jobserver, Tokens

LONG, SHORT = 3.0, 0.15  # seconds in which a token comes if it ever does, or in which one that must not come would


class Client:
    """A build's side of the protocol, as GNU make describes it."""

    def __init__(self, tokens: Tokens):
        found = re.fullmatch(r"-j --jobserver-auth=(\d+),(\d+)", tokens.env["CARGO_MAKEFLAGS"])
        assert found
        self.reader, self.writer = int(found[1]), int(found[2])
        assert tokens.fds == (self.reader, self.writer)

    def take(self, wanted: int, limit: float = LONG) -> int:
        """How many of so many tokens came, each within the limit."""
        poll = select.poll()
        poll.register(self.reader, select.POLLIN)
        taken = 0
        while taken < wanted and poll.poll(limit * 1000) and os.read(self.reader, 1) == b"+":
            taken += 1
        return taken

    def give(self, number: int = 1) -> None:
        os.write(self.writer, b"+" * number)


@contextlib.contextmanager
def clients(jobserver: Jobserver, number: int) -> Iterator[list[Client]]:
    with contextlib.ExitStack() as stack:
        yield [Client(stack.enter_context(jobserver.build())) for _ in range(number)]


@pytest.mark.parametrize(
    ("cores", "builds", "tokens"), [(8, 1, 7), (8, 3, 5), (4, 3, 1), (3, 3, 0), (2, 5, 0), (1, 1, 0)]
)
def test_there_are_as_many_tokens_as_cores_less_the_builds(cores: int, builds: int, tokens: int) -> None:
    with Jobserver(cores) as jobserver, clients(jobserver, builds) as all_of_them:
        assert all_of_them[0].take(tokens) == tokens
        assert [client.take(1, SHORT) for client in all_of_them] == [0] * builds
        assert jobserver.spare == 0


def test_a_token_given_back_goes_to_who_waits() -> None:
    with Jobserver(4) as jobserver, clients(jobserver, 2) as (one, other):
        assert one.take(2) == 2
        assert other.take(1, SHORT) == 0
        one.give()
        assert other.take(1) == 1


def test_what_an_ended_build_held_is_there_again_at_once_and_its_own_core_with_it() -> None:
    with Jobserver(6) as jobserver, jobserver.build() as other:
        with jobserver.build() as killed:
            assert Client(killed).take(4) == 4
            assert Client(other).take(1, SHORT) == 0
        assert Client(other).take(5) == 5
        assert Client(other).take(1, SHORT) == 0


def test_a_token_that_lies_unused_goes_to_another_build() -> None:
    with Jobserver(3) as jobserver, clients(jobserver, 2) as (idle, hungry):
        for _ in range(3):  # wherever the only token lies
            assert hungry.take(1) == 1
            hungry.give()
        assert idle.take(1) == 1


def test_a_build_that_begins_later_gets_its_core_before_tokens_are_lent_again() -> None:
    with Jobserver(3) as jobserver, jobserver.build() as first:
        early = Client(first)
        assert early.take(2) == 2
        with jobserver.build() as second:
            assert jobserver.spare == -1
            early.give()
            assert (early.take(1, SHORT), Client(second).take(1, SHORT)) == (0, 0)
            early.give()
            assert Client(second).take(1) == 1


def test_a_token_that_lies_ready_is_taken_up_for_a_build_that_begins() -> None:
    with Jobserver(3) as jobserver, clients(jobserver, 3) as all_of_them:
        assert (jobserver.spare, [client.take(1, 0) for client in all_of_them]) == (0, [0, 0, 0])


def test_more_tokens_than_were_taken_make_no_more_of_them() -> None:
    with Jobserver(3) as jobserver, clients(jobserver, 1) as (client,):
        client.give(10)
        assert client.take(5, SHORT) <= 2 + 1  # one that lay there already is counted as given back
        assert jobserver.spare >= 0


def test_many_clients_all_get_on_and_never_have_too_many() -> None:
    have, most, lock = 0, 0, threading.Lock()

    def work(client: Client) -> None:
        nonlocal have, most
        for _ in range(40):
            assert client.take(1, 10) == 1
            with lock:
                have += 1
                most = max(most, have)
            time.sleep(0.001)
            with lock:
                have -= 1
            client.give()

    with Jobserver(8) as jobserver, clients(jobserver, 5) as all_of_them:
        threads = [threading.Thread(target=work, args=(client,)) for client in all_of_them]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert 1 < most <= 3


def test_its_file_descriptors_are_out_of_a_shells_way_and_no_other_childs() -> None:
    with Jobserver(2) as jobserver, jobserver.build() as tokens:
        assert all(fd >= FIRST_FD and not os.get_inheritable(fd) and os.get_blocking(fd) for fd in tokens.fds)


def open_fds() -> set[str]:
    return {fd.name for fd in Path("/proc/self/fd").iterdir() if os.path.lexists(fd)}


def test_nothing_is_left_open_behind_it() -> None:
    before = open_fds()
    with Jobserver(4) as jobserver, clients(jobserver, 3) as all_of_them:
        all_of_them[0].take(1)
        assert len(open_fds()) > len(before)
    assert open_fds() == before
    assert "fdl-jobserver" not in [thread.name for thread in threading.enumerate()]


def test_a_build_that_ends_after_it_touches_no_other_file() -> None:
    with contextlib.ExitStack() as late:
        with Jobserver(4) as jobserver:
            late.enter_context(jobserver.build())
        reader, writer = os.pipe()  # with the numbers that have just become free
    os.close(writer)
    assert os.read(reader, 100) == b""
    os.close(reader)
