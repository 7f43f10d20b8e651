"""A label as cluster.yml takes it, with all that means something to a shell or to JSON, through the transfer."""

from __future__ import annotations

from pathlib import Path

import pytest

from fdl_tasks.cluster.names import segment
from fdl_tasks.hosts.fanout import Cancel
from fdl_tasks.hosts.local import Local
from fdl_tasks.images.archive import Sending
from fdl_tasks.images.facts import NodeFacts
from fdl_tasks.images.plan import Step
from fdl_tasks.images.transfer import send
from tests.images.making import make_node
from tests.images.test_archive import IMAGE, OLD, PINNED, SOURCE, Bench, way

LABEL = segment("n\"';$(id>hell)`id>hell`*?%s%n{é}&|<>#~!")


@pytest.mark.subprocess
@pytest.mark.parametrize("shell", ["dash", "busybox sh"])
@pytest.mark.parametrize("source", [SOURCE, OLD], ids=["stream", "file"])
def test_it_names_its_target_and_nothing_else(source: NodeFacts, shell: str, tmp_path: Path) -> None:
    bench = Bench(tmp_path, shell)
    sending = Sending(source, "app:1", {LABEL: make_node(LABEL)}, PINNED)
    with Local("s", Cancel(), bench.env) as host:
        found = send(host, sending, [Step(LABEL, "full")], {LABEL: [way("a")]})
    assert (found[LABEL].error, found[LABEL].said) == (None, ("Loaded image: app:1",))
    assert (bench.folder / "a").read_bytes() == IMAGE.bytes()
    assert list(tmp_path.rglob("hell")) == [] and bench.left() == []
