"""What --dry-run prints: the scripts of a sync, in order, with names in place of what nobody knows yet."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from fdl_tasks.cluster.image import ImageRef
from fdl_tasks.cluster.model import Recipe
from fdl_tasks.errors import UsageError
from fdl_tasks.images.dry import dry_run
from fdl_tasks.testing import make_cluster

RELAY = [("<source>", "images/send.sh"), ("<target>", "images/pull-relay.sh")]
ARCHIVE = [("<source>", "images/send.sh"), ("<target>", "images/load.sh")]


@pytest.mark.parametrize(
    ("transport", "sent"), [("auto", RELAY + ARCHIVE), ("relay", RELAY), ("archive", ARCHIVE)], ids=str
)
def test_every_script_is_there_in_the_order_of_the_run(
    transport: str, sent: list[tuple[str, str]], tmp_path: Path
) -> None:
    planned = dry_run(make_cluster(tmp_path, a=None, b=None), image="app:1", transport=transport)
    assert [(label, script.name) for label, script in planned] == [
        ("a", "images/probe.sh"),
        ("b", "images/probe.sh"),
        ("<source>", "images/ways.sh"),
        *sent,
        ("<target>", "images/verify.sh"),
    ]


def test_the_image_and_the_nodes_own_settings_stand_in_them(tmp_path: Path) -> None:
    cluster = make_cluster(tmp_path, changes={"b": {"docker_host": "tcp://b:2375"}}, a=None, b=None)
    texts = [script.text for _, script in dry_run(cluster, image="repo/app:7", transport="archive")]
    assert "ENGINE=''" in texts[0] and "ENGINE=tcp://b:2375" in texts[1].replace("'", "")
    assert all("repo/app:7" in text for text in (*texts[:2], texts[3], *texts[5:]))
    assert "<known_hosts>" in texts[2]


def test_two_runs_print_the_same(tmp_path: Path) -> None:
    cluster = make_cluster(tmp_path, a=None)
    assert dry_run(cluster, image="app:1") == dry_run(cluster, image="app:1")


def test_a_recipe_and_the_named_nodes_count(tmp_path: Path) -> None:
    recipe = Recipe("x", ImageRef.parse("app:1"), ("/bin/true",))
    cluster = replace(make_cluster(tmp_path, a=None, b=None), recipes={"x": recipe})
    planned = dry_run(cluster, recipe="x", hosts=["b"])
    assert [label for label, script in planned if "probe" in script.name] == ["b"]
    assert re.search(r"^ENTRYPOINT='?/bin/true'?$", planned[-1][1].text, re.MULTILINE)


def test_a_word_that_is_no_transport_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="'pigeon' is none of auto, relay, archive"):
        dry_run(make_cluster(tmp_path, a=None), image="app:1", transport="pigeon")


def test_without_an_image_there_is_nothing_to_print(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--recipe or by --image"):
        dry_run(make_cluster(tmp_path, a=None))


def test_a_source_that_is_named_stands_in_place_of_the_unknown_one(tmp_path: Path) -> None:
    cluster = make_cluster(tmp_path, a=None, b=None)
    labels = [label for label, _ in dry_run(cluster, image="app:1", source="b", transport="archive")]
    assert labels == ["a", "b", "b", "b", "<target>", "<target>"]
    with pytest.raises(UsageError, match="the source 'z' is none of the nodes"):
        dry_run(cluster, image="app:1", source="z")
