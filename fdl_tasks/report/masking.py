"""What may be shown: no secret of cluster.yml, and nothing a terminal would obey."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..cluster.model import Cluster

MASK = "***"
SHORTEST = 4  # characters: a shorter value, such as NCCL_IB_DISABLE=1, is no secret and stands everywhere
WHOLE_WORD = 8  # characters: a value shorter than this is masked only where it stands as a word

# ECMA-48: CSI, then the strings (OSC, DCS, SOS, PM, APC) up to their end, then other two-character escapes.
_ESCAPES = re.compile(r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]|\x1b[\]PX^_].*?(?:\x07|\x1b\\|\x9c|$)|\x1b[ -/]*[0-~]", re.M)
# What is left of C0 (but tab and newline), DEL, C1, and the marks that reorder text on the screen.
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


def clean(text: str) -> str:
    """Text of a host without escape sequences and control characters; tab and newline stay."""
    return _CONTROLS.sub("", _ESCAPES.sub("", text))


class Masker:
    """Replaces secrets by ``***``. Calling it also makes the text harmless for a terminal."""

    def __init__(self, secrets: Iterable[str] = (), public: Iterable[str] = ()):
        lines = {line.strip() for secret in secrets for line in (secret, *secret.splitlines())}
        hidden = sorted((line for line in lines - set(public) if len(line) >= SHORTEST), key=len, reverse=True)
        self._secrets = re.compile("|".join(map(_pattern, hidden))) if hidden else None

    def __call__(self, text: str) -> str:
        return self.hide(clean(text))

    def hide(self, text: str) -> str:
        """The secrets alone replaced: for what a program hands on, to which an escape may be an argument."""
        return self._secrets.sub(MASK, text) if self._secrets else text

    def values(self, value: Any) -> Any:
        """A JSON value with every string masked; keys stay as they are."""
        if isinstance(value, str):
            return self(value)
        if isinstance(value, Mapping):
            return {key: self.values(item) for key, item in value.items()}
        if isinstance(value, Sequence):
            return [self.values(item) for item in value]
        return value


def _pattern(secret: str) -> str:
    word = re.escape(secret)
    return word if len(secret) >= WHOLE_WORD else rf"(?<!\w){word}(?!\w)"


def masker_of(cluster: Cluster) -> Masker:
    """Masks the values of ``env:`` and the join token.

    A value that cluster.yml also states openly (a label, a path, a variant, a command) is no secret.
    """
    workers = cluster.workers or ()
    environments = (cluster.env, *(worker.env for worker in workers))
    secrets = [value for env in environments for value in env.values()]
    public = {text for w in workers for text in (w.host, w.path, w.arch or "", w.data_path)} | set(cluster.commands)
    if controller := cluster.controller:
        public |= {controller.host, str(controller.path), controller.arch or "", controller.data_path}
    return Masker([*secrets, *filter(None, [cluster.join.token])], public)
