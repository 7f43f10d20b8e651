"""The relay between nodes of the lab, each with a real engine (containerd store) of either release, over real ssh."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import shlex
import signal
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.site import eventually
from tests.lab.engine import Engine, Store
from tests.lab.lab import Lab
from tests.lab.node import Node
from tests.lab.releases import Release
from tests.lab.system import alive

RELAY = (Path(__file__).parents[2] / "fdl_tasks/images/relay.py").read_text("utf-8")
START = 'cd "$(mktemp -d)" && PATH=/lab/bin:$PATH exec python3 -I -S -c "$0"'
PULL = """
IFS= read -r password; IFS= read -r reference; exec </dev/null
DOCKER_CONFIG=$(mktemp -d); export DOCKER_CONFIG
trap 'rm -rf "$DOCKER_CONFIG"' EXIT
auth=$(printf 'fdl:%s' "$password" | base64 | tr -d '\\n')
printf '{"auths":{"%s":{"auth":"%s"}}}' "${reference%%/*}" "$auth" >"$DOCKER_CONFIG/config.json"
echo __FDL_LOAD__
docker pull "$reference" 2>&1
code=$?
[ "$code" -ne 0 ] || docker tag "$reference" "$NAME"
docker rmi "$reference" >/dev/null 2>&1
echo "__FDL_LOADED__ $code"
exit "$code"
"""
# In place of a target's pull: takes 3 MB of the largest layer, and then nothing.
TAKES_A_PART = """
IFS= read -r password; IFS= read -r reference; echo __FDL_LOAD__
exec python3 -c '
import base64, json, sys, time, urllib.request
password, (place, _, digest) = sys.argv[1], sys.argv[2].partition("@")
host, _, name = place.partition("/")
auth = "Basic " + base64.b64encode(b"fdl:" + password.encode()).decode()
def ask(what):
    request = urllib.request.Request(f"http://{host}/v2/{name}/{what}", headers={"Authorization": auth})
    return urllib.request.urlopen(request)
layers = json.load(ask("manifests/" + digest))["layers"]
body = ask("blobs/" + max(layers, key=lambda layer: layer["size"])["digest"])
body.read(3000000)
print("taken", flush=True)
time.sleep(3000)
' "$password" "$reference"
"""
pytestmark = pytest.mark.docker
SPARE = 200_000  # bytes beside the changed layers


class Site:
    """Nodes ``a`` (the source), ``b`` and ``c`` with engines of one release."""

    def __init__(self, lab: Lab, release: Release):
        names = {name: f"relay{release}{name}" for name in "abc"}
        self.lab, self.release = lab, release
        self.nodes: dict[str, Node] = {name: lab.node(full) for name, full in names.items()}
        wanted = {names[name]: {"node": node, "store": Store.CONTAINERD} for name, node in self.nodes.items()}
        started = lab.start_engines({name: {**options, "release": release} for name, options in wanted.items()})
        self.engines: dict[str, Engine] = {name: started[full] for name, full in names.items()}
        for node in self.nodes.values():
            lab.give_key(node)
        self.peak = 0

    def words(self, target: str, image: str, before: str) -> list[str]:
        node = self.nodes[target]
        options = {"BatchMode": "yes", "StrictHostKeyChecking": "no", "UserKnownHostsFile": "/dev/null"}
        options |= {"LogLevel": "ERROR", "ExitOnForwardFailure": "yes"}
        words = [f"-o{key}={value}" for key, value in options.items()]
        script = shlex.join(["exec", "sh", "-c", f"NAME={image}\n{before}\n{PULL}"])
        forward = "127.0.0.1:@THERE@:127.0.0.1:@PORT@"
        return ["ssh", "-T", *words, "-p", str(node.port), "-R", forward, self.at(target), script]

    def start(
        self,
        image: str,
        targets: Iterable[str] = "bc",
        source: str = "a",
        before: dict[str, str] | None = None,
        lag: int = 60,
    ) -> subprocess.Popen[str]:
        job = {
            "docker": ["docker"],
            "image": image,
            "name": "r4nd0m/app",
            "vouched": [self.engines[source].image(image)["Id"]],
            "targets": {name: self.words(name, image, (before or {}).get(name, "")) for name in targets},
            "stall": 60,
            "load_stall": 60,
            "lag": lag,
        }
        argv = self.nodes[source].enter("sh", "-c", START, RELAY)
        process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert process.stdin
        process.stdin.write(json.dumps(job))
        process.stdin.close()
        return process

    def run(self, image: str, *args: Any, **options: Any) -> dict[str, Any]:
        """The last line of each target, and of the end; ``totals`` and ``notes`` that were told before."""
        return told(self.start(image, *args, **options), self)

    def at(self, name: str) -> str:
        return f"root@{self.nodes[name].address}"

    def relays(self) -> list[str]:
        """Names of the relay's that an engine still has."""
        names = [name for engine in self.engines.values() for name in engine.names()]
        return sorted({found[0] for name in names if (found := re.match(r"\S*/r4nd0m/app", name))})

    def saved(self, name: str, image: str) -> int:
        """Bytes of its ``docker save``, which are fewer when content is missing."""
        path = self.engines[name].dir / "saved.tar"
        self.engines[name].docker("save", "-o", path, image)
        size = path.stat().st_size
        path.unlink()
        return size

    def id(self, name: str, image: str) -> str:
        return str(self.engines[name].image(image)["Id"])

    def starts(self, name: str, image: str) -> bool:
        done = self.engines[name].docker("run", "--rm", "--network=none", "--pull=never", image, "true", check=False)
        return done.returncode == 0


def told(process: subprocess.Popen[str], site: Site | None = None) -> dict[str, Any]:
    found: dict[str, Any] = {"totals": {}, "notes": []}
    for line in process.stdout or ():
        take(found, json.loads(line))
        if site:
            site.peak = max(site.peak, peak(process.pid))
    process.wait(20)
    return found


def take(found: dict[str, Any], line: dict[str, Any]) -> None:
    if "end" in line:
        found["end"] = line
    elif "said" in line:
        found[line["target"]] = line
    elif "total" in line:
        found["totals"][line["target"]] = line["total"]
    elif "note" in line:
        found["notes"].append(line["note"])


def below(pid: int) -> list[int]:
    """A process and all below it."""
    found = [pid]
    for one in found:
        with contextlib.suppress(OSError):
            found += map(int, Path(f"/proc/{one}/task/{one}/children").read_text().split())
    return found


def cmdline(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
    return ""


def relay_of(pid: int) -> int:
    """The process number of the relay below what entered its node; 0 before it runs."""
    return next((one for one in below(pid) if cmdline(one).startswith("python3 ")), 0)


def peak(pid: int) -> int:
    """The most memory in bytes that the relay has had."""
    with contextlib.suppress(OSError, StopIteration):
        lines = Path(f"/proc/{relay_of(pid)}/status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) << 10
    return 0


@pytest.fixture(scope="module", params=[Release.D26, Release.D28], ids=["docker26", "docker28"])
def site(request: pytest.FixtureRequest, lab: Lab) -> Site:
    return Site(lab, request.param)


def good(done: dict[str, Any], *names: str) -> bool:
    return done["end"]["error"] is None and all((done[n]["code"], done[n]["error"]) == (0, None) for n in names)


def test_cold_then_changed(site: Site) -> None:
    source = site.engines["a"]
    source.build("app:1", [3_000_000, 2_000_000, 0, {"/again": b"x" * 99}, 1000])
    done = site.run("app:1")
    assert good(done, *"bc"), done
    for name in "bc":
        assert site.id(name, "app:1") == site.id("a", "app:1") == done["end"]["learnt"]["digest"]
        assert site.saved(name, "app:1") == site.saved("a", "app:1")
        assert site.starts(name, "app:1")
        assert done["totals"][name] == done[name]["bytes"] > 5_000_000
    source.build("app:1", [3_000_000, 2_000_000, 0, {"/again": b"x" * 99}, {"/top": b"2"}])
    done = site.run("app:1")
    assert good(done, *"bc")
    assert max(done[name]["bytes"] for name in "bc") < SPARE
    assert {site.id(name, "app:1") for name in "abc"} == {done["end"]["learnt"]["digest"]}
    assert site.relays() == []


def test_targets_with_different_gaps_and_a_late_one(site: Site) -> None:
    source = site.engines["a"]
    source.build("gap:1", [2_000_000, 1_500_000], seed="gap")
    source.give(site.engines["b"], "gap:1")
    source.build("gap:1", [2_000_000, 1_500_000, 1_000_000], seed="gap")
    done = site.run("gap:1", before={"c": "sleep 3"})
    assert good(done, *"bc")
    assert done["b"]["bytes"] < 1_000_000 + SPARE
    assert 4_500_000 < done["c"]["bytes"] < 4_500_000 + SPARE + 5_000_000  # with the base image
    assert {site.id(name, "gap:1") for name in "abc"} == {site.id("a", "gap:1")}
    assert site.saved("c", "gap:1") == site.saved("a", "gap:1")


def test_many_layers_and_the_same_one_twice(site: Site) -> None:
    same = {"/same": b"y" * 300_000}
    site.engines["a"].build("many:1", [same, same, *range(100, 140), 60_000, 0])
    done = site.run("many:1", "b")
    assert good(done, "b")
    assert site.id("b", "many:1") == site.id("a", "many:1")
    assert site.saved("b", "many:1") == site.saved("a", "many:1")


def test_an_attested_image_and_the_target_as_source(site: Site) -> None:
    site.engines["a"].build("proven:1", [1_000_000], seed=str(site.release), attested=True)
    done = site.run("proven:1", "b")
    assert good(done, "b")
    assert site.id("b", "proven:1") == site.id("a", "proven:1")
    onward = site.run("proven:1", "c", source="b")
    if site.release is Release.D26:  # a pull leaves attestations out, and this release pushes all or nothing
        assert "c" not in onward and onward["end"]["learnt"] is None
        assert "docker push ended with 1: missing content" in onward["end"]["error"]
    else:
        assert good(onward, "c")
        assert "one platform's manifest alone" in onward["notes"][0]
        assert onward["end"]["learnt"]["digest"] == site.id("c", "proven:1") != site.id("b", "proven:1")
        layers = [site.engines[name].image("proven:1")["RootFS"] for name in "ac"]
        assert layers[0] == layers[1] and site.starts("c", "proven:1")
    assert site.relays() == []


def test_of_several_platforms_a_target_gets_its_own(site: Site, tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text(f"FROM scratch\nARG TARGETARCH\nCOPY $TARGETARCH /\nLABEL x={site.release}\n")
    for arch in ("amd64", "arm64"):
        (tmp_path / arch).write_bytes(random.Random(arch).randbytes(1_000_000))
    words = ["--platform=linux/amd64,linux/arm64", "--network=none", "--provenance=false", "-t", "multi:1"]
    site.engines["a"].docker("build", "-q", *words, tmp_path)
    done = site.run("multi:1", "b")
    assert good(done, "b")
    assert len(done["end"]["learnt"]["manifests"]) == 3
    assert site.id("b", "multi:1") == site.id("a", "multi:1")
    assert 1_000_000 < done["b"]["bytes"] == done["totals"]["b"] < 1_000_000 + SPARE
    site.engines["b"].docker("rm", site.engines["b"].docker("create", "multi:1", "/amd64").stdout.strip())


def test_a_target_becomes_the_source(site: Site) -> None:
    site.engines["a"].build("chain:1", [1_000_000], seed=f"chain{site.release}")
    assert good(site.run("chain:1", "b"), "b")
    assert good(site.run("chain:1", "c", source="b"), "c")
    assert site.id("c", "chain:1") == site.id("a", "chain:1")


def test_one_that_dies_in_the_middle_does_not_stop_the_other_and_memory_is_bounded(site: Site) -> None:
    site.engines["a"].build("big:1", [60_000_000, 30_000_000], seed=f"big{site.release}")
    site.peak = 0
    process = site.start("big:1")
    assert process.stdout
    for line in process.stdout:
        if json.loads(line).get("bytes", 0) > 1_000_000:
            break
    site.nodes["c"].kill_sessions()
    done = told(process, site)
    assert done["c"]["code"] != 0
    assert good(done, "b") and site.saved("b", "big:1") == site.saved("a", "big:1")
    assert 1 << 20 < site.peak < 80 << 20


def test_a_slow_one_is_left_behind_and_its_docker_asks_for_the_rest(site: Site) -> None:
    site.engines["a"].build("slow:1", [90_000_000, 70_000_000], seed=f"slow{site.release}")
    process = site.start("slow:1", lag=1)
    assert process.stdout
    for line in process.stdout:
        if json.loads(line).get("bytes", 0) > 5_000_000:
            break
    connection = next(
        pid for pid in below(process.pid) if cmdline(pid).startswith("ssh") and site.at("c") in cmdline(pid)
    )
    os.kill(connection, signal.SIGSTOP)
    done: dict[str, Any] = {"totals": {}, "notes": []}
    for line in process.stdout:
        take(done, json.loads(line))
        if "b" in done and "c" not in done:  # the other one did not wait
            with contextlib.suppress(ProcessLookupError):
                os.kill(connection, signal.SIGCONT)
    assert process.wait(20) == 0
    assert "the others waited 1 s for it" in done["notes"][0]
    assert good(done, *"bc"), done
    assert site.id("c", "slow:1") == site.id("a", "slow:1")
    assert site.saved("c", "slow:1") == site.saved("a", "slow:1")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_however_it_ends_its_name_is_taken_away_on_the_source(number: signal.Signals, site: Site) -> None:
    site.engines["a"].build("cut:1", [30_000_000], seed=f"cut{site.release}{number}")
    process = site.start("cut:1", "b", before={"b": "sleep 3000"})
    try:
        assert eventually(lambda: "sleep 3000" in site.nodes["b"].processes(), 20)
        relay = relay_of(process.pid)
        keeper = next(pid for pid in below(relay) if cmdline(pid).startswith("sh -c "))
        assert site.relays()
        os.kill(relay, number)
        assert eventually(lambda: not alive(keeper), 20)
        assert site.relays() == []  # as soon as the keeper has ended, which does not wait for a target
        assert "sleep 3000" in site.nodes["b"].processes()
        assert process.wait(10) != 0
    finally:
        site.nodes["b"].exec("pkill", "-f", "^sleep 3000", check=False)
    assert site.id("a", "cut:1")
    assert eventually(lambda: site.nodes["a"].processes() == [], 10), site.nodes["a"].processes()


def test_an_image_without_another_name_is_left_alone(site: Site) -> None:
    identity = site.engines["a"].build("lone:1", [1000], seed=f"lone{site.release}")
    site.engines["a"].give(site.engines["b"], identity)
    assert site.engines["b"].image(identity)["RepoTags"] in (None, [])
    done = told(site.start(identity, "c", source="b"))
    assert "no name on the source" in done["end"]["error"] and "c" not in done
    assert site.id("b", identity) == identity


def test_an_engine_that_dies_is_the_sources_error(site: Site) -> None:
    source = site.engines["a"]
    source.build("last:1", [90_000_000], seed=f"last{site.release}")
    process = site.start("last:1", "b", before={"b": TAKES_A_PART})
    assert process.stdout
    for line in process.stdout:
        if json.loads(line).get("bytes", 0) > 3_000_000:  # more than half can lie nowhere on the way
            break
    source.kill()
    done = told(process)
    source.start()
    assert done["end"]["error"].startswith("docker push ended with "), done
    assert done["b"]["error"] == f"the source failed: {done['end']['error']}"  # not that b stood still
    assert 3_000_000 < done["b"]["bytes"] < 60_000_000
    [name] = site.relays()
    assert done["end"]["error"].endswith(f"docker rmi {name} ended with 1: that name may be left there")
    source.docker("rmi", name)
