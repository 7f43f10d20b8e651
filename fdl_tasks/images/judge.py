"""What is said of an image after it was brought: a load's output, a look at the copy, a first start (pure).

Texts of Docker's are matched here; captured samples: tests/cases/images/load and tests/cases/images/run.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from ..cluster.image import ImageRef
from . import answer
from .facts import ImageFacts, image
from .identity import Proof, same

SHELL = ("/bin/sh", "-c", "exit 0")  # the usual exec probe
UNSURE = (125, 126, 127)  # exit codes of `docker run` that it has of its own: perhaps there was no container
_RENAMED = re.compile(r"The image (\S+) already exists, renaming the old one with ID (sha256:[0-9a-f]{64})")


class Fault(StrEnum):
    """What went wrong with a load; decides whether sending again, and how much, can help."""

    DISK = "no room"
    CUT = "the archive was cut off"
    LACKING = "a layer that was left out is not there"
    UNPACK = "it could not be unpacked"
    COLLECTED = "its Docker took the old image's layers away while it unpacked"
    OTHER = "docker load failed"
    PULL = "docker pull failed"


@dataclass(frozen=True)
class Loaded:
    """What a load or a pull did, whatever its exit code. ``fault`` None: it says that the image is in."""

    fault: Fault | None
    said: str = ""
    notes: tuple[str, ...] = ()

    @property
    def error(self) -> str | None:
        return f"{self.fault}: {self.said}" if self.fault else None


def loaded(code: int, output: str) -> Loaded:
    """Judge a load by its exit code and its output (stdout and stderr).

    Docker 27 and newer end with 0 after a failed unpack (https://github.com/moby/moby/pull/48293).
    """
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    notes = tuple(
        f"{found[1]} meant {found[2]} there before; that image is still there, without a name"
        for line in lines
        if (found := _RENAMED.search(line))
    )
    failed = [line for line in lines if line.startswith("Error unpacking image")]
    if code == 0 and not failed and any(line.startswith("Loaded image") for line in lines):
        return Loaded(None, notes=notes)
    said = "; ".join(failed or lines[-2:]) or f"it said nothing (exit code {code})"
    return Loaded(_fault(said, bool(failed)), said, notes)


def relayed(code: int, output: str) -> Loaded:
    """Judge a pull through the relay, and what follows it, by the exit code and the output."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    if code == 0:
        return Loaded(None)
    said = "; ".join(lines[-2:]) or f"it said nothing (exit code {code})"
    return Loaded(Fault.DISK if _fault(said, False) is Fault.DISK else Fault.PULL, said)


def _fault(said: str, unpacking: bool) -> Fault:
    low = said.lower()
    if "no space left on device" in low or "disk quota exceeded" in low:
        return Fault.DISK
    if "unexpected eof" in low or "short read" in low or "unrecognized image format" in low:
        return Fault.CUT
    if "content digest" in low and "not found" in low:
        return Fault.LACKING
    if "docker-import-" in low and "no such file or directory" in low:
        # an empty archive lacks even its list, any other one a layer
        return Fault.CUT if low.rstrip().endswith("repositories: no such file or directory") else Fault.LACKING
    if "parent snapshot" in low and "does not exist" in low:
        return Fault.COLLECTED  # Docker 26, of the image that the tag meant before
    return Fault.UNPACK if unpacking or "failed to unpack" in low or "failed to extract" in low else Fault.OTHER


@dataclass(frozen=True)
class Ran:
    """How a container's start ended: the exit code of ``docker run`` and its words."""

    code: int
    said: str


@dataclass(frozen=True)
class Copy:
    """A node's copy as its own Docker shows it. ``created``: Docker's words where no container could be made."""

    image: ImageFacts | None
    missing: str = ""
    created: str | None = None
    ran: Ran = Ran(125, "docker run gave no answer")

    @property
    def absent(self) -> bool:
        """Whether Docker there knows no such image."""
        return self.image is None and "No such image" in self.missing


def copy(text: str, label: str, err: str = "") -> Copy:
    """The answer of verify.sh.

    Raises:
        ScriptError: it was cut off.
    """
    said = answer.whole(text, label, err)
    if "NOIMAGE" in said:
        return Copy(None, answer.words(said["NOIMAGE"]))
    ran = _ran(said.get("RAN", ""))
    code, _, words = said.get("CREATED", "").partition(" ")
    made = code == "0" or ran.code not in UNSURE
    created = None if made else answer.words(words) or "docker create gave no answer"
    return Copy(image(answer.json_object(said.get("IMAGE"))), "docker image inspect gave no answer", created, ran)


def _ran(said: str) -> Ran:
    code, _, words = said.partition(" ")
    lines = [line for line in words.split("\t") if line.strip() and " --help'" not in line]
    known = int(code) if code.isdecimal() and len(code) < 4 else 125
    return Ran(known, "; ".join(line.strip() for line in lines[-3:]))


@dataclass(frozen=True)
class Finding:
    """What a look at a copy says. ``again``: sending all of it once more may cure the ``error``."""

    proof: Proof | None = None
    error: str | None = None
    again: bool = False


def compare(found: Copy, source: ImageFacts, reference: ImageRef) -> Finding:
    """Whether the copy is the source's image, and whole."""
    if found.image is None:
        what = f"docker there says of {reference}: {found.missing}"
        hint = "; was it loaded into another engine than the one that is asked?" if found.absent else ""
        return Finding(error=what + hint)
    proof = same(found.image, source)
    if proof is None:
        return Finding(error=f"{reference} is {_shown(found.image)} there, and {_shown(source)} on the source")
    if found.created is not None:
        again = "no space left on device" not in found.created
        return Finding(proof, f"its copy is not whole, no container can be made of it: {found.created}", again)
    return Finding(proof)


def _shown(facts: ImageFacts) -> str:
    platform = "/".join(filter(None, (facts.os, facts.architecture, facts.variant)))
    return f"{facts.id} ({len(facts.layers)} layers, {platform}, created {facts.created or 'at an unknown time'})"


def name_for(reference: ImageRef) -> str:
    """The tag by which a containerd store finds a digest again: the reference's own, else one made of the digest."""
    if reference.tag or not reference.digest:
        return reference.tagged
    return f"{reference.name}:fdl-{reference.digest.partition(':')[2][:12]}"


def held_by(name: str) -> str:
    """What to tell of the tag that was made to hold a digest."""
    return f"its digest is found there by the tag {name}, which stays"


def no_entrypoint(start: Ran, entrypoint: str) -> bool:
    """Whether there was no program to start: it is not in the image, or its layer is not unpacked yet.

    A command that was started and itself ended with 127 names no ``exec:``.
    """
    return start.code in UNSURE and f'exec: "{entrypoint}"' in start.said


@dataclass(frozen=True)
class Start:
    """Whether a container starts. ``again``: not yet, perhaps; ask once more."""

    error: str | None = None
    note: str = ""
    again: bool = False


def started(start: Ran, probe: tuple[str, ...], source: Ran | None) -> Start:
    """Judge one exec probe beside the one on the source; ``source`` None: this is the source's."""
    if start.code == 0:
        return Start()
    shown = f"{' '.join(probe)!r} in a container ended with {start.code}: {start.said or 'it said nothing'}"
    if not no_entrypoint(start, probe[0]):
        return Start(shown)
    if probe == SHELL and (source is None or no_entrypoint(source, probe[0])):
        return Start(note="the image has no /bin/sh, on the source either: that a container can be made is the proof")
    return Start(shown, again=source is not None)


@dataclass(frozen=True)
class Tagged:
    """What came of giving an image a name: the ``error``, or notes on what the name meant before."""

    error: str | None
    notes: tuple[str, ...] = ()


def tagged(image: str, name: str, text: str, label: str, err: str = "") -> Tagged:
    """The answer of tag.sh, for the id ``image``. Raises ScriptError: it was cut off."""
    said = answer.whole(text, label, err)
    code, _, words = said.get("TAGGED", "").partition(" ")
    if code != "0":
        return Tagged(f"docker tag failed: {answer.words(words)}")
    before = said.get("BEFORE", "").strip()
    return Tagged(None, (f"{name} meant {before} there before",) if before not in ("", image) else ())


def pulled(text: str, label: str, err: str = "") -> str | None:
    """Docker's words when the pull of pull.sh failed. Raises ScriptError: its answer was cut off."""
    code, _, words = answer.whole(text, label, err).get("PULLED", "").partition(" ")
    return None if code == "0" else answer.words(words) or "docker pull gave no answer"


def no_digest(reference: ImageRef, store: str, refused: str) -> str:
    """Why an image that was brought has no such digest there, and how to name it instead."""
    return (
        f"the image can't be had there as {reference}: a {store} store is not told a registry's digest by a load, "
        f"and docker pull failed there ({refused}); name the image by a tag instead, {reference.name}:TAG"
    )
