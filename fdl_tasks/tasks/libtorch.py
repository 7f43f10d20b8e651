"""``inv libtorch.get``, ``inv libtorch.list`` and ``inv libtorch.use``: the libtorch variants of this box."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from invoke.context import Context
from invoke.tasks import task

from ..outcome import Event, Kind, Progress
from ..settings import libtorch_settings
from . import flags
from .edge import Edge, edge

if TYPE_CHECKING:
    from ..boxes.gpu.gpus import Gpu
    from ..boxes.torch.library import Installed, Libtorch

GET = {
    "token": "auto (chosen by this box's GPUs), cpu, cu126, cu128, rocm7.0 or rocm7.1",
    "sha256": "what the downloaded zip has to hash to",
    "json": flags.JSON,
}
USE = {"variant": "an installed variant, as precompiled/cu128, cu128 or builds/NAME", "json": flags.JSON}


@task(name="libtorch-get", auto_shortflags=False, positional=["token"], help=GET)
def libtorch_get(c: Context, token: str, sha256: str | None = None, json: bool = False) -> Libtorch:
    """Install a libtorch and make it the active one.

    Into FLODL_HOME, else ~/.flodl, below libtorch/. What is there already at the same release is not fetched again.
    A download that breaks off goes on where it was. A mirror is named by fdl.libtorch.base_url, another release
    by fdl.libtorch.version, in Invoke's configuration or as INVOKE_FDL_LIBTORCH_BASE_URL and so on.

        inv libtorch.get auto
        inv libtorch.get cu128

    Exit code: 0 installed and active, 1 not now (the download failed: try again), 2 never as it is.
    """
    with edge(c) as run:
        from ..boxes.torch.library import acquire

        settings, notes = libtorch_settings(c, sha256), list[str]()
        with run.progress("libtorch.get") as progress:

            def note(text: str) -> None:
                notes.append(text)
                progress(Event(token, Kind.NOTE, text))

            found = acquire(
                token,
                _root(),
                _gpus() if token.strip() == "auto" else (),
                settings=settings,
                note=note,
                progress=_shown(progress, token, "downloading"),
                unpacking=_shown(progress, token, "unpacking"),
            )
        _print(run, found, json, notes)
        return found


@task(name="libtorch-list", auto_shortflags=False, help={"json": flags.JSON})
def libtorch_list(c: Context, json: bool = False) -> tuple[Installed, ...]:
    """Show the libtorch variants that are installed, and which is active.

    Those of FLODL_HOME, else ~/.flodl. The last line says what is active for the current directory: the nearest
    libtorch/.active upwards wins over the global one, and FDL_LIBTORCH_CASE=x reads .active.x.

        inv libtorch.list
    """
    with edge(c) as run:
        from ..boxes.torch.library import active, installed
        from ..report.libtorch import installed_json, installed_table
        from ..report.stdout import emit, emit_json

        root = _root()
        found, here = installed(root), active(Path.cwd(), root, lambda text: run.say(f"note: {text}"))
        if json:
            emit_json(run.mask.values(installed_json(found, here)))
        else:
            emit(installed_table(found, here, root, run.mask, sys.stdout))
        return found


@task(name="libtorch-use", auto_shortflags=False, positional=["variant"], help=USE)
def libtorch_use(c: Context, variant: str, json: bool = False) -> Libtorch:
    """Make an installed libtorch the active one.

    One of those of FLODL_HOME, else ~/.flodl; a libtorch/.active above a directory still wins there.

        inv libtorch.use cu126
        inv libtorch.use builds/sm61-sm120

    Exit code: 0 it is active, 2 it is not installed.
    """
    with edge(c) as run:
        from ..boxes.torch.library import use

        found = use(_root(), variant)
        _print(run, found, json)
        return found


def _root() -> Path:
    from ..boxes.data.directories import need_root

    return need_root(os.environ, "libtorch")


def _gpus() -> Sequence[Gpu]:
    """What ``auto`` looks at: the devices that the masks leave."""
    from ..boxes.gpu.gpus import masked
    from ..boxes.gpu.survey import survey
    from ..boxes.tools import Tools
    from ..cluster.load import own_name

    return masked(survey(Tools(own_name(os.environ)), os.environ), os.environ).gpus


def _shown(progress: Progress, token: str, doing: str) -> Callable[[int, int | None], None]:
    from ..boxes.torch.library import amount

    return lambda done, total: progress(Event(token, Kind.LINE, f"{doing} {amount(done, total)}"))


def _print(run: Edge, found: Libtorch, json: bool, notes: Sequence[str] = ()) -> None:
    from ..report.libtorch import libtorch_json
    from ..report.stdout import emit, emit_json

    if json:
        emit_json(run.mask.values(libtorch_json(found, notes)))
    else:
        emit(run.mask(f"{found.variant} is active: {found.dir}"))
