"""``sync-image`` while something goes wrong on the way: networks, nodes, engines, the user, a second run."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

import fdl_tasks
from fdl_tasks.images import ways
from fdl_tasks.images.archive import Limits
from fdl_tasks.images.result import SyncReport
from tests.e2e.image_site import ImageSite, image_site
from tests.e2e.site import eventually
from tests.lab.engine import Store
from tests.lab.lab import Lab

pytestmark = pytest.mark.docker

MB = 1_000_000
BIG = [20 * MB]  # more than the pipes, queues and windows between the nodes hold
PASSED_ON = 'exec /lab/engine/docker "$@"'
GATE = """#!/bin/bash
# what the sender saves stops after AFTER bytes until the gate is opened
set -o pipefail
[ "$(cat /proc/$PPID/comm) $1" = "python3 save" ] || exec /lab/engine/docker "$@"
{
    echo $BASHPID >/run/gate-saving
    exec /lab/engine/docker "$@"
} | {
    head -c AFTER
    touch /run/gate-reached
    while [ -d /proc/$$ ] && ! [ -e /run/gate-open ]; do sleep 0.05; done
    cat
}
"""


@pytest.fixture(scope="module")
def site(lab: Lab) -> Iterator[ImageSite]:
    with image_site(lab).by("archive") as site:
        yield site


@pytest.fixture(scope="module")
def victim(site: ImageSite) -> str:
    """A node that may be broken."""
    site.make("victim", store=Store.CONTAINERD)
    return "victim"


@pytest.fixture(autouse=True)
def _own_label(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLODL_HOST_NAME", "ctrl")


class Gate:
    """On the source: the archive stops there until ``open``."""

    def __init__(self, site: ImageSite, label: str, after: int):
        self.node = site.nodes[label]
        self.node.stand_in("docker", GATE.replace("AFTER", str(after)))

    def reached(self) -> None:
        assert eventually(lambda: self.node.path("/run/gate-reached").exists(), 20)

    def open(self) -> None:
        self.node.write("/run/gate-open", "")

    def remove(self) -> None:
        self.open()
        self.node.stand_in("docker", f"#!/bin/sh\n{PASSED_ON}\n")
        for mark in ("reached", "open"):
            self.node.path(f"/run/gate-{mark}").unlink(missing_ok=True)


@contextlib.contextmanager
def gate(site: ImageSite, label: str, after: int = MB) -> Iterator[Gate]:
    made = Gate(site, label, after)
    try:
        yield made
    finally:
        made.remove()


@contextlib.contextmanager
def docker_does(site: ImageSite, label: str, script: str) -> Iterator[None]:
    """That node's ``docker`` is this script; what it does not end it passes on."""
    site.nodes[label].stand_in("docker", f"#!/bin/bash\n{script}\n{PASSED_ON}\n")
    try:
        yield
    finally:
        site.nodes[label].stand_in("docker", f"#!/bin/sh\n{PASSED_ON}\n")


@contextlib.contextmanager
def syncing(site: ImageSite, image: str, **limits: int) -> Iterator[Future[SyncReport]]:
    """A sync beside the test, by the function: its limits are no flags."""
    cluster = fdl_tasks.load_cluster(site.project.parent / "cluster.yml")
    with ThreadPoolExecutor(1) as pool:
        yield pool.submit(
            fdl_tasks.sync_image, cluster, image=image, source="a", transport="archive", limits=Limits(**limits)
        )


def told(process: subprocess.Popen[str], text: str) -> bool:
    """Read its stderr up to a line with that text; it is killed when that does not come."""
    assert process.stderr
    timer = threading.Timer(20, process.kill)
    timer.start()
    try:
        return any(text in line for line in process.stderr)
    finally:
        timer.cancel()


def left(site: ImageSite) -> dict[str, list[str]]:
    """What is on each node in use that was not there before: processes, containers, files."""
    found = {}
    for label in site.used:
        node, engine = site.nodes[label], site.engines[label]
        files = node.find("/tmp", "/root", "-mindepth", "1", "-type", "f")
        stray = [file for file in files if not re.match(r"/root/(\.ssh/|\.cache/fdl-tasks/image-\w+\.lock$)", file)]
        folders = node.find("/tmp", "-mindepth", "1", "-type", "d")
        found[label] = [*node.processes(), *engine.containers(), *stray, *folders]
    return {label: things for label, things in found.items() if things}


def nothing_left(site: ImageSite) -> bool:
    assert eventually(lambda: not left(site), 5), left(site)
    return True


def states(report: SyncReport) -> dict[str, str]:
    return {label: str(node.status) for label, node in report.nodes.items()}


# -- networks ------------------------------------------------------------------------------------


def test_a_black_holed_fabric_falls_back_within_the_connect_limit_unless_it_is_required(site: ImageSite) -> None:
    site.use("a", "b", "c")
    for image in ("hole-x:1", "hole-y:1"):
        site.build("a", image, [1000])
    site.nodes["b"].black_hole_fabric()
    try:
        strict = ("sync-image", "--image", "hole-y:1", "--require-fabric", "--json")
        with site.started(*strict) as process:
            report = site.json("sync-image", "--image", "hole-x:1")
            only = json.loads(process.communicate(timeout=30)[0])
    finally:
        site.nodes["b"].black_hole_fabric(on=False)
    fabric, management = site.nodes["b"].fabric_address, site.nodes["b"].address
    assert (report["nodes"]["b"]["status"], report["nodes"]["b"]["address"]) == ("synced", management)
    assert f"fabric address {fabric} port 22 failed" in report["nodes"]["b"]["notes"][0]
    assert report["nodes"]["c"]["address"] == site.nodes["c"].fabric_address
    assert process.returncode == 1
    assert only["nodes"]["c"]["status"] == "synced"
    assert fabric in only["nodes"]["b"]["error"]
    assert management not in only["nodes"]["b"]["error"]
    assert site.ids("hole-y:1")["b"] is None


def with_its_fabric_cut(site: ImageSite, label: str, held: Gate, running: Future[SyncReport]) -> SyncReport:
    """The report of a sync during which that node's fabric is cut."""
    held.reached()
    site.nodes[label].cut_fabric()
    try:
        held.open()
        return running.result(30)
    finally:
        site.nodes[label].mend_fabric()


def test_a_fabric_cut_during_the_transfer_fails_that_target_and_no_other(site: ImageSite) -> None:
    site.use("a", "b", "c")
    site.build("a", "cut-x:1", BIG)
    with gate(site, "a") as held, syncing(site, "cut-x:1", stall=3) as running:
        report = with_its_fabric_cut(site, "b", held, running)
    assert states(report) == {"a": "source", "b": "failed", "c": "synced"}
    assert "it took no byte for 3 s" in (report.nodes["b"].error or "")
    healed = site.json("sync-image", "--image", "cut-x:1")
    assert {label: node["status"] for label, node in healed["nodes"].items()} == {
        **{"a": "source", "b": "synced", "c": "in-sync"}
    }
    assert nothing_left(site)


def test_a_fabric_that_stays_cut_yields_to_the_management_address(
    site: ImageSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ssh itself notices a dead peer, after a minute: two seconds here."""
    monkeypatch.setattr(ways, "ALIVE_INTERVAL", 1)
    monkeypatch.setattr(ways, "ALIVE_COUNT", 2)
    site.use("a", "b", "c")
    site.build("a", "cut-y:1", BIG)
    with gate(site, "a") as held, syncing(site, "cut-y:1") as running:
        report = with_its_fabric_cut(site, "b", held, running)
    assert states(report) == {"a": "source", "b": "synced", "c": "synced"}, report.as_json()
    node, fabric = report.nodes["b"], site.nodes["b"].fabric_address
    assert node.address == site.nodes["b"].address
    assert node.notes[0].startswith(f"fabric address {fabric} failed (ssh ended with 255")
    assert report.nodes["c"].address == site.nodes["c"].fabric_address


def test_a_target_that_is_gone_in_the_middle_is_its_own_error_and_heals(
    site: ImageSite, victim: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ways, "ALIVE_INTERVAL", 1)
    monkeypatch.setattr(ways, "ALIVE_COUNT", 2)
    monkeypatch.setattr(ways, "CONNECT_LIMIT", 2)
    site.use("a", "c", victim)
    site.build("a", "gone-x:1", BIG)
    node = site.nodes[victim]
    with gate(site, "a") as held, syncing(site, "gone-x:1") as running:
        held.reached()
        node.cut()
        node.cut_fabric()
        try:
            held.open()
            report = running.result(40)
        finally:
            node.mend()
            node.mend_fabric()
    assert states(report) == {"a": "source", "c": "synced", victim: "failed"}, report.as_json()
    assert report.nodes["c"].notes == ()
    node.kill_sessions()  # its sshd notices much later that nobody is there
    assert nothing_left(site)
    healed = site.json("sync-image", "--image", "gone-x:1")
    assert {label: one["status"] for label, one in healed["nodes"].items()} == {
        **{"a": "source", "c": "in-sync", victim: "synced"}
    }


def test_an_impostor_at_the_fabric_address_is_refused_before_it_learns_anything(site: ImageSite, lab: Lab) -> None:
    site.use("a", "b", "c")
    site.build("a", "impostor-x:1", [1000])
    with lab.fabric_impostor(site.nodes["b"]) as other:
        report = site.json("sync-image", "--image", "impostor-x:1")
        log = other.sshd.log.read_text()
    node = report["nodes"]["b"]
    assert (node["status"], node["address"]) == ("synced", site.nodes["b"].address)
    assert "ANOTHER machine" in node["notes"][0]
    assert other.host_key_fingerprint in node["notes"][0]
    assert str(site.nodes["a"].fabric_address) in log  # it was there, and got no further than its key
    assert "Accepted" not in log
    assert report["nodes"]["c"]["address"] == site.nodes["c"].fabric_address


# -- nodes and engines ---------------------------------------------------------------------------


def test_a_target_whose_connections_die_in_the_middle_gets_it_by_its_next_address(site: ImageSite, victim: str) -> None:
    site.use("a", "c", victim)
    site.build("a", "dies-x:1", BIG)
    with gate(site, "a") as held, syncing(site, "dies-x:1") as running:
        held.reached()
        assert site.nodes[victim].kill_sessions() > 0  # the controller's too
        held.open()
        report = running.result(30)
    assert states(report) == {"a": "source", "c": "synced", victim: "synced"}, report.as_json()
    node = report.nodes[victim]
    assert node.address == site.nodes[victim].address
    assert f"fabric address {site.nodes[victim].fabric_address} failed (ssh ended with 255" in node.notes[0]
    assert report.nodes["c"].notes == ()
    assert nothing_left(site)


def test_an_engine_killed_in_the_middle_of_its_load_is_that_nodes_error_and_heals(site: ImageSite, victim: str) -> None:
    site.use("a", "b", "c", victim)
    site.build("a", "crash-x:1", BIG)
    with gate(site, "a", 10 * MB) as held, syncing(site, "crash-x:1") as running:
        held.reached()
        site.engines[victim].kill()
        held.open()
        report = running.result(30)
    site.engines[victim].start()
    assert states(report) == {"a": "source", "b": "synced", "c": "synced", victim: "failed"}
    healed = site.json("sync-image", "--image", "crash-x:1")
    assert healed["nodes"][victim]["status"] == "synced"
    assert site.starts(victim, "crash-x:1")
    assert nothing_left(site)


def test_a_save_killed_in_the_middle_is_the_sources_error_for_every_target(site: ImageSite) -> None:
    site.use("a", "b", "c")
    site.build("a", "save-x:1", BIG)
    with gate(site, "a") as held, site.started("sync-image", "--image", "save-x:1", "--json") as process:
        held.reached()
        site.nodes["a"].exec("kill", "-9", site.nodes["a"].read("/run/gate-saving").strip())
        held.open()
        out, err = process.communicate(timeout=30)
    report = json.loads(out)
    assert process.returncode == 1
    for label in ("b", "c"):
        assert report["nodes"][label]["status"] == "failed"
        assert "the source failed: docker save ended with 137" in report["nodes"][label]["error"]
    assert "synced" not in err
    assert site.json("sync-image", "--image", "save-x:1")["ok"]
    assert nothing_left(site)


def test_a_source_lost_in_the_middle_takes_its_sender_and_all_its_connections_with_it(
    site: ImageSite, victim: str
) -> None:
    site.use(victim, "b", "c")
    site.build(victim, "lost-x:1", BIG)
    with gate(site, victim) as held, site.started("sync-image", "--image", "lost-x:1", "--json") as process:
        held.reached()
        site.nodes[victim].kill_sessions()
        report = json.loads(process.communicate(timeout=30)[0])
        assert nothing_left(site)  # while the gate is still shut
    assert process.returncode == 1
    for label in ("b", "c"):
        assert report["nodes"][label]["status"] == "failed"
        assert "the source was lost" in report["nodes"][label]["error"]
    assert site.json("sync-image", "--image", "lost-x:1")["ok"]


# -- loads that lie or hang ----------------------------------------------------------------------

LIES = """[ "$1" != load ] || {
    cat >/dev/null
    echo "Loaded image: lies-x:1"
    echo "Error unpacking image lies-x:1: apply layer error: wrong diff id"
    exit 0
}"""


def test_a_load_that_ends_well_after_a_failed_unpack_is_a_failure(site: ImageSite) -> None:
    site.use("a", "b", "c")
    site.build("a", "lies-x:1", [1000])
    with docker_does(site, "b", LIES):
        report = site.json("sync-image", "--image", "lies-x:1", code=1)
    assert report["nodes"]["b"]["status"] == "failed"
    assert "Error unpacking image lies-x:1: apply layer error: wrong diff id" in report["nodes"]["b"]["error"]
    assert report["nodes"]["c"]["status"] == "synced"
    assert site.json("sync-image", "--image", "lies-x:1")["nodes"]["b"]["status"] == "synced"


def test_a_load_that_never_reads_is_given_up_and_ended(site: ImageSite) -> None:
    site.use("a", "b", "c")
    site.build("a", "deaf-x:1", BIG)
    with docker_does(site, "b", '[ "$1" != load ] || exec sleep 1000'), syncing(site, "deaf-x:1", stall=2) as running:
        report = running.result(40)
        assert nothing_left(site)
    assert states(report) == {"a": "source", "b": "failed", "c": "synced"}
    assert "it took no byte for 2 s" in (report.nodes["b"].error or "")
    assert "restarting its Docker" in (report.nodes["b"].error or "")


def test_a_delta_that_does_not_suffice_any_more_is_repeated_in_full(site: ImageSite, victim: str) -> None:
    site.use("a", "c", victim)
    layers = [5 * MB, 1000]
    site.build("a", "base-x:1", layers[:1])
    site.engines["a"].give(site.engines[victim], "base-x:1")
    site.build("a", "base-x:2", layers)
    with gate(site, "a", 1000) as held, syncing(site, "base-x:2") as running:
        held.reached()
        site.engines[victim].docker("rmi", "base-x:1")  # its layers go with it
        held.open()
        report = running.result(40)
    node = report.nodes[victim]
    assert (states(report)[victim], node.mode) == ("synced", "full"), node
    assert any("the delta failed" in note for note in node.notes)
    assert node.bytes > 5 * MB
    assert site.starts(victim, "base-x:2")


# -- the user ------------------------------------------------------------------------------------

PROBED = """case $1 in run | create)
    [ "${!#}" != "exit 0" ] || { touch /run/hangs; set -- "${@:1:$#-1}" "sleep 1000"; }
esac"""
LOADING = '[ "$1" != load ] || { touch /run/hangs; exec sleep 1000; }'
# What hangs then: a node, its program, and what that does instead of its work.
HANGS: dict[str, tuple[str, str, str]] = {
    "probe": ("b", "docker", '[ "$1" != version ] || { touch /run/hangs; exec sleep 1000; }'),
    "ways": ("a", "ssh", "touch /run/hangs; exec sleep 1000"),
    "proof": ("a", "docker", PROBED),
    "transfer-26": ("c", "docker", LOADING),
    "transfer-28": ("b", "docker", LOADING),
    "exec-probe-26": ("c", "docker", PROBED),
    "exec-probe-28": ("b", "docker", PROBED),
}


@contextlib.contextmanager
def hanging(site: ImageSite, phase: str) -> Iterator[Callable[[], bool]]:
    """Whether it has come so far that it hangs."""
    label, program, does = HANGS[phase]
    node = site.nodes[label]
    mark = node.path("/run/hangs")
    node.stand_in(program, f"#!/bin/bash\n{does}\n{PASSED_ON}\n")
    try:
        yield mark.exists
    finally:
        mark.unlink(missing_ok=True)
        if program == "docker":
            node.stand_in(program, f"#!/bin/sh\n{PASSED_ON}\n")
        else:
            node.path(f"/lab/bin/{program}").unlink()


@pytest.mark.parametrize("by", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("phase", HANGS)
def test_ended_by_the_user_it_leaves_nothing_anywhere(site: ImageSite, phase: str, by: signal.Signals) -> None:
    site.use("a", "b", "c")
    image = f"ended-{phase}:{by.value}"
    layers = [20 * MB, by.value]
    site.build("a", image, layers)
    if "exec" in phase:  # only its start is missing there
        for label in "bc":
            site.engines["a"].give(site.engines[label], image)
    words = ("sync-image", "--image", image, "--source", "a")
    with hanging(site, phase) as hangs, site.started(*words) as process:
        assert eventually(hangs, 45), process.poll()
        process.send_signal(by)
        out, err = process.communicate(timeout=2)
        assert nothing_left(site)
    assert process.returncode == 130
    assert "Traceback" not in err
    assert "may be left" not in err
    assert "synced" not in out


def test_ended_while_the_source_is_out_of_reach_it_says_what_may_be_left_there(site: ImageSite, victim: str) -> None:
    site.use(victim, "c")
    site.build(victim, "cable-x:1", BIG)
    node = site.nodes[victim]
    with gate(site, victim) as held, site.started("sync-image", "--image", "cable-x:1") as process:
        held.reached()
        node.cut()
        try:
            process.send_signal(signal.SIGINT)
            err = process.communicate(timeout=2.5)[1]
        finally:
            node.mend()
        assert process.returncode == 130
        assert re.search(rf"a directory fdl-send-\w+\.\*\s+may\s+be\s+left\s+on\s+{victim}", err), err
        node.kill_sessions()  # sshd itself notices much later that nobody is there
        assert nothing_left(site)


def test_what_a_killed_sender_left_on_the_source_is_removed_over_another_connection(
    site: ImageSite, victim: str
) -> None:
    site.use(victim, "c")
    site.build(victim, "rest-x:1", BIG)
    node = site.nodes[victim]
    with gate(site, victim) as held, site.started("sync-image", "--image", "rest-x:1", "--json") as process:
        held.reached()
        folders = node.find("/tmp", "-name", "fdl-send-*")
        node.exec("pkill", "-KILL", "-f", "^(sh -c .*__FDL_START__|python3 -I -S -c)")  # no trap runs
        held.open()
        report = json.loads(process.communicate(timeout=30)[0])
    assert len(folders) == 1
    assert process.returncode == 1
    assert "may be left" not in report["nodes"]["c"]["error"]
    assert nothing_left(site)


# -- two runs ------------------------------------------------------------------------------------


def test_a_second_run_waits_for_the_first_and_finds_everything_in_sync(site: ImageSite) -> None:
    site.use("a", "b", "c")
    site.build("a", "twice-x:1", BIG)
    words = ("sync-image", "--image", "twice-x:1", "--json")
    with gate(site, "a") as held, site.started(*words) as first:
        held.reached()
        with site.started(*words) as second, site.started(*words) as third:
            assert told(second, "waiting for it")
            assert told(third, "waiting for it")
            third.send_signal(signal.SIGINT)
            third.communicate(timeout=2)
            assert third.returncode == 130
            held.open()
            sent = json.loads(first.communicate(timeout=30)[0])
            out, err = second.communicate(timeout=30)
    found = json.loads(out)
    assert "MiB of ~" not in err
    assert [sent["nodes"][label]["status"] for label in "abc"] == ["source", "synced", "synced"]
    assert [found["nodes"][label]["status"] for label in "abc"] == ["source", "in-sync", "in-sync"]
    assert [found["nodes"][label]["bytes"] for label in "bc"] == [0, 0]
    lock = site.nodes["a"].exec("find", "/root/.cache/fdl-tasks", "-printf", "%m %y\n").stdout.split("\n")
    assert lock[0] == "700 d"
    assert nothing_left(site)


def test_a_run_that_waited_for_one_that_was_killed_sends_the_image_itself(site: ImageSite) -> None:
    site.use("a", "b", "c")
    site.build("a", "killed-x:1", BIG)
    words = ("sync-image", "--image", "killed-x:1", "--json")
    with gate(site, "a") as held, site.started(*words) as first:
        held.reached()
        with site.started(*words) as second:
            assert told(second, "waiting for it")
            first.kill()
            held.open()
            found = json.loads(second.communicate(timeout=30)[0])
    assert [found["nodes"][label]["status"] for label in "abc"] == ["source", "synced", "synced"]


def test_where_no_lock_can_be_had_it_says_so_and_goes_on(site: ImageSite, victim: str) -> None:
    site.use(victim, "c")
    site.build(victim, "nolock-x:1", [1000])
    site.nodes[victim].exec("sh", "-c", "rm -rf /root/.cache && touch /root/.cache")
    try:
        done = site.run("sync-image", "--image", "nolock-x:1")
    finally:
        site.nodes[victim].exec("rm", "/root/.cache")
    assert done.returncode == 0, done.stderr
    assert "no lock can be had" in done.stderr


# -- memory and disk -----------------------------------------------------------------------------

SLOW = '[ "$1" != load ] || while ! [ -e /run/load-open ]; do sleep 0.1; done'


def test_a_large_image_takes_little_memory_and_no_disk_on_the_source(site: ImageSite) -> None:
    site.use("a", "b", "c")
    site.build("a", "large-x:1", [150 * MB, 150 * MB])
    node, slow = site.nodes["a"], site.nodes["b"]
    small = ("/tmp", "/var/tmp")
    for place in small:  # where a temporary file would not fit
        node.tmpfs(place)
    words = ("sync-image", "--image", "large-x:1", "--json")
    with docker_does(site, "b", SLOW), gate(site, "a", 290 * MB) as held, site.started(*words) as process:
        assert eventually(lambda: any("bin/docker load" in line for line in slow.processes()), 20)
        time.sleep(5)  # what the sender takes in while one target takes nothing
        sender = node.exec("pgrep", "-f", "^python3 -I -S -c").stdout.strip()
        slow.write("/run/load-open", "")
        assert eventually(node.path("/run/gate-reached").exists, 60)
        peak = re.search(r"VmHWM:\s*(\d+) kB", node.read(f"/proc/{sender}/status"))
        places = ("/tmp", "/root", "/home", "/run", "/srv", "/mnt")
        files = node.find(*places, "-xdev", "-type", "f", "-size", "+1M")
        held.open()
        report = json.loads(process.communicate(timeout=60)[0])
    for place in small:
        node.unmount(place)
    slow.path("/run/load-open").unlink()
    assert report["ok"]
    assert peak
    assert 5_000 < int(peak[1]) < 150_000
    assert files == []
    assert all(report["nodes"][label]["bytes"] > 300 * MB for label in "bc")
