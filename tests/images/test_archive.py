"""The transfer as scripts on a source: what is rendered, its passes, and both ways through real shells and engines."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fdl_tasks.cluster.image import ImageRef
from fdl_tasks.errors import Cancelled, Stage, TransportError
from fdl_tasks.hosts.fanout import LEAVE, Cancel
from fdl_tasks.hosts.local import Local
from fdl_tasks.images import archive, judge, transfer
from fdl_tasks.images.addresses import Way
from fdl_tasks.images.archive import Limits, Sending
from fdl_tasks.images.facts import NodeFacts
from fdl_tasks.images.plan import Step
from fdl_tasks.images.sent import Sent, Turn
from fdl_tasks.images.transfer import send
from fdl_tasks.outcome import Event, Kind
from fdl_tasks.scripts import Script, Scripts
from fdl_tasks.testing import Completed, FakeHost
from tests.e2e.site import eventually
from tests.images.archives import Archive
from tests.images.making import make_image, make_node

LAYERS = [os.urandom(2_000_000), os.urandom(1_000_000)]
IMAGE = Archive().image(LAYERS)
NODES = {name: make_node(name, docker=("sudo", "-n", "docker")) for name in "abc"}
SOURCE = make_node("s", make_image("app"), python=(3, 11))
OLD = make_node("s", make_image("app", size=1000))
PINNED = "fdl-a ssh-ed25519 AAAA\n"


def way(name: str, address: str = "10.0.0.1", fabric: bool = True) -> Way:
    return Way(name, address, 2222, "lab", f"fdl-{name}", "~/.ssh/id_ed25519", fabric, True)


WAYS = {name: (way(name), way(name, "192.168.0.1", fabric=False)) for name in "abc"}
FULL = [Step(name, "full", bytes=3_000_000) for name in "ab"]


def job_of(script: Script) -> Any:
    line = next(line for line in script.text.splitlines() if line.startswith("FDL_JOB="))
    return json.loads(line.removeprefix("FDL_JOB=").strip("'").replace("'\"'\"'", "'"))


# -- what is rendered ----------------------------------------------------------------------------


def test_a_group_is_what_gets_the_same_and_a_base_counts_where_nothing_is_named() -> None:
    steps = [
        Step("a", "delta", frozenset({"blobs/sha256/2", "blobs/sha256/1"}), "sha256:base"),
        Step("b", "delta", frozenset(), "sha256:base"),
        Step("c", "full", platform="linux/amd64"),
    ]
    turns = [Turn(step, WAYS[step.target]) for step in steps]
    sending = Sending(SOURCE, "app:1", NODES, PINNED)
    job = archive.job(sending, turns, {name: ["ssh", name] for name in "abc"})
    assert job == {
        "save": ["docker", "save", "app:1"],
        "groups": [
            {"targets": ["a"], "omit": ["blobs/sha256/1", "blobs/sha256/2"], "base": None},
            {"targets": ["b"], "omit": [], "base": ["docker", "save", "sha256:base"]},
            {"targets": ["c"], "omit": [], "base": None},
        ],
        "targets": {name: [["ssh", name]] for name in "abc"},
        "content": [f"/var/lib/docker/{folder}" for folder in archive.CONTENT],
        "read": [],
        **{"stall": 120, "load_stall": 900, "lag": 60},
    }
    alone = archive.job(sending, turns[2:], {"c": ["ssh"]})
    assert alone["save"] == ["docker", "save", "--platform", "linux/amd64", "app:1"]


@pytest.mark.parametrize(("docker", "read"), [(("docker",), []), (("sudo", "-n", "docker"), ["sudo", "-n"])])
def test_a_base_is_looked_for_where_the_store_may_keep_it(docker: tuple[str, ...], read: list[str]) -> None:
    source = replace(SOURCE, docker=docker, free={"/d": 1})
    job = archive.job(Sending(source, "app:1", NODES, PINNED), [Turn(Step("a", "full"), WAYS["a"])], {"a": ["ssh"]})
    folders = ["containerd/daemon/io.containerd.content.v1.content", "io.containerd.content.v1.content"]
    assert (job["read"], job["content"]) == (read, [f"/d/{folder}" for folder in folders])


@pytest.mark.parametrize(
    ("compress", "tools", "server", "packed"),
    [
        ("zstd", {"zstd"}, "26.1.5", True),
        ("zstd", set(), "26.1.5", False),
        ("zstd", {"zstd"}, "20.10.24", False),
        ("zstd", {"zstd"}, "odd", False),
        ("none", {"zstd"}, "26.1.5", False),
    ],
)
def test_zstd_is_used_where_it_is_asked_for_and_both_ends_have_it(
    compress: str, tools: set[str], server: str, packed: bool
) -> None:
    source, node = make_node("s", tools=frozenset(tools), python=(3, 11)), make_node("a", server=server)
    sending = Sending(source, "app:1", {"a": node}, PINNED, compress)
    job = archive.job(sending, [Turn(FULL[0], WAYS["a"])], {"a": ["ssh"]})
    assert job["targets"]["a"] == [*([["zstd", "-q", "-1", "-T0", "-c"]] if packed else []), ["ssh"]]


def test_the_command_has_the_pins_the_key_and_a_script_that_any_login_shell_passes_on() -> None:
    sending = Sending(SOURCE, "app:1", NODES, PINNED)
    argv = archive.command(Scripts(), sending, Turn(FULL[0], WAYS["a"]))
    assert {"UserKnownHostsFile=./known_hosts", "HostKeyAlias=fdl-a", "StrictHostKeyChecking=yes"} < set(argv)
    assert argv[-4:-1] == ("lab", "--", "10.0.0.1")
    remote, encoded = argv[-1].rsplit(" ", 1)
    assert remote == """exec sh -c 'eval "$(printf %s "$1" | base64 -d)"' fdl"""
    assert "set -- sudo -n docker\n" in base64.b64decode(encoded).decode()


# -- passes --------------------------------------------------------------------------------------


def said(**targets: Any) -> Completed:
    """A pass: of each target its load's exit code, or the fields of its last line."""
    lines = []
    for name, found in targets.items():
        marks = ["__FDL_LOAD__", "Loaded image: app:1" if not found else "odd", f"__FDL_LOADED__ {found}"]
        facts = {"code": found, "said": marks} if isinstance(found, int) else found
        ends = {"target": name, "bytes": 2_000_000, "seconds": 1, "said": [], "error": None, "late": False}
        lines.append(json.dumps({**ends, **facts}))
    return Completed(0, "\n".join([*lines, '{"end": true, "error": null}']), "", 1.0)


def sent_over(
    host: FakeHost, steps: Sequence[Step], events: list[Event] | None = None, **fields: Any
) -> dict[str, Sent]:
    sending = Sending(fields.pop("source", SOURCE), "app:1", NODES, PINNED, **fields)
    return send(host, sending, steps, WAYS, progress=(events if events is not None else []).append)


def test_every_target_has_an_outcome_and_one_pass_does_when_all_goes_well() -> None:
    host, events = FakeHost("s", said(a=0, b=0)), list[Event]()
    found = sent_over(host, FULL, events)
    assert {name: sent.error for name, sent in found.items()} == {"a": None, "b": None}
    assert [script.name for script in host.scripts] == ["images/send.sh"]
    assert [(event.host, event.kind) for event in events] == [("a", Kind.STATE), ("b", Kind.STATE)]
    assert events[0].text.startswith("1.9 MiB of ~2.9 MiB, ")


def test_a_failed_delta_is_repeated_in_full_by_itself() -> None:
    steps = [FULL[0], Step("b", "delta", frozenset({"x"}), bytes=1), Step("c", "delta", frozenset({"x"}), bytes=1)]
    host, events = FakeHost("s", said(a=0, b=1, c=0), said(b=0)), list[Event]()
    found = sent_over(host, steps, events)
    assert [found[name].mode for name in "abc"] == ["full", "full", "delta"]
    assert found["b"].error is None
    assert found["b"].notes == ("the delta failed (docker load failed: odd), so all of it was sent",)
    assert job_of(host.scripts[1])["groups"] == [{"targets": ["b"], "omit": [], "base": None}]
    assert [event.text for event in events if event.kind is Kind.NOTE] == list(found["b"].notes)


def test_a_late_one_goes_alone_and_a_lost_way_yields_to_the_next() -> None:
    late = {"code": None, "error": "too slow", "late": True}
    host = FakeHost("s", said(a=late, b=late, c={"code": 255}), said(a=0), said(b=0), said(c=0))
    found = sent_over(host, [*FULL, Step("c", "full")])
    assert [list(job_of(script)["targets"]) for script in host.scripts] == [["a", "b", "c"], ["a"], ["b"], ["c"]]
    assert [found[name].error for name in "abc"] == [None] * 3
    assert [found[name].address for name in "abc"] == ["10.0.0.1", "10.0.0.1", "192.168.0.1"]


def test_targets_of_another_platform_are_served_by_a_save_of_their_own() -> None:
    host = FakeHost("s", said(a=0), said(b=0))
    sent_over(host, [FULL[0], Step("b", "full", platform="linux/arm64")])
    assert [job_of(script)["save"][2:] for script in host.scripts] == [
        ["app:1"],
        ["--platform", "linux/arm64", "app:1"],
    ]


LOST, CLEANED = TransportError(Stage.LOST, "cut", where="s"), Completed(0, "", "", 0.1)


def test_a_lost_source_is_every_unfinished_targets_error_and_is_cleaned_over_another_connection() -> None:
    host = FakeHost("s", LOST, CLEANED)
    found = sent_over(host, FULL)
    assert {sent.error for sent in found.values()} == {"the source was lost: s: connection lost: cut"}
    assert [script.name for script in host.scripts] == ["images/send.sh", "images/clean.sh"]
    name = next(line for line in host.scripts[0].text.splitlines() if line.startswith("FDL_NAME="))
    assert name in host.scripts[1].text.splitlines()


@pytest.mark.parametrize(
    ("answer", "why"), [(LOST, "s: connection lost: cut"), (Completed(1, "", "busy", 0.1), "rm ended with 1: busy")]
)
def test_a_source_that_stays_lost_is_an_error_that_says_what_may_be_left_and_how_to_remove_it(
    answer: Any, why: str
) -> None:
    error = sent_over(FakeHost("s", LOST, answer), FULL)["a"].error or ""
    assert f" may be left on s, which could not be cleaned ({why}); there: rm -rf " in error


def test_a_script_that_fails_says_why() -> None:
    found = sent_over(FakeHost("s", Completed(127, "", "sh: python3: not found\n", 0.1), CLEANED), FULL)
    assert found["a"].error == "the script on the source ended with 127; sh: python3: not found"


def cancelled(anew: FakeHost) -> list[str]:
    """A transfer that the user ends; the notes that are told."""
    events: list[Event] = []
    sending = Sending(SOURCE, "app:1", NODES, PINNED, run="1")
    with pytest.raises(Cancelled):
        send(FakeHost("s", Cancelled("ended")), sending, FULL, WAYS, progress=events.append, anew=lambda: anew)
    return [event.text for event in events if event.kind is Kind.NOTE]


def test_after_ctrl_c_the_source_is_cleaned_over_another_connection_or_told_what_may_be_left() -> None:
    anew = FakeHost("s", CLEANED)
    assert cancelled(anew) == []
    assert [script.name for script in anew.scripts] == ["images/clean.sh"] and anew.closed
    notes = cancelled(FakeHost("s", LOST))
    assert len(notes) == 1 and "fdl-send-1.* may be left on s" in notes[0] and "rm -rf" in notes[0]


def test_the_load_asks_the_engine_that_the_probe_found() -> None:
    nodes = {
        "a": make_node("a", docker=("sudo", "-n", "docker")),
        "b": make_node("b", docker=("docker", "--host", "ssh://x")),
    }
    sending = Sending(SOURCE, "app:1", nodes, PINNED)
    texts = {label: archive.load(Scripts(), sending, label).text for label in nodes}
    assert "\nset -- sudo -n docker\n" in texts["a"] and "\nset -- docker --host ssh://x\n" in texts["b"]


@pytest.mark.parametrize("written", ["app", "app:latest", f"app:latest@sha256:{'a' * 64}"])
def test_one_image_has_one_lock_however_it_is_written(written: str) -> None:
    def lock(text: str) -> str:
        return Sending(SOURCE, text, NODES, PINNED, tag=judge.name_for(ImageRef.parse(text))).lock

    assert lock(written) == lock("app:latest") != lock("app:2")


def test_after_ctrl_c_a_source_that_does_not_answer_is_not_waited_for() -> None:
    forever, began = threading.Event(), time.monotonic()

    def hang(script: Script) -> Completed:
        forever.wait(20)
        return CLEANED

    notes = cancelled(FakeHost("s", hang))
    forever.set()
    assert time.monotonic() - began < LEAVE
    assert len(notes) == 1 and "it did not answer in 1.2 s" in notes[0]


def test_without_python_it_goes_by_a_file_in_full() -> None:
    host = FakeHost("s", said(a=0))
    found = sent_over(host, [Step("a", "delta", frozenset({"x"}))], source=OLD)
    assert host.scripts[0].name == "images/send-file.sh"
    assert (found["a"].mode, found["a"].notes) == (
        "full",
        ("the source has no python3 3.8, so all of it was sent, by a file there",),
    )


# -- both ways in real shells, with stand-ins ----------------------------------------------------


class Bench:
    """A source on this machine whose ``docker`` and ``ssh`` are stand-ins: a target is a file of its name."""

    def __init__(self, folder: Path, shell: str):
        self.folder, self.env = folder, {"PATH": f"{folder}/bin:{os.environ['PATH']}", "TMPDIR": f"{folder}/tmp"}
        self.env["HOME"] = f"{folder}/home"
        for name in ("bin", "tmp", "home"):
            (folder / name).mkdir()
        self.program("sh", f'exec {shell} "$@"')
        self.program("sudo", 'shift; exec "$@"')
        self.saves(f"cat '{IMAGE.write(folder / 'saved')}'")
        self.loads()

    def program(self, name: str, body: str) -> None:
        path = self.folder / "bin" / name
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)

    def saves(self, save: str, **loads: str) -> None:
        self.save = save
        self.loads(**loads)

    def loads(self, **loads: str) -> None:
        """What ``docker load`` does on a target, by name; as a rule it takes everything."""
        cases = "\n".join(f"{name}) {does} ;;" for name, does in loads.items())
        good = f"cat >'{self.folder}'/$TARGET; echo Loaded image: app:1"
        self.program(
            "docker", f"case $1 in\nsave) {self.save} ;;\nload) case $TARGET in\n{cases}\n*) {good} ;;\nesac\nesac"
        )
        # the target's name is in its alias; the last word is the command
        find = "for w; do case $w in HostKeyAlias=*) TARGET=${w#*fdl-} ;; esac; done; export TARGET\n"
        self.program("ssh", find + f"cat known_hosts >'{self.folder}'/pins; echo welcome; exec sh -c \"$w\"")

    def send(self, *names: str, source: NodeFacts = SOURCE, **fields: Any) -> dict[str, Sent]:
        sending = Sending(source, "app:1", NODES, PINNED, **fields)
        with Local("s", Cancel(), self.env) as host:
            return send(host, sending, [Step(name, "full") for name in names], WAYS)

    def left(self) -> list[str]:
        return sorted(path.name for path in (self.folder / "tmp").iterdir())


@pytest.fixture(params=["dash", "bash", "busybox sh"])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Bench:
    if not (found := shutil.which(request.param.split()[0])):
        pytest.skip(f"{request.param} is not installed")
    return Bench(tmp_path, request.param.replace(request.param.split()[0], found))


@pytest.mark.subprocess
@pytest.mark.parametrize("source", [SOURCE, OLD], ids=["stream", "file"])
def test_each_way_brings_it_whole_and_cleans_up(source: NodeFacts, bench: Bench) -> None:
    found = bench.send("a", "b", source=source)
    assert [(found[name].error, found[name].said) for name in "ab"] == [(None, ("Loaded image: app:1",))] * 2
    assert (bench.folder / "a").read_bytes() == (bench.folder / "b").read_bytes() == IMAGE.bytes()
    assert found["a"].bytes == len(IMAGE.bytes())
    assert (bench.folder / "pins").read_text() == PINNED
    assert bench.left() == []


@pytest.mark.subprocess
@pytest.mark.parametrize("source", [SOURCE, OLD], ids=["stream", "file"])
def test_each_way_tells_a_failed_load_from_a_failed_login(source: NodeFacts, bench: Bench) -> None:
    bench.loads(a='echo "say \\"no\\" $(printf \'\\t\\001\\\\\')"; exit 3', b="kill -KILL $PPID; exit 9")
    found = bench.send("a", "c", source=source)
    assert found["a"].error and found["a"].error.startswith('docker load failed: say "no"')
    assert found["c"].error is None
    bench.program("ssh", "echo 'Permission denied (publickey).' >&2; exit 255")
    lost = bench.send("a", source=source)["a"]
    assert (lost.error, lost.retry) == ("ssh ended with 255: Permission denied (publickey).", "way")
    assert (lost.address, len(lost.notes)) == ("192.168.0.1", 2 + (source is OLD))  # the next address, then alone


@pytest.mark.subprocess
@pytest.mark.parametrize("source", [SOURCE, OLD], ids=["stream", "file"])
@pytest.mark.parametrize(
    ("save", "error"),
    [
        ("echo boom >&2; exit 1", "docker save ended with 1"),
        ("head -c 1000000 {saved}", "docker save ended well, but its archive stops after 1000000 bytes"),
        ("cat {lacking}", "docker save ended well, but its archive lacks blobs/sha256/"),
    ],
    ids=["failed", "short", "lacking"],
)
def test_each_way_says_the_sources_error(save: str, error: str, source: NodeFacts, bench: Bench) -> None:
    lacking = Archive().image([*LAYERS, b"gone"], lacking=1).write(bench.folder / "lacking")
    bench.saves(save.format(saved=f"'{bench.folder}/saved'", lacking=f"'{lacking}'"))
    found = bench.send("a", "b", source=source)
    for name in "ab":
        assert (found[name].error or "").startswith(f"the source failed: {error}"), found[name]
    assert bench.left() == []


@pytest.mark.subprocess
@pytest.mark.parametrize("source", [SOURCE, OLD], ids=["stream", "file"])
def test_each_way_gives_up_a_load_that_never_ends(source: NodeFacts, bench: Bench) -> None:
    bench.loads(a="exec sleep 1000")
    found = bench.send("a", "b", source=source, limits=Limits(stall=2, load_stall=2))
    assert found["b"].error is None
    assert "for 2 s" in (found["a"].error or "") and "earlier load" in (found["a"].error or "")
    assert eventually(lambda: not running(bench.folder), 4)


@pytest.mark.subprocess
@pytest.mark.parametrize("source", [SOURCE, OLD], ids=["stream", "file"])
def test_each_way_leaves_nothing_when_it_is_ended(source: NodeFacts, bench: Bench) -> None:
    bench.loads(a="exec sleep 1000", b="cat >/dev/null; exec sleep 1000")
    program = f"""
import json, sys
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
from tests.images.test_archive import *
bench = Bench.__new__(Bench)
bench.folder, bench.env = Path({str(bench.folder)!r}), json.loads({json.dumps(json.dumps(bench.env))})
bench.send("a", "b", source={"OLD" if source is OLD else "SOURCE"})
"""
    process = subprocess.Popen([sys.executable, "-c", program], start_new_session=True)
    assert eventually(lambda: len([args for args in running(bench.folder) if args == "sleep 1000 "]) == 2, 15)
    process.kill()
    process.wait()
    assert eventually(lambda: not running(bench.folder) and not bench.left(), 4), (running(bench.folder), bench.left())


def running(folder: Path) -> list[str]:
    """Processes that have the bench's TMPDIR, as all that it starts do."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            if f"TMPDIR={folder}/tmp".encode() in (place / "environ").read_bytes():
                found.append((place / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:
            continue
    return found


@pytest.mark.subprocess
def test_clean_removes_what_is_left_of_one_run_only(bench: Bench) -> None:
    for name in ("fdl-send-1.abc", "fdl-send-12.abc"):
        (bench.folder / "tmp" / name).mkdir()
        (bench.folder / "tmp" / name / "known_hosts").write_text("x")
    with Local("s", Cancel(), bench.env) as host:
        assert transfer.clean(host, Sending(SOURCE, "app:1", NODES, PINNED, run="1")) is None
    assert bench.left() == ["fdl-send-12.abc"]


@pytest.mark.subprocess
def test_a_file_that_has_no_room_is_refused_before_it_is_written(bench: Bench) -> None:
    found = bench.send("a", source=make_node("s", make_image("app", size=1 << 60)))
    assert "needs 1125899906842624 KiB on the source" in (found["a"].error or "")
    assert bench.left() == []
