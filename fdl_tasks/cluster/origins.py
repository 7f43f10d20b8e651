"""Where each setting of a checked cluster came from (pure): what the file gives, and which block of it.

Keys are (of whom, setting), as in ``show.Row``; whatever is not here is a default.
"""

from __future__ import annotations

from collections.abc import Iterable

from .schema import Block, ClusterBlock, SshBlock, WorkerBlock

Origins = dict[tuple[str, str], str]


def origins(block: ClusterBlock) -> Origins:
    """The origin of every value that the file gives."""
    found = _named("controller", "controller", _given(block.controller))
    for worker in block.workers:
        found |= _worker(worker, block)
    for name, command in block.commands.items():
        found |= _named(f"command {name}", "file", _given(command))
    for name, recipe in block.recipes.items():
        found |= _named(f"recipe {name}", "file", ("image", *_given(recipe)))
    return found | _join(block) | _whole(block)


def _given(block: Block | None, prefix: str = "") -> tuple[str, ...]:
    """The keys of a block that the file gives a value for."""
    written = block.model_fields_set if block else ()
    return tuple(prefix + key.rstrip("_") for key in written if getattr(block, key) is not None)


def _named(of: str, origin: str, keys: Iterable[str]) -> Origins:
    return {(of, key): origin for key in keys}


def _worker(worker: WorkerBlock, cluster: ClusterBlock) -> Origins:
    """The worker's own keys stand over the defaults at the top of the file."""
    of = f"worker {worker.host}"
    return {
        **_named(of, "ssh defaults", _given(cluster.ssh, "ssh.")),
        **_named(of, "env defaults", _env(cluster)),
        **_named(of, "worker", (*_given(worker), *_ssh(worker), *_env(worker))),
    }


def _ssh(worker: WorkerBlock) -> tuple[str, ...]:
    return _given(worker.ssh or SshBlock(), "ssh.")


def _env(block: ClusterBlock | WorkerBlock) -> tuple[str, ...]:
    return tuple(f"env.{key}" for key in block.env)


def _join(block: ClusterBlock) -> Origins:
    join = block.join
    keys = (*_given(join), *_given(join and join.ssh, "ssh."), *_given(join and join.source, "source."))
    return _named("join", "file", keys)


def _whole(block: ClusterBlock) -> Origins:
    groups = (f"groups.{name}" for name in block.groups)
    keys = ("file", *groups, *_env(block), *_given(block), *_given(block.images, "images."))
    return _named("cluster", "file", keys)
