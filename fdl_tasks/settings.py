"""What a task was told: a flag, else Invoke's configuration ``fdl.*``, else the default.

Invoke gives a task the configuration of the collection it is called in. A task that runs as another
one's ``pre``, or is called from another one's body, has only what stands in the user's files, so every
setting is read here, where missing is ordinary. Flags that may be given twice arrive as a list from the
command line, as None or whatever the caller likes when the task is called as a function.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import UsageError

if TYPE_CHECKING:
    from .boxes.torch.library import Settings

DEFAULTS: Mapping[str, Any] = {
    "cluster": None,
    "width": None,
    "templates": None,
    "libtorch": {"base_url": None, "version": None, "sha256": None},
}


def setting(c: Any, name: str, flag: str | int | Path | None = None) -> str | int | Path | None:
    """The value of ``fdl.<name>``, as ``width`` or ``libtorch.version``, for the task that runs in ``c``.

    None when nobody gave one.
    Invoke reads ``INVOKE_FDL_<NAME>`` only for settings that a collection declares; without one it is
    read here.
    """
    if flag is not None and flag != "":
        return flag
    configured = _configured(getattr(c, "config", None), name)
    variable = f"INVOKE_FDL_{name.upper().replace('.', '_')}"
    return os.environ.get(variable) or None if configured is None else configured


def _configured(config: Any, name: str) -> str | int | Path | None:
    value = config
    for key in ("fdl", *name.split(".")):
        value = value.get(key) if value is not None and hasattr(value, "get") else None
    found: str | int | Path | None = value
    return None if found == "" else found


def libtorch_settings(c: Any, sha256: str | None = None) -> Settings:
    """Where libtorch comes from: ``fdl.libtorch.base_url``, ``.version`` and ``.sha256``, else the defaults.

    Raises:
        UsageError: one of them can't be right.
    """
    from .boxes.torch.library import SETTINGS, Settings

    base, release = setting(c, "libtorch.base_url"), setting(c, "libtorch.version")
    pin = setting(c, "libtorch.sha256") if sha256 is None else sha256  # an empty one is a mistake, and no "unpinned"
    return Settings(
        SETTINGS.base_url if base is None else str(base),
        SETTINGS.release if release is None else str(release),
        None if pin is None else str(pin),
    )


def count(name: str, value: str | int | Path | None) -> int | None:
    """A whole number of at least 1, as ``--width`` and ``--jobs`` take; None when none was given.

    Raises:
        UsageError: it is something else.
    """
    if value is None:
        return None
    if not isinstance(value, bool) and str(value).strip().isdecimal() and int(str(value)) > 0:
        return int(str(value))
    raise UsageError(f"{name} takes a whole number of at least 1, not {str(value)!r}", hint=f"as {name.split()[0]} 4")


def words(value: str | Iterable[str] | None) -> tuple[str, ...]:
    """The values of a flag that may be given several times; repeated ones once, in their order."""
    if value is None:
        return ()
    return tuple(dict.fromkeys((value,) if isinstance(value, str) else value))
