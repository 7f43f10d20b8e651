"""Recipes by name: inline in cluster.yml, else one file each in the recipe folders."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ..errors import ConfigError, UsageError
from . import names
from .convert import to_recipe
from .crosscheck import IMAGE_KEYS, recipe_faults
from .discovery import is_file
from .faults import checked
from .load import read_bytes, read_document
from .model import Cluster, Recipe
from .schema import RecipeBlock

_ENDINGS = (".yml", ".yaml")
_READ = frozenset((*IMAGE_KEYS, "exec_probe"))


def find_recipe(cluster: Cluster, name: str) -> Recipe:
    """As ``Cluster.recipe``, which see."""
    try:
        names.segment(name)
    except ValueError as error:
        raise UsageError(f"no name for a recipe: {error}") from None
    if name in cluster.recipes:
        return cluster.recipes[name]
    places = [folder / (name + ending) for folder in cluster.recipe_paths for ending in _ENDINGS]
    found = next((place for place in places if is_file(place)), None)
    if found is None:
        raise _missing(cluster, name, places)
    return parse_recipe(read_bytes(found), name, found)


def parse_recipe(raw: bytes, name: str, file: Path) -> Recipe:
    """The recipe that this text holds; keys that it has for others are ignored. Raises ConfigError."""
    document = read_document(raw, str(file), only=_READ)
    block = checked(RecipeBlock, document.value, document, (), recipe_faults(document.value))
    return to_recipe(name, block, file)


def _missing(cluster: Cluster, name: str, places: list[Path]) -> ConfigError:
    known = ", ".join(sorted({*cluster.recipes, *_in_folders(cluster)})) or "none"
    tried = ", ".join(["`recipes:`", *map(str, places)])
    return ConfigError(f"no recipe {name!r}; tried {tried}", where=str(cluster.file), hint=f"known recipes: {known}")


def _in_folders(cluster: Cluster) -> Iterator[str]:
    for folder in cluster.recipe_paths:
        yield from (file.stem for file in folder.glob("*.y*ml") if file.suffix in _ENDINGS)
