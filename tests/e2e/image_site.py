"""Nodes with a Docker engine each, the cluster.yml that names them, and the commands that a user types.

    @pytest.fixture(scope="module")
    def site(lab: Lab) -> ImageSite:
        return image_site(lab)          # one a test run: its engines start once, whichever module asks first

    site.use("a", "b", "c")             # writes cluster.yml with these nodes and starts those that do not run yet
    site.build("a", "app-x:1", [300_000, 1000])       # on a's engine; tags are the test's own, so are the layers
    done = site.json("sync-image", "--image", "app-x:1")          # code=1 where it is to fail
    assert site.ids("app-x:1") == {"a": …, "b": …, "c": None}     # asked by the lab's own client
    done = site.run("sync-image", …)    # CompletedProcess; site.argv(…) and site.env() for a Popen of your own

    with site.by("archive"): …          # every sync-image goes that way meanwhile

``a`` and ``b`` have containerd stores, ``c`` and ``d`` graphdriver ones; ``a`` and ``c`` run Docker 26, ``b`` and
``d`` Docker 28. Every node may log in to every other, is on the fabric, and has ``tiny:1``. A node of a test's
own, to be broken: ``site.make("x", store=…, release=…, disk="60m", shell=…)``, then ``site.use("a", "x")``.
``site.nodes[label]`` and ``site.engines[label]`` are the lab's; what a test does to a shared one it undoes.
"""

from __future__ import annotations

import contextlib
import functools
import json
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.e2e.site import Site
from tests.lab.engine import Engine, Store
from tests.lab.images import Files
from tests.lab.lab import Lab
from tests.lab.releases import Release

KINDS: Mapping[str, Mapping[str, Any]] = {
    "a": {"store": Store.CONTAINERD, "release": Release.D26},
    "b": {"store": Store.CONTAINERD, "release": Release.D28},
    "c": {"store": Store.GRAPHDRIVER, "release": Release.D26},
    "d": {"store": Store.GRAPHDRIVER, "release": Release.D28},
}


@functools.cache
def image_site(lab: Lab) -> ImageSite:
    """The one of this lab; nothing is started before ``use``."""
    folder = Path(tempfile.mkdtemp(dir=lab.dir))
    project, data = folder / "project", folder / "data"
    for each in (project, data):
        each.mkdir()
    return ImageSite(lab, project, data)


@dataclass
class ImageSite(Site):
    """See the module."""

    engines: dict[str, Engine] = field(default_factory=dict)
    used: tuple[str, ...] = ()
    transport: str = ""

    @contextlib.contextmanager
    def by(self, transport: str) -> Iterator[ImageSite]:
        """Every ``sync-image`` goes that way meanwhile."""
        self.transport = transport
        try:
            yield self
        finally:
            self.transport = ""

    def argv(self, *words: str) -> list[str]:
        by = ("--transport", self.transport) if self.transport and words[0] == "sync-image" else ()
        return super().argv(*words, *by)

    @contextlib.contextmanager
    def started(self, *words: str) -> Iterator[subprocess.Popen[str]]:
        """The command, while it runs; what it left is killed."""
        process = subprocess.Popen(
            self.argv(*words), cwd=self.project, env=self.env(), text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        try:
            yield process
        finally:
            process.kill()
            process.communicate()

    def use(self, *labels: str, fields: Mapping[str, Mapping[str, Any]] | None = None, **top: Any) -> Path:
        """Write cluster.yml with these nodes and no other; ``fields`` are added to a node's worker."""
        missing = {label: KINDS[label] for label in labels if label not in self.nodes}
        self._start(missing)
        self.used = labels
        self.workers = [
            {**self.lab.worker(self.nodes[label], "/srv", **(fields or {}).get(label, {})), "host": label}
            for label in labels
        ]
        return self.write(**top)

    def make(self, *labels: str, store: Store, release: Release = Release.D26, disk: str = "", **options: Any) -> None:
        """Nodes beside the usual ones, with engines of that kind; ``options`` are the lab's for a node."""
        self._start({label: {"store": store, "release": release, "disk": disk} for label in labels}, **options)

    def _start(self, kinds: Mapping[str, Mapping[str, Any]], **options: Any) -> None:
        for label in kinds:
            self.nodes[label] = self.lab.node(f"image-{label}", fabric=True, **options)
            self.lab.give_key(self.nodes[label])
        wanted = {f"image-{label}": {**kind, "node": self.nodes[label]} for label, kind in kinds.items()}
        started = self.lab.start_engines(wanted)
        self.engines |= {label: started[f"image-{label}"] for label in kinds}

    def build(self, label: str, tag: str, layers: Sequence[int | Files], **config: Any) -> str:
        """Build an image on that node; its layers are the same for the same repository and no other. Its id."""
        return self.engines[label].build(tag, layers, **{"seed": tag.partition(":")[0], **config})

    def image(self, label: str, reference: str) -> dict[str, Any] | None:
        """What that node's engine says of it; None when it is not there."""
        done = self.engines[label].docker("image", "inspect", reference, check=False)
        if done.returncode:
            assert "No such image" in done.stderr, done.stderr
            return None
        found: list[dict[str, Any]] = json.loads(done.stdout)
        return found[0]

    def ids(self, reference: str) -> dict[str, str | None]:
        """The id that the reference has on every node in use; None where it is not there."""
        found = {label: self.image(label, reference) for label in self.used}
        return {label: str(image["Id"]) if image else None for label, image in found.items()}

    def layers(self, reference: str) -> dict[str, Any]:
        """The diff ids of the image on every node in use; None where it is not there."""
        found = {label: self.image(label, reference) for label in self.used}
        return {label: image and image["RootFS"]["Layers"] for label, image in found.items()}

    @contextlib.contextmanager
    def events(self, *labels: str) -> Iterator[dict[str, list[str]]]:
        """What those engines tell of images and containers meanwhile, as ``image load`` and ``container start``."""
        began, seen = f"{time.time():.6f}", dict[str, list[str]]()
        yield seen
        words = ("events", "--since", began, "--until", f"{time.time():.6f}", "--format", "{{.Type}} {{.Action}}")
        seen |= {label: self.engines[label].docker(*words).stdout.splitlines() for label in labels}

    def received(self, label: str) -> int:
        """The bytes that came in at that node's fabric address so far."""
        rows = self.nodes[label].exec("cat", "/proc/net/dev").stdout.splitlines()
        return next(int(row.split()[1]) for row in rows if row.strip().startswith("fabric0:"))

    def starts(self, label: str, reference: str) -> bool:
        """Whether a container of it runs there, by the lab's own client."""
        words = ("run", "--rm", "--pull=never", "--network=none", reference, "true")
        return self.engines[label].docker(*words, check=False).returncode == 0
