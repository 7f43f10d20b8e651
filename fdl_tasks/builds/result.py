"""What became of a prebuild, as values (pure)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import BuildError, FdlError
from ..outcome import Attempt, Level, Status, Verdict
from .envelope import Entry, Envelope, as_dict
from .judge import outcome, status
from .plan import Job

Seen = Attempt[tuple[Verdict, ...]]  # what became of a binary's verification

if TYPE_CHECKING:
    from ..checks.sweep import PreflightReport


@dataclass(frozen=True)
class Built:
    """What became of one worker. ``target_dir`` and ``bin`` are relative to the project root.

    ``bin`` is there only when nothing failed, ``error`` only when something did: the build, or what was read
    back from the worker. Why a worker was skipped, or is unverified, stands in ``warnings``. ``seconds`` is
    wall time, ``log`` the build's whole output.
    """

    host: str
    status: Status
    seconds: float = 0.0
    arch: str | None = None
    feature: str = ""
    target_dir: str | None = None
    bin: str | None = None
    shared_with: str | None = None
    warnings: tuple[str, ...] = ()
    error: str | None = None
    log: Path | None = None

    def as_json(self) -> dict[str, object]:
        """The spec's shape of one host."""
        return {
            "status": str(self.status),
            "seconds": round(self.seconds, 3),
            "arch": self.arch,
            "feature": self.feature,
            "target_dir": self.target_dir,
            "bin": self.bin,
            "shared_with": self.shared_with,
            "warnings": list(self.warnings),
            "error": self.error,
        }


@dataclass(frozen=True)
class PrebuildReport:
    """One command for every worker, in the order of cluster.yml; failed hosts are not in ``envelope``.

    ``preflight`` is None when it was not asked for, or when there was nothing to build.
    """

    cmd: str
    hosts: Mapping[str, Built]
    envelope: Envelope
    preflight: PreflightReport | None = None

    @property
    def ok(self) -> bool:
        """Whether preflight found no error and every build succeeded."""
        passed = self.preflight is None or self.preflight.ok
        return passed and not any(built.status is Status.FAILED for built in self.hosts.values())

    def as_json(self) -> dict[str, object]:
        """The spec's shape: the hosts and the envelope, or what stopped it before the first build."""
        if self.preflight is not None and not self.preflight.ok:
            return {"cmd": self.cmd, "ok": False, "preflight": self.preflight.as_json()}
        hosts = {host: built.as_json() for host, built in self.hosts.items()}
        return {"cmd": self.cmd, "ok": self.ok, "hosts": hosts, "envelope": as_dict(self.envelope)}


def skipped(host: str, reason: str) -> Built:
    """A worker that is left out on purpose."""
    return Built(host, Status.SKIPPED, warnings=(reason,))


def refused(host: str, arch: str | None, error: BuildError) -> Built:
    """A worker that can't be built for: nothing was started."""
    return Built(host, Status.FAILED, arch=arch, error=str(error))


def built(job: Job, attempt: Attempt[str], seen: Seen | None, shared_with: str | None) -> Built:
    """A worker whose build was run; ``seen`` is None when that gave no binary."""
    made = Built(
        job.host, Status.FAILED, attempt.seconds, job.arch, job.feature, job.target_dir,
        shared_with=shared_with, warnings=job.warnings, log=job.log,
    )  # fmt: skip
    if attempt.error or seen is None:
        return replace(made, error=_text(attempt.error or BuildError("it gave no binary")))
    return _verified(replace(made, seconds=attempt.seconds + seen.seconds), attempt.value, outcome(seen))


def _verified(made: Built, path: str | None, found: Sequence[Verdict]) -> Built:
    errors = "\n".join(verdict.message for verdict in found if verdict.level is Level.ERROR)
    warnings = tuple(verdict.message for verdict in found if verdict.level is Level.WARNING)
    return replace(
        made,
        status=status(found),
        bin=None if errors else path,
        error=errors or None,
        warnings=(*made.warnings, *warnings),
    )


def entry(job: Job, path: str) -> Entry:
    """What the launcher needs to start the binary at ``path`` on the job's worker."""
    return Entry(path, job.loader_path, job.cwd_subpath)


def _text(error: Exception) -> str:
    return str(error) if isinstance(error, FdlError) else f"{type(error).__name__}: {error}"
