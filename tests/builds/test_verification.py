"""The verification of built binaries over hosts that fail in every way, without a machine."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from fdl_tasks.builds import judge, verify
from fdl_tasks.builds.plan import Job
from fdl_tasks.builds.verify import Subject, verify_all
from fdl_tasks.checks.probe import Facts
from fdl_tasks.cluster.model import Command, Ssh, Worker
from fdl_tasks.errors import ScriptError, Stage, TransportError
from fdl_tasks.hosts.base import Completed
from fdl_tasks.hosts.fanout import Cancel
from fdl_tasks.hosts.local import Local
from fdl_tasks.outcome import Event, Kind, Status, Verdict
from fdl_tasks.scripts import Script, Scripts
from fdl_tasks.testing import Answer, FakeHost, fake_connect
from tests.builds.elves import program

pytestmark = pytest.mark.subprocess
LOST = TransportError(Stage.LOST, "it went away")


@pytest.fixture
def subject(tmp_path: Path) -> Subject:
    if not shutil.which("cc"):
        pytest.skip("not installed: cc")
    program(tmp_path / "target/bench")
    (tmp_path / "libtorch/a/lib").mkdir(parents=True)
    job = Job("node", Command("bench", check=("-v",)), "a", tmp_path, "", "/lib")
    return Subject(job, Worker("node", str(tmp_path), Ssh("node")), "target/bench")


def truly(script: Script) -> Completed:
    """What this machine answers."""
    return Local("node", Cancel()).run(script, limit=30)


def found(subject: Subject, *answers: Answer, there: bool = True) -> tuple[list[Verdict], list[Event]]:
    events: list[Event] = []
    connect = fake_connect(FakeHost("node", *answers))
    attempts = verify_all({"node": subject}, Scripts(), 4, connect, events.append, there=there)
    return list(judge.outcome(attempts["node"])), events


def status(subject: Subject, *answers: Answer, there: bool = True) -> Status:
    verdicts, events = found(subject, *answers, there=there)
    assert [event.text for event in events if event.kind is Kind.DONE] == [str(judge.status(verdicts))]
    return judge.status(verdicts)


def test_what_is_right_is_ok(subject: Subject) -> None:
    assert status(subject, truly) is Status.OK
    events = found(subject, truly)[1]
    assert [(event.kind, event.text) for event in events] == [(Kind.STATE, "reading back"), (Kind.DONE, "ok")]


@pytest.mark.parametrize("stage", [stage for stage in Stage if stage is not Stage.KEY_CHANGED])
def test_a_worker_that_cannot_be_spoken_to_is_unverified(subject: Subject, stage: Stage) -> None:
    verdicts, _ = found(subject, TransportError(stage, "why"))
    assert judge.status(verdicts) is Status.UNVERIFIED
    assert f"not read back ({stage}: why)" in verdicts[-1].message


def test_another_machine_at_the_workers_address_is_a_failure(subject: Subject) -> None:
    assert status(subject, TransportError(Stage.KEY_CHANGED, "other key")) is Status.FAILED


def test_an_answer_that_is_none_or_another_runs_is_unverified(subject: Subject) -> None:
    subject = replace(subject, job=replace(subject.job, command=Command("bench")))
    assert status(subject, ScriptError("not whole")) is Status.UNVERIFIED
    assert status(subject, Completed(0, "", "", 0.1)) is Status.UNVERIFIED
    old = truly(verify.script(subject, Scripts(), "fdl-0000000000000000", 1, "00"))
    assert status(subject, old) is Status.UNVERIFIED


def test_a_worker_that_is_away_is_still_judged_by_what_preflight_learnt(subject: Subject) -> None:
    old = Facts(machine="x86_64", ldd="ldd (GNU libc) 2.1")
    assert status(replace(subject, facts=old), LOST) is Status.FAILED
    new = Facts(machine="x86_64", ldd="ldd (GNU libc) 2.99")
    assert status(replace(subject, facts=new), LOST) is Status.UNVERIFIED


def test_without_a_look_at_the_workers_the_file_itself_is_judged_all_the_same(subject: Subject) -> None:
    never = AssertionError("nobody is to be asked")
    assert status(subject, never, there=False) is Status.UNVERIFIED
    foreign = Facts(machine="riscv64")
    assert status(replace(subject, facts=foreign), never, there=False) is Status.FAILED
    (subject.job.root / subject.path).write_text("#!/bin/sh\n")
    assert status(subject, never, there=False) is Status.FAILED


def test_a_check_that_fails_or_never_ends_fails_the_worker(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    verdicts, _ = found(subject, truly, Completed(3, "no GPU\n", "bye\n", 0.1))
    assert judge.status(verdicts) is Status.FAILED
    assert verdicts[-1].message == "started with -v (check), it ended with exit code 3\n  | no GPU\n  | bye"
    monkeypatch.setattr(verify, "CHECK_LIMIT", 0.0)
    assert status(subject, truly, TransportError(Stage.DEADLINE, "too long")) is Status.FAILED


def test_a_worker_lost_during_its_check_is_unverified(subject: Subject) -> None:
    assert status(subject, truly, LOST) is Status.UNVERIFIED
    assert status(subject, truly, TransportError(Stage.DEADLINE, "login never came up")) is Status.UNVERIFIED
    assert status(subject, truly, ScriptError("not whole")) is Status.UNVERIFIED


def test_what_is_wrong_is_not_started(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify, "LOOKS", 1)
    (subject.job.root / "worker").mkdir()
    host = FakeHost("node", truly, AssertionError("started"))
    wrong = replace(subject, worker=replace(subject.worker, path=str(subject.job.root / "worker")))
    attempts = verify_all({"node": wrong}, Scripts(), 1, fake_connect(host), lambda event: None, there=True)
    assert judge.status(judge.outcome(attempts["node"])) is Status.FAILED
    assert [script.name for script in host.scripts] == ["builds/verify.sh"]
    assert host.closed


def test_a_bug_on_the_way_is_unverified_and_stops_nobody_else(subject: Subject) -> None:
    other = replace(subject, job=replace(subject.job, host="other"), worker=replace(subject.worker, host="other"))
    connect = fake_connect(FakeHost("node", ZeroDivisionError("oops")), FakeHost("other", truly))
    events: list[Event] = []
    attempts = verify_all({"node": subject, "other": other}, Scripts(), 2, connect, events.append, there=True)
    assert [judge.status(judge.outcome(a)) for a in attempts.values()] == [Status.UNVERIFIED, Status.OK]
    assert {(e.host, e.text) for e in events if e.kind is Kind.DONE} == {("node", "unverified"), ("other", "ok")}
