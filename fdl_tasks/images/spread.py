"""Brings an image from its source to all targets, wave after wave: with many of them, who has it sends it on.

``tree`` decides who sends to whom, ``courier`` sends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from ..cluster.model import Worker
from ..hosts.base import Host
from ..hosts.fanout import Cancel
from ..outcome import Attempt
from . import tree
from .courier import Courier, Facts, Routes, why
from .facts import NodeFacts
from .identity import Proof
from .logins import Route
from .plan import Step
from .probe import probe
from .result import Round
from .sent import Sent
from .transfer import Waited
from .verify import Checked

Prove = Callable[[Iterable[str]], dict[str, Checked]]
Brought = tuple[Routes, dict[str, Sent]]


def spread(
    courier: Courier,
    steps: Sequence[Step],
    source: str,
    facts: Facts,
    done: Round,
    prove: Prove,
) -> None:
    """Bring the image to the target of every step; ``done`` tells what became of each.

    Whoever has it while others wait is proven at once, by ``prove``, and sends it on.

    Args:
        done: whose copies are proven already; they send as well, when there is more than one node can serve.

    Raises:
        Waited: another run was sending the image from the source, and nothing was sent.
        KeyboardInterrupt: the user ended it.
    """
    waves, rest, first = _Waves(courier, source, dict(facts), done), list(steps), True
    while rest:
        shares = tree.wave(rest, source, waves.senders(), waves.alone, first=first, width=tree.WIDTH)
        served = waves.send(shares)
        rest, first = [step for step in rest if step.target not in served], False
        if rest:
            waves.proven(prove(label for label in served if label not in done.errors))


@dataclass
class _Waves:
    """``alone`` are the targets that the source alone serves, ``useless`` the nodes that served nobody."""

    courier: Courier
    source: str
    facts: dict[str, NodeFacts]
    done: Round
    alone: set[str] = field(default_factory=set)
    useless: set[str] = field(default_factory=set)

    def senders(self) -> list[str]:
        """The nodes beside the source that have it for sure, and can send it."""
        good = [label for label, checked in self.done.checked.items() if not checked.error]
        return [label for label in good if label not in self.useless and tree.sends(self.facts[label])]

    def send(self, shares: tree.Shares) -> list[str]:
        """One wave, all senders side by side. Those whose turn it was: all but whom the source is to serve yet."""
        yields = not self.done.sent and len(shares) == 1

        def deed(node: Worker, host: Host, cancel: Cancel) -> Brought:
            steps = shares[node.host]
            if node.host != self.source:  # what the archive may leave out was found out for the source
                steps = [replace(step, instead=None) for step in steps]
            return self.courier.bring(host, steps, self.facts, cancel, yields=yields)

        served = list[str]()
        for origin, attempt in self.courier.nodes.each(deed, shares).items():
            if isinstance(attempt.error, Waited):
                raise attempt.error
            served += self._served(origin, shares[origin], attempt)
        return served

    def _served(self, origin: str, steps: Sequence[Step], attempt: Attempt[Brought]) -> list[str]:
        routes, sent = attempt.value or ({}, {})
        served = list[str]()
        for label in [step.target for step in steps]:
            found, route = sent.get(label), routes.get(label)
            error = found.error if found else route.error if route else f"{origin}: {why(attempt.error)}"
            if origin != self.source and error and not (found and found.final):
                self.alone.add(label)
                self.done.note(label, f"{origin} could not send it on ({error}), so {self.source} was to")
                continue
            served.append(label)
            self._record(origin, label, route, found, error)
        if not served:
            self.useless.add(origin)
        return served

    def _record(self, origin: str, label: str, route: Route | None, found: Sent | None, error: str | None) -> None:
        self.done.note(label, *(route.notes if route else ()))
        if origin != self.source:
            self.done.note(label, f"from {origin}")
        if found:
            self.done.sent[label] = found
        self.done.fail(label, error)

    def proven(self, checked: dict[str, Checked]) -> None:
        """These are senders from now on; what Docker there calls the image is asked where it is not known."""
        self.done.checked |= checked
        known = self.facts[self.source].image
        self.facts |= {label: replace(self.facts[label], image=known) for label in checked}
        other = [label for label, one in checked.items() if one.proof is Proof.CONTENT and not one.error]
        run = self.courier
        found = probe(run.nodes, run.image, labels=other, scripts=run.scripts, progress=run.progress)
        self.facts |= {node.label: node for node in found}
