"""Nodes that are not there, for tests of the whole pipeline: each answers the scripts as its own Docker would."""

from __future__ import annotations

import json
import re
import shlex
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fdl_tasks.cluster.model import Cluster, Ssh
from fdl_tasks.hosts.settings import Settings, parse
from fdl_tasks.scripts import Script
from fdl_tasks.testing import Completed, FakeHost, make_cluster
from tests.images.making import sha

PLAIN = (Path(__file__).parents[1] / "cases/ssh-G/plain.txt").read_text()
VERSION = '{"Client":{"ApiVersion":"1.51"},"Server":{"ApiVersion":"1.51","Version":"28.5.2","Arch":"amd64"}}'
CONTAINERD = '{"Driver":"overlayfs","DriverStatus":[["driver-type","io.containerd.snapshotter.v1"]]}'
INFO = '{"Driver":"overlay2","DriverStatus":[["Backing Filesystem","extfs"]],"DockerRootDir":"/var/lib/docker"}'
LOADED = ("__FDL_LOAD__", "Loaded image: app:1", "__FDL_LOADED__ 0")
Odd = Completed | Exception | Callable[[], Completed]


def said(*facts: tuple[str, str]) -> Completed:
    """An answer of a script: these facts, and its end."""
    lines = [f"__FDL_{name}__ {len(value.encode())} {value}\n" for name, value in (*facts, ("END", ""))]
    return Completed(0, "".join(lines), "", 0.1)


def looked(image: object, ran: str = "0 ", created: str | None = None) -> Completed:
    """An answer of verify.sh: this inspect, and how the containers ended."""
    made = [] if created is None else [("CREATED", created)]
    return said(("IMAGE", json.dumps(image)), ("RAN", ran), *made)


def shown(layers: str, created: str = "2026-11-30T12:00:00Z", tags: Sequence[str] = ("app:1",)) -> dict[str, Any]:
    """``docker image inspect`` of an image with a letter a layer; equal letters are one image."""
    return {
        "Id": sha(layers),
        "RootFS": {"Layers": [sha(letter) for letter in layers]},
        "Os": "linux",
        "Architecture": "amd64",
        "Created": created,
        "RepoTags": list(tags),
        "Size": 50 << 20,
    }


def ended(code: int | None = 0, words: Iterable[str] = LOADED, **fields: Any) -> dict[str, Any]:
    """What the sender says of a target at its end."""
    known = {"bytes": 4 << 20, "seconds": 2.0, "code": code, "said": list(words), "error": None, "late": False}
    return known | fields


class Node(FakeHost):
    """A node with the image ``shown`` under the name that is asked for, and ``others``.

    ``odd`` are other answers, by the script's name, given first; ``ends`` what the sender says of a target, given
    by the source, one a pass: without, the target has the source's image afterwards.
    """

    def __init__(self, label: str, image: dict[str, Any] | None = None, others: Sequence[dict[str, Any]] = ()):
        super().__init__(label, self._answer)
        self.shown, self.others, self.python, self.tools, self.info = image, list(others), "3.11", "", INFO
        self.odd, self.ends = defaultdict[str, list[Odd]](list), defaultdict[str, list[dict[str, Any]]](list)
        self.peers: dict[str, Node] = {}
        self.jobs: list[dict[str, Any]] = []
        number = sum(map(ord, label)) % 200
        plain = parse(Ssh(label), PLAIN, None)
        self.settings: Settings | None = replace(plain, hostname=f"10.77.0.{number}", user="root")
        self.host_key: tuple[str, str] | None = ("ssh-ed25519", "AAAAC3NzaC1lZDI1NTE5AAAAIB7K")

    @property
    def asked(self) -> list[str]:
        """The names of the scripts that it ran."""
        return [_deed(script) for script in self.scripts]

    def _answer(self, script: Script) -> Completed:
        name = _deed(script)
        if self.odd[name]:
            answer = self.odd[name].pop(0)
            if isinstance(answer, Exception):
                raise answer
            return answer if isinstance(answer, Completed) else answer()
        if name in ("send", "probe"):
            return self._send(script) if name == "send" else self._probe(brief="BRIEF=1\n" in script.text)
        answers = {"verify": self._verify, "ways": self._ways, "tag": self._tag}
        return answers[name]() if name in answers else said()

    def _image(self) -> tuple[str, str]:
        if self.shown is None:
            return "NOIMAGE", "Error response from daemon: No such image: app:1"
        return "IMAGE", json.dumps(self.shown)

    def _probe(self, *, brief: bool = False) -> Completed:
        return said(*(self.facts()[:3] if brief and self.shown else self.facts()))

    def facts(self) -> list[tuple[str, str]]:
        """All that its probe says; the first three are what a brief one does."""
        begin = [("WAY", "user"), ("VERSION", VERSION), self._image()]
        more = [("INFO", self.info), ("PYTHON", self.python), ("FREE", "1000000000 /"), ("TOOLS", self.tools)]
        return [*begin, *more, *(("OTHER", json.dumps(other)) for other in self.others)]

    def _verify(self) -> Completed:
        return said(self._image(), ("RAN", "0 "))

    def _tag(self) -> Completed:
        self.shown = self.others[0]
        return said(("TAGGED", "0 "), ("BEFORE", ""))

    def _ways(self) -> Completed:
        return said(*(("WAY", f"{number} 0 ") for number in range(99)))

    def _send(self, script: Script) -> Completed:
        found = re.search(r"^FDL_JOB=(.*)$", script.text, re.MULTILINE)
        assert found
        job = json.loads(shlex.split(found[1])[0])
        self.jobs.append(job)
        lines = [{"target": target, **self._end(target)} for target in job["targets"]]
        text = "".join(f"{json.dumps(line)}\n" for line in [*lines, {"end": True, "error": None}])
        return Completed(0, text, "", 0.1)

    def _end(self, target: str) -> dict[str, Any]:
        if self.ends[target]:
            return self.ends[target].pop(0)
        self.peers[target].shown = self.shown
        return ended()


def _deed(script: Script) -> str:
    return script.name.removeprefix("images/").removesuffix(".sh")


def made_known(root: Path, *nodes: Node, changes: Any = None) -> Cluster:
    """A cluster of these nodes, all reached by ssh; each knows the others."""
    for node in nodes:
        node.peers = {other.label: other for other in nodes}
    known = {node.label: {"transport": "ssh", **(changes or {}).get(node.label, {})} for node in nodes}
    arch_of: dict[str, Any] = dict.fromkeys(node.label for node in nodes)
    return make_cluster(root, changes=known, **arch_of)
