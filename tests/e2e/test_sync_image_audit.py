"""``inv sync-image`` with images, logins and sources as people really have them, on real engines."""

from __future__ import annotations

import hashlib
import io
import json
import re
import signal
import subprocess
import tarfile
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.image_site import ImageSite, image_site
from tests.e2e.site import eventually
from tests.lab.engine import Engine, Store
from tests.lab.lab import Lab
from tests.terminal import Terminal

MB = 1_000_000
PASSED_ON = 'exec /lab/engine/docker "$@"\n'
OCI = "application/vnd.oci.image"


@pytest.fixture(scope="module")
def site(lab: Lab) -> Iterator[ImageSite]:
    with image_site(lab).by("archive") as site:
        yield site


def each(report: dict[str, Any], key: str) -> dict[str, Any]:
    return {label: node[key] for label, node in report["nodes"].items()}


def docker(engine: Engine, *words: str, stdin: bytes = b"") -> bytes:
    done = subprocess.run(["docker", "--host", engine.host, *words], input=stdin, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


def pulled(engine: Engine, image: str) -> str:
    """Make ``image`` one of many platforms, as a pull leaves it: only this machine's is there. Its id."""
    blobs: dict[str, bytes] = {}
    with tarfile.open(fileobj=io.BytesIO(docker(engine, "save", image))) as tar:
        for entry in filter(tarfile.TarInfo.isfile, tar):
            blobs[entry.name] = tar.extractfile(entry).read()  # type: ignore[union-attr]
    [own] = json.loads(blobs["index.json"])["manifests"]
    absent = {"mediaType": f"{OCI}.manifest.v1+json", "size": 1234}
    marks = {"vnd.docker.reference.type": "attestation-manifest", "vnd.docker.reference.digest": own["digest"]}
    parts = [
        {**absent, "digest": f"sha256:{'a' * 64}", "platform": {"os": "linux", "architecture": "arm64"}},
        {"mediaType": own["mediaType"], "digest": own["digest"], "size": own["size"],
         "platform": {"os": "linux", "architecture": "amd64"}},
        {**absent, "digest": f"sha256:{'b' * 64}", "platform": {"os": "unknown", "architecture": "unknown"},
         "annotations": marks},
    ]  # fmt: skip
    index = json.dumps({"schemaVersion": 2, "mediaType": f"{OCI}.index.v1+json", "manifests": parts}).encode()
    digest = hashlib.sha256(index).hexdigest()
    top = {"mediaType": f"{OCI}.index.v1+json", "digest": f"sha256:{digest}", "size": len(index)}
    names = {"io.containerd.image.name": f"docker.io/library/{image}"}
    kept = {name: data for name, data in blobs.items() if name.startswith("blobs/")}
    kept |= {
        f"blobs/sha256/{digest}": index,
        "oci-layout": b'{"imageLayoutVersion":"1.0.0"}',
        "index.json": json.dumps({"schemaVersion": 2, "manifests": [{**top, "annotations": names}]}).encode(),
    }
    docker(engine, "rmi", image)
    docker(engine, "load", stdin=packed(kept))
    return f"sha256:{digest}"


def packed(files: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


@pytest.mark.parametrize(("source", "like", "unlike"), [("a", "b", "d"), ("b", "a", "c")])
def test_an_image_of_many_platforms_of_which_one_was_pulled_comes_to_every_store(
    site: ImageSite, source: str, like: str, unlike: str
) -> None:
    site.use(source, like, unlike)
    image = f"many-{source}:1"
    site.build(source, image, [300_000])
    index = pulled(site.engines[source], image)
    assert site.ids(image)[source] == index
    report = site.json("sync-image", "--image", image)
    assert each(report, "status") == {source: "source", like: "synced", unlike: "synced"}
    assert each(report, "identity") == {source: "same id", like: "same id", unlike: "same content"}
    assert site.ids(image)[like] == index
    assert site.starts(like, image) and site.starts(unlike, image)


def test_a_source_that_needs_sudo_sends_only_what_is_missing_and_leaves_nothing_when_it_is_ended(
    site: ImageSite,
) -> None:
    user = {"ssh": {"user": "lab-sudo"}}
    site.use("a", "b", fields={"a": user, "b": user})
    site.lab.give_key(site.nodes["a"], user="lab-sudo")
    name = "registry.example:5000/team/sudo"
    site.build("a", f"{name}:1", [2 * MB, {"/top": b"1"}], seed="sudo")
    site.engines["a"].give(site.engines["b"], f"{name}:1")
    built = site.build("a", f"{name}:2", [2 * MB, {"/top": b"2"}], seed="sudo")
    report = site.json("sync-image", "--image", f"{name}:2")
    assert each(report, "mode") == {"a": None, "b": "delta"}
    assert report["nodes"]["b"]["bytes"] < MB and site.ids(f"{name}:2")["b"] == built
    site.build("a", f"{name}:3", [20 * MB], seed="sudo")
    node = site.nodes["b"]
    node.stand_in("docker", '#!/bin/sh\n[ "$1" != load ] || { touch /run/hangs; exec sleep 1000; }\n' + PASSED_ON)
    words = site.argv("sync-image", "--image", f"{name}:3")
    try:
        with subprocess.Popen(words, env=site.env(), stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            hung = eventually(node.path("/run/hangs").exists, 30)
            process.send_signal(signal.SIGINT)
            try:
                process.communicate(timeout=2)
            finally:
                process.kill()
    finally:
        node.stand_in("docker", f"#!/bin/sh\n{PASSED_ON}")
        node.path("/run/hangs").unlink(missing_ok=True)
    assert (process.returncode, hung) == (130, True)
    assert eventually(lambda: not any(site.nodes[label].processes() for label in "ab"), 5), left(site)
    assert site.nodes["a"].find("/tmp", "-name", "fdl-*") == []


def left(site: ImageSite) -> dict[str, list[str]]:
    return {label: site.nodes[label].processes() for label in site.used}


def test_the_machine_that_it_is_called_on_is_a_source_as_any_other_by_the_engine_that_is_named(
    site: ImageSite,
) -> None:
    here = site.lab.start_engines({"image-here": {"store": Store.CONTAINERD}})["image-here"]
    socket = "unix:///var/run/docker.sock"
    site.use("b", "c", fields={"b": {"docker_host": socket, "fabric_ip": None}, "c": {"fabric_ip": None}})
    site.workers.append({"host": "ctrl", "path": str(site.project), "docker_host": here.host})
    site.write()
    built = here.build("mine:1", [300_000], seed="mine")
    report = site.json("sync-image", "--image", "mine:1")
    assert each(report, "status") == {"b": "synced", "c": "synced", "ctrl": "source"}
    assert each(report, "address") == {"b": site.nodes["b"].address, "c": site.nodes["c"].address, "ctrl": None}
    assert site.ids("mine:1")["b"] == built and site.starts("b", "mine:1") and site.starts("c", "mine:1")


def test_an_image_that_was_brought_and_not_unpacked_is_unpacked_and_proven(site: ImageSite) -> None:
    site.use("a", "b")
    built = site.build("a", "lazy:1", [300_000])
    archive = site.engines["b"].dir / "lazy.tar"
    site.engines["a"].docker("save", "-o", archive, "lazy:1")
    socket = site.engines["b"].dir / "exec/containerd/containerd.sock"
    words = ["--address", socket, "--namespace", "moby", "images", "import", "--no-unpack", archive]
    subprocess.run(["ctr", *map(str, words)], check=True, capture_output=True)
    archive.unlink()
    assert site.ids("lazy:1") == {"a": built, "b": built}
    report = site.json("sync-image", "--image", "lazy:1", "--source", "a")
    assert (each(report, "status"), each(report, "bytes")) == ({"a": "source", "b": "in-sync"}, {"a": 0, "b": 0})
    assert site.starts("b", "lazy:1")


def test_a_name_with_a_tag_and_a_digest_is_one_image(site: ImageSite) -> None:
    site.use("a", "b")
    digest = site.build("a", "both:1", [1000])
    reference = f"both:1@{digest}"
    report = site.json("sync-image", "--image", reference)
    assert each(report, "status") == {"a": "source", "b": "synced"}, report
    assert site.ids("both:1") == site.ids(reference) == {"a": digest, "b": digest}


@pytest.mark.parametrize("transport", ["relay", "archive"])
def test_a_terminal_shows_how_far_each_node_is_all_the_time(site: ImageSite, transport: str) -> None:
    site.use("a", "b")
    image = f"shown-live-{transport}:1"
    site.build("a", image, [60_000_000])
    before, node = site.received("b"), site.nodes["b"]
    with site.by(transport):
        argv = site.argv("sync-image", "--image", image)
    with Terminal(argv, cwd=site.project, env=site.env(TERM="xterm")) as terminal:
        assert eventually(lambda: site.received("b") - before > 3_000_000, 60), terminal.screen.lines
        node.exec("pkill", "-STOP", "dockerd")
        moving = eventually(lambda: len(rates(terminal.raw)) > 3, 60)  # a tenth alone would show one
        node.exec("pkill", "-CONT", "dockerd")
        assert (terminal.ended(60), moving) == (0, True), terminal.raw


def rates(seen: str) -> set[str]:
    """The rates that were shown; they fall each second while nothing moves, and a tenth is told once only."""
    return set(re.findall(r"iB of ~?[0-9.]+ [KM]iB, ([0-9.]+ [KM]iB)/s", seen))
