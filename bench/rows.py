"""A measured figure beside its peer's, and the table that it stands in (pure)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from statistics import median


class Judged(Enum):
    """By what a row is held against its target."""

    RATIO = "median of ours / peer, pair by pair"
    DIFFERENCE = "median of ours - peer, pair by pair"
    ITSELF = "the worst of ours"


@dataclass(frozen=True)
class Row:
    """``ours`` and ``peer`` hold one figure a round; ``limit`` is None where nothing was promised."""

    what: str
    unit: str
    ours: Sequence[float]
    peer: Sequence[float]
    judged: Judged
    limit: float | None = None

    @property
    def value(self) -> float:
        """What is held against the limit."""
        if self.judged is Judged.ITSELF:
            return max(self.ours)
        return median(_compared(self.judged)(a, b) for a, b in zip(self.ours, self.peer, strict=True))

    @property
    def met(self) -> bool | None:
        return None if self.limit is None else self.value <= self.limit


@dataclass(frozen=True)
class Group:
    """Rows that were measured in one go. ``ours`` and ``peer`` say what was run, ``note`` what to know of it."""

    title: str
    ours: str
    peer: str
    rows: tuple[Row, ...]
    note: str = ""


def table(group: Group) -> str:
    """A group as Markdown."""
    lines = [f"### {group.title}", "", f"- ours: {group.ours}", f"- peer: {group.peer}"]
    lines += [f"- {group.note}"] if group.note else []
    lines += ["", "| | ours | peer | compared | target | met |", "|---|---|---|---|---|---|"]
    return "\n".join([*lines, *map(_line, group.rows)])


def _line(row: Row) -> str:
    sign = {Judged.RATIO: "{:.2f}", Judged.DIFFERENCE: "{:+.2f} s", Judged.ITSELF: "at most {:g}"}[row.judged]
    target = "" if row.limit is None else f"≤ {row.limit:g}{' s' if row.judged is Judged.DIFFERENCE else ''}"
    met = {True: "yes", False: "**no**", None: ""}[row.met]
    cells = [row.what, _spread(row.ours, row.unit), _spread(row.peer, row.unit), sign.format(row.value), target, met]
    return f"| {' | '.join(cells)} |"


def _spread(figures: Sequence[float], unit: str) -> str:
    """The median, and the least and the most beside it: ``0.42 s (0.40–0.51)``."""
    shown = [f"{one:.2f}" if unit else f"{one:g}" for one in (median(figures), min(figures), max(figures))]
    middle, least, most = shown
    return f"{middle}{f' {unit}' if unit else ''}" + (f" ({least}–{most})" if least != most else "")


def _compared(judged: Judged) -> Callable[[float, float], float]:
    return {Judged.RATIO: lambda a, b: a / b, Judged.DIFFERENCE: lambda a, b: a - b}[judged]
