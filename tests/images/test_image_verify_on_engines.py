"""The last look at a node, on real engines of both stores and releases."""

from __future__ import annotations

import json
import tarfile
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from fdl_tasks.cluster.image import ImageRef
from fdl_tasks.errors import Cancelled
from fdl_tasks.hosts.fanout import Cancel
from fdl_tasks.hosts.local import Local
from fdl_tasks.images import judge
from fdl_tasks.images.facts import NodeFacts, image
from fdl_tasks.images.identity import Proof
from fdl_tasks.images.judge import Fault, Ran
from fdl_tasks.images.verify import Checked, Wish, tag, verify
from tests.e2e.site import eventually
from tests.images.making import make_node
from tests.lab.engine import Engine, Store
from tests.lab.lab import Lab
from tests.lab.releases import Release

HERE = Local("node", Cancel())
RAN_WELL = Ran(0, "")


def node_of(engine: Engine, reference: str = "") -> NodeFacts:
    """The node as its probe would find it."""
    found = image(engine.image(reference)) if reference else None
    return make_node("node", found, str(engine.store), docker=("docker", "--host", engine.host))


def look(engine: Engine, wish: Wish, cancel: Cancel | None = None, **more: Any) -> Checked:
    cancel = cancel or Cancel()
    node = more.pop("node", node_of(engine))
    return verify(node, Local("node", cancel), wish, cancel, **{"tries": 2, "pause": 0.1, **more})


def wished(source: Engine, reference: str, *probe: str, ran: Ran | None = RAN_WELL) -> Wish:
    """What the source has."""
    facts = image(source.image(reference))
    assert facts
    return Wish(ImageRef.parse(reference), facts, probe or judge.SHELL, ran)


@pytest.fixture(scope="module", params=[*Release], ids=lambda release: f"docker{release}")
def engines(lab: Lab, request: pytest.FixtureRequest) -> dict[Store, tuple[Engine, Engine]]:
    """Two engines of each store that have app:1 and bare:1 from one build: a source and a target."""
    names = {(store, end): f"last-{store}-{request.param}-{end}" for store in Store for end in "st"}
    wanted = {name: {"store": store, "release": request.param} for (store, _), name in names.items()}
    made = lab.start_engines(wanted)
    pairs = {store: (made[names[store, "s"]], made[names[store, "t"]]) for store in Store}
    first = pairs[Store.CONTAINERD][0]
    first.build("app:1", [1000], env={"A": "1"})
    first.build_without_shell("bare:1")
    for other in made.values():
        if other is not first:
            first.give(other, "app:1", "bare:1")
    return pairs


def no_containers(engine: Engine) -> bool:
    return engine.containers() == []


@pytest.fixture(params=[*Store], ids=str)
def pair(
    engines: dict[Store, tuple[Engine, Engine]], request: pytest.FixtureRequest
) -> Iterator[tuple[Engine, Engine]]:
    yield engines[request.param]
    for engine in engines[request.param]:
        assert eventually(partial(no_containers, engine), 30), engine.containers()


def test_a_good_copy(pair: tuple[Engine, Engine]) -> None:
    source, target = pair
    wish = wished(source, "app:1")
    assert look(target, wish) == Checked("node", Proof.ID, ran=RAN_WELL)


def test_a_copy_in_the_other_store(engines: dict[Store, tuple[Engine, Engine]]) -> None:
    found = look(engines[Store.GRAPHDRIVER][1], wished(engines[Store.CONTAINERD][0], "app:1"))
    assert (found.proof, found.error) == (Proof.CONTENT, None)


def test_another_image_of_that_name_is_an_error_that_names_both(pair: tuple[Engine, Engine]) -> None:
    source, target = pair
    source.build("differs:1", [{"/x": b"1"}])
    target.build("differs:1", [{"/x": b"2"}])
    found = look(target, wished(source, "differs:1"))
    assert found.error and source.image("differs:1")["Id"] in found.error
    assert target.image("differs:1")["Id"] in found.error and found.proof is None and not found.again


def test_an_image_without_a_shell_is_good_at_once_when_the_sources_has_none_either(pair: tuple[Engine, Engine]) -> None:
    source, target = pair
    own = look(source, wished(source, "bare:1", ran=None))
    assert own.ran and not own.error
    began = time.monotonic()
    found = look(target, wished(source, "bare:1", ran=own.ran), pause=90)
    assert found.error is None and "no /bin/sh" in found.notes[0]
    assert time.monotonic() - began < 60
    missing = look(target, wished(source, "bare:1"))  # a shell that only the source has may still come
    assert missing.error and "(tried 2 times)" in missing.error and missing.again


@pytest.mark.parametrize(
    ("probe", "error"),
    [
        (("/bin/sh", "-c", "test $A = 1"), None),
        (("/bin/sh", "-c", "echo no GPU here; exit 3"), "ended with 3: no GPU here"),
        (("/bin/sh", "-c", "nvidia-smi"), "ended with 127: /bin/sh: nvidia-smi: not found"),
        (("/no/such", "--version"), "no such file or directory"),
        (("/started",), 'exec: "/started"'),
    ],
)
def test_the_recipes_own_probe(pair: tuple[Engine, Engine], probe: tuple[str, ...], error: str | None) -> None:
    source, target = pair
    found = look(target, wished(source, "app:1", *probe, ran=None))
    assert (found.error is None) is (error is None) and (error or "") in (found.error or "")


def test_a_stopped_engine_is_its_own_words(lab: Lab, pair: tuple[Engine, Engine]) -> None:
    node = make_node("node", docker=("docker", "--host", "unix:///run/nobody.sock"))
    found = look(pair[0], wished(pair[0], "app:1"), node=node)
    assert found.error and "Cannot connect to the Docker daemon" in found.error and not found.again


def test_a_record_that_a_failed_load_left_is_refused_and_all_of_it_heals_it(
    engines: dict[Store, tuple[Engine, Engine]], tmp_path: Path
) -> None:
    source, target = engines[Store.CONTAINERD]
    source.build("ghost:1", [5000])
    source.docker("save", "-o", tmp_path / "whole.tar", "ghost:1")
    without_top(tmp_path / "whole.tar", tmp_path / "lacking.tar")
    done = target.docker("load", "-i", tmp_path / "lacking.tar", check=False)
    assert judge.loaded(done.returncode, done.stdout + done.stderr).fault is Fault.LACKING
    wish = wished(source, "ghost:1")
    found = look(target, wish)
    assert found.proof is Proof.ID and found.error and "not found" in found.error and found.again
    target.docker("load", "-i", tmp_path / "whole.tar")
    assert look(target, wish).error is None


def without_top(archive: Path, to: Path) -> None:
    with tarfile.open(archive) as whole, tarfile.open(to, "w") as less:
        manifest = whole.extractfile("manifest.json")
        assert manifest
        top = json.load(manifest)[0]["Layers"][-1]
        for entry in whole:
            if entry.name != top:
                less.addfile(entry, whole.extractfile(entry) if entry.isfile() else None)


def test_a_digest_is_given_back_offline_by_a_tag_in_a_containerd_store(
    engines: dict[Store, tuple[Engine, Engine]], tmp_path: Path
) -> None:
    source, target = engines[Store.CONTAINERD]
    digest = source.build("team/dig:1", [700])
    reference = f"team/dig@{digest}"
    source.docker("save", "-o", tmp_path / "it.tar", reference)
    done = target.docker("load", "-i", tmp_path / "it.tar")
    assert judge.loaded(0, done.stdout).fault is None and "Loaded image ID" in done.stdout
    found = look(target, wished(source, reference))
    name = f"team/dig:fdl-{digest[7:19]}"
    assert (found.error, found.notes) == (None, (f"its digest is found there by the tag {name}, which stays",))
    assert target.image(reference)["Id"] == target.image(name)["Id"] == digest
    assert look(target, wished(source, reference)).notes == ()  # it stays


def test_a_digest_that_a_graphdriver_store_was_not_told_is_an_error_that_says_what_to_do(
    engines: dict[Store, tuple[Engine, Engine]], tmp_path: Path
) -> None:
    source, target = engines[Store.CONTAINERD][0], engines[Store.GRAPHDRIVER][1]
    digest = source.build("nowhere.example/dig:1", [700])
    source.give(target, "nowhere.example/dig:1")
    found = look(target, wished(source, f"nowhere.example/dig@{digest}"))
    assert found.error and "nowhere.example/dig:TAG" in found.error and "docker pull failed there" in found.error


def test_a_name_is_given_and_what_it_meant_is_told(pair: tuple[Engine, Engine]) -> None:
    _, target = pair
    old, new = target.image("bare:1")["Id"], target.image("app:1")["Id"]
    node = node_of(target)
    target.docker("tag", "bare:1", "moved:1")
    assert tag(node, HERE, new, "moved:1").notes == (f"moved:1 meant {old} there before",)
    assert tag(node, HERE, new, "moved:1") == tag(node, HERE, new, "fresh:1") == judge.Tagged(None)
    assert target.image("moved:1")["Id"] == target.image("fresh:1")["Id"] == new
    assert "No such image" in str(tag(node, HERE, f"sha256:{'0' * 64}", "x:1").error)


def test_ctrl_c_while_a_probe_hangs_leaves_no_container(pair: tuple[Engine, Engine]) -> None:
    source, target = pair
    cancel = Cancel()

    def end_it() -> None:
        eventually(target.containers, 20)
        cancel.set()

    threading.Thread(target=end_it).start()
    with pytest.raises(Cancelled):
        look(target, wished(source, "app:1", "/bin/sh", "-c", "trap '' TERM; sleep 300"), cancel)
