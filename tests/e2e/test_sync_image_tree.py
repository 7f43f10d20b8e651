"""``sync-image`` to more targets than one node serves: those that have it send it on."""

from __future__ import annotations

import contextlib
import json
import shlex
import signal
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.image_runs import does, nodes_of, nothing_left
from tests.e2e.image_site import ImageSite, image_site
from tests.e2e.site import PROGRAM, eventually
from tests.images.registry import Registry, registry
from tests.lab.engine import Store
from tests.lab.lab import Lab
from tests.lab.releases import Release

pytestmark = pytest.mark.docker
MB = 1_000_000
THERE = 24568  # the port of a registry on a node
TARGETS = [f"t{number}" for number in range(1, 12)]
NARROW = "import fdl_tasks.images.tree as tree; tree.WIDTH, tree.WORTH = {}, 0; " + PROGRAM
HANGS_WHEN_IT_SENDS = """
case " $* " in *" push "*)
    [ ! -e /run/first ] || { touch /run/second; exec sleep 1000; }
    touch /run/first ;;
esac
"""


@pytest.fixture(scope="module")
def site(lab: Lab) -> Iterator[ImageSite]:
    """``a``, and eleven targets of both releases, whose engines end with this module."""
    made = image_site(lab)
    made.make(*TARGETS[:-3], store=Store.CONTAINERD)
    made.make(*TARGETS[-3:], store=Store.CONTAINERD, release=Release.D28)
    yield made
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda label: made.engines[label].kill(), TARGETS))


@pytest.fixture(autouse=True)
def _narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node serves two others at once, so that a few nodes are many."""
    monkeypatch.setenv("FLODL_HOST_NAME", "ctrl")
    monkeypatch.setattr("tests.e2e.site.PROGRAM", NARROW.format(2))


def sent(site: ImageSite, label: str) -> int:
    """The bytes that went out at that node's fabric address so far."""
    rows = site.nodes[label].exec("cat", "/proc/net/dev").stdout.splitlines()
    return next(int(row.split()[9]) for row in rows if row.strip().startswith("fabric0:"))


def senders(report: dict[str, Any]) -> dict[str, str]:
    """Who had it from another node than the source."""
    notes = nodes_of(report, "notes")
    return {label: said[0].removeprefix("from ") for label, said in notes.items() if said and said[0][:5] == "from "}


@contextlib.contextmanager
def in_the_second_wave(site: ImageSite, sender: str) -> Iterator[None]:
    """That node, once it is to send on, stands still when its targets wait for what it pushes."""
    marks = [site.nodes[sender].path(f"/run/{mark}") for mark in ("first", "second")]
    with does(site, sender, "docker", HANGS_WHEN_IT_SENDS):
        try:
            yield
        finally:
            for mark in marks:
                mark.unlink(missing_ok=True)


def test_most_of_the_bytes_do_not_come_from_the_source(site: ImageSite) -> None:
    site.use("a", *TARGETS)
    size = 4 * MB
    built = site.build("a", "many-t:1", [size])
    before = sent(site, "a")
    report = site.json("sync-image", "--image", "many-t:1")
    assert set(nodes_of(report, "status").values()) == {"source", "synced"}
    assert set(site.ids("many-t:1").values()) == {built}
    assert all(site.starts(label, "many-t:1") for label in TARGETS[-2:])
    assert senders(report) == {"t4": "t1", "t5": "t2", "t7": "t1", "t8": "t2", "t10": "t1", "t11": "t2"}
    assert 5 * size < sent(site, "a") - before < 5.5 * size, "of eleven"
    assert nothing_left(site)


def test_an_attested_image_is_sent_on_where_the_engine_can_and_else_comes_from_the_source(
    site: ImageSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Docker 28 pushes what it pulled as its platform's manifest alone, Docker 26 not at all."""
    monkeypatch.setattr("tests.e2e.site.PROGRAM", NARROW.format(1))
    site.use("b", "t1", "t9", "t10", "t11", "t2", "t3", "t4", "t5")  # t1 is of Docker 26, t9 to t11 of Docker 28
    site.build("b", "attested-t:1", [1000], attested=True)
    report = site.json("sync-image", "--image", "attested-t:1")
    assert set(nodes_of(report, "status", "transport").values()) == {("source", None), ("synced", "relay")}
    assert senders(report) == {"t11": "t9", "t3": "t9", "t4": "t10", "t5": "t11"}
    identity = nodes_of(report, "identity")
    assert (identity["t9"], identity["t11"], identity["t5"]) == ("same id", "same content", "same content")
    assert all(site.starts(label, "attested-t:1") for label in ("t11", "t5"))
    note = report["nodes"]["t10"]["notes"][0]
    assert note.startswith("t1 could not send it on (the source failed: docker push ended with 1"), note
    assert nothing_left(site)


def test_a_node_that_cannot_log_in_to_the_others_sends_to_nobody(site: ImageSite) -> None:
    site.use("a", *TARGETS[-5:])
    site.build("a", "keyless-t:1", [1000])
    key = site.nodes["t7"].path("/root/.ssh/id_ed25519")
    away = key.rename(key.with_suffix(".away"))
    try:
        report = site.json("sync-image", "--image", "keyless-t:1")
    finally:
        away.rename(key)
    assert set(nodes_of(report, "status", "transport").values()) == {("source", None), ("synced", "relay")}
    assert senders(report) == {"t11": "t8"}
    [note] = report["nodes"]["t10"]["notes"]
    assert "t7 could not send it on (" in note and "Permission denied" in note and note.endswith(", so a was to")


def test_whom_a_sender_was_serving_when_it_died_the_source_serves(site: ImageSite) -> None:
    site.use("a", *TARGETS[-5:])
    site.build("a", "killed-t:1", [MB])
    with in_the_second_wave(site, "t7"), site.started("sync-image", "--image", "killed-t:1", "--json") as process:
        assert eventually(site.nodes["t7"].path("/run/second").exists, 60), process.poll()
        assert site.nodes["t7"].kill_sessions() > 0
        report = json.loads(process.communicate(timeout=60)[0])
    assert set(nodes_of(report, "status", "transport").values()) == {("source", None), ("synced", "relay")}
    assert senders(report) == {"t11": "t8"}
    assert "t7 could not send it on (the source was lost" in report["nodes"]["t10"]["notes"][0]
    assert nothing_left(site)


def test_ended_by_the_user_in_the_second_wave_it_leaves_nothing_anywhere(site: ImageSite) -> None:
    site.use("a", *TARGETS[-5:])
    site.build("a", "ended-t:1", [MB])
    with in_the_second_wave(site, "t7"), site.started("sync-image", "--image", "ended-t:1") as process:
        assert eventually(site.nodes["t7"].path("/run/second").exists, 60), process.poll()
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=3)
        assert nothing_left(site)
    assert process.returncode == 130
    assert "Traceback" not in err and "may be left" not in err


def test_what_a_registry_brought_by_its_digest_is_in_sync(site: ImageSite, tmp_path: Path) -> None:
    site.use("a", "b", "c", "d")
    built = site.build("a", "pulled-t:1", [1000])
    archive = tmp_path / "image.tar"
    site.engines["a"].docker("save", "-o", archive, "pulled-t:1")
    with registry(archive) as served:
        assert served.digest == built
        for label in "bcd":
            pulled_from(site, label, served, "pulled-t:1")
    report = site.json("sync-image", "--image", "pulled-t:1")
    assert nodes_of(report, "status", "identity") == {
        "a": ("source", "same id"), "b": ("in-sync", "same id"),
        "c": ("in-sync", "same content"), "d": ("in-sync", "same content"),
    }  # fmt: skip


def pulled_from(site: ImageSite, label: str, served: Registry, name: str) -> None:
    """That node pulls the registry's image by its digest, through ssh, and gives it that name."""
    place = f"127.0.0.1:{THERE}"
    auth = json.dumps({"auths": {place: {"auth": served.auth.removeprefix("Basic ")}}})
    image = f"{place}/app@{served.digest}"
    script = 'trap "rm -r /tmp/registry" EXIT; mkdir /tmp/registry; printf %s "$1" >/tmp/registry/config.json; '
    script += 'docker --config /tmp/registry pull -q "$2" && docker tag "$2" "$3"'
    words = [*site.lab.ssh_argv(site.nodes[label]), shlex.join(["sh", "-c", script, "sh", auth, image, name])]
    subprocess.run(["ssh", "-R", f"{place}:127.0.0.1:{served.port}", *words], check=True, capture_output=True)
