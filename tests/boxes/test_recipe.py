"""The run's manifest over the box's own recipe (seeds/001, its tests of the same subject), inside the tree."""

import pytest

from fdl_tasks.boxes.recipe import CARGO, Recipe, merge
from fdl_tasks.boxes.source.manifest import Manifest
from fdl_tasks.cluster.model import Source
from fdl_tasks.errors import PermanentError, TransientError

FROM = "rsync://ctrl:/srv/run/tree"


def test_a_published_manifest_wins_over_the_boxs_own_recipe() -> None:
    own = Source(FROM, cwd="stale", build="stale-build", bin="stale-bin")
    manifest = Manifest(bin="target/release/ddp-bench", cwd="ddp-bench", build=CARGO)
    assert merge(own, manifest) == Recipe("ddp-bench", CARGO, "target/release/ddp-bench")


def test_what_the_manifest_leaves_out_is_the_boxs_own() -> None:
    own = Source(FROM, cwd="ddp-bench", build="./ci/build.sh", bin="target/release/x")
    assert merge(own, Manifest(bin="target/release/y")) == Recipe("ddp-bench", "./ci/build.sh", "target/release/y")
    assert merge(own, None).bin == "target/release/x"


def test_the_default_is_cargo_at_the_root_of_the_tree() -> None:
    assert merge(Source(FROM, bin="x"), None) == Recipe(".", CARGO, "x")


def test_nothing_published_and_nothing_named_here_waits() -> None:
    with pytest.raises(TransientError, match="no run is published") as caught:
        merge(Source(FROM), None)
    assert "fdl publish" in str(caught.value) and "--source-bin" in str(caught.value)


@pytest.mark.parametrize(
    ("cwd", "binary", "what"),
    [
        ("..", "x", "cwd"),
        ("/etc", "x", "cwd"),
        ("a/../../b", "x", "cwd"),
        ("a\0b", "x", "cwd"),
        (None, "../x", "bin"),
        (None, "/usr/bin/true", "bin"),
        ("a", "../../x", "bin"),
        ("a/b", "../../../x", "bin"),
        (None, "", "bin"),
    ],
)
@pytest.mark.parametrize("published", [True, False])
def test_nothing_may_leave_the_tree(cwd: str | None, binary: str, what: str, published: bool) -> None:
    own = Source(FROM) if published else Source(FROM, cwd=cwd, bin=binary)
    with pytest.raises(PermanentError, match=f"{what} of .* leaves the source tree"):
        merge(own, Manifest(bin=binary, cwd=cwd) if published else None)


def test_a_binary_beside_the_directory_is_still_inside_of_the_tree() -> None:
    """A cargo workspace has its target directory at its root."""
    assert merge(Source(FROM, cwd="bench", bin="../target/release/x"), None).bin == "../target/release/x"
