"""A source that git brings: one commit, shallow, checked out by force into a tree that keeps what a build made.

The repository below the tree is ours alone: ``.git/fdl-tasks`` marks it. Another one that lies there (a link into
somebody's clone, too) is replaced, never used: a forced checkout in it would be somebody else's loss. The user's
git configuration counts for the network (credentials, proxies, certificates), not for what is checked out.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

from ...errors import PermanentError, PrepareError, TransientError
from ...hosts.base import Completed
from ..room import full, is_full
from ..specs import GitSource
from ..ssh.pins import STRANGER, STRANGER_HINT, STRANGER_WHAT
from ..tools import Note, Tools
from .manifest import FILE, SIDECAR

TAIL = 6  # lines of a failed git that its error shows
MARK = "fdl-tasks"
LOCAL_HINT = "it has to be a repository that this user may read"
FAR_HINT = "see to the server, then try again; a private repository over https needs a credential helper"
KEPT = ("GIT_ASKPASS", "GIT_EXEC_PATH", "GIT_HTTP_", "GIT_SSL_")  # of the caller's variables: how to reach a server
CONFIG = (
    "core.hooksPath=/dev/null",
    "core.autocrlf=false",
    "core.fsmonitor=false",
    "core.logAllRefUpdates=false",  # a reflog would keep every commit that was ever fetched
    "gc.autoDetach=false",  # nothing may outlive the run
    "maintenance.autoDetach=false",
    "submodule.recurse=false",
    "http.lowSpeedLimit=1",  # a server that sends nothing for two minutes is given up
    "http.lowSpeedTime=120",
)
_REFUSED = re.compile("unadvertised object|allow request for")
_OWN_FAULT = re.compile("transport '.*' not allowed|find remote helper|dumb http transport")


class Repository:
    """``tree`` as a checkout of the source's commit. ``env`` is this process's environment."""

    def __init__(
        self, source: GitSource, tree: Path, tools: Tools, note: Note, shell: str, env: Mapping[str, str]
    ) -> None:
        self.source, self.tree, self.tools, self.note = source, tree, tools, note
        self.dir, self.fresh = tree / ".git", False
        dropped = [name for name in env if name.startswith("GIT_") and not name.startswith(KEPT)]
        self._start = ["env", *(word for name in sorted(dropped) for word in ("-u", name)), "git"]
        self._env = {
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_ASKPASS": env.get("GIT_ASKPASS", ""),  # empty: none, and SSH_ASKPASS is not asked either
            "GCM_INTERACTIVE": "never",
            "GIT_SSH_COMMAND": shell,
            "GIT_SSH_VARIANT": "ssh",
        }

    def pull(self) -> None:
        """Fetch the commit and check it out.

        Raises:
            TransientError: the network, or the ref is not there (yet).
            PermanentError: everything else.
        """
        try:
            self._pull()
        except PrepareError:
            if self.fresh or self._git("fsck", "--connectivity-only", "--no-dangling", "--no-progress").code == 0:
                raise
            self.note(f"{self.dir} was broken: begun afresh")
            _remove(self.dir)
            self._pull()
        commit = (self.dir / "HEAD").read_text()  # detached, so it is the commit itself
        self.note(f"source: {self.source} is commit {commit[:12]}")

    def _pull(self) -> None:
        self._ready()
        fetch = ("fetch", "--quiet", "--depth=1", "--no-tags", "--no-recurse-submodules")
        self._must(self._git(*fetch, "--", self.source.url, self.source.ref), "fetch")
        if self.fresh:
            self._adopt()
        self._must(self._git("checkout", "--quiet", "--detach", "--force", "FETCH_HEAD", "--"), "checkout")
        self._drop_foreign_manifest()

    def _ready(self) -> None:
        """A repository of our own, without what a run left behind that was killed: only one run is here at a time."""
        self.fresh = self.dir.is_symlink() or not (self.dir / MARK).is_file()
        if not self.fresh:
            for stale in (*self.dir.glob("*.lock"), *self.dir.glob("objects/*/tmp_*")):
                stale.unlink(missing_ok=True)
            return
        if self.dir.is_symlink() or self.dir.exists():
            self.note(f"{self.dir} is no repository of this library: replaced")
            _remove(self.dir)
        words = ["-c", "init.defaultBranch=main", "init", "--quiet", "--template=", "--", str(self.tree)]
        self._must(self.tools.run([*self._start, *words], directory=self.tree, env=self._env), "init")
        (self.dir / MARK).touch()

    def _adopt(self) -> None:
        """Files that are right already keep their times; what another source left behind goes, a build's stays."""
        self._git("reset", "--mixed", "FETCH_HEAD", "--")
        keep = ("--exclude=target/", "--exclude=/libtorch/")
        self._must(self._git("clean", "--quiet", "-d", "--force", *keep), "clean")

    def _drop_foreign_manifest(self) -> None:
        """A run file that is not of this commit would be the manifest of another source."""
        there = {name for name in (FILE, SIDECAR) if os.path.lexists(self.tree / name)}
        tracked = self._git("ls-files", "-z", "--", *there).out.split("\0") if there else ()
        for name in there - set(tracked):
            (self.tree / name).unlink()

    def _git(self, *words: str) -> Completed:
        config = [word for setting in CONFIG for word in ("-c", setting)]
        places = [f"--git-dir={self.dir}", f"--work-tree={self.tree}"]
        return self.tools.run([*self._start, *places, *config, *words], directory=self.tree, env=self._env)

    def _must(self, done: Completed, verb: str) -> None:
        if done.code == 0:
            return
        if is_full("\n".join(line for line in done.err.splitlines() if not line.startswith("remote:"))):
            raise full(self.tree, f"git {verb}")
        raise git_failure(self.source, verb, done)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def git_failure(source: GitSource, verb: str, done: Completed) -> PrepareError:
    """What a git that failed means (pure)."""
    kind: type[PrepareError] = PermanentError if source.local or verb != "fetch" else TransientError
    what, hint = f"git {verb} failed (exit code {done.code})", LOCAL_HINT if source.local else FAR_HINT
    if verb == "fetch" and _REFUSED.search(done.err):
        kind, what = PermanentError, "the server gives no single commits"
        hint = "name a branch or a tag, or set uploadpack.allowReachableSHA1InWant in the repository there"
    elif verb == "fetch" and STRANGER.search(done.err):
        kind, what, hint = PermanentError, STRANGER_WHAT, STRANGER_HINT
    elif verb == "fetch" and _OWN_FAULT.search(done.err):
        kind = PermanentError
    elif "find remote ref" in done.err or "not our ref" in done.err:
        kind, what = TransientError, f"there is no {source.ref} there"
        hint = "push it; a commit is written in full, all 40 digits of it"
    elif "dubious ownership" in done.err:
        hint = "let this user read it: git config --global --add safe.directory <repository>"
    lines = [line.replace(source.url, source.shown) for line in done.err.splitlines() if line.strip()]
    return kind(f"source: {what}", where=str(source), hint=hint, tail=lines[-TAIL:])
