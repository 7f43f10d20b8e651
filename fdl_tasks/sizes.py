"""Bytes, as people read them (pure)."""

from __future__ import annotations


def human_size(size: int) -> str:
    """Bytes as ``3 KiB``, ``1.4 GiB``."""
    if size < 1 << 20:
        return f"{size / (1 << 10):.0f} KiB"
    unit, power = ("MiB", 20) if size < 1 << 30 else ("GiB", 30)
    return f"{size / (1 << power):.1f} {unit}"
