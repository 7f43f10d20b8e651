"""What the facts of one machine mean: pure, one small function a rule.

A rule returns its verdict, or None when it has nothing to judge. Unknown is a warning that names what
could not be read (of pkill: nothing), never an error. The rules are those of seeds/000.
"""

from __future__ import annotations

from ..errors import ScriptError, Stage, TransportError
from ..outcome import Level, Verdict
from .probe import ABSENT, Facts, Fresh, Seen, spelling

LOW_SPACE_KIB = 1 << 20  # 1 GiB
CLOCK_SLACK_S = 2


def ok(rule: str, message: str) -> Verdict:
    return Verdict(rule, Level.OK, message)


def warning(rule: str, message: str) -> Verdict:
    return Verdict(rule, Level.WARNING, message)


def error(rule: str, message: str) -> Verdict:
    return Verdict(rule, Level.ERROR, message)


def data_path(host: str, path: str, declared: bool, facts: Facts) -> Verdict:
    """The shared data: a directory that can be listed; only a declared one must be there."""
    if facts.data_dir is None:
        return warning("data-path", f"{host}: could not read whether the data path {path} is a directory")
    if not facts.data_dir and declared:
        return error(
            "data-path",
            f"{host}: data path {path} is not a directory: mount it there, or mend data_path in cluster.yml",
        )
    if not facts.data_dir:
        return warning(
            "data-path",
            f"{host}: no data at {path}, the default when data_path is not set: "
            "fine without shared data, else mount it there or set data_path in cluster.yml",
        )
    if facts.data_read is None:
        return warning("data-path", f"{host}: could not read whether the data path {path} can be listed")
    if not facts.data_read:
        return error(
            "data-path",
            f"{host}: data path {path} is a directory that can't be listed: "
            "check its permissions, the mount's user mapping, and that what is mounted there still answers",
        )
    return ok("data-path", f"{host}: data path {path} can be listed")


def root(host: str, path: str, facts: Facts) -> Verdict:
    """The project root as this machine sees it."""
    if facts.root is None:
        return warning("path", f"{host}: could not read whether path {path} is a directory")
    if not facts.root:
        return error(
            "path",
            f"{host}: path {path} is not a directory, so no binary under it could be run: "
            "mount the project there, or mend path in cluster.yml",
        )
    return ok("path", f"{host}: path {path} is a directory")


def space(host: str, path: str, facts: Facts) -> Verdict | None:
    """Room at the project root."""
    if not facts.root:
        return None
    if facts.free_kib is None:
        return warning("space", f"{host}: could not read how much room is left at {path}")
    if facts.free_kib < LOW_SPACE_KIB:
        return warning(
            "space", f"{host}: only {facts.free_kib // 1024} MiB free at {path}: make room before a build fails"
        )
    return ok("space", f"{host}: {facts.free_kib // LOW_SPACE_KIB} GiB free at {path}")


def shared_mount(host: str, path: str, controller_path: str, seen: Seen | None, fresh: Fresh) -> Verdict:
    """Whether the worker's path shows what the controller has just written into its own."""
    here, there = f"{controller_path}/target/cluster on the controller", f"{path}/target/cluster"
    if seen is None:
        return warning("shared-mount", f"{host}: could not read whether {there} shows what is in {here}")
    otherwise = "; where binaries get there another way: --no-shared-check"
    if seen == ABSENT:
        return error(
            "shared-mount",
            f"{host}: {there} does not show what was just written to {here}, looked for under new names for 5 s: "
            "what is built would never get there. Mount the same directory at both paths, and keep its attribute "
            f"caches short (NFS: actimeo, lookupcache=positive){otherwise}",
        )
    if seen.name not in fresh.written or seen.content != fresh.token:
        return error(
            "shared-mount",
            f"{host}: {there} shows an old or another file where {here} has a new one ({seen.name}): "
            f"old binaries would be run. Mount the same directory at both paths, without a stale cache{otherwise}",
        )
    return ok("shared-mount", f"{host}: {there} shows what was just written to {here}")


def skew(seen: Seen | None, fresh: Fresh) -> int | None:
    """Seconds that the file's time lies after (before: negative) its writing, by the controller's clock."""
    if seen is None or seen.mtime is None or seen.name not in fresh.written:
        return None
    began, ended = (int(moment) for moment in fresh.written[seen.name])
    return seen.mtime - ended if seen.mtime > ended else min(0, seen.mtime - began)


def file_time(host: str, path: str, facts: Facts) -> Verdict:
    """Whether times of files on the mount agree with the controller's clock; cargo trusts them."""
    if facts.mtime_skew_s is None:
        return warning("file-time", f"{host}: could not read a file's time under {path}")
    if abs(facts.mtime_skew_s) > CLOCK_SLACK_S:
        return warning(
            "file-time",
            f"{host}: a file just written under {path} is {facts.mtime_skew_s:+d} s off the controller's clock, and "
            "cargo goes by such times: set the clocks of the controller and of the file server (NTP)",
        )
    return ok("file-time", f"{host}: file times under {path} agree with the controller's clock")


def cpu(host: str, controller_arch: str, facts: Facts) -> Verdict:
    """Whether a binary built by the controller is for this worker's CPU."""
    if facts.arch is None:
        return warning("cpu", f"{host}: could not read its CPU architecture (uname -m)")
    if facts.arch != (ours := spelling(controller_arch)):
        return error(
            "cpu",
            f"{host}: its CPU is {facts.arch}, the controller's {ours}: a binary built here can't start there. "
            "Build on a machine of its kind, or set build: false for it in cluster.yml",
        )
    return ok("cpu", f"{host}: its CPU is {facts.arch}, as the controller's")


def libc(host: str, facts: Facts) -> Verdict | None:
    """Whether the worker has the C library that binaries are linked with; which glibc, the artifact check asks."""
    if facts.ldd is None:
        return warning("libc", f"{host}: could not read its C library (ldd --version)")
    if facts.libc == "musl":
        return error(
            "libc",
            f"{host}: its C library is musl ({facts.ldd.splitlines()[0]}), binaries are linked with glibc and can't "
            "start there: use a distribution with glibc, or set build: false for it in cluster.yml",
        )
    if facts.ldd and not facts.glibc:
        return warning("libc", f"{host}: can't tell its C library from what ldd --version says: {facts.ldd!r}")
    return ok("libc", f"{host}: its C library is glibc {'.'.join(map(str, facts.glibc))}") if facts.glibc else None


def pkill(host: str, facts: Facts) -> Verdict | None:
    """Whether the launcher can clear away processes that an earlier run left."""
    if facts.pkill == "absent":
        return warning("pkill", f"{host}: no pkill, so what an earlier run left running is not cleared: install procps")
    return ok("pkill", f"{host}: pkill is there") if facts.pkill else None


def abi(host: str, controller_arch: str, facts: Facts) -> list[Verdict]:
    """CPU, C library, pkill; on another CPU the C library says nothing."""
    kind = cpu(host, controller_arch, facts)
    found = [kind, None if kind.level is Level.ERROR else libc(host, facts), pkill(host, facts)]
    return [verdict for verdict in found if verdict]


def ended(host: str, facts: Facts, code: int, err: str) -> Verdict | None:
    """Whether the probe's answer is whole."""
    if facts.ended:
        return None
    last = next((f": {line.strip()}" for line in reversed(err.splitlines()) if line.strip()), "")
    return warning("probe", f"{host}: the probe's answer has no end (exit code {code}){last}")


def unanswered(host: str, failure: Exception) -> Verdict:
    """A worker that gave no answer: certain faults are errors, a network's whims are not."""
    reason, hint = f"{type(failure).__name__}: {failure}", ""
    if isinstance(failure, TransportError | ScriptError):
        reason, hint = failure.what, f"; {failure.hint}" if failure.hint else ""
    stage = failure.stage if isinstance(failure, TransportError) else None
    if stage is Stage.KEY_CHANGED:
        return error("host-key", f"{host}: {reason}{hint}")
    if stage is Stage.SETTINGS:  # known before any contact, and as wrong at the launch
        return error("ssh", f"{host}: {reason}{hint}")
    return warning("reach" if stage else "probe", f"{host}: was not checked: {reason}{hint}")
