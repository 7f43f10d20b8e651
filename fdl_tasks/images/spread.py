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
    known: Routes,
) -> None:
    """Bring the image to the target of every step; ``done`` tells what became of each.

    Whoever has it while others wait is proven at once, by ``prove``, and sends it on.

    Args:
        done: whose copies are proven already; they send as well, when there is more than one node can serve.
        known: routes from the source that were found a moment ago.

    Raises:
        Waited: another run was sending the image from the source, and nothing was sent.
        KeyboardInterrupt: the user ended it.
    """
    waves, rest, first = _Waves(courier, source, dict(facts), done, known), list(steps), True
    while rest:
        shares = tree.wave(rest, source, waves.senders(), waves.alone, first=first, width=tree.WIDTH, worth=tree.WORTH)
        served = waves.send(shares, soon=first and sum(map(len, shares.values())) < len(rest))
        rest, first = [step for step in rest if step.target not in served], False
        if rest:
            waves.proven(prove(label for label in served if label not in done.errors))


@dataclass
class _Waves:
    """``alone`` are the targets that the source alone serves, ``useless`` the nodes that served nobody.

    ``known`` are routes from the source that hold for the first wave.
    """

    courier: Courier
    source: str
    facts: dict[str, NodeFacts]
    done: Round
    known: Routes
    alone: set[str] = field(default_factory=set)
    useless: set[str] = field(default_factory=set)

    def senders(self) -> list[str]:
        """The nodes beside the source that have it for sure, and can send it."""
        good = [label for label, checked in self.done.checked.items() if not checked.error]
        return [label for label in good if label not in self.useless and tree.sends(self.facts[label])]

    def send(self, shares: tree.Shares, *, soon: bool) -> list[str]:
        """One wave, all senders side by side. Those whose turn it was: all but whom the source is to serve yet.

        A wave ends with its last target. So who is too slow for the others is left for a later one by all but the
        source, and by that one when others wait (``soon``).
        """
        yields, known, self.known = not self.done.sent and len(shares) == 1, self.known, {}

        def deed(node: Worker, host: Host, cancel: Cancel) -> Brought:
            steps, bring = shares[node.host], self.courier.bring
            if node.host == self.source:
                return bring(host, steps, self.facts, cancel, known=known, yields=yields, alone=not soon)
            steps = [replace(step, instead=None) for step in steps]  # what may be left out holds for the source's
            return bring(host, steps, self.facts, cancel, known={}, yields=yields, alone=False)

        served = list[str]()
        for origin, attempt in self.courier.nodes.each(deed, shares).items():
            if isinstance(attempt.error, Waited):
                raise attempt.error
            served += self._served(origin, shares[origin], attempt, soon)
        return served

    def _served(self, origin: str, steps: Sequence[Step], attempt: Attempt[Brought], soon: bool) -> list[str]:
        routes, sent = attempt.value or ({}, {})
        served = list[str]()
        for label in [step.target for step in steps]:
            found, route = sent.get(label), routes.get(label)
            error = found.error if found else route.error if route else f"{origin}: {why(attempt.error, origin)}"
            if error and self._left(origin, found, soon):
                self.alone.add(label)
                late = f"{error}, so it was left for later"
                other = f"{origin} could not send it on ({error}), so {self.source} was to"
                self.done.note(label, late if origin == self.source else other)
                continue
            served.append(label)
            self._record(origin, label, route, found, error)
        if not served:
            self.useless.add(origin)
        return served

    def _left(self, origin: str, found: Sent | None, soon: bool) -> bool:
        """Whether the source is to serve a target that this one did not."""
        if origin == self.source:
            return soon and found is not None and found.retry in ("late", "way")
        return found is None or not found.final

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
