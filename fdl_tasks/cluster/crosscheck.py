"""Rules that span several keys, checked on the raw values so that no other fault hides them (pure)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

Place = tuple[str | int, ...]
Found = tuple[Place, str]
IMAGE_KEYS = ("image", "docker_image", "container")


def cluster_faults(raw: Mapping[str, object], base: Path) -> Iterator[Found]:
    """Everything wrong between the keys of one cluster; ``base`` is the file's directory."""
    workers = _workers(raw)
    yield from _duplicate_labels(workers)
    yield from _split_paths(workers, base)
    yield from _group_faults(raw.get("groups"), [worker.get("host") for worker in workers.values()])
    for name, recipe in _mapping(raw.get("recipes")).items():
        yield from recipe_faults(recipe, ("recipes", name))
    join = _mapping(raw.get("join"))
    if join.get("bin") is not None and join.get("source") is not None:
        yield ("join", "source"), "expected `bin` or `source`, not both"


def recipe_faults(recipe: object, place: Place = ()) -> Iterator[Found]:
    """A recipe names its image, once (three spellings are in use)."""
    named = [key for key in IMAGE_KEYS if _mapping(recipe).get(key) is not None]
    if isinstance(recipe, Mapping) and not named:
        yield place, "names no image: expected `image:` (or `docker_image:`, `container:`)"
    if len(named) > 1:
        yield (*place, named[1]), f"`{named[0]}` names the image already: expected one of the two"


def _mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, Mapping) else {}


def _workers(raw: Mapping[str, object]) -> dict[int, Mapping[str, object]]:
    entries = raw.get("workers")
    if not isinstance(entries, list):
        return {}
    return {i: entry for i, entry in enumerate(entries) if isinstance(entry, Mapping)}


def _duplicate_labels(workers: Mapping[int, Mapping[str, object]]) -> Iterator[Found]:
    first: dict[str, int] = {}
    for i, worker in workers.items():
        label = worker.get("host")
        if isinstance(label, str) and first.setdefault(label, i) != i:
            yield ("workers", i, "host"), f"{label!r} is the label of workers[{first[label]}] already"


def _split_paths(workers: Mapping[int, Mapping[str, object]], base: Path) -> Iterator[Found]:
    """A local worker's relative path inherits the colon of the directory that this file is in."""
    for i, worker in workers.items():
        path = worker.get("path")
        local = worker.get("transport") == "local" and isinstance(path, str)
        if local and ":" not in str(path) and ":" in str(base / str(path)):
            yield ("workers", i, "path"), f"{str(base)!r} has ':' in it, which would split the loader path"


def _group_faults(groups: object, hosts: list[object]) -> Iterator[Found]:
    labels = [label for label in hosts if isinstance(label, str)]
    for name, members in _mapping(groups).items():
        if name in labels:
            yield ("groups", name), f"{name!r} is a worker's label too: expected a name of its own"
        for i, member in enumerate(members if isinstance(members, list) else ()):
            if isinstance(member, str) and member not in labels:
                known = ", ".join(dict.fromkeys(labels)) or "none"
                yield ("groups", name, i), f"{member!r} is no worker's label; known: {known}"
