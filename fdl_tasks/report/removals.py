"""What ``prebuild-clean`` found and removed, for people."""

from __future__ import annotations

from typing import TextIO

from ..builds.clean import CleanReport, Item, State
from ..sizes import human_size
from .table import Mask, counted, plural, render

_ORDER = (State.REMOVED, State.FOUND, State.IN_USE, State.FAILED)


def removals_table(report: CleanReport, mask: Mask, stream: TextIO | None) -> str:
    """One row an item, failures last; the last line counts them and their bytes."""
    if not report.items:
        return f"nothing to remove: cluster.yml names all there is in {mask(str(report.place))}"
    rows = [
        (mask(item.path), human_size(item.size), human_age(item.age), str(item.state))
        for item in sorted(report.items, key=lambda item: _ORDER.index(item.state))
    ]
    return f"{render(('left over', 'size', 'last written', 'status'), rows, stream)}\n\n{removals_count(report)}"


def removals_count(report: CleanReport) -> str:
    """What became of how many, in a line."""
    states = [item.state for item in report.items]
    of = {state: sum(item.size for item in report.items if item.state is state) for state in State}
    found = counted((states.count(state), str(state)) for state in _ORDER)
    freed = [f"{human_size(of[State.REMOVED])} freed"] if State.REMOVED in states else []
    there = [f"{human_size(of[State.FOUND])} to be freed"] if State.FOUND in states else []
    return ", ".join([found, *freed, *there])


def removal_failures(report: CleanReport) -> str:
    """Every left-over that is still there, with the reason; the count last."""
    failed: list[Item] = [item for item in report.items if item.state is State.FAILED]
    last = f"prebuild-clean: {len(failed)} of {plural(len(report.items), 'left-over')} could not be removed"
    return "\n".join([*(f"{item.path}: {item.error}" for item in failed), last])


def human_age(seconds: float) -> str:
    """``41 days ago``: in the largest unit of which there is one."""
    units = ((86400, "day"), (3600, "hour"), (60, "minute"))
    unit, name = next(((unit, name) for unit, name in units if seconds >= unit), (0, ""))
    return f"{plural(int(seconds // unit), name)} ago" if unit else "just now"
