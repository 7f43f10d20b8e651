"""``inv sync-image`` as a user types it, on real engines of both stores and two releases.

What it says is compared with what the engines say, asked by the lab's own client.
"""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.image_site import ImageSite, image_site
from tests.lab.lab import Lab

MEGABYTE = 1_000_000


@pytest.fixture(scope="module")
def site(lab: Lab) -> Iterator[ImageSite]:
    with image_site(lab).by("archive") as site:
        yield site


def each(report: dict[str, Any], key: str) -> dict[str, Any]:
    """One value of every node."""
    return {label: node[key] for label, node in report["nodes"].items()}


def test_an_image_comes_to_three_nodes_and_then_no_byte_moves_and_it_is_proven_again(site: ImageSite) -> None:
    site.use("a", "b", "c", "d")
    built = site.build("a", "cold:1", [400_000, 1000])
    cold = site.json("sync-image", "--image", "cold:1")
    assert each(cold, "status") == {"a": "source", "b": "synced", "c": "synced", "d": "synced"}
    assert (cold["image"], cold["source"], cold["ok"]) == ("cold:1", "a", True)
    assert {cold["nodes"][label]["address"] for label in "bcd"} == {site.nodes[n].fabric_address for n in "bcd"}
    ids = site.ids("cold:1")
    assert ids["a"] == ids["b"] == built and ids["c"] == ids["d"] != built
    assert len({tuple(layers) for layers in site.layers("cold:1").values()}) == 1
    assert all(site.starts(label, "cold:1") for label in "bcd")
    before = {label: site.received(label) for label in "bcd"}
    with site.events(*"abcd") as seen:
        second = site.run("sync-image", "--image", "cold:1")
    assert second.returncode == 0, second.stderr
    rows = {
        row.split()[0]: row.split()[1:] for row in second.stdout.splitlines() if row[:1] in "bcd" and row[1:2] == " "
    }
    assert rows == {
        "b": ["in-sync", "same", "id"],
        "c": ["in-sync", "same", "content"],
        "d": ["in-sync", "same", "content"],
    }
    # what ended after the first count: a few packets of the first run's goodbyes
    assert all(site.received(label) - count < 2000 for label, count in before.items())
    for label in "abcd":
        assert "container start" in seen[label], f"{label} was not proven again"
        assert not [event for event in seen[label] if event in ("image load", "image tag", "image pull")]
    assert site.ids("cold:1") == ids


def test_from_a_graphdriver_store_it_comes_to_containerd_stores_and_then_no_byte_moves(site: ImageSite) -> None:
    site.use("d", "a", "b")
    site.build("d", "plain-cold:1", [400_000, 1000])
    first = site.json("sync-image", "--image", "plain-cold:1")
    assert each(first, "status") == {"d": "source", "a": "synced", "b": "synced"}
    assert [each(first, key)[label] for key in ("mode", "transport") for label in "ab"] == ["full"] * 2 + [
        "archive"
    ] * 2
    assert all(site.starts(label, "plain-cold:1") for label in "ab")
    before = {label: site.received(label) for label in "ab"}
    second = site.json("sync-image", "--image", "plain-cold:1")
    assert [each(second, key)[label] for key in ("status", "identity") for label in "ab"] == [
        *["in-sync"] * 2, *["same content"] * 2,
    ]  # fmt: skip
    assert all(site.received(label) - count < 2000 for label, count in before.items())


@pytest.mark.parametrize("source, target", [("a", "b"), ("c", "d")])
def test_of_a_rebuilt_top_layer_only_that_moves(site: ImageSite, source: str, target: str) -> None:
    site.use(source, target)
    old, new = f"top-{source}:1", f"top-{source}:2"
    site.build(source, old, [4 * MEGABYTE, {"/top": 1000}])
    site.json("sync-image", "--image", old)
    site.build(source, new, [4 * MEGABYTE, {"/top": 300_000}])
    before = site.received(target)
    report = site.json("sync-image", "--image", new)["nodes"][target]
    assert (report["mode"], report["notes"]) == ("delta", [])
    assert 300_000 < report["bytes"] <= 300_000 + MEGABYTE
    assert 300_000 < site.received(target) - before <= 300_000 + MEGABYTE
    assert site.layers(new)[target] == site.layers(new)[source]
    size = site.engines[target].docker("run", "--rm", "--network=none", new, "wc", "-c", "/layers/0").stdout
    assert size.split()[0] == str(4 * MEGABYTE)


def test_the_same_content_under_another_name_is_tagged_and_not_sent(site: ImageSite) -> None:
    site.use("a", "b", "c")
    built = site.build("a", "known:1", [1000])
    for label in "bc":
        site.engines["a"].give(site.engines[label], "known:1")
        site.engines[label].docker("tag", "known:1", "other-name:7")
        site.engines[label].docker("rmi", "known:1")
    with site.events("b", "c") as seen:
        report = site.json("sync-image", "--image", "known:1")
    assert each(report, "mode") == {"a": None, "b": "tag", "c": "tag"}
    assert set(each(report, "bytes").values()) == {0}
    assert [label for label in "bc" if "image load" in seen[label]] == []
    assert site.ids("known:1")["b"] == built and site.ids("known:1")["c"] == site.ids("other-name:7")["c"]


def test_a_plan_is_what_then_happens_and_changes_nothing_itself(site: ImageSite) -> None:
    site.use("a", "b", "c")
    site.build("a", "planned:1", [1000])
    with site.events(*"abc") as seen:
        done = site.run("sync-image", "--image", "planned:1", "--plan")
    assert done.returncode == 0, done.stderr
    assert {label: events for label, events in seen.items() if set(events) - {"image save"}} == {}
    assert [label for label, found in site.ids("planned:1").items() if found] == ["a"]
    planned = {row.split()[0]: row.split()[1] for row in done.stdout.splitlines() if row[:2] in ("b ", "c ")}
    assert "planned:1 from a (the only node that has it): 2 nodes to change" in done.stdout
    shown = site.json("sync-image", "--image", "planned:1", "--plan")
    assert each(shown, "status") == {"a": "source", "b": "planned", "c": "planned"}
    assert each(shown, "mode") == {"a": None, **planned}
    assert each(site.json("sync-image", "--image", "planned:1"), "mode") == {"a": None, **planned}
    again = site.run("sync-image", "--image", "planned:1", "--plan")
    assert "nothing to do" in again.stdout


@contextlib.contextmanager
def unheard(site: ImageSite) -> Iterator[dict[str, Any]]:
    """The ``ssh:`` block of an address that fails the test when anybody connects to it."""
    with socket.create_server((site.lab.controller_address, 0)) as server:
        server.setblocking(False)
        yield {"target": server.getsockname()[0], "port": server.getsockname()[1]}
        with pytest.raises(BlockingIOError):
            server.accept()


def test_a_dry_run_prints_the_scripts_and_opens_no_connection(site: ImageSite) -> None:
    with unheard(site) as ssh:
        site.use("a", "b", fields={"a": {"ssh": ssh}, "b": {"ssh": ssh}})
        done = site.run("sync-image", "--image", "dry:1", "--dry-run")
    assert done.returncode == 0, done.stderr
    parts = [part.partition("\n") for part in f"\n{done.stdout}".split("\n# --- ")[1:]]
    assert [head for head, _, _ in parts] == [
        "a: images/probe.sh",
        "b: images/probe.sh",
        "<source>: images/ways.sh",
        "<source>: images/send.sh",
        "<target>: images/load.sh",
        "<target>: images/verify.sh",
    ]
    for head, _, script in parts:
        subprocess.run(["sh", "-n"], input=script, check=True, text=True)
        assert "dry:1" in script or head.endswith(("ways.sh", "load.sh"))


def test_a_dry_run_needs_no_node_to_be_up(site: ImageSite) -> None:
    site.use("a", "b")
    for label in "ab":
        site.nodes[label].stop_sshd()
    try:
        done = site.run("sync-image", "--image", "dry:1", "--dry-run")
    finally:
        for label in "ab":
            site.nodes[label].start_sshd()
    assert done.returncode == 0 and "<target>" in done.stdout


def test_images_shows_what_every_node_has(site: ImageSite) -> None:
    site.use("a", "b", "c")
    built = site.build("a", "shown:1", [1000], created=1_700_000_000)
    site.engines["a"].give(site.engines["c"], "shown:1")
    nodes = site.json("images", "--image", "shown:1")["nodes"]
    assert {label: node["id"] for label, node in nodes.items()} == site.ids("shown:1")
    assert nodes["a"]["id"] == built and nodes["b"]["id"] is None
    assert {label: node["store"] for label, node in nodes.items()} == {
        "a": "containerd",
        "b": "containerd",
        "c": "graphdriver",
    }
    assert {label: node["layers"] or None for label, node in nodes.items()} == site.layers("shown:1")
    assert nodes["c"]["complete"] is True and nodes["c"]["size"] == site.engines["c"].image("shown:1")["Size"]
    table = site.run("images", "--image", "shown:1").stdout
    assert (
        "2023-11-14" in table and built[7:19] in table and "2 of 3 nodes have it; of 1 only a container tells" in table
    )


def test_ensure_image_brings_it_and_what_follows_runs(site: ImageSite) -> None:
    site.use("a", "b")
    built = site.build("a", "ensured:1", [1000])
    done = site.run("ensure-image", "--image", "ensured:1", "images", "--image", "ensured:1")
    assert done.returncode == 0 and site.ids("ensured:1") == {"a": built, "b": built}
    assert "2 of 2 nodes have it" in done.stdout


def test_ensure_image_lets_nothing_follow_where_no_node_has_it(site: ImageSite) -> None:
    site.use("a", "b")
    log = '#!/bin/sh\necho "$*" >>/srv/docker-words\nexec /lab/engine/docker "$@"\n'
    site.nodes["b"].stand_in("docker", log)
    try:
        done = site.run("ensure-image", "--image", "nowhere:1", "images", "--image", "nowhere:1")
    finally:
        site.nodes["b"].stand_in("docker", '#!/bin/sh\nexec /lab/engine/docker "$@"\n')
    assert done.returncode == 1 and done.stdout == ""
    assert "no node has the image: a does not have the image; b does not have the image" in done.stderr
    words = site.nodes["b"].read("/srv/docker-words").splitlines()
    assert any(line.startswith("image inspect") for line in words)
    assert not [line for line in words if line.startswith(("pull", "run", "create"))]


def test_a_recipe_names_the_image_and_what_must_run_in_it(site: ImageSite) -> None:
    site.use("a", "b")
    built = site.build("a", "cooked:1", [1000])
    probe = ["/bin/sh", "-c", "test -s /layers/0"]
    recipes = {
        "good": {"image": "cooked:1", "exec_probe": probe},
        "bad": {"image": "cooked:1", "exec_probe": ["/bin/false"]},
    }
    site.use("a", "b", recipes=recipes)
    refused = site.run("sync-image", "--recipe", "bad")
    assert refused.returncode == 1 and "'/bin/false' in a container ended with 1" in refused.stderr
    assert site.ids("cooked:1") == {"a": built, "b": None}
    assert each(site.json("sync-image", "--recipe", "good"), "status") == {"a": "source", "b": "synced"}
    assert site.ids("cooked:1") == {"a": built, "b": built}


def test_a_group_gets_it_and_nobody_else(site: ImageSite) -> None:
    site.use("a", "b", "c", groups={"pair": ["a", "b"]})
    built = site.build("a", "grouped:1", [1000])
    assert sorted(site.json("sync-image", "--image", "grouped:1", "--group", "pair")["nodes"]) == ["a", "b"]
    assert site.ids("grouped:1") == {"a": built, "b": built, "c": None}


def test_the_newest_is_the_source_unless_another_is_named(site: ImageSite) -> None:
    site.use("a", "b")
    old = site.build("a", "dated:1", [1000], created=1_600_000_000)
    new = site.build("b", "dated:1", [2000], created=1_700_000_000)
    planned = site.run("sync-image", "--image", "dated:1", "--plan")
    assert "dated:1 from b (the newest of 2 different images (created 2023-11-14 22:13:20 UTC))" in planned.stdout
    assert site.ids("dated:1") == {"a": old, "b": new}
    named = site.json("sync-image", "--image", "dated:1", "--source", "a")
    assert (named["source"], named["reason"]) == ("a", "named as the source")
    assert site.ids("dated:1") == {"a": old, "b": old}
    assert [note for note in named["nodes"]["b"]["notes"] if new in note], named
    assert site.image("b", new), "what the name meant before is kept"


def test_dates_that_do_not_tell_are_a_question(site: ImageSite) -> None:
    site.use("a", "b")
    ids = {label: site.build(label, "undated:1", [size], created=0) for label, size in (("a", 1000), ("b", 2000))}
    done = site.run("sync-image", "--image", "undated:1")
    assert done.returncode == 1 and site.ids("undated:1") == ids
    said = " ".join(done.stderr.split())
    assert "their dates do not tell which is the newest" in said and "--source a" in said
    assert all(built in said for built in ids.values())


def test_the_json_of_a_sync_has_the_shape_that_the_docs_promise(site: ImageSite) -> None:
    site.use("a", "c")
    site.build("a", "shaped:1", [1000])
    report = json.loads(site.run("sync-image", "--image", "shaped:1", "--json").stdout)
    assert list(report) == ["image", "source", "reason", "ok", "nodes"]
    node = report["nodes"]["c"]
    assert (node["status"], node["mode"], node["transport"], node["error"]) == ("synced", "full", "archive", None)
    assert node["bytes"] > 1000 and node["seconds"] > 0 and node["identity"] == "same content" and node["notes"] == []
