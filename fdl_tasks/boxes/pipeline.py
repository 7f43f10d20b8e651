"""``prepare``: seven steps, cheap before dear; the order is part of the contract (spec/prepare.md).

What a box acquires after it was admitted to a run burns the run's deadline, so all of it is proven before it dials.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from ..alone import alone
from ..cluster.load import own_name
from ..cluster.model import Cluster, Join
from ..errors import FdlError, PermanentError, PrepareError, TransientError, TransportError
from ..hosts.fanout import Cancel
from ..outcome import Event, Kind, Progress, silent
from ..scripts import Scripts
from . import recipe
from .build import Binary, build
from .data.dataset import prepare_data
from .data.directories import global_root, need_root, prove
from .gpu.coverage import covers
from .gpu.gpus import Gpu, masked, usable
from .gpu.survey import survey
from .room import full, is_full
from .source.fetch import fetch
from .source.manifest import Manifest
from .specs import parse_source
from .tools import Note, Tools
from .torch import library
from .torch.library import Libtorch
from .wanted import wanted

SOURCE, LOCK = "source", ".prepare.lock"  # the fetched tree, and the box's lock, below the global root


@dataclass(frozen=True)
class Prepared:
    """What a box that is ready has; ``args`` is None where nobody has published any."""

    data_path: Path | None = None
    libtorch: Libtorch | None = None
    bin: Binary | None = None
    args: tuple[str, ...] | None = None
    run_id: str | None = None
    gpus: tuple[Gpu, ...] = ()
    notes: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """The shape that ``--json`` prints (spec/prepare.md)."""
        return {
            "ok": True,
            "data_path": str(self.data_path) if self.data_path else None,
            "libtorch": {"dir": str(self.libtorch.dir), "variant": self.libtorch.variant} if self.libtorch else None,
            "bin": {"path": str(self.bin.path), "cwd": str(self.bin.cwd)} if self.bin else None,
            "args": None if self.args is None else list(self.args),
            "run_id": self.run_id,
            "notes": list(self.notes),
        }


def prepare(
    cluster: Cluster | None = None,
    *,
    data_path: str | None = None,
    data_source: str | None = None,
    libtorch: str | None = None,
    source: str | None = None,
    source_cwd: str | None = None,
    source_build: str | None = None,
    source_bin: str | None = None,
    devices: str | Sequence[int] | None = None,
    settings: library.Settings = library.SETTINGS,
    scripts: Scripts | None = None,
    progress: Progress = silent,
) -> Prepared:
    """Make this box ready: what is given here, over ``join:`` of the cluster's file, field by field.

    Raises:
        UsageError: what is given contradicts itself.
        TransientError: not ready now; the next try may well work.
        PermanentError: never ready as it is.
        KeyboardInterrupt: the user ended it; nothing is half-installed.
    """
    spec = wanted(
        cluster.join if cluster else Join(),
        data_path=data_path,
        data_source=data_source,
        libtorch=libtorch,
        source=source,
        source_cwd=source_cwd,
        source_build=source_build,
        source_bin=source_bin,
        devices=devices,
    )
    return prepare_box(spec, settings=settings, scripts=scripts, progress=progress)


def prepare_box(
    spec: Join,
    *,
    settings: library.Settings = library.SETTINGS,
    scripts: Scripts | None = None,
    progress: Progress = silent,
) -> Prepared:
    """The same for a whole block. Every way that it can fail is one of two classes; their ``notes`` tell the rest.

    Raises:
        TransientError: not ready now; the next try may well work.
        PermanentError: never ready as it is.
    """
    box = _Box(spec, settings, scripts or Scripts(), progress, os.environ)
    try:
        return box.prepared()
    except FdlError as error:
        failure = _classed(error)
        failure.notes = tuple(box.notes)
        raise failure from error
    except OSError as error:
        failure = unforeseen(error)
        failure.notes = tuple(box.notes)
        raise failure from error


def alone_on_box(root: Path | None, cancel: Cancel, note: Note) -> AbstractContextManager[bool]:
    """One ``prepare`` at a time on a box; where its root can't be made, the step that proves directories says why."""
    try:
        if root:
            root.mkdir(parents=True, exist_ok=True)
    except OSError:
        root = None
    return alone(root / LOCK, "prepares this box", note, cancel) if root else nullcontext(False)


def _classed(error: FdlError) -> PrepareError:
    """A tool that hung may do better next time; what else is wrong here stays so."""
    if isinstance(error, PrepareError):
        return error
    kind = TransientError if isinstance(error, TransportError) else PermanentError
    return kind(error.what, where=error.where, hint=error.hint, tail=error.tail)


def unforeseen(error: OSError) -> PrepareError:
    """An error of the system that no step expects: waiting mends none of them."""
    place = Path(str(error.filename)) if error.filename else Path("/")
    if is_full(error):
        return full(place, "writing")
    return PermanentError(error.strerror or str(error), where=str(place))


@dataclass
class _Box:
    """This box on its way; each step is a method that can be read alone."""

    spec: Join
    settings: library.Settings
    scripts: Scripts
    progress: Progress
    env: Mapping[str, str]
    notes: list[str] = field(default_factory=list)
    cancel: Cancel = field(default_factory=Cancel)

    def __post_init__(self) -> None:
        self.label = own_name(self.env)
        self.tools = Tools(self.label, self.cancel, self.scripts)

    def prepared(self) -> Prepared:
        gpus = self.gpus()
        with alone_on_box(global_root(self.env), self.cancel, self.note):
            data_path = self.data()
            self.directories()
            tree, manifest = self.source()
            libtorch = self.libtorch(gpus)
            self.coverage(libtorch, gpus)
            built = self.build(tree, manifest, libtorch)
        args = manifest.args if manifest else None
        run_id = manifest.run if manifest else None
        return Prepared(data_path, libtorch, built, args, run_id, gpus, tuple(self.notes))

    def gpus(self) -> tuple[Gpu, ...]:
        self.say("looking at the GPUs")
        seen = masked(survey(self.tools, self.env), self.env)
        gpus = usable(seen, self.spec.devices)
        for finding in seen.findings:
            self.note(finding.message)
        return gpus

    def data(self) -> Path | None:
        self.say("looking at the data")
        return prepare_data(self.spec.data_path, self.spec.data_source, self.spec.ssh, self.tools, self.note)

    def directories(self) -> None:
        self.say("proving the local directories")
        prove(self.env, self.note)

    def source(self) -> tuple[Path | None, Manifest | None]:
        if self.spec.source is None:
            return None, None
        source = parse_source(self.spec.source.spec)
        tree = need_root(self.env, "the source") / SOURCE
        self.say("fetching the source")
        return tree, fetch(source, tree, self.spec.ssh, self.tools, self.note)

    def libtorch(self, gpus: Sequence[Gpu]) -> Libtorch | None:
        if self.spec.libtorch is None:
            return library.active(Path.cwd(), global_root(self.env), self.note)
        self.say("getting libtorch")
        return library.acquire(
            self.spec.libtorch,
            need_root(self.env, "libtorch"),
            gpus,
            settings=self.settings,
            note=self.note,
            progress=partial(self.moved, "downloading"),
            unpacking=partial(self.moved, "unpacking"),
        )

    def coverage(self, libtorch: Libtorch | None, gpus: Sequence[Gpu]) -> None:
        if libtorch:
            covers(libtorch.variant, libtorch.archs, gpus)

    def build(self, tree: Path | None, manifest: Manifest | None, libtorch: Libtorch | None) -> Binary | None:
        if tree is None or self.spec.source is None:
            return None
        found = recipe.merge(self.spec.source, manifest)
        self.say(f"building {found.bin}")
        return build(found, tree, libtorch, self.tools, self.note, env=self.env, on_line=self.line)

    def note(self, text: str) -> None:
        """Once each: two steps may meet the same ssh setting."""
        if text not in self.notes:
            self.notes.append(text)
            self.progress(Event(self.label, Kind.NOTE, text))

    def say(self, text: str) -> None:
        self.progress(Event(self.label, Kind.STATE, text))

    def line(self, stream: str, text: str) -> None:
        self.progress(Event(self.label, Kind.LINE, text))

    def moved(self, what: str, done: int, total: int | None) -> None:
        self.progress(Event(self.label, Kind.LINE, f"{what} {library.amount(done, total)}"))
