"""The script that tries ways, in every shell a source may have, against a stand-in ssh."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fdl_tasks.hosts.fanout import Cancel
from fdl_tasks.images import logins
from fdl_tasks.images.addresses import Candidates, Way, alias
from fdl_tasks.images.logins import Reach
from fdl_tasks.images.ways import TRIES, find_routes, render, ssh_argv
from fdl_tasks.scripts import Script, Scripts
from fdl_tasks.testing import Completed, FakeHost

SHELLS = [["dash"], ["bash"], ["busybox", "sh"]]

Run = Callable[[Script], Completed]


@pytest.fixture(params=SHELLS, ids=lambda shell: shell[0])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Run:
    """Runs a script where ssh is a stand-in: what it does depends on its last word but one, the address."""
    if not shutil.which(request.param[0]):
        pytest.skip(f"{request.param[0]} is not installed")
    (tmp_path / "bin").mkdir()
    (tmp_path / "tmp").mkdir()
    program = tmp_path / "bin/ssh"
    program.write_text(
        "#!/bin/sh\n"
        f"cat known_hosts >'{tmp_path}/pinned'; ls -ld . >'{tmp_path}/mode'\n"
        f"printf '%s\\n' \"$*\" >>'{tmp_path}/calls'\n"
        "while [ $# -gt 2 ]; do shift; done\n"
        "case $1 in\n"
        "good) cat; exit 0 ;;\n"
        f"slow) {shutil.which('sleep')} 0.3; exit 0 ;;\n"
        "dead) echo 'ssh: connect to host dead port 22: No route to host' >&2; exit 255 ;;\n"
        f"flaky) [ -e '{tmp_path}/once' ] || {{ : >'{tmp_path}/once'; echo 'kex_exchange_identification: read: "
        "Connection reset by peer' >&2; exit 255; } ;;\n"
        "stuck) exec sleep 300 ;;\n"
        "*) printf 'bad\\n__FDL_WAY__ 6 0 0 ok\\n'; exit 9 ;;\n"
        "esac\n"
    )
    program.chmod(0o755)
    env = os.environ | {"PATH": f"{tmp_path}/bin:{os.environ['PATH']}", "TMPDIR": str(tmp_path / "tmp")}

    def run(script: Script) -> Completed:
        argv = [*request.param, "-c", script.text]
        done = subprocess.run(argv, capture_output=True, text=True, env=env, stdin=subprocess.DEVNULL)
        assert list((tmp_path / "tmp").iterdir()) == []
        return Completed(done.returncode, done.stdout, done.stderr, 0.0)

    return run


def to(*names: str) -> list[Way]:
    return [Way(name, name, 22, "root", alias(name), "~/.ssh/id", False) for name in names]


@pytest.mark.subprocess
def test_every_way_is_tried_with_its_own_words_in_a_private_directory(run: Run, tmp_path: Path) -> None:
    ways = to("good", "dead", "it's")
    done = run(render(Scripts(), ways, "x ssh-ed25519 AAAA\ny ssh-rsa BBBB\n"))
    reaches = [tried.reach for tried in logins.parse(done.out, ways, "a", done.err)]
    assert (reaches, done.code, done.err) == ([Reach.OK, Reach.TRANSPORT, Reach.OTHER], 0, "")
    assert (tmp_path / "pinned").read_text() == "x ssh-ed25519 AAAA\ny ssh-rsa BBBB\n"
    assert (tmp_path / "mode").read_text().startswith("drwx------")
    expected = [" ".join([*ssh_argv(way, ".")[1:], "true"]) for way in ways]
    assert sorted((tmp_path / "calls").read_text().splitlines()) == sorted(expected)


@pytest.mark.subprocess
def test_a_login_that_never_ends_is_ended_and_keeps_no_other_waiting(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fdl_tasks.images.ways.LOGIN_LIMIT", 1)
    ways, began = to("stuck", "good"), time.monotonic()
    done = run(render(Scripts(), ways, ""))
    assert [tried.reach for tried in logins.parse(done.out, ways, "a")] == [Reach.TRANSPORT, Reach.OK]
    assert time.monotonic() - began < 8


@pytest.mark.subprocess
def test_its_clock_ends_with_the_last_login(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fdl_tasks.images.ways.LOGIN_LIMIT", 86_429)
    # a shell that has just forked for it loses the signals that it has traps for
    deaf = tmp_path / "bin/sleep"
    deaf.write_text(f"#!/bin/sh\ntrap '' HUP INT TERM\nexec {shutil.which('sleep')} \"$@\"\n")
    deaf.chmod(0o755)
    for name in ("good", "slow", "good", "slow"):
        run(render(Scripts(), to(name), ""))
    clocks = subprocess.run(["pgrep", "-fx", ".*sleep 86429"], capture_output=True, text=True)
    assert clocks.stdout == ""


@pytest.mark.subprocess
def test_only_a_dropped_login_is_tried_again(run: Run, tmp_path: Path) -> None:
    host = FakeHost("a", run)
    asked = [Candidates(way.target, (way,)) for way in to("good", "flaky", "dead")]
    found = find_routes(host, asked, "", Cancel())
    assert {name: bool(route.ways) for name, route in found.items()} == {"good": True, "flaky": True, "dead": False}
    assert len(host.scripts) == 2
    assert [line.split()[-2] for line in (tmp_path / "calls").read_text().splitlines()].count("flaky") == 2
    assert found["dead"].error and "No route to host" in found["dead"].error


def said(*codes: str) -> Completed:
    """An answer of the script: per way ssh's code, and that the login was dropped where it is 255."""
    words = {"255": "Connection reset by 10.0.0.2 port 22"}
    values = [f"{number} {code} {words.get(code, '')}" for number, code in enumerate(codes)]
    return Completed(0, "".join(f"__FDL_WAY__ {len(v)} {v}\n" for v in values) + "__FDL_END__ 0 \n", "", 0.0)


@pytest.mark.parametrize(
    ("answers", "reached"),
    [
        # two get in at a time: as many turns as it takes
        ([said(*["0"] * 2, *["255"] * count) for count in range(18, -1, -2)], 20),
        ([said(*["255"] * 20)] * TRIES, 0),
        ([said("0", *["255"] * 19), *[said(*["255"] * 19)] * (TRIES - 1)], 1),
    ],
)
def test_dropped_logins_are_tried_again_as_long_as_some_get_in(
    answers: list[Completed], reached: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Cancel, "pause", lambda self, seconds: None)
    host = FakeHost("a", *answers)
    found = find_routes(host, [Candidates(way.target, (way,)) for way in to(*map(str, range(20)))], "", Cancel())
    assert sum(1 for route in found.values() if route.ways) == reached
    assert len(host.scripts) == len(answers)


def test_nothing_is_run_when_there_is_nothing_to_try() -> None:
    host = FakeHost("a")
    assert find_routes(host, [Candidates("b", (), ("no way",))], "", Cancel())["b"].error
    assert host.scripts == []
