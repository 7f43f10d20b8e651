"""Every refusal: tests/cases/cluster/*.yml goes in, the faults beside it come out, one `line: path: message` each."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fdl_tasks.cluster.load import parse_cluster
from fdl_tasks.errors import ConfigError

CASES = Path(__file__).parents[1] / "cases" / "cluster"
FILE = Path("/srv/mono/cluster.yml")


def refused(raw: bytes, file: Path = FILE) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        parse_cluster(raw, file, own_label="here")
    return caught.value


@pytest.mark.parametrize("case", sorted(CASES.glob("*.yml")), ids=lambda case: case.stem)
def test_a_wrong_file_is_refused_with_all_its_faults(case: Path) -> None:
    error = refused(case.read_bytes())
    found = [f"{fault.line}: {fault.path}: {fault.message}" for fault in error.faults]
    assert found == case.with_suffix(".faults").read_text().splitlines()
    assert {fault.file for fault in error.faults} == {str(FILE)}
    assert error.exit_code == 2


def test_ten_different_faults_are_printed_together_each_with_file_line_and_path() -> None:
    lines = str(refused((CASES / "ten-faults.yml").read_bytes())).splitlines()
    assert lines[0] == "/srv/mono/cluster.yml: 10 faults in it"
    assert len(lines) == 11
    assert lines[1] == "  /srv/mono/cluster.yml:4: controller.dokcer: unknown key: did you mean `docker`?"


def test_every_case_has_its_expectation_and_no_expectation_stands_alone() -> None:
    assert {case.stem for case in CASES.glob("*.yml")} == {case.stem for case in CASES.glob("*.faults")}


def test_no_message_repeats_a_value_of_env_or_the_token() -> None:
    text = """
env: {A: [s3cret], B: "s3cret\\n", C: &s s3cret, C: s3cret}
join: {token: "s3cret\\n", data_path: 1}
workers: [{host: a, path: /p, env: {X: "s3cret\\0", Y: {s: s3cret}}}]
"""
    error = refused(text.encode())
    assert len(error.faults) == 7
    assert "s3cret" not in str(error)


def test_a_local_worker_may_not_inherit_a_colon_from_the_directory_of_the_file() -> None:
    text = b"workers: [{host: a, path: sub, transport: local}, {host: b, path: /p, transport: local}]"
    (fault,) = refused(text, Path("/srv/a:b/cluster.yml")).faults
    assert fault.path == "workers[0].path"
    assert "':'" in fault.message


KEYS = st.sampled_from(
    [
        "controller",
        "workers",
        "ssh",
        "env",
        "commands",
        "groups",
        "recipes",
        "images",
        "join",
        "publish",
        "host",
        "path",
        "arch",
        "transport",
        "options",
        "port",
        "host_key",
        "ranks",
        "cluster",
        "image",
        "source",
        "from",
        "<<",
    ]
)
SCALARS = st.sampled_from(
    ["a", "/p", "..", "1", "0x1F", "true", "~", ".inf", "[]", "{}", '"\\0"', "!!int x", "&a x", "*a"]
)
TREES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4).map(lambda parts: f"[{', '.join(parts)}]"),
        st.lists(st.tuples(KEYS, inner), max_size=5).map(
            lambda pairs: "{" + ", ".join(f"{key}: {value}" for key, value in pairs) + "}"
        ),
    ),
    max_leaves=20,
)


def loads_or_refuses(raw: bytes) -> None:
    try:
        parse_cluster(raw, FILE, own_label="here")
    except ConfigError as error:
        assert error.faults


@settings(max_examples=200, deadline=None)
@given(st.text().map(lambda text: text.encode("utf-8", "surrogatepass")) | st.binary())
@example(b'a: "\\UFFFFFFFF"')
@example(b"%YAML 99999999999999999999.1\n--- a")
@example(b"? a\n? b\n: {c")
@example(b"!%FF a: b")
@example(b"!!binary cluster: lab")
def test_no_text_makes_the_reader_raise_anything_but_a_configuration_error(raw: bytes) -> None:
    loads_or_refuses(raw)


@settings(max_examples=300, deadline=None)
@given(TREES)
def test_no_tree_of_known_keys_does_either(text: str) -> None:
    loads_or_refuses(text.encode())


def test_a_file_with_aliases_within_reason_loads() -> None:
    text = b"""
env: {A: x}
workers:
  - {host: a, path: /p, ssh: &ssh {user: ubuntu, port: 2222}}
  - {host: b, path: /p, ssh: *ssh}
"""
    cluster = parse_cluster(text, FILE, own_label="here")
    assert [worker.ssh.user for worker in cluster.need_workers()] == ["ubuntu", "ubuntu"]
