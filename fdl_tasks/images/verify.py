"""Looks at the image on one node once more: the same, under its name, whole, and a container of it starts.

Rules: spec/sync-image.md, 6. All that it changes: a name is given back to an image that lost it, told in a note.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from ..cluster.image import ImageRef
from ..hosts.base import Host
from ..hosts.fanout import Cancel
from ..scripts import Script, Scripts, Value
from . import judge
from .facts import ImageFacts, NodeFacts
from .identity import Proof
from .judge import Copy, Ran, Tagged

LIMIT = 300.0  # seconds for one look: a first container unpacks what is not unpacked yet
TRIES, PAUSE = 24, 5.0  # of the exec probe while its program is not there yet; seconds between them
JSON, ID = "{{json .}}", "{{.Id}}"


@dataclass(frozen=True)
class Wish:
    """What every node is to have: ``reference`` with the source's content, and a command that runs in it.

    ``source_ran`` is how the probe ended on the source; None as long as the source itself is looked at.
    """

    reference: ImageRef
    source: ImageFacts
    probe: tuple[str, ...] = judge.SHELL
    source_ran: Ran | None = None


@dataclass(frozen=True)
class Checked:
    """What one node showed. ``again``: sending all of it once more may cure the ``error``.

    ``ran`` is how the exec probe ended: the source's is what the targets' are measured against.
    """

    label: str
    proof: Proof | None = None
    notes: tuple[str, ...] = ()
    error: str | None = None
    again: bool = False
    ran: Ran | None = None

    @property
    def settled(self) -> bool:
        """Whether it holds whatever the probe gave on the source: it ended with 0, or was not come to."""
        return self.ran is None or self.ran.code == 0

    @property
    def hollow(self) -> bool:
        """Whether it is the image, and no container could be made of it."""
        return bool(self.proof and self.error) and self.ran is None


def render(scripts: Scripts, deed: str, docker: tuple[str, ...], /, **values: Value) -> Script:
    """A script of templates/images/ that asks a node's Docker; ``docker`` is the way in that its probe found."""
    host = docker[docker.index("--host") + 1] if "--host" in docker else ""
    return scripts.render(f"images/{deed}.sh", sudo="1" if docker[0] == "sudo" else "", docker_host=host, **values)


def look(scripts: Scripts, docker: tuple[str, ...], image: str, command: tuple[str, ...], nonce: str) -> Script:
    """The look at a copy: its inspect, ``command`` in a container of it, and without that whether one can be made."""
    entrypoint, *arguments = command
    at = {"image": image, "container": f"fdl-probe-{nonce}", "json": JSON}
    return render(scripts, "verify", docker, entrypoint=entrypoint, arguments=arguments, **at)


def verify(
    node: NodeFacts,
    host: Host,
    wish: Wish,
    cancel: Cancel,
    *,
    scripts: Scripts | None = None,
    tell: Callable[[str], None] = lambda text: None,
    tries: int = TRIES,
    pause: float = PAUSE,
) -> Checked:
    """Look at one node's copy, and start a container of it.

    Args:
        tell: is told what the node waits for.
        tries: how often it is looked at while the exec probe's program is not there; ``pause`` seconds between.

    Raises:
        TransportError, ScriptError: the node could not be asked.
        Cancelled: the user ended it.
    """
    asked = _Asked(node, host, wish, scripts or Scripts())
    found, notes, error = asked.named()
    if error:
        return Checked(node.label, notes=notes, error=error)
    for attempt in range(1, tries + 1):
        judged = _judged(node.label, wish, found)
        if not (judged.ran and judged.again) or attempt == tries:
            break
        tell(f"the program of its exec probe is not there yet (try {attempt} of {tries})")
        cancel.pause(pause)
        found = asked.copy()
    error = f"{judged.error} (tried {attempt} times)" if judged.error and attempt > 1 else judged.error
    return replace(judged, notes=(*notes, *judged.notes), error=error)


def _judged(label: str, wish: Wish, found: Copy) -> Checked:
    """What one look at a copy shows: first whether it is the image and whole, then how its container started."""
    finding = judge.compare(found, wish.source, wish.reference)
    if finding.error:
        return Checked(label, finding.proof, error=finding.error, again=finding.again)
    start = judge.started(found.ran, wish.probe, wish.source_ran)
    notes = (start.note,) if start.note else ()
    return Checked(label, finding.proof, notes, start.error, start.again, found.ran)


def flawed(nodes: Mapping[str, NodeFacts], seen: Mapping[str, Checked], source: str) -> dict[str, NodeFacts]:
    """The nodes whose copy did not prove whole, and a source that did not prove at all, with what was found there."""
    bad = {label: one for label, one in seen.items() if one.error and (one.hollow or label == source)}
    return {label: _flawed(nodes[label], one) for label, one in bad.items()}


def _flawed(node: NodeFacts, found: Checked) -> NodeFacts:
    """The beginning of an archive can't show that a containerd store lacks a layer; that no container is made does."""
    lacking = found.hollow and found.again and node.store == "containerd"
    complete = False if lacking else node.complete
    return replace(node, startable=False, complete=complete, flaw=node.flaw or found.error or "")


def tag(node: NodeFacts, host: Host, image: str, name: str, scripts: Scripts | None = None) -> Tagged:
    """Give the image with the id ``image`` of a node the name ``name`` too.

    Raises:
        TransportError, ScriptError: the node could not be asked.
    """
    done = host.run(render(scripts or Scripts(), "tag", node.docker, id=image, name=name, format=ID), limit=LIMIT)
    return judge.tagged(image, name, done.out, node.label, done.err)


@dataclass(frozen=True)
class _Asked:
    """One node and what it is asked for."""

    node: NodeFacts
    host: Host
    wish: Wish
    scripts: Scripts

    def named(self) -> tuple[Copy, tuple[str, ...], str | None]:
        """The copy, notes, and an error; a digest that was lost on the way is given back first."""
        found = self.copy()
        if not (found.absent and self.wish.reference.digest):
            return found, (), None
        notes, error = self._restore()
        return (found if error else self.copy()), notes, error

    def copy(self) -> Copy:
        """The node's copy as it is now."""
        image = str(self.wish.reference)
        script = look(self.scripts, self.node.docker, image, self.wish.probe, secrets.token_hex(8))
        done = self.host.run(script, limit=LIMIT)
        return judge.copy(done.out, self.node.label, done.err)

    def _restore(self) -> tuple[tuple[str, ...], str | None]:
        """Make the reference's digest mean something: by a tag where the store computes digests, else by a pull."""
        reference, source = self.wish.reference, self.wish.source
        if self.node.store == "containerd" and source.id == reference.digest:
            name = judge.name_for(reference)
            tagged = tag(self.node, self.host, source.id, name, self.scripts)
            return (judge.held_by(name), *tagged.notes), tagged.error
        done = self.host.run(render(self.scripts, "pull", self.node.docker, image=str(reference)), limit=LIMIT)
        if refused := judge.pulled(done.out, self.node.label, done.err):
            return (), judge.no_digest(reference, self.node.store, refused)
        return (f"docker pull brought {reference} back: loading loses a digest",), None
