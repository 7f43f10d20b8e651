"""The transfer between nodes of the lab with real engines, two targets a source, by both ways and both stores."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from fdl_tasks.images.addresses import Way
from fdl_tasks.images.archive import Limits, Sending
from fdl_tasks.images.facts import NodeFacts
from fdl_tasks.images.plan import Step, entry
from fdl_tasks.images.sent import Sent
from fdl_tasks.images.transfer import send
from fdl_tasks.scripts import Script
from fdl_tasks.testing import Completed, FakeHost
from tests.e2e.site import eventually
from tests.images.making import make_image
from tests.lab.engine import Engine, Store
from tests.lab.images import Files
from tests.lab.lab import Lab
from tests.lab.node import Node

pytestmark = pytest.mark.docker
STORES = [Store.GRAPHDRIVER, Store.CONTAINERD]
BELOW: list[int | Files] = [3_000_000, 5_000_000]
SECOND: list[int | Files] = [*BELOW, {"/top": b"2"}]

CASES = Path(__file__).parent.parent / "cases/images"
PASSED_ON = '#!/bin/sh\nexec /lab/engine/docker "$@"\n'
COLLECTING = """#!/bin/sh
if [ "$1" = load ]; then
    echo load >>/run/loads
    [ "$(wc -l </run/loads)" -gt TIMES ] || { cat >/dev/null; cat /run/said; exit 1; }
fi
exec /lab/engine/docker "$@"
"""


class Cluster:
    """A source and two targets, an engine each, one store."""

    def __init__(self, lab: Lab, store: Store, nodes: Mapping[str, Node]):
        self.nodes, self.store = nodes, store
        started = lab.start_engines({f"{store}-{name}": {"node": nodes[name], "store": store} for name in nodes})
        self.engines: dict[str, Engine] = {name: started[f"{store}-{name}"] for name in nodes}
        lab.give_key(nodes["s"])

    def send(self, *steps: Step, python: tuple[int, int] | None = (3, 11), **fields: object) -> dict[str, Sent]:
        source = NodeFacts("s", image=make_image("app"), python=python, tools=frozenset({"zstd"}))
        known = {name: NodeFacts(name, server="26.1.5") for name in "ab"}
        pins = [f"fdl-{name} {' '.join(self.nodes[name].known_hosts_line.split()[1:])}\n" for name in "ab"]
        sending = replace(Sending(source, "app:1", known, "".join(pins)), **fields)  # type: ignore[arg-type]
        self.run = sending.run
        return send(FakeHost("s", self._run), sending, steps, {name: [self._way(name)] for name in "ab"})

    def _run(self, script: Script) -> Completed:
        began = time.monotonic()
        done = self.nodes["s"].exec("sh", "-c", script.text, check=False)
        return Completed(done.returncode, done.stdout, done.stderr, time.monotonic() - began)

    def _way(self, name: str) -> Way:
        node = self.nodes[name]
        return Way(name, node.address, node.port, "root", f"fdl-{name}", "~/.ssh/id_ed25519", False, True)

    def clear(self) -> None:
        for name in "ab":
            self.engines[name].docker("image", "rm", "-f", "app:1", check=False)

    def starts(self, name: str) -> bool:
        words = ["run", "--rm", "--pull=never", "--network=none", "app:1", "sh", "-c", "exit 0"]
        return self.engines[name].docker(*words, check=False).returncode == 0

    def saved(self, name: str) -> int:
        return int(self.nodes[name].exec("sh", "-c", "docker save app:1 | wc -c").stdout)


@pytest.fixture(scope="module", params=STORES, ids=str)
def cluster(request: pytest.FixtureRequest, lab: Lab) -> Cluster:
    return Cluster(lab, request.param, {name: lab.node(f"tx-{request.param[:4]}-{name}") for name in "sab"})


@pytest.mark.parametrize(
    ("python", "compress"), [((3, 11), "none"), ((3, 11), "zstd"), (None, "none")], ids=["stream", "zstd", "file"]
)
def test_two_targets_get_the_image_and_it_starts(
    python: tuple[int, int] | None, compress: str, cluster: Cluster
) -> None:
    built = cluster.engines["s"].build("app:1", BELOW)
    cluster.clear()
    found = cluster.send(Step("a", "full"), Step("b", "full"), python=python, compress=compress)
    for name in "ab":
        assert (found[name].error, found[name].said) == (None, ("Loaded image: app:1",))
        assert cluster.engines[name].image("app:1")["Id"] == built
        assert cluster.starts(name)
        assert found[name].bytes > 8_000_000
    assert eventually(lambda: not any(cluster.nodes[name].processes() for name in "sab"))
    assert cluster.run not in cluster.nodes["s"].exec("ls", "/tmp", "/var/tmp").stdout


def test_a_delta_sends_the_changed_layer_only_and_the_copy_can_be_a_source(cluster: Cluster) -> None:
    base = cluster.engines["s"].build("app:1", BELOW)
    cluster.clear()
    cluster.send(Step("a", "full"), Step("b", "full"))
    for engine in cluster.engines.values():  # on a target Docker 26 may collect its layers during the load otherwise
        engine.docker("tag", "app:1", "app:base")
    built = cluster.engines["s"].build("app:1", SECOND)
    layers = cluster.engines["s"].image("app:1")["RootFS"]["Layers"]
    omit = frozenset(map(entry, layers[:-1])) if cluster.store is Store.GRAPHDRIVER else frozenset[str]()
    step = Step("a", "delta", omit, base, 1)
    found = cluster.send(step, replace(step, target="b"))
    for name in "ab":
        assert (found[name].error, found[name].mode) == (None, "delta"), found[name].notes
        assert found[name].bytes < 200_000
        assert cluster.engines[name].image("app:1")["Id"] == built
        assert cluster.starts(name)
        assert cluster.saved(name) == cluster.saved("s") > 8_000_000


def test_a_delta_that_lacks_a_layer_there_is_repeated_in_full(cluster: Cluster) -> None:
    source = cluster.engines["s"]
    base = source.build("app:base", [7_000_000], seed="new")
    built = source.build("app:1", [7_000_000, {"/top": b"3"}], seed="new")
    layers = source.image("app:1")["RootFS"]["Layers"]
    cluster.clear()
    omit = frozenset(map(entry, layers[:-1])) if cluster.store is Store.GRAPHDRIVER else frozenset[str]()
    found = cluster.send(Step("a", "delta", omit, base), Step("b", "full"))
    assert (found["a"].error, found["a"].mode) == (None, "full")
    assert found["a"].notes[0].startswith("the delta failed (")
    assert found["b"].notes == ()
    assert cluster.engines["a"].image("app:1")["Id"] == built and cluster.starts("a")


@pytest.mark.parametrize("times", [1, 2])
def test_a_load_whose_old_layers_were_collected_is_repeated_once(cluster: Cluster, times: int) -> None:
    said = (CASES / "load/containerd-26-collected.txt").read_text()
    cluster.engines["s"].build("app:1", [2_000_000])
    cluster.clear()
    cluster.nodes["a"].exec("rm", "-f", "/run/loads")
    cluster.nodes["a"].write("/run/said", said)
    cluster.nodes["a"].stand_in("docker", COLLECTING.replace("TIMES", str(times)))
    try:
        found = cluster.send(Step("a", "full"), Step("b", "full"))
    finally:
        cluster.nodes["a"].stand_in("docker", PASSED_ON)
    assert (found["b"].error, found["b"].notes) == (None, ())
    [note] = found["a"].notes
    assert "took the old image's layers away" in note and note.endswith("so all of it was sent again")
    assert cluster.nodes["a"].exec("cat", "/run/loads").stdout.split() == ["load"] * 2
    if times == 1:
        assert found["a"].error is None and cluster.starts("a")
    else:
        assert "took the old image's layers away" in str(found["a"].error)


def test_a_load_that_never_reads_is_given_up_and_nothing_is_left_there(cluster: Cluster) -> None:
    cluster.engines["s"].build("app:1", [12_000_000])
    cluster.clear()
    cluster.nodes["a"].stand_in("docker", "#!/bin/sh\nexec sleep 1000\n")
    try:
        found = cluster.send(Step("a", "full"), Step("b", "full"), limits=Limits(stall=3, load_stall=3))
    finally:
        cluster.nodes["a"].stand_in("docker", PASSED_ON)
    assert found["b"].error is None and cluster.starts("b")
    assert "for 3 s" in (found["a"].error or "")
    assert eventually(lambda: not any(cluster.nodes[name].processes() for name in "sab"), 5)
