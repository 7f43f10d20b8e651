"""Read cluster.yml: text to checked values, with every fault and its line.

The one module that knows YAML. A document is composed to nodes by PyYAML and walked here: that refuses
duplicate keys (PyYAML keeps the last), gives scalars YAML 1.2's types, and remembers lines.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeGuard

import yaml

from ..errors import ConfigError, Fault
from . import scalars
from .convert import to_cluster
from .crosscheck import Place, cluster_faults
from .discovery import find, search
from .faults import Document, checked, spelled
from .model import Cluster
from .schema import ClusterBlock

__all__ = ["Document", "find", "load_cluster", "own_name", "parse_cluster", "read_document", "search"]

MOST_BYTES = 1 << 20
MOST_NODES = 100_000  # what a file may grow to through its aliases
MOST_DEPTH = 40


def load_cluster(path: str | Path | None = None, *, own_label: str | None = None) -> Cluster:
    """Find, read and check cluster.yml.

    Args:
        path: the file; without it, the one that ``discovery.find`` finds from the current directory.
        own_label: this machine's label, instead of ``FLODL_HOST_NAME`` or the hostname.

    Raises:
        ConfigError: there is no file, or it has faults: all of them are in it.
    """
    file = find(path, start=_here(), env=os.environ)
    return parse_cluster(read_bytes(file), file, own_label=own_label or own_name(os.environ))


def _here() -> Path:
    try:
        return Path.cwd()
    except FileNotFoundError:
        raise ConfigError("the current directory is gone", hint="change to one that exists") from None


def own_name(env: Mapping[str, str]) -> str:
    """This machine's own label: ``FLODL_HOST_NAME`` when not blank, else the hostname."""
    return env.get("FLODL_HOST_NAME", "").strip() or socket.gethostname()


def parse_cluster(raw: bytes, file: Path, *, own_label: str) -> Cluster:
    """The cluster that this text describes, as if it stood in ``file``. Raises ConfigError."""
    root = _compose(raw, str(file))
    keys = [key.value for key, _ in root.value if _is_text(key)]
    inner = "cluster" in keys
    document = _walked(root, str(file), {"cluster"} if inner else None)
    place: Place = ("cluster",) if inner else ()
    value = document.value["cluster"] if inner else document.value
    extra = cluster_faults(value, file.absolute().parent) if isinstance(value, Mapping) else ()
    block = checked(ClusterBlock, value, document, place, extra)
    return to_cluster(block, file.absolute(), own_label, _notes(keys, file, inner))


def _notes(keys: Iterable[str], file: Path, inner: bool) -> tuple[str, ...]:
    beside = [spelled((key,)) for key in keys if key != "cluster"]
    if not inner or not beside:
        return ()
    return (f"{file}: only the block `cluster:` is read; ignored beside it: {', '.join(beside)}",)


def read_bytes(file: Path) -> bytes:
    """The content of a configuration file. Raises ConfigError when it can't be read or is far too large."""
    try:
        with open(file, "rb") as stream:
            raw = stream.read(MOST_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"can't be read: {error.strerror or error}", where=str(file)) from None
    if len(raw) > MOST_BYTES:
        raise ConfigError(f"is larger than {MOST_BYTES >> 20} MiB: no configuration", where=str(file))
    return raw


def read_document(raw: bytes, file: str, *, only: Collection[str] | None = None) -> Document:
    """The mapping that a file holds; with ``only``, just these of its top-level keys.

    Raises:
        ConfigError: not UTF-8, empty, not YAML, not a mapping, or grown beyond measure by its aliases.
    """
    return _walked(_compose(raw, file), file, only)


class _Loader(yaml.SafeLoader):
    """PyYAML's loader with the scalars of ``scalars.FORMS`` in place of its own."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 - PyYAML's own way to give a class its resolvers


for _kind, (_form, _first) in scalars.FORMS.items():
    _Loader.add_implicit_resolver(scalars.PREFIX + _kind, _form, _first)


def _refuse(file: str, line: int, message: str) -> ConfigError:
    return ConfigError("can't be read as YAML", faults=[Fault(file, line, "", message)], where=file)


def _compose(raw: bytes, file: str) -> yaml.MappingNode:
    """The file's root node. PyYAML lets some of Python's own errors through on hostile escapes."""
    text = _decoded(raw, file)
    try:
        root = yaml.compose(text, Loader=_Loader)
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise _refuse(file, line, f"a character that YAML does not allow: U+{error.character:04X}") from None
    except yaml.MarkedYAMLError as error:
        raise _refuse(file, *_marked(error)) from None
    except RecursionError:
        raise _refuse(file, 0, "nested too deeply") from None
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        raise _refuse(file, 0, f"an escape or a directive that stands for nothing ({error})") from None
    if root is None:
        raise _refuse(file, 0, "is empty: expected a mapping, as `workers: []`")
    if not isinstance(root, yaml.MappingNode):
        raise _refuse(file, root.start_mark.line + 1, "expected a mapping with keys as `workers:`")
    return root


def _decoded(raw: bytes, file: str) -> str:
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise _refuse(file, raw.count(b"\n", 0, error.start) + 1, "is not UTF-8 text") from None


def _marked(error: yaml.MarkedYAMLError) -> tuple[int, str]:
    """The line of a syntax error, and PyYAML's words for it, with the line where the trouble began."""
    mark, begun = error.problem_mark or error.context_mark, error.context_mark
    since = f" (begun in line {begun.line + 1})" if begun and mark and begun.line != mark.line else ""
    words = ", ".join(part for part in (f"{error.context or ''}{since}", error.problem) if part)
    return (mark.line + 1 if mark else 0), words


class _Walk:
    """Nodes to plain values, once, with the line of every place and every fault met on the way."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.lines: dict[Place, int] = {}
        self.faults: list[Fault] = []
        self.nodes = 0

    def value(self, node: yaml.Node, place: Place) -> object:
        self.nodes += 1
        if self.nodes > MOST_NODES or len(place) > MOST_DEPTH:
            raise _refuse(self.file, _line(node), "grows beyond measure: too many aliases, or nested too deeply")
        self.lines.setdefault(place, _line(node))
        if isinstance(node, yaml.MappingNode):
            return self.mapping(node, place, None)
        if isinstance(node, yaml.SequenceNode):
            self.check_tag(node, place, "seq")
            return [self.value(child, (*place, i)) for i, child in enumerate(node.value)]
        return self.scalar(node, place)

    def mapping(self, node: yaml.MappingNode, place: Place, only: Collection[str] | None) -> dict[str, Any]:
        self.check_tag(node, place, "map")
        values: dict[str, Any] = {}
        for key, child in node.value:
            if only is not None and not (_is_text(key) and key.value in only):
                continue
            if (name := self.key(key, place, values)) is not None:
                self.lines[*place, name] = _line(key)
                values[name] = self.value(child, (*place, name))
        return values

    def key(self, node: yaml.Node, place: Place, values: Mapping[str, Any]) -> str | None:
        """The name a key gives; None when it is no new name, and the fault is kept."""
        if not _is_text(node):
            self.fault(node, place, "a key that is no text: put it in quotes")
        elif node.value == "<<" and node.style is None:
            self.fault(node, place, "merge keys (`<<`) are not read: `ssh:` and `env:` at the top give defaults")
        elif node.value in values:
            first = self.lines[*place, node.value]
            self.fault(node, (*place, node.value), f"written twice: first in line {first}")
        else:
            return str(node.value)
        return None

    def scalar(self, node: yaml.Node, place: Place) -> object:
        try:
            return scalars.typed(node.tag, node.value)
        except ValueError as error:
            self.fault(node, place, str(error))
            return None

    def check_tag(self, node: yaml.Node, place: Place, kind: str) -> None:
        if node.tag != scalars.PREFIX + kind:
            self.fault(node, place, f"the tag {node.tag!r} is not read here")

    def fault(self, node: yaml.Node, place: Place, message: str) -> None:
        self.faults.append(Fault(self.file, _line(node), spelled(place), message))


def _is_text(node: yaml.Node) -> TypeGuard[yaml.ScalarNode]:
    return isinstance(node, yaml.ScalarNode) and node.tag == scalars.PREFIX + "str"


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


def _walked(root: yaml.MappingNode, file: str, only: Collection[str] | None) -> Document:
    walk = _Walk(file)
    value = walk.mapping(root, (), only)
    return Document(file, value, walk.lines, tuple(walk.faults))
