"""Recipes: inline, or a file in the folders, of which only the image and its probe are read."""

from __future__ import annotations

from pathlib import Path

import pytest

from fdl_tasks.cluster import Cluster
from fdl_tasks.cluster.load import load_cluster
from fdl_tasks.errors import ConfigError, UsageError


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    (tmp_path / "cluster.yml").write_text("recipes: {x: {image: inline}}\nrecipe_paths: [more]\n")
    for name, text in {
        "recipes/x.yml": "image: shadowed",
        "recipes/y.yaml": "container: repo/y:1\nexec_probe: [/bin/true, -v]\ntags: !x {a: 1, a: 2}\n1: 2\n",
        "more/y.yml": "image: second",
        "more/z.yml": "docker_image: repo/z",
        "more/notes.txt": "",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return load_cluster(tmp_path / "cluster.yml")


@pytest.mark.parametrize(
    ("name", "image", "probe", "origin"),
    [
        ("x", "inline", None, "cluster.yml"),
        ("y", "repo/y:1", ("/bin/true", "-v"), "recipes/y.yaml"),
        ("z", "repo/z", None, "more/z.yml"),
    ],
)
def test_a_recipe_is_inline_or_in_the_first_folder_that_has_it(
    cluster: Cluster, name: str, image: str, probe: tuple[str, ...] | None, origin: str
) -> None:
    recipe = cluster.recipe(name)
    assert (str(recipe.image), recipe.exec_probe) == (image, probe)
    assert recipe.origin == cluster.file.parent / origin


def test_a_missing_recipe_names_those_there_are_and_the_places_tried(cluster: Cluster, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        cluster.recipe("w")
    assert str(caught.value) == (
        f"{tmp_path}/cluster.yml: no recipe 'w'; tried `recipes:`, {tmp_path}/recipes/w.yml, "
        f"{tmp_path}/recipes/w.yaml, {tmp_path}/more/w.yml, {tmp_path}/more/w.yaml\n"
        "  next: known recipes: x, y, z"
    )


def test_without_any_recipe_the_message_says_so(tmp_path: Path) -> None:
    (tmp_path / "cluster.yml").write_text("workers: []")
    with pytest.raises(ConfigError, match="known recipes: none"):
        load_cluster(tmp_path / "cluster.yml").recipe("x")


@pytest.mark.parametrize("name", ["", "..", "../cluster", "a/b", "/etc/x", "-x", "a b"])
def test_a_name_may_not_lead_out_of_the_folders(cluster: Cluster, name: str) -> None:
    with pytest.raises(UsageError, match="no name for a recipe"):
        cluster.recipe(name)


@pytest.mark.parametrize(
    ("text", "faults"),
    [
        ("a: b", ["0: : names no image: expected `image:` (or `docker_image:`, `container:`)"]),
        ("image: a\n\ncontainer: b", ["3: container: `image` names the image already: expected one of the two"]),
        ("image: a\nimage: b", ["2: image: written twice: first in line 1"]),
        ("image: {repo: a}", ["1: image: expected text, found a mapping"]),
        ("image: -a", ["1: image: '-a' is no image reference: it begins with '-'"]),
        (
            "exec_probe: x\nimage: A",
            [
                "1: exec_probe: expected a list, found text",
                "2: image: 'A' is no image reference: its repository is 'A' "
                "(expected lower-case letters, digits, and . _ - between them)",
            ],
        ),
        ("- image: a", ["1: : expected a mapping with keys as `workers:`"]),
        ("", ["0: : is empty: expected a mapping, as `workers: []`"]),
    ],
)
def test_a_recipe_file_is_refused_with_its_own_name_and_lines(
    cluster: Cluster, tmp_path: Path, text: str, faults: list[str]
) -> None:
    (tmp_path / "recipes/bad.yml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        cluster.recipe("bad")
    assert [f"{fault.line}: {fault.path}: {fault.message}" for fault in caught.value.faults] == faults
    assert {fault.file for fault in caught.value.faults} == {str(tmp_path / "recipes/bad.yml")}
