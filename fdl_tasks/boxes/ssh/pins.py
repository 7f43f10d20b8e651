"""The host key that ``ssh.host_key`` pins, made a known_hosts file that nothing but the pin decides on.

ssh-keyscan knows no jumps and no ssh configuration, and KnownHostsCommand is missing before OpenSSH 8.5. So ssh
itself is sent ahead, the way that it will go later, without a login: it notes the key that the host proved to have.
"""

from __future__ import annotations

import base64
import hashlib
import os
import pwd
import re
import tempfile
from pathlib import Path

from ...cluster.model import Ssh
from ...errors import PermanentError, TransientError
from ...files import write
from ...hosts.output import reason
from ..specs import Target
from ..tools import Tools
from .shell import ALIAS, command, options, trusting

LIMIT = 60.0  # seconds for one look at a host key, jumps included
KINDS = (  # the host's own choice, then each kind that it may have besides
    None,
    "ssh-ed25519",
    "ecdsa-sha2-nistp256,ecdsa-sha2-nistp384,ecdsa-sha2-nistp521",
    "rsa-sha2-512,rsa-sha2-256",
)
STRANGER = re.compile("REMOTE HOST IDENTIFICATION HAS CHANGED|Host key verification failed")  # ssh's words
STRANGER_WHAT = "its host key is not known here, or is another than the known one"
STRANGER_HINT = "when the machine was really rebuilt, drop its old key here: ssh-keygen -R <host>"
NO_LOGIN = ("PreferredAuthentications=none", "PubkeyAuthentication=no", "RequestTTY=no")


def pinned(ssh: Ssh | None, target: Target, tools: Tools, file: Path) -> Path | None:
    """``file``, with the one host key that a pin allows; None where nothing is pinned.

    It stays after the run, since a mount reconnects long after it; each run makes it anew.

    Raises:
        PermanentError: the host has no key of the pinned ones, or the key file to log in with is not there.
        TransientError: the host can't be reached.
    """
    _check_identity(ssh)
    if ssh is None or not ssh.host_keys:
        return None
    seen: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="fdl-pin-") as folder:
        for number, kind in enumerate(KINDS):
            line, said = _shown(ssh, target, kind, Path(folder) / str(number), tools)
            if not line and kind is None:
                hint = "a pinned host key is looked at first: see to the far side, then try again"
                raise TransientError(f"its host key can't be read: {said}", where=target.login, hint=hint)
            if line and (print_ := fingerprint(line)) in ssh.host_keys:
                return _written(file, line)
            seen |= {print_: line} if line else {}
    raise PermanentError(
        f"the host shows {', '.join(seen)}, and `host_key` allows only {', '.join(ssh.host_keys)}",
        where=target.login,
        hint="nothing was sent there; when the machine was really rebuilt, write its new fingerprint into "
        "`join: {ssh: {host_key: …}}`",
    )


def fingerprint(line: str) -> str:
    """``SHA256:…`` of a line of known_hosts, as ssh-keygen prints it."""
    key = base64.b64decode(line.split()[2])
    return "SHA256:" + base64.b64encode(hashlib.sha256(key).digest()).decode().rstrip("=")


def _check_identity(ssh: Ssh | None) -> None:
    """ssh would only warn of a key file that is not there, and be refused with whatever other key it finds."""
    if ssh and ssh.identity_file and not _is_there(ssh.identity_file):
        raise PermanentError(
            f"the key file {ssh.identity_file} is not there",
            where="join.ssh.identity_file",
            hint="mend it in cluster.yml, or put the key there while the box is set up",
        )


def _is_there(name: str) -> bool:
    """``~`` is the home in the passwd file, as for ssh, whatever HOME says; its tokens are ssh's to fill in."""
    if "%" in name or "$" in name:
        return True
    if name.startswith("~/"):
        return Path(pwd.getpwuid(os.getuid()).pw_dir, name[2:]).is_file()
    return Path(name).expanduser().is_file()


def _shown(ssh: Ssh, target: Target, kind: str | None, file: Path, tools: Tools) -> tuple[str, str]:
    """The known_hosts line of the key that the host proves, and what ssh said; the line is empty without one."""
    only = [f"HostKeyAlgorithms={kind}"] if kind else []
    first = [*trusting(file, "accept-new"), *NO_LOGIN, *only]
    argv = [*command([*first, *options(ssh, target.port)]), "-T", "--", target.login, "true"]
    done = tools.run(argv, limit=LIMIT)
    lines = file.read_text().splitlines() if file.exists() else []
    return next((line for line in lines if line.startswith(f"{ALIAS} ")), ""), reason(done.err.splitlines())


def _written(file: Path, line: str) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    write(file, f"{line}\n", 0o600)
    return file
