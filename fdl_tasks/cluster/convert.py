"""From the blocks of the file to the plain values of ``cluster.model``: paths resolved, defaults applied."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

from .crosscheck import IMAGE_KEYS
from .image import ImageRef
from .model import (
    DEFAULT_DATA_PATH,
    Cluster,
    Command,
    Controller,
    Images,
    Join,
    Recipe,
    Source,
    Ssh,
    Worker,
)
from .origins import origins
from .schema import (
    ClusterBlock,
    CommandBlock,
    ControllerBlock,
    ImagesBlock,
    JoinBlock,
    RecipeBlock,
    SshBlock,
    WorkerBlock,
)

K = TypeVar("K")
V = TypeVar("V")


def to_cluster(block: ClusterBlock, file: Path, own_label: str, notes: tuple[str, ...]) -> Cluster:
    """The cluster that a checked block describes; ``file`` is where it stands."""
    base = file.parent
    controller = _controller(block.controller, base) if block.controller else None
    root = controller.path if controller else base
    workers = [_worker(worker, block, base, root) for worker in block.workers]
    return Cluster(
        file=file,
        own_label=own_label,
        controller=controller,
        workers=tuple(workers) if "workers" in block.model_fields_set else None,
        env=MappingProxyType(dict(block.env)),
        commands=_frozen({name: _command(name, command) for name, command in block.commands.items()}),
        groups=_frozen({name: tuple(labels) for name, labels in block.groups.items()}),
        recipes=_frozen({name: to_recipe(name, recipe, file) for name, recipe in block.recipes.items()}),
        recipe_paths=tuple(_full(path, base) for path in ("recipes", *block.recipe_paths)),
        images=Images((block.images or ImagesBlock()).compress),
        join=_join(block.join or JoinBlock(), base),
        notes=notes,
        origins=_frozen(origins(block)),
    )


def to_recipe(name: str, block: RecipeBlock, origin: Path) -> Recipe:
    """The recipe that a checked block describes, whichever of the three spellings names its image."""
    image = next(value for key in IMAGE_KEYS if (value := getattr(block, key)) is not None)
    probe = None if block.exec_probe is None else tuple(block.exec_probe)
    return Recipe(name, ImageRef.parse(image), probe, origin)


def _frozen(values: dict[K, V]) -> Mapping[K, V]:
    return MappingProxyType(values)


def _full(path: str, base: Path) -> Path:
    """Absolute, without resolving links: a mount keeps the name that people know it by."""
    return Path(os.path.normpath(base / path))


def _controller(block: ControllerBlock, base: Path) -> Controller:
    return Controller(
        host=block.host,
        path=_full(block.path, base),
        docker=block.docker,
        docker_deps=block.docker_deps,
        data_path=block.data_path or DEFAULT_DATA_PATH,
        data_path_declared=block.data_path is not None,
        arch=block.arch,
    )


def _worker(block: WorkerBlock, cluster: ClusterBlock, base: Path, root: Path) -> Worker:
    own, defaults = block.ssh or SshBlock(), cluster.ssh or SshBlock()
    return Worker(
        host=block.host,
        path=str(_full(block.path, base)) if block.transport == "local" else block.path,
        ssh=_ssh(_merged(own, defaults), block.host, root),
        arch=block.arch,
        build=block.build,
        data_path=block.data_path or DEFAULT_DATA_PATH,
        data_path_declared=block.data_path is not None,
        transport=block.transport,
        fabric_ip=block.fabric_ip,
        mgmt_ip=block.mgmt_ip,
        docker_host=block.docker_host,
        env=MappingProxyType({**cluster.env, **block.env}),
    )


def _merged(own: SshBlock, defaults: SshBlock) -> SshBlock:
    """Field by field: what the worker writes, else what the top-level ``ssh:`` writes."""
    chosen = {
        key: value if (value := getattr(own, key)) is not None else getattr(defaults, key)
        for key in SshBlock.model_fields
    }
    return SshBlock.model_construct(**chosen)


def _ssh(block: SshBlock, target: str, base: Path) -> Ssh:
    return Ssh(
        target=block.target or target,
        port=block.port,
        user=block.user,
        identity_file=_identity(block.identity_file, base),
        node_identity_file=block.node_identity_file,
        options=tuple(block.options or ()),
        host_keys=tuple(block.host_key or ()),
    )


def _identity(path: str | None, base: Path) -> str | None:
    """``~`` is for ssh to expand, on the machine and for the user it runs as."""
    return path if path is None or path.startswith("~") else str(_full(path, base))


def _command(name: str, block: CommandBlock) -> Command:
    return Command(
        name=name,
        cwd=block.cwd,
        build=block.build,
        bin=block.bin,
        profile=block.profile,
        cargo_args=tuple(block.cargo_args),
        check=tuple(block.check),
    )


def _join(block: JoinBlock, base: Path) -> Join:
    dialled = (block.controller or "").rpartition(":")
    source = block.source
    return Join(
        controller=block.controller,
        ssh=_ssh(block.ssh, dialled[0] or dialled[2], base) if block.ssh else None,
        token=block.token,
        bin=block.bin,
        source=Source(source.from_, source.cwd, source.build, source.bin) if source else None,
        libtorch=block.libtorch,
        host=block.host,
        devices=None if block.devices is None else tuple(block.devices),
        persist=block.persist,
        data_path=block.data_path,
        data_source=block.data_source,
        gpu_ram_share=block.gpu_ram_share,
        sig_probe=block.sig_probe,
        args=tuple(block.args),
    )
