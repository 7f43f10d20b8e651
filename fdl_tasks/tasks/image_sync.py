"""``inv sync-image``, ``inv ensure-image`` and ``inv images``: one image on every node, proven to start."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from invoke.context import Context
from invoke.tasks import task

from ..errors import UsageError
from ..outcome import Progress, silent
from ..settings import words
from . import flags
from .edge import Edge, edge

if TYPE_CHECKING:
    from ..images.facts import NodeFacts
    from ..images.result import SyncReport

NAMING = {
    "recipe": "recipe of cluster.yml that names the image (or recipes/NAME.yml beside it)",
    "image": "the image's reference, where no recipe names it",
    "host": flags.HOST,
    "group": "a group of cluster.yml; may be given several times",
    "json": flags.JSON,
    "cluster": flags.CLUSTER,
    "width": flags.WIDTH,
}
SENDING = {
    "source": "node that has the right image; default: the one with the newest",
    "require-fabric": "send by fabric addresses only",
}
HELP = {
    **NAMING,
    **SENDING,
    "transport": "relay or archive: that way only; default: auto, the better one of each node",
    "plan": "look at every node and print what would be done; change nothing",
    "dry-run": "print the scripts and contact nobody",
}


@task(name="sync-image", auto_shortflags=False, iterable=["host", "group"], help=HELP)
def sync_image(
    c: Context,
    recipe: str | None = None,
    image: str | None = None,
    host: Sequence[str] | str | None = None,
    group: Sequence[str] | str | None = None,
    source: str | None = None,
    require_fabric: bool = False,
    transport: str | None = None,
    plan: bool = False,
    dry_run: bool = False,
    json: bool = False,
    cluster: str | Path | None = None,
    width: int | None = None,
) -> SyncReport | None:
    """Bring an image to every node, and prove that it starts.

    Straight from the node that has it to all others, over the fast network, only what is missing there. With
    more than eight others and much to send, those that have it by then send it on.
    Every node is looked at again afterwards: synced and in-sync say that a container of the very image
    started there.

        inv sync-image --recipe x
        inv sync-image --image repo/vllm:24 --group spark --plan

    Exit code: 0 every node has it, 1 some node failed, 2 usage or configuration, 130 Ctrl-C.
    """
    with edge(c) as run:
        asked = _asked(run, cluster, host, group, image=image, recipe=recipe, source=source)
        by = {"transport": transport or "auto"}
        if dry_run:
            _print_scripts(run, json, **asked, **by)
            return None
        sending = {"require_fabric": require_fabric, "plan_only": plan, **by}
        return _sync(run, json, **asked, **sending, width=run.width(width))


@task(name="ensure-image", auto_shortflags=False, iterable=["host", "group"], help={**NAMING, **SENDING})
def ensure_image(
    c: Context,
    recipe: str | None = None,
    image: str | None = None,
    host: Sequence[str] | str | None = None,
    group: Sequence[str] | str | None = None,
    source: str | None = None,
    require_fabric: bool = False,
    json: bool = False,
    cluster: str | Path | None = None,
    width: int | None = None,
) -> SyncReport:
    """Let nothing start before every node has an image.

    For the tasks that follow, as `pre=[call(fdl_tasks.tasks.ensure_image, recipe="x")]`: it brings the image
    where it is missing, and fails when no node has it, so that nobody pulls it from a registry unawares.

        inv ensure-image --recipe x launch

    Exit code: 0 every node has it, 1 some node failed or none has it, 2 usage or configuration, 130 Ctrl-C.
    """
    with edge(c) as run:
        asked = _asked(run, cluster, host, group, image=image, recipe=recipe, source=source)
        return _sync(run, json, **asked, require_fabric=require_fabric, width=run.width(width))


@task(auto_shortflags=False, iterable=["host", "group"], help=NAMING)
def images(
    c: Context,
    recipe: str | None = None,
    image: str | None = None,
    host: Sequence[str] | str | None = None,
    group: Sequence[str] | str | None = None,
    json: bool = False,
    cluster: str | Path | None = None,
    width: int | None = None,
) -> tuple[NodeFacts, ...]:
    """Show what every node has of an image.

    Its id, when it was created, whether it is complete, the kind of store, its size. Nothing is changed.

        inv images --recipe x

    Exit code: 0 every node was asked, 1 some could not be, 2 usage or configuration, 130 Ctrl-C.
    """
    with edge(c) as run:
        from ..images.probe import look
        from ..report.images import images_json, images_table
        from ..report.stdout import emit, emit_json

        asked, at_once = _asked(run, cluster, host, group, image=image, recipe=recipe), run.width(width)
        with run.progress() as progress:
            nodes = look(**asked, width=at_once, progress=progress)
        if json:
            emit_json(run.mask.values(images_json(nodes)))
        else:
            emit(images_table(nodes, run.mask, sys.stdout))
        if failed := [node.label for node in nodes if node.error]:
            raise run.fail(f"{len(failed)} of {len(nodes)} nodes could not be asked: {', '.join(failed)}")
        return nodes


def _asked(
    run: Edge, cluster: str | Path | None, *hosts: Sequence[str] | str | None, **fields: str | None
) -> dict[str, Any]:
    """What all three tasks are told, by the names that the functions of ``images`` have for it."""
    labels = tuple(label for each in hosts for label in words(each))
    return {"cluster": run.cluster(cluster), "hosts": labels, "scripts": run.scripts(), **fields}


def _sync(run: Edge, json: bool, **asked: Any) -> SyncReport:
    from ..images.sync import sync_image as sync
    from ..report.images import plan_json, plan_table, sync_failures, sync_table
    from ..report.stdout import emit, emit_json

    with run.progress() as progress:
        live: Progress = progress if sys.stderr is not None and sys.stderr.isatty() else silent
        report = sync(**asked, progress=progress, live=live)
    planned = bool(asked.get("plan_only"))
    if json:
        emit_json(run.mask.values(plan_json(report) if planned else report.as_json()))
    else:
        shown = plan_table if planned else sync_table
        emit(shown(report, run.mask, sys.stdout))
    if not report.ok:
        raise run.fail(sync_failures(report))
    return report


def _print_scripts(run: Edge, json: bool, **asked: Any) -> None:
    from ..images.dry import dry_run
    from ..report.stdout import emit

    if json:
        raise UsageError("--dry-run prints scripts, not JSON", hint="leave --json out")
    emit("\n".join(run.mask(f"# --- {label}: {script.name}\n{script.text}") for label, script in dry_run(**asked)))
