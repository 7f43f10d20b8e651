"""Looks at the image on one node once more: the same, under its name, whole, and a container of it starts.

Rules: spec/sync-image.md, 6. All that it changes: a name is given back to an image that lost it, told in a note.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace

from ..cluster.image import ImageRef
from ..hosts.base import Completed, Host
from ..hosts.fanout import Cancel
from ..scripts import Script, Scripts, Value
from . import judge
from .facts import ImageFacts, NodeFacts
from .identity import Proof, same
from .judge import Finding, Ran, Start, Tagged

LIMIT = 300.0  # seconds for one question to an engine: a first container unpacks what is not unpacked yet
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


def render(scripts: Scripts, deed: str, docker: tuple[str, ...], /, **values: Value) -> Script:
    """A script of templates/images/ that asks a node's Docker; ``docker`` is the way in that its probe found."""
    host = docker[docker.index("--host") + 1] if "--host" in docker else ""
    return scripts.render(f"images/{deed}.sh", sudo="1" if docker[0] == "sudo" else "", docker_host=host, **values)


def verify(
    node: NodeFacts,
    host: Host,
    wish: Wish,
    cancel: Cancel,
    *,
    untouched: bool = False,
    scripts: Scripts | None = None,
    tell: Callable[[str], None] = lambda text: None,
    tries: int = TRIES,
    pause: float = PAUSE,
) -> Checked:
    """Look at one node's copy, and start a container of it.

    Args:
        untouched: nothing was changed there since ``node`` was probed; what the probe proved is not proved again.
        tell: is told what the node waits for.
        tries: how often the exec probe is asked while its program is not there; ``pause`` seconds between.

    Raises:
        TransportError, ScriptError: the node could not be asked.
        Cancelled: the user ended it.
    """
    asked = _Asked(node, host, wish, scripts or Scripts())
    proof = same(node.image, wish.source) if untouched and node.image and node.startable and node.complete else None
    found, notes = (Finding(proof), ()) if proof else asked.look()
    checked = Checked(node.label, found.proof, notes, found.error, found.again)
    return checked if found.error else asked.start(checked, cancel, tell, tries, pause)


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

    def look(self) -> tuple[Finding, tuple[str, ...]]:
        """The finding on the copy, and notes; a digest that was lost on the way is given back first."""
        found = self._copy()
        if not (found.absent and self.wish.reference.digest):
            return found, ()
        notes, error = self._restore()
        return (Finding(error=error), notes) if error else (self._copy(), notes)

    def _copy(self) -> Finding:
        done = self._run("verify", image=str(self.wish.reference), container=_name(), json=JSON)
        return judge.compare(judge.copy(done.out, self.node.label, done.err), self.wish.source, self.wish.reference)

    def _restore(self) -> tuple[tuple[str, ...], str | None]:
        """Make the reference's digest mean something: by a tag where the store computes digests, else by a pull."""
        reference, source = self.wish.reference, self.wish.source
        if self.node.store == "containerd" and source.id == reference.digest:
            name = judge.name_for(reference)
            tagged = tag(self.node, self.host, source.id, name, self.scripts)
            return (judge.held_by(name), *tagged.notes), tagged.error
        done = self._run("pull", image=str(reference))
        if refused := judge.pulled(done.out, self.node.label, done.err):
            return (), judge.no_digest(reference, self.node.store, refused)
        return (f"docker pull brought {reference} back: loading loses a digest",), None

    def start(self, checked: Checked, cancel: Cancel, tell: Callable[[str], None], tries: int, pause: float) -> Checked:
        """The exec probe, again while its program may still come."""
        for attempt in range(1, tries + 1):
            ran, judged = self._start()
            if not judged.again or attempt == tries:
                break
            tell(f"the program of its exec probe is not there yet (try {attempt} of {tries})")
            cancel.pause(pause)
        error = f"{judged.error} (tried {attempt} times)" if judged.error and attempt > 1 else judged.error
        notes = (*checked.notes, judged.note) if judged.note else checked.notes
        return replace(checked, notes=notes, error=error, again=judged.again, ran=ran)

    def _start(self) -> tuple[Ran, Start]:
        entrypoint, *arguments = self.wish.probe
        image = str(self.wish.reference)
        done = self._run("exec", image=image, container=_name(), entrypoint=entrypoint, arguments=arguments)
        ran = judge.ran(done.out, self.node.label, done.err)
        return ran, judge.started(ran, self.wish.probe, self.wish.source_ran)

    def _run(self, deed: str, /, **values: Value) -> Completed:
        return self.host.run(render(self.scripts, deed, self.node.docker, **values), limit=LIMIT)


def _name() -> str:
    return f"fdl-probe-{secrets.token_hex(8)}"
