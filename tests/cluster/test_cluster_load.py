"""A file that is right becomes plain values: paths resolved, defaults applied, text kept as text."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from fdl_tasks.cluster import Command, ImageRef, Ssh
from fdl_tasks.cluster.load import load_cluster, parse_cluster
from fdl_tasks.cluster.model import Cluster, Images, Join, Recipe, Source
from fdl_tasks.errors import ConfigError

DOCS = Path(__file__).parents[2] / "docs" / "configuration.md"
FILE = Path("/conf/cluster.yml")
WORKER = "workers: [{host: a, path: /p, %s}]"


def parsed(text: str, own_label: str = "here") -> Cluster:
    return parse_cluster(text.encode(), FILE, own_label=own_label)


def example() -> Cluster:
    blocks = re.findall(r"^```yaml\n(.*?)^```", DOCS.read_text(), re.M | re.S)
    return parsed(max(blocks, key=len))


def test_the_examples_of_the_documentation_load() -> None:
    blocks = re.findall(r"^```yaml\n(.*?)^```", DOCS.read_text(), re.M | re.S)
    assert len(blocks) == 2
    for block in blocks:
        assert parsed(block).need_workers()
        assert parsed(block).notes == ()


def test_the_documented_worker_is_resolved_in_every_field() -> None:
    worker, amd, here = example().need_workers()
    assert worker.ssh == Ssh(
        target="node-a.lan",
        port=2222,
        user="ubuntu",
        identity_file="/srv/mono/keys/cluster",
        node_identity_file="~/.ssh/cluster",
        options=("ProxyJump=bastion", "StrictHostKeyChecking=accept-new"),
        host_keys=("SHA256:uNiVztksCsDhcc0u9e8BrJ5UV2jkbR3pDuJ7QQ2yJz0",),
    )
    assert worker.env == {"FLODL_VERBOSITY": "2", "NCCL_DEBUG": "INFO", "OMP_NUM_THREADS": "4"}
    assert (worker.path, worker.arch, worker.build) == ("/srv/mono", "precompiled/cu128", True)
    assert (worker.data_path, worker.data_path_declared) == ("/mnt/nas", True)
    assert (worker.fabric_ip, worker.mgmt_ip) == ("10.78.0.1", "10.77.0.1")
    assert worker.docker_host == "unix:///run/user/1000/docker.sock"
    assert amd.ssh == Ssh(target="node-b", user="ubuntu", identity_file="~/.ssh/cluster")
    assert (amd.build, amd.data_path, amd.data_path_declared) == (False, "/flodl/data", False)
    assert (here.transport, here.path) == ("local", "/conf/mono")


def test_the_rest_of_the_documented_example_is_resolved() -> None:
    cluster = example()
    controller = cluster.need_controller()
    assert (controller.host, controller.path, controller.docker) == ("ctrl", Path("/srv/mono"), "cuda")
    assert (controller.data_path_declared, controller.arch) == (True, "precompiled/cu128")
    assert cluster.command("ddp-bench") == Command(
        "ddp-bench", "ddp-bench", "./ci/build.sh", "release/ddp-bench", "release", ("--locked",), ("--version",)
    )
    assert cluster.recipe("x") == Recipe("x", ImageRef.parse("repo/vllm:24"), ("/bin/true",), FILE)
    assert cluster.recipe_paths == (Path("/conf/recipes"), Path("/conf/deploy/recipes"))
    assert cluster.images == Images("none")


def test_the_documented_join_block_is_resolved() -> None:
    assert example().join == Join(
        controller="ctrl:1337",
        ssh=Ssh(
            target="ctrl",
            identity_file="/conf/keys/box",
            options=("ProxyJump=bastion",),
            host_keys=("SHA256:uNiVztksCsDhcc0u9e8BrJ5UV2jkbR3pDuJ7QQ2yJz0",),
        ),
        token="00112233445566778899aabbccddeeff",
        source=Source("rsync://ctrl/srv/mono", "ddp-bench", "cargo build --release", "target/release/ddp-bench"),
        libtorch="auto",
        host="node-a",
        devices=(0, 1),
        data_path="/mnt/nas",
        data_source="sshfs://ctrl/srv/data",
        gpu_ram_share=0.9,
        args=("--epochs", "3"),
    )
    assert "0011" not in repr(example().join)


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("NO", "NO"),
        ("yes", "yes"),
        ("on", "on"),
        ("012", "012"),
        ("-012", "-012"),
        ("12:30:45", "12:30:45"),
        ("1_000", "1_000"),
        ("2024-01-01", "2024-01-01"),
        ("1.2.3", "1.2.3"),
        ("4", "4"),
        ("+4", "+4"),
        ("0x1F", "0x1F"),
        ("0o17", "0o17"),
        ('"true"', "true"),
        ("!!str 5", "5"),
        ("=", "="),
        ("naïve", "naïve"),
        ("it's $(x) `y` \\", "it's $(x) `y` \\"),
    ],
)
def test_a_variable_has_the_text_that_is_written(written: str, meant: str) -> None:
    assert parsed(f"env: {{A: {written}}}\nworkers: [{{host: a, path: /p}}]").need_workers()[0].env == {"A": meant}


@pytest.mark.parametrize(
    ("written", "share"), [("1", 1.0), ("0.5", 0.5), (".5", 0.5), ("1.", 1.0), ("5e-1", 0.5), ("2.5E+0", 2.5)]
)
def test_numbers_are_numbers(written: str, share: float) -> None:
    assert parsed(f"join: {{gpu_ram_share: {written}}}").join.gpu_ram_share == share


@pytest.mark.parametrize(("written", "port"), [("2222", 2222), ("0x16", 22), ("0o26", 22)])
def test_whole_numbers_are_plain_ints(written: str, port: int) -> None:
    read = parsed(WORKER % f"ssh: {{port: {written}}}").need_workers()[0].ssh.port
    assert (read, type(read)) == (port, int)


@pytest.mark.parametrize("written", ["null", "~", "NULL", ""])
def test_an_optional_key_without_a_value_is_a_key_left_out(written: str) -> None:
    assert parsed(WORKER % f"arch: {written}").need_workers()[0].arch is None


@pytest.mark.parametrize(
    ("controller", "written", "resolved"),
    [
        ("/srv/mono", "keys/k", "/srv/mono/keys/k"),
        ("../mono", "keys/k", "/mono/keys/k"),
        ("sub", "keys/k", "/conf/sub/keys/k"),
        ("/srv/mono", "/abs/k", "/abs/k"),
        ("/srv/mono", "~/.ssh/k", "~/.ssh/k"),
        (None, "keys/k", "/conf/keys/k"),
    ],
)
def test_an_identity_file_is_relative_to_the_project_root(controller: str | None, written: str, resolved: str) -> None:
    head = f"controller: {{host: c, path: {controller}}}\n" if controller else ""
    for text in (WORKER % f"ssh: {{identity_file: {written}}}", f"ssh: {{identity_file: {written}}}\n{WORKER % ''}"):
        assert parsed(head + text).need_workers()[0].ssh.identity_file == resolved


def test_ssh_defaults_reach_every_worker_field_by_field() -> None:
    cluster = parsed("""
ssh: {user: ubuntu, port: 22, options: [A=1], host_key: SHA256:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA}
workers:
  - {host: a, path: /p, ssh: {port: 2222, options: [B=2, C=3]}}
  - {host: b, path: /p, ssh: {options: []}}
""")
    first, second = (worker.ssh for worker in cluster.need_workers())
    assert (first.user, first.port, first.options) == ("ubuntu", 2222, ("B=2", "C=3"))
    assert first.host_keys == ("SHA256:" + "A" * 43,)
    assert second == replace(first, target="b", port=22, options=())


def test_a_workers_own_variable_wins_over_the_clusters() -> None:
    cluster = parsed("env: {A: all, B: all}\n" + WORKER % "env: {B: own, C: own}")
    assert cluster.env == {"A": "all", "B": "all"}
    assert cluster.need_workers()[0].env == {"A": "all", "B": "own", "C": "own"}


def test_a_worker_on_this_machine_may_be_relative_to_the_file_and_loses_its_last_slash() -> None:
    text = "workers: [{host: a, path: mono/, transport: local}, {host: b, path: /srv/mono//}, {host: c, path: /}]"
    assert [worker.path for worker in parsed(text).need_workers()] == ["/conf/mono", "/srv/mono", "/"]


def test_paths_with_blanks_quotes_and_other_scripts_are_kept_as_they_are() -> None:
    path = '/srv/o\'brien $(x) "größe"'
    text = f"workers:\n  - host: a\n    path: {path}\n"
    assert parsed(text).need_workers()[0].path == path


def test_a_build_line_may_have_several_lines() -> None:
    text = "commands:\n  x:\n    build: |\n      ./configure\n      make\n"
    assert parsed(text).command("x").build == "./configure\nmake\n"


def test_the_launchers_own_keys_are_accepted() -> None:
    assert parsed("""
controller:
  host: "::"
  path: /p
  port: 1337
  join: {min_rank_start: 2, join_timeout: 300, start: hybrid, token: x, discovery: true, open_admission: false}
workers:
  - {host: a, path: /p, local_devices: all, nccl_socket_ifname: eth0, tunnel: true, gpu_ram_share: 1.5, docker: cuda}
  - {host: b, path: /p, local_devices: [0, 255]}
gpu_ram_share: 0.5
publish: {source: ., bin: x, to: y, args: [--a]}
""").need_workers()


def test_of_a_launchers_file_the_cluster_block_is_read_and_the_rest_noted_once() -> None:
    cluster = parsed("commands: {x: {run: y}}\non: 1\ncluster: {workers: []}\ninherit-from: base")
    assert cluster.workers == ()
    assert cluster.notes == (
        "/conf/cluster.yml: only the block `cluster:` is read; ignored beside it: commands, on, inherit-from",
    )
    assert parsed("cluster: {workers: []}").notes == ()


def test_a_byte_order_mark_is_no_fault() -> None:
    assert parse_cluster(b"\xef\xbb\xbfworkers: []", FILE, own_label="here").workers == ()


def test_this_machines_label_is_the_variable_without_blanks_else_the_hostname(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "cluster.yml"
    file.write_text("workers: []")
    monkeypatch.setattr("socket.gethostname", lambda: "box")
    for value, label in ((" node-a\n", "node-a"), ("  ", "box"), (None, "box")):
        monkeypatch.delenv("FLODL_HOST_NAME", raising=False)
        if value is not None:
            monkeypatch.setenv("FLODL_HOST_NAME", value)
        assert load_cluster(file).own_label == label
    assert load_cluster(file, own_label="given").own_label == "given"


def test_the_file_is_found_from_the_current_directory_and_relative_paths_start_at_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "cluster.yml").write_text("controller: {host: c, path: mono}")
    monkeypatch.chdir(tmp_path / "deep")
    assert load_cluster().need_controller().path == tmp_path / "mono"
    assert load_cluster("../cluster.yml").file == tmp_path / "cluster.yml"


def test_a_file_far_too_large_is_refused_before_it_is_parsed(tmp_path: Path) -> None:
    (tmp_path / "cluster.yml").write_bytes(b"#" * (1 << 20) + b"#")
    with pytest.raises(ConfigError, match="larger than 1 MiB"):
        load_cluster(tmp_path / "cluster.yml")


@pytest.mark.subprocess
def test_the_package_alone_imports_neither_pydantic_nor_yaml() -> None:
    probe = "import fdl_tasks.cluster, sys; print(sorted({'pydantic', 'yaml'} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
