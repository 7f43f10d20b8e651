"""sshfs: its command line, and what its words mean (pure). The words are those of 3.7.3 with libfuse 3.14."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from ...errors import PermanentError, PrepareError, TransientError
from ...hosts.output import reason
from ..distribution import install_line
from ..specs import Target

_BOX = re.compile(r"fuse: |fusermount3?: (?!failed to unmount|entry for)|sshfs: bad mount point|command-line")
_DEAD = "Transport endpoint is not connected"
_DENIED = ("remote host has disconnected", "Permission denied", "subsystem request failed")
_NO_NEWS = "read: Connection reset by peer"  # sshfs says it of every ssh that ended


def mount_words(target: Target, at: Path, settings: Iterable[str]) -> list[str]:
    """The argv of sshfs: read-only, with the ssh that has these ``Keyword=value`` settings.

    sshfs knows only some of ssh's keywords, so ssh's own command line has them. That can't hold quoted blanks: a
    keyword with such a value goes the other way, with all of its values, since ssh takes the first.
    """
    every = [re.sub(r"^(\w+)(?:\s*=\s*|\s+)", r"\1=", setting) for setting in settings]
    apart = {_keyword(setting) for setting in every if "\\" in setting or re.search(r"\s.*[\"']|[\"'].*\s", setting)}
    words = ["ssh", *("-o" + re.sub(r"\s", "\t", setting) for setting in every if _keyword(setting) not in apart)]
    own = ["ssh_command=" + " ".join(words), *(setting for setting in every if _keyword(setting) in apart)]
    given = ["ro", "reconnect", "sshfs_verbose", *map(_escaped, own)]
    return ["sshfs", target.remote, str(at), *(word for option in given for word in ("-o", option))]


def refusal(target: Target, at: Path, code: int, said: Sequence[str]) -> PrepareError:
    """What sshfs meant: this box that can't mount stays so; whatever concerns the far side may be mended there."""
    lines = [line for line in said if line.strip() and line.strip() != _NO_NEWS] or list(said)
    what = f"{target.remote} could not be mounted: {reason(lines) or f'sshfs ended with {code}'}"
    if any(_BOX.match(line) and _DEAD not in line for line in lines):
        return PermanentError(
            what,
            where=str(at),
            hint=f"let this box mount with FUSE ({install_line('fuse3')}; a container also needs --device /dev/fuse "
            "--cap-add SYS_ADMIN), or mount the data while it is set up and name only `data_path:`",
        )
    # a connection that was reset says nothing of its reason, and a forced command is one
    denied = any(words in line for line in lines for words in (*_DENIED, "Connection reset by peer"))
    hint = (
        'such a key needs sftp on the far side, as with command="internal-sftp -R" in its authorized_keys; '
        "or mount the data while the box is set up and name only `data_path:`"
    )
    return TransientError(what, where=str(at), hint=hint if denied else "see to the far side, then try again")


def _keyword(setting: str) -> str:
    return setting.partition("=")[0].lower()


def _escaped(option: str) -> str:
    """An option as libfuse splits it: at commas that no backslash precedes."""
    return option.replace("\\", "\\\\").replace(",", "\\,")
