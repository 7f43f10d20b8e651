"""The cluster as typed values: what everything above reads instead of YAML or the environment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from ..errors import ConfigError, UsageError
from . import names
from .image import ImageRef

DEFAULT_DATA_PATH = "/flodl/data"  # seeds/000: the convention when nothing is declared


@dataclass(frozen=True)
class Ssh:
    """How a host is reached, as written; OpenSSH resolves the rest (``hosts.settings``).

    ``identity_file`` is absolute or begins with ``~``; ``host_keys`` are ``SHA256:…`` pins.
    ``target`` is empty only in ``join:``, when that names no machine at all.
    """

    target: str
    port: int | None = None
    user: str | None = None
    identity_file: str | None = None
    node_identity_file: str | None = None
    options: tuple[str, ...] = ()
    host_keys: tuple[str, ...] = ()


@dataclass(frozen=True)
class Controller:
    """The machine that builds. ``path`` is the project root as it sees it."""

    host: str
    path: Path
    docker: str | None = None
    docker_deps: bool = False
    data_path: str = DEFAULT_DATA_PATH
    data_path_declared: bool = False
    arch: str | None = None
    origins: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)


@dataclass(frozen=True)
class Worker:
    """A machine that needs its own binary. ``path`` is the project root as the worker sees it.

    ``env`` is the cluster's with the worker's own keys over it.
    """

    host: str
    path: str
    ssh: Ssh
    arch: str | None = None
    build: bool = True
    data_path: str = DEFAULT_DATA_PATH
    data_path_declared: bool = False
    transport: str = "ssh"
    fabric_ip: str | None = None
    mgmt_ip: str | None = None
    docker_host: str | None = None
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    origins: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)


@dataclass(frozen=True)
class Command:
    """What ``commands.<name>`` says; a command that is not in the file has these defaults."""

    name: str
    cwd: str | None = None
    build: str | None = None
    bin: str | None = None
    profile: str = "release"
    cargo_args: tuple[str, ...] = ()
    check: tuple[str, ...] = ()


@dataclass(frozen=True)
class Recipe:
    """A named image. ``exec_probe`` is None when the usual probe is meant; ``origin`` is the file read."""

    name: str
    image: ImageRef
    exec_probe: tuple[str, ...] | None = None
    origin: Path | None = None


@dataclass(frozen=True)
class Images:
    """How images travel: ``compress`` is ``none`` or ``zstd``."""

    compress: str = "none"


@dataclass(frozen=True)
class Source:
    """Where a box gets the source from, as written: a ``file:``, ``rsync:`` or ``git+…:`` spec in ``spec``."""

    spec: str
    cwd: str | None = None
    build: str | None = None
    bin: str | None = None


@dataclass(frozen=True)
class Join:
    """This box's own recipe for ``inv prepare``, as written. ``gpu_ram_share`` is a share, 1.0 all of it."""

    controller: str | None = None
    ssh: Ssh | None = None
    token: str | None = field(default=None, repr=False)
    bin: str | None = None
    source: Source | None = None
    libtorch: str | None = None
    host: str | None = None
    devices: tuple[int, ...] | None = None
    persist: bool = False
    data_path: str | None = None
    data_source: str | None = None
    gpu_ram_share: float | None = None
    sig_probe: bool = True
    args: tuple[str, ...] = ()


@dataclass(frozen=True)
class Cluster:
    """One cluster.yml, read and checked. ``workers`` is None when the key is missing.

    ``own_label`` names this machine (``FLODL_HOST_NAME``, else the hostname, read once).
    ``notes`` are worth telling the user once; ``recipe_paths`` are absolute, in order of search.
    ``origins`` tells where each setting that the file gives came from (``cluster.show``).
    """

    file: Path
    own_label: str
    controller: Controller | None = None
    workers: tuple[Worker, ...] | None = None
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    commands: Mapping[str, Command] = field(default_factory=lambda: MappingProxyType({}))
    groups: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: MappingProxyType({}))
    recipes: Mapping[str, Recipe] = field(default_factory=lambda: MappingProxyType({}))
    recipe_paths: tuple[Path, ...] = ()
    images: Images = field(default_factory=Images)
    join: Join = field(default_factory=Join)
    notes: tuple[str, ...] = ()
    origins: Mapping[tuple[str, str], str] = field(
        default_factory=lambda: MappingProxyType({}), compare=False, repr=False
    )

    def need_controller(self) -> Controller:
        """The controller. Raises ConfigError when the file has none."""
        if self.controller is None:
            raise self._missing("controller", "`controller: {host: …, path: …}`")
        return self.controller

    def need_workers(self) -> tuple[Worker, ...]:
        """The workers, perhaps none. Raises ConfigError when the file lacks the key."""
        if self.workers is None:
            raise self._missing("workers", "`workers:` with a list of them, or `workers: []` for none")
        return self.workers

    def _missing(self, key: str, example: str) -> ConfigError:
        return ConfigError(f"`{key}:` is missing", where=str(self.file), hint=f"write {example}")

    def is_controller(self, label: str) -> bool:
        """Whether this label is the controller's: this machine's own, or ``controller.host``.

        Labels decide, never addresses: two labels on one machine are two build targets.
        """
        return label == self.own_label or (self.controller is not None and label == self.controller.host)

    def select(self, hosts: Sequence[str]) -> tuple[Worker, ...]:
        """The workers that these labels or groups name, each once, in the order of the file; all for none.

        Raises:
            ConfigError: the file has no `workers:`.
            UsageError: a name is neither a label nor a group.
        """
        workers = self.need_workers()
        if not hosts:
            return workers
        labels = [worker.host for worker in workers]
        if unknown := [name for name in hosts if name not in labels and name not in self.groups]:
            raise self._unknown(unknown, labels)
        wanted = {label for name in hosts for label in self.groups.get(name, (name,))}
        return tuple(worker for worker in workers if worker.host in wanted)

    def _unknown(self, unknown: Sequence[str], labels: Sequence[str]) -> UsageError:
        known = f"workers: {', '.join(labels) or 'none'}"
        known += f"; groups: {', '.join(self.groups)}" if self.groups else ""
        names_no = "names no worker and no group" if len(unknown) == 1 else "name no worker and no group"
        return UsageError(f"{', '.join(map(repr, unknown))} {names_no}", where=str(self.file), hint=f"known {known}")

    def command(self, name: str) -> Command:
        """What the file says of a command, or the defaults. Raises UsageError for an unsafe name."""
        try:
            return self.commands.get(names.segment(name)) or Command(name)
        except ValueError as error:
            raise UsageError(f"no name for a command: {error}") from None

    def recipe(self, name: str) -> Recipe:
        """The recipe of this name: inline, else ``<name>.yml`` or ``.yaml`` in the recipe folders.

        Raises:
            UsageError: the name is no safe file name.
            ConfigError: there is none (with the names and the places tried), or its file is wrong.
        """
        from .recipes import find_recipe  # reads YAML: slow to import, so only when a recipe is asked for

        return find_recipe(self, name)
