from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fdl_tasks.cluster.model import Join
from fdl_tasks.report.masking import Masker, clean, masker_of
from fdl_tasks.testing import make_cluster


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain\ttext\nnext", "plain\ttext\nnext"),
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b[2J\x1b[1;1Hwiped", "wiped"),
        ("\x1b]0;new title\x07after", "after"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1b]52;c;cGFzdGU=", ""),
        ("\x1b]0;never ended\nnext line", "\nnext line"),
        ("\x1bPdevice\x1b\\x", "x"),
        ("\x9b31mone byte CSI", "one byte CSI"),
        ("\x1b(0qqq\x1b(B", "qqq"),
        ("\x1bc reset", " reset"),
        ("bell\x07 back\x08 nul\0 del\x7f", "bell back nul del"),
        ("over\rwritten", "overwritten"),
        ("user\u202e gnp.exe\u2066", "user gnp.exe"),
        ("naïve – 漢字", "naïve – 漢字"),
        ("\x1b\x1b[31mtwice", "twice"),
    ],
)
def test_nothing_that_a_terminal_obeys_is_left(text: str, shown: str) -> None:
    assert clean(text) == shown


@given(st.text(alphabet=st.characters(codec="utf-8") | st.sampled_from("\x1b\x1b\x9b[]P;m\x07\\0")))
def test_no_control_character_ever_gets_through(text: str) -> None:
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f]", clean(text))


@pytest.mark.parametrize(
    ("secrets", "text", "shown"),
    [
        (["hunter2hunter2"], "token=hunter2hunter2!", "token=***!"),
        (["hunter2hunter2"], "xhunter2hunter2y", "x***y"),
        (["hunter2hunter2", "hunter2hunter2-long"], "hunter2hunter2-long", "***"),
        (["abcd"], "abcd and abcdef", "*** and abcdef"),
        (["1"], "1 of 10", "1 of 10"),
        (["first line\nsecond line"], "saw second line", "saw ***"),
        (["a.c+d(e"], "a.c+d(e abcdde", "*** abcdde"),
        (["hunter2hunter2"], "hunter2\x1b[0mhunter2", "***"),
        ([], "anything", "anything"),
    ],
)
def test_secrets_are_masked(secrets: list[str], text: str, shown: str) -> None:
    assert Masker(secrets)(text) == shown


def test_json_values_are_masked_at_every_depth_and_keys_stay() -> None:
    value = {"hunter2hunter2": [{"error": "is hunter2hunter2"}, 1, None, True]}
    assert Masker(["hunter2hunter2"]).values(value) == {"hunter2hunter2": [{"error": "is ***"}, 1, None, True]}


def test_a_clusters_secrets_are_its_environments_and_its_token(tmp_path: Path) -> None:
    cluster = make_cluster(tmp_path, changes={"node": {"env": {"A": "worker-secret"}}}, node="precompiled/cu128")
    cluster = replace(cluster, env={"B": "cluster-secret"}, join=Join(token="join-secret"))
    assert masker_of(cluster)("worker-secret cluster-secret join-secret") == "*** *** ***"


def test_what_cluster_yml_states_openly_is_no_secret(tmp_path: Path) -> None:
    cluster = make_cluster(tmp_path, node="precompiled/cu128")
    cluster = replace(cluster, env={"A": "node", "B": "precompiled/cu128", "C": str(tmp_path), "D": "controller"})
    text = f"node precompiled/cu128 {tmp_path} controller"
    assert masker_of(cluster)(text) == text
