"""Code as a user writes it, for the type checker: ``mypy --strict`` fails when a type is lost or wrong.

Under ``strict`` an ignore that is not needed is an error too, so the last lines must be wrong.
"""

from __future__ import annotations

import fdl_tasks
from fdl_tasks import (
    Fate,
    FdlError,
    Join,
    Level,
    PermanentError,
    PrebuildReport,
    Prepared,
    Source,
    Status,
    SyncReport,
    TransientError,
)


def build() -> dict[str, str]:
    report: PrebuildReport = fdl_tasks.prebuild(fdl_tasks.load_cluster(), cmd="train", hosts=["node-a"])
    failed: list[str] = [host for host, built in report.hosts.items() if built.status is Status.FAILED]
    if failed or not report.ok:
        raise FdlError("not built", where=", ".join(failed))
    return {host: entry.bin for host, entry in report.envelope.items()}


def worst_of(host: str) -> Level:
    checks = fdl_tasks.preflight(fdl_tasks.load_cluster()).hosts[host]
    return max(verdict.level for verdict in checks.verdicts)


def bring(image: str) -> list[str]:
    cluster = fdl_tasks.load_cluster()
    report: SyncReport = fdl_tasks.sync_image(cluster, image=image, hosts=["node-a"])
    if report.ok:
        report = fdl_tasks.ensure_image(cluster, image)
    return [node.error or "" for node in report.nodes.values() if node.status is Fate.FAILED]


def ready() -> list[str]:
    """The argv of this box's binary: tried again for as long as that may help."""
    spec = Join(source=Source("rsync://ctrl/srv/run/tree"), libtorch="auto", devices=(0, 1))
    while True:
        try:
            box: Prepared = fdl_tasks.prepare_box(spec)
        except TransientError as error:
            print(error, *error.notes)
        except PermanentError as error:
            raise SystemExit(error.exit_code) from error
        else:
            return [str(box.bin.path), *(box.args or ())] if box.bin else []


def with_a_file() -> str:
    box = fdl_tasks.prepare(fdl_tasks.load_cluster(), libtorch="auto", devices=[0])
    return box.libtorch.variant if box.libtorch else ", ".join(gpu.arch for gpu in box.gpus)


ns = fdl_tasks.collection("ours", width=4)
ns.add_task(fdl_tasks.tasks.prebuild)


def wrong(report: PrebuildReport) -> None:
    number: int = report.cmd  # type: ignore[assignment]
    fdl_tasks.prebuild("cluster.yml", cmd=number)  # type: ignore[arg-type]
    fdl_tasks.sync_image(fdl_tasks.load_cluster(), imgae="x")  # type: ignore[call-arg]
    fdl_tasks.collection(widht=4)  # type: ignore[call-arg]
    fdl_tasks.prepare(source_bim="x")  # type: ignore[call-arg]
    print(fdl_tasks.prepare().bin.path)  # type: ignore[union-attr]
