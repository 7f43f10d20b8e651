"""Questions that many hosts ask at the same moment, asked once."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Hashable
from functools import cache, wraps
from typing import TypeVar

T = TypeVar("T")


def once(function: Callable[..., T]) -> Callable[..., T]:
    """Like ``functools.cache``, but whoever asks meanwhile waits for the first one's answer. Errors are not kept."""
    kept = cache(function)
    turns: defaultdict[tuple[Hashable, ...], threading.Lock] = defaultdict(threading.Lock)

    @wraps(function)
    def ask(*words: Hashable) -> T:
        with turns[words]:
            return kept(*words)

    return ask
