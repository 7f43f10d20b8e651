"""The nodes that are measured, where this machine can have them."""

from __future__ import annotations

from tests.lab.lab import Lab
from tests.lab.system import missing_for_lab

from .measure import LeftOut


def lab_here() -> Lab:
    """A new lab.

    Raises:
        LeftOut: this machine lacks something that nodes need.
    """
    if missing := missing_for_lab():
        raise LeftOut(f"needs {', '.join(missing)}")
    return Lab()
