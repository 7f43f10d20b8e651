"""How ssh is spelled: who wins, and that every word arrives through rsync's and git's own splitting."""

import json
import subprocess
from pathlib import Path

import pytest

from fdl_tasks.boxes.ssh.shell import OURS, options, overruled, remote_shell, spelled, trusting
from fdl_tasks.cluster.model import Ssh

SSH = Ssh("ctrl", port=2222, user="join-user", identity_file="/etc/flodl/join_key", options=("ServerAliveInterval=5",))


def test_the_users_options_stand_before_ours_and_the_port_is_the_sources() -> None:
    found = options(SSH, 2022)
    assert found == ["ServerAliveInterval=5", "IdentityFile=/etc/flodl/join_key", "port=2022", *OURS]
    assert {"BatchMode=yes", "StrictHostKeyChecking=accept-new"} <= set(OURS)


def test_without_an_ssh_block_there_are_our_defaults() -> None:
    assert options(None) == list(OURS)


def test_the_contracts_defaults_are_among_ours() -> None:
    """spec/prepare.md, 2 and 4: its words."""
    stated = {"BatchMode=yes", "StrictHostKeyChecking=accept-new", "ServerAliveInterval=15", "ServerAliveCountMax=3"}
    assert stated <= {*options(None)}


def test_a_pin_stands_before_everything_the_user_says_of_host_keys() -> None:
    loose = Ssh("ctrl", options=("StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null"))
    found = options(loose, None, Path("/root/of it/known"))
    assert found[: len(trusting(Path("/x")))] == trusting(Path("/root/of it/known"))
    assert found.index("StrictHostKeyChecking=yes") < found.index("StrictHostKeyChecking=no")
    assert 'UserKnownHostsFile="/root/of it/known"' in found


@pytest.mark.parametrize("option", ["BatchMode=no", "batchmode no", "BatchMode = No"])
def test_an_option_that_asks_for_prompts_is_left_out_and_told(option: str) -> None:
    ssh = Ssh("ctrl", options=(option, "Compression=yes"))
    assert options(ssh) == ["Compression=yes", *OURS]
    assert overruled(ssh) == option


def test_nothing_is_overruled_where_nobody_asked_for_prompts() -> None:
    assert [overruled(None), overruled(SSH), overruled(Ssh("c", options=("BatchMode=yes",)))] == [None, None, None]


@pytest.mark.subprocess
@pytest.mark.parametrize("key", ["/a/key", "/a b/k\te y", '/a"b/key', "/a'b/key", "/a\\b/key", "/a#b/key", "~/.ssh/k"])
def test_ssh_reads_a_key_file_whatever_it_is_called(key: str) -> None:
    words = remote_shell(Ssh("ctrl", identity_file=key))
    told = subprocess.run([*words, "-F", "/dev/null", "-G", "--", "exa"], capture_output=True, text=True, check=True)
    assert f"identityfile {key}" in told.stdout.splitlines()


@pytest.mark.subprocess
@pytest.mark.parametrize("value", ["a b", "a'b", 'a"b', "a\\b", "", "''", '""', "é\tx", "a\nb", "$(id) `id` ;&|*?~"])
def test_rsync_and_git_split_the_words_as_they_were(value: str, tmp_path: Path) -> None:
    stand_in, got = tmp_path / "s s" / "ssh", tmp_path / "got"
    stand_in.parent.mkdir()
    code = f"import json, sys\nopen({str(got)!r}, 'w').write(json.dumps(sys.argv[1:3]))\nsys.exit(9)\n"
    stand_in.write_text(f"#!/usr/bin/env python3\n{code}")
    stand_in.chmod(0o755)
    text = spelled([str(stand_in), "-o", value])
    env = {"PATH": "/usr/bin:/bin", "GIT_SSH_COMMAND": text, "GIT_SSH_VARIANT": "ssh"}
    for argv in (["rsync", "-e", text, "--", "h:/x/", f"{tmp_path}/d/"], ["git", "ls-remote", "ssh://h/x"]):
        got.unlink(missing_ok=True)
        subprocess.run(argv, env=env, check=False, capture_output=True)
        assert json.loads(got.read_text()) == ["-o", value]
