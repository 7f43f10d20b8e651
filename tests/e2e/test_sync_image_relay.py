"""``sync-image`` through a relay: only what is missing, and by the archive where a relay can't be."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.image_runs import does, nodes_of, nothing_left
from tests.e2e.image_site import ImageSite, image_site
from tests.e2e.site import eventually
from tests.lab.engine import Store
from tests.lab.lab import Lab
from tests.lab.releases import Release

pytestmark = pytest.mark.docker
MB = 1_000_000
SPARE = 200_000  # bytes that a target may get beside the layers it lacks


@pytest.fixture(scope="module")
def site(lab: Lab) -> ImageSite:
    """Beside the usual nodes ``e``, of Docker 28, and ``f``, of Docker 26, both with containerd stores."""
    made = image_site(lab)
    made.make("e", store=Store.CONTAINERD, release=Release.D28)
    made.make("f", store=Store.CONTAINERD, release=Release.D26)
    return made


@pytest.fixture(autouse=True)
def _own_label(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLODL_HOST_NAME", "ctrl")


@dataclass
class Midway:
    process: subprocess.Popen[str]
    report: dict[str, Any] = field(default_factory=dict)


@contextlib.contextmanager
def midway(site: ImageSite, source: str, target: str, image: str) -> Iterator[Midway]:
    """A sync whose relay stands still once ``target`` got some megabytes; it goes on when the block ends."""
    before, node = site.received(target), site.nodes[source]
    with site.started("sync-image", "--image", image, "--source", source, "--json") as process:
        assert eventually(lambda: site.received(target) - before > 3 * MB, 30), process.poll()
        relay = node.exec("pgrep", "-f", "^python3 -I -S -c").stdout.split()[0]
        node.exec("kill", "-STOP", relay)
        found = Midway(process)
        try:
            yield found
        finally:
            node.exec("kill", "-CONT", relay, check=False)
        if process.returncode is None:
            found.report = json.loads(process.communicate(timeout=60)[0])


def use_by_sudo(site: ImageSite, lab: Lab, *labels: str) -> None:
    """These nodes, and a login that reaches their engines by sudo alone."""
    site.use(*labels, fields={label: {"user": "lab-sudo"} for label in labels})
    for label in labels:
        lab.give_key(site.nodes[label], user="lab-sudo")


# -- what is sent --------------------------------------------------------------------------------


def test_each_target_gets_the_layers_that_it_lacks_and_no_name_of_the_relay_stays(site: ImageSite) -> None:
    site.use("a", "b", "e", "c")
    base, top = 5 * MB, 2 * MB
    site.build("a", "gaps-r:0", [base])
    site.engines["a"].give(site.engines["b"], "gaps-r:0")
    built = site.build("a", "gaps-r:1", [base, top])
    done = site.run("sync-image", "--image", "gaps-r:1", "--json")
    report = json.loads(done.stdout)
    assert nodes_of(report, "status", "transport") == {
        **{"a": ("source", None), "b": ("synced", "relay"), "e": ("synced", "relay"), "c": ("synced", "archive")}
    }
    assert re.search(r"\[e\] [\d.]+ MiB of 6.7 MiB, .*, by the fabric address", done.stderr), done.stderr  # no ~
    sent = nodes_of(report, "bytes")
    assert top < sent["b"] < top + SPARE
    assert base + top < sent["e"] < base + top + SPARE
    assert "c has a graphdriver store" in report["nodes"]["c"]["notes"][0]
    ids = site.ids("gaps-r:1")
    assert ids["a"] == ids["b"] == ids["e"] == built
    for label in "be":
        image = site.image(label, "gaps-r:1")
        assert image and image["RepoDigests"] == [f"gaps-r@{built}"]
        sizes = [int(site.nodes[one].exec("sh", "-c", "docker save gaps-r:1 | wc -c").stdout) for one in ("a", label)]
        assert abs(sizes[0] - sizes[1]) < 2048  # two releases' documents
    assert nothing_left(site)
    site.build("a", "gaps-r:1", [base, top, {"/more": b"2"}])  # on top of it
    sent = nodes_of(site.json("sync-image", "--image", "gaps-r:1"), "bytes")
    assert 0 < sent["b"] < SPARE and 0 < sent["e"] < SPARE
    assert nothing_left(site)


def test_the_plan_and_the_flag_say_which_way(site: ImageSite) -> None:
    site.use("a", "b", "c")
    site.build("a", "flag-r:1", [1000])
    planned = site.json("sync-image", "--image", "flag-r:1", "--plan")
    assert nodes_of(planned, "transport") == {"a": None, "b": "relay", "c": "archive"}
    forced = site.json("sync-image", "--image", "flag-r:1", "--transport", "relay", code=1)
    assert nodes_of(forced, "status") == {"a": "source", "b": "synced", "c": "failed"}
    assert "no relay can bring it: a relay takes containerd stores" in forced["nodes"]["c"]["error"]
    site.engines["b"].docker("rmi", "flag-r:1")
    rest = site.json("sync-image", "--image", "flag-r:1", "--transport", "archive")
    assert nodes_of(rest, "transport") == {"a": None, "b": "archive", "c": "archive"}
    assert rest["nodes"]["b"]["notes"] == []
    wrong = site.run("sync-image", "--image", "flag-r:1", "--transport", "pigeon")
    assert (wrong.returncode, "'pigeon' is none of auto, relay, archive" in wrong.stderr) == (2, True)


def test_a_reference_by_digest_gets_a_name_that_holds_it(site: ImageSite) -> None:
    site.use("a", "b")
    digest = site.build("a", "digest-r:1", [1000])
    report = site.json("sync-image", "--image", f"digest-r@{digest}")
    assert nodes_of(report, "status", "transport")["b"] == ("synced", "relay")
    name = f"digest-r:fdl-{digest.partition(':')[2][:12]}"
    assert report["nodes"]["b"]["notes"] == [f"its digest is found there by the tag {name}, which stays"]
    assert site.ids(name)["b"] == digest


def test_by_sudo_it_goes_the_same_way(site: ImageSite, lab: Lab) -> None:
    use_by_sudo(site, lab, "a", "e")
    site.build("a", "sudo-r:1", [1000])
    report = site.json("sync-image", "--image", "sudo-r:1")
    assert nodes_of(report, "status", "transport", "notes")["e"] == ("synced", "relay", [])
    assert nothing_left(site)


def test_a_copy_that_a_relay_brought_goes_on_by_a_relay(site: ImageSite) -> None:
    site.use("b", "e")
    site.build("b", "onward-r:1", [MB], attested=True)
    assert nodes_of(site.json("sync-image", "--image", "onward-r:1"), "transport")["e"] == "relay"
    site.engines["b"].docker("rmi", "onward-r:1")
    site.use("e", "a", "b")  # its attestation did not come with it; Docker 28 leaves that out of what it pushes
    nodes = site.json("sync-image", "--image", "onward-r:1")["nodes"]
    for label in "ab":
        assert (nodes[label]["status"], nodes[label]["transport"]) == ("synced", "relay")
        assert "one platform's manifest alone" in nodes[label]["notes"][0]
    layers = site.layers("onward-r:1")
    assert layers["a"] == layers["b"] == layers["e"]
    assert nothing_left(site)


def test_the_engine_of_the_sources_current_context_is_the_one_that_pushes(site: ImageSite) -> None:
    site.use("a", "e")
    site.build("a", "context-r:1", [1000])
    node = site.nodes["a"]
    node.exec("mv", "/run/docker.sock", "/run/other.sock")  # where no client looks by itself
    try:
        node.exec("/lab/bin/docker", "context", "create", "other", "--docker", "host=unix:///run/other.sock")
        node.exec("/lab/bin/docker", "context", "use", "other")
        report = site.json("sync-image", "--image", "context-r:1")
        assert nodes_of(report, "status", "transport", "notes")["e"] == ("synced", "relay", [])
    finally:
        node.exec("rm", "-rf", "/root/.docker")
        node.exec("mv", "/run/other.sock", "/run/docker.sock")
    assert nothing_left(site)


# -- what is in the way --------------------------------------------------------------------------


def test_python_is_needed_on_the_source_alone(site: ImageSite) -> None:
    site.use("a", "b")
    site.build("a", "python-r:1", [1000])
    with does(site, "b", "python3", "exit 127"):
        assert nodes_of(site.json("sync-image", "--image", "python-r:1"), "transport")["b"] == "relay"
    site.build("a", "snake-r:1", [1000])
    with does(site, "a", "python3", "exit 127"):
        node = site.json("sync-image", "--image", "snake-r:1")["nodes"]["b"]
    assert (node["status"], node["transport"]) == ("synced", "archive")
    assert "a has no python3 3.8 or later, which runs a relay" in node["notes"][0]


def test_a_target_that_forwards_nothing_gets_it_by_the_archive(site: ImageSite) -> None:
    site.use("a", "b", "f")
    site.build("a", "forward-r:1", [MB])
    site.nodes["f"].configure(AllowTcpForwarding="no")
    try:
        report = site.json("sync-image", "--image", "forward-r:1")
    finally:
        site.nodes["f"].configure(AllowTcpForwarding="yes")
    assert nodes_of(report, "status", "transport") == {
        **{"a": ("source", None), "b": ("synced", "relay"), "f": ("synced", "archive")}
    }
    assert "the relay did not bring it (ssh ended with 255: " in report["nodes"]["f"]["notes"][0]
    assert "remote port forwarding failed" in report["nodes"]["f"]["notes"][0]
    assert nothing_left(site)


@pytest.mark.parametrize(
    ("keyword", "where", "words"),
    [
        ("LocalForward", "a", "cannot listen to port: 18022"),
        ("RemoteForward", "b", "remote port forwarding failed for listen port 18022"),
    ],
)
def test_a_forwarding_of_the_logins_own_that_fails_is_named_and_the_archive_brings_it(
    keyword: str, where: str, words: str, site: ImageSite
) -> None:
    site.use("a", "b")
    site.build("a", f"own-{keyword.lower()}-r:1", [1000])
    site.nodes["a"].write("/root/.ssh/config", f"Host *\n{keyword} 127.0.0.1:18022 127.0.0.1:22\n", mode="600")
    listens = "import socket; s = socket.create_server(('127.0.0.1', 18022)); print('', flush=True); s.accept()"
    taken = site.nodes[where].enter("python3", "-c", listens)
    try:
        with subprocess.Popen(taken, stdout=subprocess.PIPE) as listener:
            assert listener.stdout and listener.stdout.readline()
            node = site.json("sync-image", "--image", f"own-{keyword.lower()}-r:1")["nodes"]["b"]
            site.nodes[where].exec("pkill", "-f", "^python3 -c import socket")
    finally:
        site.nodes["a"].path("/root/.ssh/config").unlink()
    assert (node["status"], node["transport"]) == ("synced", "archive")
    assert words in node["notes"][0], node
    assert nothing_left(site)


@pytest.mark.parametrize("end", ["source", "target"])
def test_an_engine_with_another_loopback_than_its_nodes_takes_the_archive(site: ImageSite, end: str) -> None:
    """As of a rootless engine, or one in a machine of its own: here that of ``f``, as ``b`` sees it by a socket."""
    site.use("a", "b")
    site.nodes["b"].mount(site.engines["f"].dir, "/srv/far")
    try:
        site.use("a", "b", fields={"b": {"docker_host": "unix:///srv/far/docker.sock"}})
        image = f"loopback-r-{end}:1"
        source, target = ("f", "a") if end == "source" else ("a", "f")
        built = site.build(source, image, [MB])
        report = site.json("sync-image", "--image", image)
    finally:
        site.nodes["b"].unmount("/srv/far")
    node = report["nodes"]["a" if end == "source" else "b"]
    assert (node["status"], node["transport"]) == ("synced", "archive"), node
    assert "the relay did not bring it (" in node["notes"][0] and "connection refused" in node["notes"][0], node
    assert site.engines[target].image(image)["Id"] == built and nothing_left(site)


def test_a_port_that_is_taken_on_the_target_is_left_for_another_one(site: ImageSite) -> None:
    site.use("a", "b")
    site.build("a", "port-r:1", [1000])
    taken = 'mark=/run/taken; case "$*" in *" -R "*) if ! [ -e $mark ]; then touch $mark; n=0\n' \
        'for w; do [ "$before" = -R ] && w=127.0.0.1:22:${w#*:*:}; words[n++]=$w; before=$w; done\n' \
        'set -- "${words[@]}"; fi ;; esac'  # fmt: skip
    try:
        with does(site, "a", "ssh", taken):
            report = site.json("sync-image", "--image", "port-r:1")
        assert site.nodes["a"].path("/run/taken").exists()
    finally:
        site.nodes["a"].path("/run/taken").unlink(missing_ok=True)
    assert nodes_of(report, "status", "transport", "notes")["b"] == ("synced", "relay", [])


def test_a_source_that_cannot_push_its_image_sends_the_archive_and_says_what_cures_it(
    site: ImageSite, tmp_path: Path
) -> None:
    site.use("b", "f")
    site.build("b", "attested-r:1", [MB], attested=True)
    assert nodes_of(site.json("sync-image", "--image", "attested-r:1"), "transport")["f"] == "relay"
    site.use("f", "e")  # it has no attestation there, and its Docker 26 wants to push that too
    node = site.json("sync-image", "--image", "attested-r:1")["nodes"]["e"]
    assert (node["status"], node["transport"]) == ("synced", "archive")
    assert "the relay did not bring it (the source failed: docker push ended with 1" in node["notes"][0]
    assert "echo FROM IMAGE | docker build --provenance=false -t IMAGE -" in node["notes"][0]
    (tmp_path / "Dockerfile").write_text("FROM attested-r:1\n")
    site.engines["f"].docker("build", "--provenance=false", "-t", "attested-r:1", tmp_path)
    site.engines["e"].docker("rmi", "attested-r:1")
    report = site.json("sync-image", "--image", "attested-r:1")
    assert nodes_of(report, "status", "transport", "notes")["e"] == ("synced", "relay", [])
    layers = site.layers("attested-r:1")
    assert layers["e"] == layers["f"] == site.engines["b"].image("attested-r:1")["RootFS"]["Layers"]
    assert nothing_left(site)


# -- what dies -----------------------------------------------------------------------------------


def test_a_target_whose_connection_dies_does_not_stop_the_others(site: ImageSite) -> None:
    site.use("a", "e", "f")
    site.build("a", "dies-r:1", [60 * MB])
    with midway(site, "a", "f", "dies-r:1") as run:
        assert site.nodes["f"].kill_sessions() > 0
    report = run.report
    assert nodes_of(report, "status", "transport") == {
        **{"a": ("source", None), "e": ("synced", "relay"), "f": ("synced", "relay")}
    }, report
    assert report["nodes"]["f"]["address"] == site.nodes["f"].address
    assert "failed (ssh ended with 255" in report["nodes"]["f"]["notes"][0]
    assert report["nodes"]["e"]["notes"] == []
    assert nothing_left(site)


def test_an_engine_that_dies_is_its_own_nodes_error(site: ImageSite) -> None:
    site.use("a", "e", "f")
    site.build("a", "engine-r:1", [60 * MB])
    with midway(site, "a", "f", "engine-r:1") as run:
        site.engines["f"].kill()
    site.engines["f"].start()
    report = run.report
    assert nodes_of(report, "status") == {"a": "source", "e": "synced", "f": "failed"}, report
    assert site.json("sync-image", "--image", "engine-r:1")["nodes"]["f"]["status"] == "synced"
    assert nothing_left(site)


def test_a_relay_that_dies_is_replaced_by_the_archive(site: ImageSite) -> None:
    site.use("a", "e")
    site.build("a", "killed-r:1", [60 * MB])
    with midway(site, "a", "e", "killed-r:1") as run:
        site.nodes["a"].exec("pkill", "-KILL", "-f", "^python3 -I -S -c")
    node = run.report["nodes"]["e"]
    assert (node["status"], node["transport"]) == ("synced", "archive")
    assert "the script on the source ended with 137" in node["notes"][0]
    assert nothing_left(site)


def test_a_source_that_is_lost_is_every_targets_error_and_nothing_stays(site: ImageSite) -> None:
    site.use("f", "b", "e")
    site.build("f", "lost-r:1", [60 * MB])
    with midway(site, "f", "e", "lost-r:1") as run:
        site.nodes["f"].kill_sessions()
    report = run.report
    assert nodes_of(report, "status") == {"f": "source", "b": "failed", "e": "failed"}
    assert "the source was lost" in report["nodes"]["e"]["error"]
    assert nothing_left(site)
    assert site.json("sync-image", "--image", "lost-r:1")["ok"]


# -- the user ------------------------------------------------------------------------------------

HANGS = "touch /run/hangs; exec sleep 1000"
PHASES = {
    "learn": ("a", f'case " $* " in *" push "*) {HANGS} ;; esac'),
    "pull-26": ("f", f'case " $* " in *" pull "*) {HANGS} ;; esac'),
    "pull-28": ("e", f'case " $* " in *" pull "*) {HANGS} ;; esac'),
}


def test_ended_by_the_user_a_source_by_sudo_keeps_nothing(site: ImageSite, lab: Lab) -> None:
    use_by_sudo(site, lab, "a", "f")
    site.build("a", "ended-sudo-r:1", [60 * MB])
    with midway(site, "a", "f", "ended-sudo-r:1") as run:
        pushes = site.nodes["a"].exec("pgrep", "-u", "0", "-f", "docker .* push ").stdout.split()
        assert pushes  # root's: the relay may not kill it
        run.process.send_signal(signal.SIGINT)
        _, err = run.process.communicate(timeout=3)
        assert nothing_left(site)
    assert (run.process.returncode, "may be left" in err) == (130, False)


@pytest.mark.parametrize("by", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("phase", [*PHASES, "send"])
def test_ended_by_the_user_it_leaves_nothing_anywhere(site: ImageSite, phase: str, by: signal.Signals) -> None:
    site.use("a", "e", "f")
    image = f"ended-r-{phase}:{by.value}"
    site.build("a", image, [60 * MB if phase == "send" else 1000, by.value])
    if phase == "send":
        with midway(site, "a", "f", image) as run:
            process = run.process
            process.send_signal(by)
            _, err = process.communicate(timeout=3)
            assert nothing_left(site)
    else:
        label, script = PHASES[phase]
        mark = site.nodes[label].path("/run/hangs")
        mark.unlink(missing_ok=True)  # of one that failed before
        with does(site, label, "docker", script), site.started("sync-image", "--image", image) as process:
            assert eventually(mark.exists, 30), process.poll()
            process.send_signal(by)
            _, err = process.communicate(timeout=3)
            assert nothing_left(site)
        mark.unlink()
    assert process.returncode == 130
    assert "Traceback" not in err
    assert "may be left" not in err
