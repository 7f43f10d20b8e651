"""What a sync hands on to its rooms: the numbers of the contract, settings of cluster.yml, the two streams."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fdl_tasks.cluster.image import ImageRef
from fdl_tasks.cluster.model import Worker
from fdl_tasks.hosts.base import Host
from fdl_tasks.hosts.fanout import Cancel
from fdl_tasks.images.addresses import Candidates, Way
from fdl_tasks.images.archive import Limits, Sending, render
from fdl_tasks.images.facts import NodeFacts
from fdl_tasks.images.judge import Ran
from fdl_tasks.images.logins import Reach, Tried, route
from fdl_tasks.images.nodes import Nodes, members
from fdl_tasks.images.plan import Step
from fdl_tasks.images.result import SyncReport
from fdl_tasks.images.sent import Turn
from fdl_tasks.images.sync import sync_image
from fdl_tasks.images.verify import Wish, verify
from fdl_tasks.outcome import Event, Kind
from fdl_tasks.scripts import Scripts
from fdl_tasks.testing import Completed, FakeHost, fake_connect, make_cluster
from tests.images.making import make_image, make_node, sha
from tests.images.nodes import Node, ended, looked, made_known, shown

NO_SHELL = '127 exec: "/bin/sh": stat /bin/sh: no such file or directory: unknown', "0 abc"


def sync(root: Path, *nodes: Node, images: dict[str, Any] | None = None, **how: Any) -> SyncReport:
    cluster = made_known(root, *nodes)
    cluster = replace(cluster, images=replace(cluster.images, **(images or {})))
    return sync_image(cluster, image="app:1", connect=fake_connect(*nodes), **how)


class Patient(Cancel):
    """Nobody ends it, and no time passes."""

    def __init__(self) -> None:
        super().__init__()
        self.pauses: list[float] = []

    def pause(self, seconds: float) -> None:
        self.pauses.append(seconds)


def test_a_program_that_is_not_there_yet_is_asked_for_every_five_seconds_and_24_times_at_most() -> None:
    host, cancel = FakeHost("n", looked({"Id": sha("app"), "RootFS": {}}, *NO_SHELL)), Patient()
    node = make_node("n", make_image("app"))
    wish = Wish(ImageRef.parse("app:1"), make_image("app"), source_ran=Ran(0, ""))
    found = verify(node, host, wish, cancel)
    assert (len(host.scripts), cancel.pauses) == (24, [5.0] * 23)
    assert found.error and found.error.endswith("(tried 24 times)")


def test_a_shell_that_the_source_has_is_not_waved_through_where_it_is_lacking(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Cancel, "pause", lambda self, seconds: None)
    a, b = Node("a", shown("xyz")), Node("b")
    without = looked(shown("xyz"), *NO_SHELL)
    b.odd["verify"] = [without] * 48
    report = sync(tmp_path, a, b)
    assert report.nodes["b"].status == "failed"
    assert "(tried 24 times)" in (report.nodes["b"].error or "")
    a.odd["verify"], c = [without], Node("c")
    c.odd["verify"] = [without]
    assert sync(tmp_path, a, c).nodes["c"].status == "synced"


@pytest.mark.parametrize(("compress", "packed"), [("zstd", True), ("none", False)])
def test_the_clusters_compression_is_used(tmp_path: Path, compress: str, packed: bool) -> None:
    a, b = Node("a", shown("xyz")), Node("b")
    a.tools = "zstd"
    sync(tmp_path, a, b, images={"compress": compress})
    assert [argv[0] for argv in a.jobs[0]["targets"]["b"]] == [*(["zstd"] if packed else []), "ssh"]


@pytest.mark.parametrize(("here", "there", "ciphers"), [("aes", "aes", True), ("aes", "", False), ("", "aes", False)])
def test_aes_is_preferred_where_both_nodes_said_that_they_have_it(
    tmp_path: Path, here: str, there: str, ciphers: bool
) -> None:
    a, b = Node("a", shown("xyz")), Node("b")
    a.tools, b.tools = here, there
    sync(tmp_path, a, b)
    [argv] = a.jobs[0]["targets"]["b"]
    assert any(word.startswith("Ciphers=aes128-gcm") for word in argv) is ciphers


def test_the_limits_reach_the_program_that_keeps_them(tmp_path: Path) -> None:
    a, b = Node("a", shown("xyz")), Node("b")
    sync(tmp_path, a, b, limits=Limits(1, 2, 3))
    assert {name: a.jobs[0][name] for name in ("stall", "load_stall", "lag")} == {"stall": 1, "load_stall": 2, "lag": 3}


def test_a_tenth_is_progress_and_every_second_goes_to_the_live_stream(tmp_path: Path) -> None:
    a, b, c = Node("a", shown("xyz")), Node("b"), Node("c")
    a.ends["b"] = [ended(bytes=30 << 20)]  # of 50; c has 4
    progress, live = list[Event](), list[Event]()
    sync(tmp_path, a, b, c, progress=progress.append, live=live.append)
    assert [(event.host, event.kind) for event in live] == [("b", Kind.STATE), ("c", Kind.STATE)]
    told = [(event.host, event.kind) for event in progress if "MiB of ~" in event.text]
    assert told == [("b", Kind.STATE)]


@pytest.mark.parametrize("python", [(3, 11), None])
def test_a_runs_directories_bear_its_own_name_so_that_none_removes_anothers(python: tuple[int, int] | None) -> None:
    source = NodeFacts("s", image=make_image("app"), python=python)
    turn = Turn(Step("b", "full"), (Way("b", "10.0.0.2", 22, "root", "fdl-b", None, True),))
    names = set[str]()
    for _ in range(2):
        sending = Sending(source, "app:1", {"b": make_node("b")}, "")
        text = render(Scripts(), sending, [turn]).text
        [line] = [line for line in text.splitlines() if line.startswith("FDL_NAME=")]
        assert sending.run in line
        names.add(line)
    assert len(names) == 2


def test_so_many_nodes_are_asked_at_once_as_the_width_says(tmp_path: Path) -> None:
    workers = members(make_cluster(tmp_path, a=None, b=None, c=None, d=None), ())
    together, most, lock, now = threading.Barrier(2), 0, threading.Lock(), 0

    def deed(node: Worker, host: Host, cancel: Cancel) -> None:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        together.wait(5)
        with lock:
            now -= 1

    with Nodes(workers, connect=fake_connect(*map(FakeHost, "abcd")), width=2) as nodes:
        found = nodes.each(deed)
    assert ([attempt.error for attempt in found.values()], most) == ([None] * 4, 2)


def test_a_second_pass_that_had_to_wait_keeps_what_the_first_has_brought(tmp_path: Path) -> None:
    a, b, c = Node("a", shown("xyz")), Node("b", None, [shown("xy", tags=["base:1"])]), Node("c")

    def waited() -> Completed:
        b.shown = a.shown
        lines = [{"lock": "waiting"}, {"lock": "waited"}, {"target": "b", **ended()}, {"end": True, "error": None}]
        return Completed(0, "".join(json.dumps(line) + "\n" for line in lines), "", 0.1)

    a.ends["b"] = [ended(1, ["__FDL_LOAD__", "lacking", "__FDL_LOADED__ 1"])]
    a.odd["send"] = [lambda: a._send(a.scripts[-1]), waited]
    report = sync(tmp_path, a, b, c)
    assert [str(node.status) for node in report.nodes.values()] == ["source", "synced", "synced"]
    assert a.asked.count("send") == 2 and a.asked.count("probe") == 2, "a brief look and a whole one, once"


@pytest.mark.parametrize(
    ("reaches", "kept", "notes"),
    [((Reach.OK, Reach.OTHER), 1, 1), ((Reach.OTHER, Reach.OK), 0, 0), ((Reach.TRANSPORT, Reach.OTHER), 0, 0)],
)
def test_a_second_address_that_refuses_takes_nothing_from_the_first(
    reaches: tuple[Reach, ...], kept: int, notes: int
) -> None:
    way = Way("b", "10.0.0.2", 22, "root", "fdl-b", None, True)
    ways = (way, replace(way, address="10.1.0.2", fabric=False))
    tried = {one: Tried(one, reach, "words") for one, reach in zip(ways, reaches, strict=True)}
    found = route(Candidates("b", ways), tried)
    assert (len(found.ways), len(found.notes), found.error is None) == (kept, notes, kept > 0)
