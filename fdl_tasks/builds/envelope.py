"""The envelope: what a launcher needs to start each worker's binary (pure).

Its JSON is read by another program (seeds/000, ``PerHostEnvelope``), so its bytes are part of the
contract: hosts sorted, fields in the order shown, no blanks, UTF-8 as it is.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

ENV_NAME = "FLODL_INTERNAL_PREBUILD_PER_HOST"


@dataclass(frozen=True)
class Entry:
    """One worker: ``bin`` is relative to the worker's path, ``cwd_subpath`` is where to start it below that."""

    bin: str
    ld_library_path: str
    cwd_subpath: str = ""

    def as_json(self) -> dict[str, str]:
        """The fields in the order of the contract, ``cwd_subpath`` only when there is one."""
        fields = {"bin": self.bin, "ld_library_path": self.ld_library_path}
        return fields | {"cwd_subpath": self.cwd_subpath} if self.cwd_subpath else fields


Envelope = Mapping[str, Entry]


def as_dict(envelope: Envelope) -> dict[str, dict[str, str]]:
    """The envelope as plain values, hosts sorted."""
    return {host: envelope[host].as_json() for host in sorted(envelope)}


def to_json(envelope: Envelope) -> str:
    """The exact text that the launcher takes."""
    return json.dumps(as_dict(envelope), separators=(",", ":"), ensure_ascii=False)
