"""What a worker's answer means for its binary: pure, one small function a rule.

An error is what would stop the binary, or start another one. What could not be read is a warning, and
then the worker is unverified: ok is only what every rule of ``PROOFS`` has shown.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from ..checks.probe import Facts
from ..checks.verdicts import error, ok, warning
from ..errors import Cancelled, FdlError, Stage, TransportError
from ..outcome import Attempt, Level, Status, Verdict, worst
from .readback import Artifact, Readback, Seen, Start

PROOFS = frozenset(("machine", "file", "start", "libraries", "answer"))
NAMED = 4  # libraries and symbols that a message names; of the others it says how many


def status(found: Sequence[Verdict]) -> Status:
    """The worker's status. An unknown glibc alone leaves it ok: the loader itself has found everything."""
    if worst(found) is Level.ERROR:
        return Status.FAILED
    proven = {verdict.rule for verdict in found if verdict.level is Level.OK}
    unknown = {verdict.rule for verdict in found if verdict.level is Level.WARNING} - {"glibc"}
    return Status.OK if proven >= PROOFS and not unknown else Status.UNVERIFIED


def fits(artifact: Artifact, facts: Facts) -> list[Verdict]:
    """Whether the binary is made for such a machine: by what is in the file, whoever looks at it."""
    kind = machine(artifact, facts)
    return [kind] if kind.level is Level.ERROR else [kind, *_told(glibc(artifact, facts))]


def read_back(path: str, artifact: Artifact, answer: Readback) -> list[Verdict]:
    """What the worker itself showed of the file at ``path``; of another file nothing more is asked."""
    there = file(path, artifact, answer.file)
    more = [] if there.level is Level.ERROR else [start(artifact, answer.start), libraries(artifact, answer)]
    return [there, *more, whole(answer)]


def _told(verdict: Verdict | None) -> Iterator[Verdict]:
    if verdict:
        yield verdict


def machine(artifact: Artifact, facts: Facts) -> Verdict:
    """The CPU that the binary is for."""
    if not facts.arch:
        return warning("machine", f"could not read its CPU; the binary is for {artifact.machine}")
    if facts.arch != artifact.machine:
        return error(
            "machine",
            f"the binary is for {artifact.machine}, and the worker is {facts.arch}: build on a machine of its kind",
        )
    return ok("machine", f"the binary is for {artifact.machine}")


def glibc(artifact: Artifact, facts: Facts) -> Verdict | None:
    """The C library that the binary, with the libraries of its variant, demands."""
    if artifact.glibc is None:
        return None
    demand = f"{artifact.demanded_by} demands GLIBC_{_dotted(artifact.glibc)}"
    if facts.libc == "musl":
        return error("glibc", f"{demand}, and the worker's C library is musl: it needs a distribution with glibc")
    if facts.glibc is None:
        return warning("glibc", f"{demand}, and the worker's glibc could not be read")
    if artifact.glibc > facts.glibc:
        return error(
            "glibc",
            f"{demand}, and the worker has glibc {_dotted(facts.glibc)}: build where glibc is no newer "
            "(controller.docker in cluster.yml), take a libtorch made for it, or upgrade the worker",
        )
    return ok("glibc", f"{demand}, and the worker has glibc {_dotted(facts.glibc)}")


def _dotted(version: Iterable[int]) -> str:
    return ".".join(map(str, version))


def file(path: str, artifact: Artifact, seen: Seen | None) -> Verdict:
    """Whether the worker's own view of the mount shows the file that was just built."""
    if seen is None:
        return warning("file", f"could not read what it has at {path}")
    if not seen.there:
        return error(
            "file", f"{path} is not there on the worker: mount there what the controller builds into, or mend its path"
        )
    if seen.size is None:
        return warning("file", f"{path} is there on the worker, and its login may not read it: not compared")
    if seen.size != artifact.size or seen.sha256 not in (None, artifact.sha256):
        return error("file", _another(path, artifact, seen))
    if not seen.executable:
        return error(
            "file",
            f"{path} may not be executed on the worker: look at its mode, and for noexec among the mount options",
        )
    if seen.sha256 is None:
        return warning("file", f"{path} has the right size, but the worker has nothing that makes a SHA-256")
    return ok("file", f"{path} is the file just built")


def _another(path: str, artifact: Artifact, seen: Seen) -> str:
    how = f"{seen.size} bytes, not {artifact.size}" if seen.size != artifact.size else "of that size, other content"
    return (
        f"{path} on the worker is not the file just built ({how}; read again for 5 s): another directory is mounted "
        "there, or its cache is stale. Mount the controller's, with short attribute caches (NFS: actimeo)"
    )


def start(artifact: Artifact, seen: Start | None) -> Verdict:
    """Whether the directory to start it in is there, and the loader that the kernel will start for it."""
    if seen is None:
        return warning("start", "could not read whether its directory and its loader are there")
    if not seen.directory:
        return error("start", "the directory to start it in is not there on the worker, or closed to this login")
    if not seen.loader:
        return error(
            "start",
            f"its loader {artifact.loader} is not there on the worker: link with the system's own toolchain, not with "
            "that of Nix, conda or the like, or in a container",
        )
    return ok("start", "its directory and its loader are there")


def libraries(artifact: Artifact, answer: Readback) -> Verdict:
    """Whether the worker's loader finds every library, and every symbol in them."""
    loaded = answer.loaded
    if loaded and loaded.troubles:
        return error("libraries", f"the loader there does not find {_some(loaded.troubles)}: {_mend(artifact)}")
    if not artifact.needs:
        return ok("libraries", "it needs no libraries")
    if answer.facts.ldd == "":
        return warning("libraries", "the worker has no ldd: whether its libraries are found is not known")
    if loaded is None:
        return warning("libraries", "could not read what the loader there finds")
    if loaded.static:
        return error(
            "libraries",
            "its loader takes the file for no dynamic program: the worker lacks the loader that it is linked "
            f"with (for {artifact.machine}, glibc)",
        )
    lacking = [name for name in artifact.needs if name.rpartition("/")[2] not in loaded.found]
    if loaded.code or lacking or loaded.rest:
        other = f"ldd did not name {_some(lacking)}" if lacking else "ldd said what is not understood here"
        said = f"ldd ended with exit code {loaded.code}" if loaded.code else other
        return warning("libraries", f"{said}{f' ({loaded.rest[-1]})' if loaded.rest else ''}")
    return ok("libraries", f"the loader there finds all {len(loaded.found)} libraries and every symbol")


def _mend(artifact: Artifact) -> str:
    ours = f" its libtorch ships {_some(artifact.shipped)};" if artifact.shipped else ""
    return f"{ours} is the variant on the worker the one built against, and what else it needs installed there?".strip()


def _some(names: Sequence[str]) -> str:
    more = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {more} more" if more > 0 else "")


def whole(answer: Readback) -> Verdict:
    """Whether the answer came to its end."""
    if not answer.whole:
        return warning("answer", "its answer was cut off or mixed with something else: not all of it was read")
    return ok("answer", "its answer came whole")


def started(arguments: Sequence[str], code: int, tail: Sequence[str]) -> Verdict:
    """What became of starting it with the command's ``check`` arguments."""
    if code == 0:
        return ok("check", f"started with {' '.join(arguments)}")
    end = f"was ended by signal {code - 128}" if 128 < code <= 192 else f"ended with exit code {code}"
    return _check_failed(arguments, end, tail)


def hung(arguments: Sequence[str], seconds: float, tail: Sequence[str]) -> Verdict:
    """A start that did not come to its end."""
    return _check_failed(arguments, f"had not ended after {seconds:g} s", tail)


def _check_failed(arguments: Sequence[str], end: str, tail: Sequence[str]) -> Verdict:
    head = f"started with {' '.join(arguments)} (check), it {end}"
    return error("check", "\n".join([head, *(f"  | {line}" for line in tail)]))


def unanswered(failure: FdlError) -> Verdict:
    """A worker that gave no answer: built, and unverified, unless it is not the worker at all."""
    hint = f"; {failure.hint}" if failure.hint else ""
    if isinstance(failure, TransportError) and failure.stage is Stage.KEY_CHANGED:
        return error("host-key", f"{failure.what}; nothing was read there{hint}")
    return warning("reach", f"not read back ({failure.what}){hint}")


def outcome(attempt: Attempt[tuple[Verdict, ...]]) -> tuple[Verdict, ...]:
    """The verdicts; of a verification that ended in an error of another kind, a warning that says so.

    Raises:
        Cancelled: the user ended the run.
    """
    if attempt.value is not None:
        return attempt.value
    if isinstance(attempt.error, Cancelled):
        raise attempt.error
    failure = attempt.error if isinstance(attempt.error, FdlError) else FdlError(repr(attempt.error))
    return (unanswered(failure),)
