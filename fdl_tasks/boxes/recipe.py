"""What is built: the run's manifest over the box's own recipe, and nothing outside of the tree (pure).

Origin: seeds/001, ``merge_manifest``; the containment is spec/prepare.md's, 7.
"""

from __future__ import annotations

from dataclasses import dataclass
from posixpath import join, normpath

from ..cluster.model import Source
from ..errors import PermanentError, TransientError
from .source.manifest import Manifest

CARGO = "cargo build --release"


@dataclass(frozen=True)
class Recipe:
    """``build`` is a shell line, run in ``cwd`` below the tree; ``bin`` is what it makes, relative to ``cwd``."""

    cwd: str
    build: str
    bin: str


def merge(own: Source, manifest: Manifest | None) -> Recipe:
    """The manifest's answers where it has them, since they belong to the run; else the box's own.

    Raises:
        TransientError: nothing says what to build: nobody has published yet.
        PermanentError: ``cwd`` or ``bin`` leave the tree.
    """
    if manifest is None and own.bin is None:
        raise TransientError(
            "no run is published there (the source has no .fdl-run.yml), and this box names no binary of its own",
            where=own.spec,
            hint="publish a run on the controller (`fdl publish`), or name the binary here: `--source-bin`",
        )
    cwd, build, binary = (
        (manifest.cwd or own.cwd, manifest.build or own.build, manifest.bin)
        if manifest
        else (own.cwd, own.build, own.bin or "")
    )
    place = "the run manifest (.fdl-run.yml)" if manifest else "`source`"
    _inside(f"cwd of {place}", cwd or ".", ".")
    _inside(f"bin of {place}", binary, cwd or ".")
    return Recipe(cwd or ".", build or CARGO, binary)


def _inside(what: str, path: str, base: str) -> None:
    """A path that somebody else wrote must not lead to what lies elsewhere on this box."""
    landed = normpath(join(base, path))
    if not path or "\0" in path or landed == ".." or landed.startswith(("/", "../")):
        raise PermanentError(
            f"{what} leaves the source tree: {path!r}",
            hint="write a path below the directory that is built in, as target/release/train",
        )
