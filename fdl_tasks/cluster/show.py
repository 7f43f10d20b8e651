"""The cluster as it is after defaults, each value with where it came from (pure): for ``inv cluster.show``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from .model import Cluster, Command, Controller, Join, Recipe, Ssh, Worker

MASK = "***"
Value = str | int | float | bool | None | tuple[str | int, ...]
Settings = dict[str, Value]


@dataclass(frozen=True)
class Row:
    """One setting: of whom, its key as the file spells it, its value, and its origin.

    ``of`` is ``controller``, ``worker <label>``, ``command <name>``, ``recipe <name>``, ``cluster`` or ``join``;
    ``origin`` is ``controller``, ``worker``, ``ssh defaults``, ``env defaults``, ``file`` or ``default``.
    """

    of: str
    key: str
    value: Value
    origin: str


def describe(cluster: Cluster) -> tuple[Row, ...]:
    """Every setting, in the order of the file; values of ``env`` and the token are masked."""
    return tuple(
        Row(of, key, value, cluster.origins.get((of, key), "default"))
        for of, settings in _blocks(cluster)
        for key, value in settings.items()
    )


def _blocks(cluster: Cluster) -> Iterator[tuple[str, Settings]]:
    if cluster.controller:
        yield "controller", _controller(cluster.controller)
    yield from ((f"worker {worker.host}", _worker(worker)) for worker in cluster.workers or ())
    yield "cluster", _whole(cluster)
    yield from ((f"command {name}", _command(command)) for name, command in cluster.commands.items())
    yield from ((f"recipe {name}", _recipe(recipe)) for name, recipe in cluster.recipes.items())
    if cluster.join != Join():
        yield "join", _join(cluster.join)


def _controller(controller: Controller) -> Settings:
    return {
        "host": controller.host,
        "path": str(controller.path),
        "docker": controller.docker,
        "docker_deps": controller.docker_deps,
        "data_path": controller.data_path,
        "arch": controller.arch,
    }


def _worker(worker: Worker) -> Settings:
    return {
        "host": worker.host,
        "path": worker.path,
        "arch": worker.arch,
        "build": worker.build,
        "data_path": worker.data_path,
        "transport": worker.transport,
        "fabric_ip": worker.fabric_ip,
        "mgmt_ip": worker.mgmt_ip,
        **(_ssh(worker.ssh) if worker.transport == "ssh" else {}),
        "docker_host": worker.docker_host,
        **_masked(worker.env),
    }


def _ssh(ssh: Ssh) -> Settings:
    return {
        "ssh.target": ssh.target,
        "ssh.port": ssh.port,
        "ssh.user": ssh.user,
        "ssh.identity_file": ssh.identity_file,
        "ssh.node_identity_file": ssh.node_identity_file,
        "ssh.options": ssh.options,
        "ssh.host_key": ssh.host_keys,
    }


def _masked(env: Mapping[str, str]) -> Settings:
    return {f"env.{key}": MASK for key in env}


def _whole(cluster: Cluster) -> Settings:
    return {
        "file": str(cluster.file),
        **{f"groups.{name}": labels for name, labels in cluster.groups.items()},
        **_masked(cluster.env),
        "recipe_paths": tuple(map(str, cluster.recipe_paths)),
        "images.compress": cluster.images.compress,
    }


def _command(command: Command) -> Settings:
    return {key: value for key, value in vars(command).items() if key != "name"}


def _recipe(recipe: Recipe) -> Settings:
    return {"image": str(recipe.image), "exec_probe": recipe.exec_probe}


def _join(join: Join) -> Settings:
    """Only what is set: most boxes that read the file have no use for the block."""
    settings: Settings = {key: value for key, value in vars(join).items() if key not in ("ssh", "source")}
    if join.token is not None:
        settings["token"] = MASK
    settings |= _ssh(join.ssh) if join.ssh else {}
    if join.source:
        settings |= {f"source.{_SPEC.get(key, key)}": value for key, value in vars(join.source).items()}
    return {key: value for key, value in settings.items() if value not in (None, (), "")}


_SPEC = {"spec": "from"}  # `from` is a word of Python's
