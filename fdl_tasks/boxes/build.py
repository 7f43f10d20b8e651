"""The fetched tree built against this box's libtorch, and the binary looked at afterwards.

Origin: seeds/001, ``build_source``; spec/prepare.md, 7. Whether a failure is permanent decides if the box is kept:
a compile error is a push away from being mended, a package that is not installed is not.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ..arch import Vendor, feature, vendor
from ..errors import PermanentError, TransientError
from ..files import read, write
from ..hosts.base import Completed, OnLine
from ..stamp import identity
from .gpu.toolkit import rocm_root, rocm_runtime, toolkit_gap
from .recipe import CARGO, Recipe
from .room import full, is_full
from .tools import Note, Tools
from .torch.library import Libtorch

TAIL = 12  # lines of a failed build that its error shows
LDD_LIMIT = 60.0  # seconds
ELSEWHERE = ("env", "-uCARGO_TARGET_DIR", "-uCARGO_BUILD_TARGET_DIR", "-uCARGO_BUILD_TARGET")
# of the caller's own: with them cargo leaves what an earlier run built in the tree, and that would be taken
_MISSING = re.compile(  # of ldd: a library; a version of one, as GLIBC_2.35 on an older distribution
    r"^\s*(\S+) => not found$|(?<!weak )version `([^']+)' not found", re.MULTILINE
)


@dataclass(frozen=True)
class Binary:
    """The binary, and the directory that it is to be started in."""

    path: Path
    cwd: Path


def build(
    recipe: Recipe,
    tree: Path,
    libtorch: Libtorch | None,
    tools: Tools,
    note: Note,
    *,
    env: Mapping[str, str],
    on_line: OnLine | None = None,
) -> Binary:
    """Run the recipe in its directory, and prove what it made.

    Raises:
        PermanentError: the directory is none, a tool or toolkit is missing, or no binary that can start came of it.
        TransientError: the build failed, or was ended by a signal.
    """
    directory = _directory(recipe, tree)
    if recipe.build == CARGO:
        tools.need("cargo")
    if libtorch is None:
        note("no libtorch is active here and none was asked for: the build gets no LIBTORCH_PATH (--libtorch auto)")
    _fresh(tree, libtorch, note)
    given = environment(libtorch, env)
    done = tools.run([*ELSEWHERE, "sh", "-c", recipe.build], directory=directory, env=given, on_line=on_line)
    if done.code:
        raise _failed(done, recipe, directory, libtorch, tools, env)
    return Binary(_binary(recipe, directory, tree, tools, given), directory)


def _fresh(tree: Path, libtorch: Libtorch | None, note: Note) -> None:
    """Remove what cargo built against another libtorch: it does not notice a change in place (facts/bootstrap.md)."""
    stamp = tree.with_name(f"{tree.name}.built-against")
    now = identity(libtorch.dir) if libtorch else "none"
    before = read(stamp) or now
    if before != now:
        note("libtorch is not the one that was built against here before: all is built anew")
        for folder, inner, files in os.walk(tree):
            if "CACHEDIR.TAG" in files and Path(folder).name == "target":
                inner.clear()
                shutil.rmtree(folder)
    try:
        write(stamp, now)
    except OSError as error:
        raise full(stamp, "the build") if is_full(error) else error from None


def environment(libtorch: Libtorch | None, env: Mapping[str, str]) -> dict[str, str]:
    """What the recipe finds in its environment; nothing without a libtorch."""
    if libtorch is None:
        return {}
    lib = str(libtorch.dir / "lib")
    own = rocm_runtime(env) or rocm_root(env) / "lib"  # in front: it belongs to the kernel's driver (arch.loader_path)
    path = f"{own}:{lib}" if vendor(libtorch.variant) is Vendor.AMD else lib
    return {
        "LIBTORCH_PATH": str(libtorch.dir),
        "FDL_GPU_FEATURE": feature(libtorch.variant),
        "LD_LIBRARY_PATH": path,
    }


def _directory(recipe: Recipe, tree: Path) -> Path:
    directory = Path(os.path.normpath(tree / recipe.cwd))
    if not directory.is_dir():
        raise PermanentError(
            "there is no such directory in the source to build in (cwd)",
            where=str(directory),
            hint="`cwd` is relative to the root of the source",
        )
    _contained("cwd", directory, tree)
    return directory


def _contained(what: str, path: Path, tree: Path) -> None:
    """A link in the tree must not lead out of it either."""
    if not path.resolve().is_relative_to(tree.resolve()):
        raise PermanentError(
            f"{what} leaves the source tree, by a link to {path.resolve()}",
            where=str(path),
            hint="publish what it points to, in the tree itself",
        )


def _failed(
    done: Completed, recipe: Recipe, directory: Path, libtorch: Libtorch | None, tools: Tools, env: Mapping[str, str]
) -> PermanentError | TransientError:
    said = f"{done.out}\n{done.err}"
    if is_full(said):
        return full(directory, "the build")
    how = f"was ended by signal {done.code - 128}" if done.code > 128 else f"ended with {done.code}"
    what = f"the build {recipe.build!r} {how}"
    tail = [line for line in (done.err or done.out).splitlines() if line.strip()][-TAIL:]
    for_cards = vendor(libtorch.variant) if libtorch else None
    if for_cards and (gap := toolkit_gap(for_cards, tools, env)):
        return PermanentError(
            f"{what}, and this box lacks headers of the {_name(for_cards)} toolkit under {gap.root} "
            f"({', '.join(gap.headers)}), which a build with --features {for_cards} needs",
            where=str(directory),
            hint=f"waiting installs no package: {gap.install}",
            tail=tail,
        )
    hint = "mend it at the source: the next try on this box takes it up"
    return TransientError(what, where=str(directory), hint=hint, tail=tail)


def _name(vendor: Vendor) -> str:
    return {Vendor.NVIDIA: "CUDA", Vendor.AMD: "ROCm"}.get(vendor, "")


def _binary(recipe: Recipe, directory: Path, tree: Path, tools: Tools, env: Mapping[str, str]) -> Path:
    """The artifact, proven: a file below the tree that can be started, with all its libraries found."""
    path = Path(os.path.normpath(directory / recipe.bin))
    if not path.is_file():
        raise PermanentError(
            f"the build {recipe.build!r} ended well, but made no such file",
            where=str(path),
            hint="`bin` is the path of what the build makes, relative to `cwd`",
        )
    _contained("bin", path, tree)
    if not os.access(path, os.X_OK):
        raise PermanentError("what was built can't be executed", where=str(path), hint="is `bin` the right file?")
    if lacking := _lacking(path, directory, tools, env):
        raise PermanentError(
            f"what was built can't start here: {', '.join(lacking)} not found",
            where=str(path),
            hint=f"install what has it (LD_LIBRARY_PATH is {env.get('LD_LIBRARY_PATH') or 'not set'})",
        )
    return path


def _lacking(path: Path, directory: Path, tools: Tools, env: Mapping[str, str]) -> list[str]:
    """What the loader does not find; nothing for a script or a static program."""
    with path.open("rb") as stream:
        if stream.read(4) != b"\x7fELF":
            return []
    said = tools.run(["ldd", path], directory=directory, env=env, limit=LDD_LIMIT)
    return not_found(f"{said.out}\n{said.err}")


def not_found(said: str) -> list[str]:
    """The libraries, and the versions of them, that ``ldd`` says are not there (pure)."""
    return list(dict.fromkeys(found[1] or found[2] for found in _MISSING.finditer(said)))
