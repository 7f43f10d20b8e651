"""Where a box gets its source and its data from: a spec's text to typed values (pure).

Grammar: spec/prepare.md, 4 and 2; seeds/001. A spec that is wrong stays wrong: all refusals are permanent.
"""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass
from pathlib import Path

from ..cluster import names
from ..errors import PermanentError

SOURCE_FORMS = (
    "file:///abs/path, rsync://[user@]host[:port]/abs/path (or host:/abs/path), "
    "git+https://host/repository#ref, git+ssh://[user@]host/repository#ref, git+file:///repository#ref"
)
DATA_FORMS = "sshfs://[user@]host[:port]/abs/path (or host:/abs/path)"

_USER = re.compile(r"[^\s@:/\[\]\"'\\-][^\s@:/\[\]\"'\\]*")
_HOST = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*|\[[0-9A-Fa-f:.]+(?:%[A-Za-z0-9_.-]+)?\]")
_TARGET = re.compile(r"(?:(?P<user>[^@:/]*)@)?(?P<host>\[[^\]/]*\]|[^@:/]*)(?::(?:(?P<port>[^@:/]+):?)?)?(?P<path>.*)")
_URL = re.compile(
    r"(?P<scheme>https|ssh)://(?:(?P<user>[^@/]*)@)?(?P<host>\[[^\]/]*\]|[^@:/]*)(?::(?P<port>[^@/]*))?(?P<path>.*)"
)
_SECRET = re.compile(r"(?<=https://)[^@/]*@|(?<=://)[^@/]*:[^@/]*@")
_REF = re.compile(r"(?![-+/.])(?!.*(?:\.\.|@\{|//))[^\s~^:?*\[\\]+")
_ONES = {"file", "rsync", "git+https", "git+ssh", "git+file"}


@dataclass(frozen=True)
class Target:
    """A directory on another machine: ``remote`` is ``[user@]host:/abs``, without slashes at its end."""

    remote: str
    port: int | None = None

    @property
    def login(self) -> str:
        """``[user@]host`` as ssh takes it: without the brackets of an IPv6 address."""
        user, at, host = self.remote.split(":/", 1)[0].rpartition("@")
        return f"{user}{at}{host.strip('[]')}"


@dataclass(frozen=True)
class FileSource:
    """A directory of this box, perhaps on a mount."""

    path: Path

    def __str__(self) -> str:
        return f"file://{self.path}"


@dataclass(frozen=True)
class RsyncSource:
    """A directory that rsync reads over ssh."""

    target: Target

    def __str__(self) -> str:
        port = f" port {self.target.port}" if self.target.port else ""
        return f"rsync {self.target.remote}{port}"


@dataclass(frozen=True)
class GitSource:
    """A commit, tag or branch of a repository. ``str`` of it shows no password."""

    url: str
    ref: str

    @property
    def shown(self) -> str:
        """The URL for messages: what stands before the host may be a token."""
        return _SECRET.sub("***@", self.url)

    @property
    def local(self) -> bool:
        return self.url.startswith("file://")

    @property
    def target(self) -> Target | None:
        """Whom ssh speaks to; None where it does not."""
        return _parsed(_URL, self.url) if self.url.startswith("ssh://") else None

    def __str__(self) -> str:
        return f"git {self.shown}#{self.ref}"


Source = FileSource | RsyncSource | GitSource


def parse_source(spec: str) -> Source:
    """The source that a spec names. Raises PermanentError naming ``source`` and the accepted forms."""
    try:
        return _source(spec)
    except ValueError as error:
        raise _refused("source", spec, error, SOURCE_FORMS) from None


def parse_data_source(spec: str) -> Target:
    """The far directory that ``sshfs`` is to mount. Raises PermanentError naming ``data_source`` and its form."""
    try:
        scheme, rest = _split(spec)
        if scheme is None:
            raise ValueError("names no way to get there: data that is mounted already goes in `data_path:`")
        if scheme != "sshfs":
            raise ValueError(f"there is no {scheme}:// here: mount it by other means and name `data_path:`")
        return _parsed(_TARGET, rest)
    except ValueError as error:
        raise _refused("data_source", spec, error, DATA_FORMS) from None


def _refused(field: str, spec: str, error: ValueError, forms: str) -> PermanentError:
    return PermanentError(f"{field}: {_SECRET.sub('***@', spec)!a}: {error}", hint=f"write one of: {forms}")


def _split(spec: str) -> tuple[str | None, str]:
    scheme, separator, rest = names.filled(spec).partition("://")
    return (scheme, rest) if separator else (None, spec)


def _source(spec: str) -> Source:
    scheme, rest = _split(spec)
    if scheme is None:
        raise ValueError("names no way to get there: a directory of this box is file:///its/path")
    if scheme not in _ONES:
        raise ValueError(f"there is no {scheme}:// here")
    if scheme == "file":
        return FileSource(Path(_path(rest)))
    if scheme == "rsync":
        if any(mark in rest.partition("/")[2] for mark in "*?[\\"):  # measured: /w[x] brings /wx
            raise ValueError("has * ? [ or \\ in its path, which rsync takes for a pattern")
        return RsyncSource(_parsed(_TARGET, rest))
    url, _, ref = spec.removeprefix("git+").partition("#")
    return _git(url, ref)


def _parsed(form: re.Pattern[str], text: str) -> Target:
    found = form.fullmatch(text)
    if not found:
        raise ValueError("is no [user@]host[:port]/abs/path")
    user, host, port = found["user"], _host(found["host"]), found["port"]
    login = host if user is None else f"{_user(user)}@{host}"
    return Target(f"{login}:{_path(found['path'])}", None if port is None else _port(port))


def _user(user: str) -> str:
    if not _USER.fullmatch(user):
        raise ValueError("the user before '@' is none" if user else "the user before '@' is empty")
    return user


def _host(host: str) -> str:
    if not _HOST.fullmatch(host):
        raise ValueError(f"the host {host!r} is none" if host else "the host is empty")
    return host


def _port(port: str) -> int:
    if not (port.isascii() and port.isdigit() and len(port) <= 5 and 1 <= int(port) <= 65535):
        raise ValueError(f"the port {port!r} is no number from 1 to 65535")
    return int(port)


def _path(path: str) -> str:
    """An absolute path below ``/``, without slashes at its end."""
    if not path.startswith("/"):
        raise ValueError("has no absolute path")
    if not posixpath.normpath(path).strip("/"):
        raise ValueError("names the path /, which is no directory of its own")
    return path.rstrip("/")


def _git(url: str, ref: str) -> GitSource:
    if not ref:
        raise ValueError("names no ref behind '#': a branch that nobody names is no pin")
    if not _REF.fullmatch(ref):
        raise ValueError(f"the ref {ref!r} is no name of a branch, a tag or a commit")
    if url.startswith("file://"):
        _path(url.removeprefix("file://"))
    elif url.startswith("ssh://"):
        _parsed(_URL, url)
    else:
        _check_https(url)
    return GitSource(url, ref)


def _check_https(url: str) -> None:
    """What stands before the host may be ``user:password``; nothing may begin as an option does."""
    found = _URL.fullmatch(url)
    if not found or found["user"] == "" or (found["user"] or "").startswith("-"):
        raise ValueError("is no https://host/repository")
    _host(found["host"])
    _path(found["path"])
    if found["port"] is not None:
        _port(found["port"])
