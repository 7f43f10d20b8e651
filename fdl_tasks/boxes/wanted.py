"""What this box is to have: flags over the ``join:`` block, field by field (pure)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..cluster.model import Join, Source
from ..errors import UsageError
from .gpu.gpus import parse_devices


def wanted(
    join: Join,
    *,
    data_path: str | None = None,
    data_source: str | None = None,
    libtorch: str | None = None,
    source: str | None = None,
    source_cwd: str | None = None,
    source_build: str | None = None,
    source_bin: str | None = None,
    devices: str | Sequence[int] | None = None,
) -> Join:
    """The block with these fields in place of its own; None or empty leaves a field as it is.

    Args:
        devices: ``all``, or the driver's numbers, as ``0,1`` or a sequence.

    Raises:
        UsageError: a ``source_…`` without a source, a binary and a source both, devices that are no numbers.
    """
    parts = {"cwd": source_cwd, "build": source_build, "bin": source_bin}
    given = {name: value for name, value in parts.items() if value}
    base = replace(join.source, spec=source or join.source.spec) if join.source else Source(source) if source else None
    if given and base is None:
        flags = ", ".join(f"--source-{name}" for name in given)
        raise UsageError(f"{flags} without a source", hint="name it with --source, or in `join: {source: …}`")
    if base and join.bin:
        raise UsageError("`bin` and a source are both given: one of them says what runs", hint="leave one out")
    return replace(
        join,
        data_path=data_path or join.data_path,
        data_source=data_source or join.data_source,
        libtorch=libtorch or join.libtorch,
        source=replace(base, **given) if base else None,
        devices=join.devices if devices in (None, "") else _devices(devices),
    )


def _devices(value: str | Sequence[int] | None) -> tuple[int, ...] | None:
    """None for all of them."""
    return parse_devices(value if value is None or isinstance(value, str) else ",".join(map(str, value)))
