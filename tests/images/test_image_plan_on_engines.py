"""What a plan leaves out, left out of real archives and loaded into real engines of both stores and releases."""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
from collections.abc import Collection
from dataclasses import dataclass

import pytest

from fdl_tasks.cluster.image import ImageRef
from fdl_tasks.images.facts import NodeFacts, parse
from fdl_tasks.images.identity import same
from fdl_tasks.images.plan import Group, Step, plan
from fdl_tasks.images.probe import render
from fdl_tasks.scripts import Scripts
from tests.lab.engine import Engine, Store
from tests.lab.lab import Lab
from tests.lab.releases import Release

pytestmark = [pytest.mark.subprocess, pytest.mark.docker]
MIB = 1 << 20


def facts(engine: Engine, reference: str) -> NodeFacts:
    script = render(Scripts(), ImageRef.parse(reference), engine.host).text
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    return parse(done.stdout, engine.dir.name, engine.host)


def docker(engine: Engine, *words: str, stdin: bytes = b"") -> bytes:
    env = os.environ | engine.env
    return subprocess.run(["docker", *words], env=env, input=stdin, capture_output=True, check=True).stdout


def entries(archive: bytes) -> set[str]:
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        return {entry.name for entry in tar if entry.isfile()}


def without(archive: bytes, names: Collection[str]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar, tarfile.open(fileobj=out, mode="w") as kept:
        for entry in tar:
            if entry.name not in names:
                kept.addfile(entry, tar.extractfile(entry))
    return out.getvalue()


@dataclass
class Pair:
    """Two engines of the lab, and a sync between them as a plan says, without ssh."""

    source: Engine
    target: Engine

    def step(self, reference: str) -> Step:
        here, there = facts(self.source, reference), facts(self.target, reference)
        (step,) = plan(ImageRef.parse(reference), here, [here, there]).steps
        return step

    def send(self, reference: str) -> int:
        """Do what the plan says; gives the bytes that went over."""
        here, there = facts(self.source, reference), facts(self.target, reference)
        (group,) = plan(ImageRef.parse(reference), here, [here, there]).groups
        archive = self._archive(group, reference)
        docker(self.target, "load", stdin=archive)
        return len(archive)

    def _archive(self, group: Group, reference: str) -> bytes:
        whole = docker(self.source, "save", *(["--platform", group.platform] if group.platform else []), reference)
        if group.omit:
            assert group.omit <= entries(whole)
            return without(whole, group.omit)
        base = entries(docker(self.source, "save", group.base)) if group.base else set()
        return without(whole, base - {"manifest.json", "index.json", "oci-layout"})

    def proven(self, reference: str) -> bool:
        """Whether the target has the source's image, whole, startable and fit to be a source itself."""
        here, there = facts(self.source, reference), facts(self.target, reference)
        saved = len(docker(self.target, "save", reference))
        self.target.docker("run", "--rm", "--pull=never", "--network=none", reference, "true")
        return bool(
            here.image and there.image and same(here.image, there.image) and there.complete is not False
            and saved > there.image.size
        )  # fmt: skip


@pytest.fixture(scope="module", params=[*Release], ids=lambda release: f"docker{release}")
def engines(lab: Lab, request: pytest.FixtureRequest) -> dict[str, Engine]:
    wanted = {f"{store[0]}{n}": {"store": store, "release": request.param} for store in Store for n in "12"}
    made = lab.start_engines({f"planned-{name}-{request.param}": options for name, options in wanted.items()})
    return dict(zip(wanted, made.values(), strict=True))


@pytest.mark.parametrize("store", ["g", "c"])
def test_a_delta_loads_and_leaves_a_whole_image(engines: dict[str, Engine], store: str) -> None:
    pair = Pair(engines[f"{store}1"], engines[f"{store}2"])
    name = f"delta-{store}:1"
    pair.source.build(name, [2 * MIB, MIB, 1000])
    assert pair.send(name) > 3 * MIB and pair.proven(name)
    for engine in (pair.source, pair.target):  # the name moves on; the base keeps another
        engine.docker("tag", name, "old:1")
    pair.source.build(name, [2 * MIB, MIB, 2000])
    step = pair.step(name)
    assert (step.mode, step.replaces) == ("delta", step.base)
    assert step.bytes < MIB / 10 and pair.send(name) < MIB / 10
    assert pair.proven(name) and pair.step(name).mode == "in-sync"


@pytest.mark.parametrize(("here", "there"), [("g", "c"), ("c", "g")])
def test_between_unlike_stores_the_second_run_moves_nothing(engines: dict[str, Engine], here: str, there: str) -> None:
    pair = Pair(engines[f"{here}1"], engines[f"{there}2"])
    name = f"mixed-{here}{there}:1"
    pair.source.build(name, [MIB], attested=here == "c")
    assert pair.step(name).mode == "full" and pair.send(name) > MIB
    step = pair.step(name)
    assert (step.mode, step.proof) == ("in-sync", "same content")
    assert pair.proven(name)


@pytest.mark.parametrize("store", ["g", "c"])
def test_the_same_content_under_another_name_needs_a_tag_only(engines: dict[str, Engine], store: str) -> None:
    pair = Pair(engines[f"{store}1"], engines[f"{store}2"])
    pair.source.build(f"named-{store}:1", [1000], seed="tag")
    pair.source.give(pair.target, f"named-{store}:1")
    pair.target.docker("tag", f"named-{store}:1", "mine:2")
    pair.target.docker("rmi", f"named-{store}:1")
    step = pair.step(f"named-{store}:1")
    assert (step.mode, step.proof) == ("tag", "same id") and step.base
    pair.target.docker("tag", step.base, f"named-{store}:1")
    assert pair.step(f"named-{store}:1").mode == "in-sync"
