"""The compilers of native builds, rationed: a GNU make jobserver whose tokens a broker lends.

On one pipe for all nobody can tell how many tokens a killed build held. So each build has two pipes of
its own, one that it takes tokens from and one that it gives them back to, and all that is kept is how many
it has. How many there are to lend follows from which builds run: a build's end, however it came, is enough
to have its tokens back. The protocol is GNU make's, as cargo, rustc, build scripts and make speak it:
https://www.gnu.org/software/make/manual/html_node/POSIX-Jobserver.html
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import TracebackType

TOKEN = b"+"
PATIENCE = 0.02  # seconds that a token may lie unused in front of one build while another has none
FIRST_FD = 10  # a shell's redirections name single digits: none of them can hit one of ours


@dataclass(frozen=True)
class Tokens:
    """How one build gets at its tokens: variables, and the file descriptors that they speak of."""

    env: Mapping[str, str] = field(default_factory=dict)
    fds: tuple[int, ...] = ()


NO_TOKENS = Tokens()  # of a build in a container: no file descriptor gets there


class Lane:
    """One build's two pipes, and how many tokens it has: in its hands, or in front of it."""

    def __init__(self) -> None:
        self.lent = 0
        # One packet fills the way out: it can be written to when, and only when, the build has taken its token.
        taken, self.out = os.pipe2(os.O_CLOEXEC | os.O_DIRECT | os.O_NONBLOCK)
        fcntl.fcntl(self.out, fcntl.F_SETPIPE_SZ, 1)
        self.back, given = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self.back, False)
        self.recall = taken
        # Opened anew, since being non-blocking would be shared with the build.
        theirs = (os.open(f"/proc/self/fd/{taken}", os.O_RDONLY | os.O_CLOEXEC), given)
        self.fds = tuple(fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, FIRST_FD) for fd in theirs)
        for fd in theirs:
            os.close(fd)

    @property
    def tokens(self) -> Tokens:
        """CARGO_MAKEFLAGS, since GNU make of build scripts would be confused by MAKEFLAGS (facts/bootstrap.md)."""
        take, give = self.fds
        return Tokens({"CARGO_MAKEFLAGS": f"-j --jobserver-auth={take},{give}"}, self.fds)

    def lend(self) -> bool:
        """Put a token in front of the build; False when the last one still lies there."""
        with contextlib.suppress(BlockingIOError):
            self.lent += os.write(self.out, TOKEN)
            return True
        return False

    def collect(self) -> None:
        """Take what the build gave back. It may be more than it had: a program may be in error."""
        with contextlib.suppress(BlockingIOError):
            self.lent = max(0, self.lent - len(os.read(self.back, 4096)))

    def take_back(self) -> None:
        """Take the token that lies in front of the build, if it has not just been taken."""
        with contextlib.suppress(BlockingIOError):
            self.lent -= len(os.read(self.recall, 1))

    @property
    def idle(self) -> bool:
        """Whether a token lies in front of the build."""
        return not _writable(self.out)

    def close(self) -> None:
        for fd in (self.out, self.recall, self.back, *self.fds):
            os.close(fd)


class Jobserver:
    """Lends ``cores`` minus the builds at work, each of which has one of its own: a build may always compile.

    A context manager: inside it ``build`` opens a lane for each build.
    """

    def __init__(self, cores: int):
        self._cores, self._lanes, self._turn = cores, list[Lane](), 0.0
        self._lock, self._wake = threading.RLock(), os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._open, self._thread = True, threading.Thread(target=self._serve, daemon=True, name="fdl-jobserver")

    @property
    def spare(self) -> int:
        """Tokens that nobody has. Below 0 for as long as a build that has just begun waits for its own core."""
        with self._lock:
            return max(0, self._cores - len(self._lanes)) - sum(lane.lent for lane in self._lanes)

    @contextlib.contextmanager
    def build(self) -> Iterator[Tokens]:
        """One build's way to its tokens, for as long as it runs; all that it has is back at its end."""
        lane = Lane()
        with self._changing():
            self._lanes.append(lane)
        try:
            yield lane.tokens
        finally:
            with self._changing():
                self._lanes.remove(lane)
                lane.close()

    @contextlib.contextmanager
    def _changing(self) -> Iterator[None]:
        with self._lock:
            yield
            self._settle()
            if self._open:  # a build may still be ending when all is over, after a Ctrl-C
                os.eventfd_write(self._wake, 1)

    def _serve(self) -> None:
        while self._open:
            with self._lock:
                self._settle()
                poll, patience = self._to_wait_for()
            poll.poll(patience)  # only a nap: what is true is looked up under the lock
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self._wake)

    def _settle(self) -> None:
        """Take what was given back, take up what lies in the wrong place, lend what can be lent."""
        for lane in self._lanes:
            lane.collect()
        if self.spare < 0 or (self._unfair() and time.monotonic() >= self._turn):
            self._take_up()
        for lane in list(self._lanes):
            if self.spare > 0 and lane.lend():
                self._last(lane)

    def _take_up(self) -> None:
        """Take up all that lie unused: the builds that have none in front of them are the next to get one."""
        for lane in [lane for lane in self._lanes if lane.idle]:
            lane.take_back()
            self._last(lane)
        self._turn = time.monotonic() + PATIENCE

    def _unfair(self) -> bool:
        """Whether some have a token in front of them and some have not: which of these need one can't be seen."""
        return 0 < sum(lane.idle for lane in self._lanes) < len(self._lanes)

    def _last(self, lane: Lane) -> None:
        self._lanes.remove(lane)
        self._lanes.append(lane)

    def _to_wait_for(self) -> tuple[select.poll, float | None]:
        """A change of lanes, a token given back or taken; the turn of the others, in milliseconds."""
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        for lane in self._lanes:
            poll.register(lane.back, select.POLLIN)
            if lane.idle or self.spare > 0:  # or it was taken since we looked
                poll.register(lane.out, select.POLLOUT)
        return poll, PATIENCE * 1000 if self._unfair() else None

    def __enter__(self) -> Jobserver:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        with self._lock:
            self._open = False
            os.eventfd_write(self._wake, 1)
        self._thread.join()
        os.close(self._wake)


def _writable(fd: int) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLOUT)
    return bool(poll.poll(0))
