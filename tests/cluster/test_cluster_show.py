"""What `inv cluster.show` tells: each value, and whether the worker, the defaults or nobody said so."""

from __future__ import annotations

from pathlib import Path

from fdl_tasks.cluster.load import parse_cluster
from fdl_tasks.cluster.show import Row, describe

TEXT = b"""
controller: {host: ctrl, path: /srv/mono}
ssh: {user: ubuntu, port: 2200}
env: {A: s3cret, B: s3cret}
workers:
  - {host: node-a, path: /p, arch: cpu, env: {B: s3cret, C: s3cret}, ssh: {port: 22, options: [X=y]}}
  - {host: here, path: mono, transport: local}
groups: {spark: [node-a]}
commands: {x: {profile: release, check: [--version]}}
recipes: {r: {container: repo/r}}
join: {token: s3cret, source: {from: "file:///s"}, ssh: {user: u}}
"""
ROWS = describe(parse_cluster(TEXT, Path("/conf/cluster.yml"), own_label="here"))


def rows(of: str) -> dict[str, tuple[object, str]]:
    return {row.key: (row.value, row.origin) for row in ROWS if row.of == of}


def test_each_setting_of_a_worker_says_where_it_came_from() -> None:
    assert rows("worker node-a") == {
        "host": ("node-a", "worker"),
        "path": ("/p", "worker"),
        "arch": ("cpu", "worker"),
        "build": (True, "default"),
        "data_path": ("/flodl/data", "default"),
        "transport": ("ssh", "default"),
        "fabric_ip": (None, "default"),
        "mgmt_ip": (None, "default"),
        "ssh.target": ("node-a", "default"),
        "ssh.port": (22, "worker"),
        "ssh.user": ("ubuntu", "ssh defaults"),
        "ssh.identity_file": (None, "default"),
        "ssh.node_identity_file": (None, "default"),
        "ssh.options": (("X=y",), "worker"),
        "ssh.host_key": ((), "default"),
        "docker_host": (None, "default"),
        "env.A": ("***", "env defaults"),
        "env.B": ("***", "worker"),
        "env.C": ("***", "worker"),
    }


def test_a_worker_on_this_machine_has_no_ssh_settings() -> None:
    assert not [key for key in rows("worker here") if key.startswith("ssh.")]
    assert rows("worker here")["path"] == ("/conf/mono", "worker")


def test_controller_commands_recipes_and_the_whole_are_told_too() -> None:
    assert rows("controller")["path"] == ("/srv/mono", "controller")
    assert rows("controller")["data_path"] == ("/flodl/data", "default")
    assert rows("command x")["profile"] == ("release", "file")
    assert rows("command x")["cwd"] == (None, "default")
    assert rows("recipe r") == {"image": ("repo/r", "file"), "exec_probe": (None, "default")}
    assert rows("cluster") == {
        "file": ("/conf/cluster.yml", "file"),
        "groups.spark": (("node-a",), "file"),
        "env.A": ("***", "file"),
        "env.B": ("***", "file"),
        "recipe_paths": (("/conf/recipes",), "default"),
        "images.compress": ("none", "default"),
    }


def test_of_join_only_what_is_set_is_told_and_the_token_is_masked() -> None:
    assert rows("join") == {
        "token": ("***", "file"),
        "persist": (False, "default"),
        "sig_probe": (True, "default"),
        "ssh.user": ("u", "file"),
        "source.from": ("file:///s", "file"),
    }


def test_no_secret_is_in_any_row() -> None:
    assert "s3cret" not in repr(ROWS)
    assert all(isinstance(row, Row) for row in ROWS)


def test_a_file_without_join_has_no_rows_of_it() -> None:
    cluster = parse_cluster(b"workers: []", Path("/conf/cluster.yml"), own_label="here")
    assert {row.of for row in describe(cluster)} == {"cluster"}
