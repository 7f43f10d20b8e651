"""A node's sshd: its host keys, its configuration, its listener."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from . import files
from .system import fingerprint, new_key, run, wait_until, write

SETTINGS = {
    "PidFile": "/lab/ssh/sshd.pid",
    "AuthorizedKeysFile": "/lab/ssh/authorized_keys",
    "StrictModes": "no",
    "UsePAM": "no",
    "PasswordAuthentication": "no",
    "KbdInteractiveAuthentication": "no",
    "PermitRootLogin": "prohibit-password",
    "MaxStartups": "200:30:400",
    "MaxSessions": "100",
    "PrintMotd": "no",
    "PrintLastLog": "no",
    "UseDNS": "no",
    "LogLevel": "VERBOSE",
    "Subsystem": "sftp internal-sftp",
}
STOP = 'kill "$1"; while kill -0 "$1" 2>/dev/null; do sleep 0.02; done'
KILL_SESSIONS = """n=0
for pid in $(pgrep -x 'sshd|sshd-session'); do
  [ "$pid" = "$1" ] || { kill -9 "$pid" 2>/dev/null && n=$((n + 1)); }
done
echo "$n"
"""


class Sshd:
    """One listener. ``folder`` is this machine's path of the node's ``/lab/ssh``; ``enter`` gives the
    command line that runs a program on the node."""

    def __init__(self, folder: Path, enter: Callable[..., list[str]], key_types: Sequence[str]):
        self.folder, self._enter, self._key_types = folder, enter, key_types
        self.settings = dict(SETTINGS)

    @property
    def log(self) -> Path:
        return self.folder / "sshd.log"

    def public_keys(self) -> list[Path]:
        return [self.folder / "keys" / f"{kind}.pub" for kind in self._key_types]

    def fingerprints(self) -> tuple[str, ...]:
        return tuple(fingerprint(key) for key in self.public_keys())

    def make_keys(self) -> None:
        for kind in self._key_types:
            new_key(self.folder / "keys" / kind, kind=kind)

    def swap_keys(self) -> None:
        """Put the true keys aside and make others."""
        (self.folder / "keys").rename(self.folder / "true_keys")
        self.make_keys()

    def restore_keys(self) -> None:
        shutil.rmtree(self.folder / "keys")
        (self.folder / "true_keys").rename(self.folder / "keys")

    def start(self, env: Mapping[str, str]) -> None:
        """Write the configuration, and wait until it listens (it writes its pid then)."""
        set_env = " ".join(shlex.quote(f"{name}={value}") for name, value in {"PATH": files.LOGIN_PATH, **env}.items())
        keys = [f"HostKey /lab/ssh/keys/{kind}" for kind in self._key_types]
        lines = [*keys, f"SetEnv {set_env}", *(f"{name} {value}" for name, value in self.settings.items())]
        write(self.folder / "sshd_config", "\n".join(lines) + "\n", 0o600)
        run(*self._enter("/usr/sbin/sshd", "-f", "/lab/ssh/sshd_config", "-E", "/lab/ssh/sshd.log"))
        wait_until(self._pid_file.exists, f"sshd of {self.folder} listens", log=self.log)

    def stop(self) -> None:
        """End the listener; sessions go on."""
        if self._pid_file.exists():
            run(*self._enter("sh", "-c", STOP, "sh", self._pid_file.read_text().strip()), limit=10)
            self._pid_file.unlink(missing_ok=True)

    def kill_sessions(self) -> int:
        """SIGKILL the process of every session, not the listener. How many."""
        listener = self._pid_file.read_text().strip()
        return int(run(*self._enter("sh", "-c", KILL_SESSIONS, "sh", listener)).stdout)

    @property
    def _pid_file(self) -> Path:
        return self.folder / "sshd.pid"
