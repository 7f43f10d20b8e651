"""sshfs: the argv that it gets, and what its words mean."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from fdl_tasks.boxes.data.sshfs import mount_words, refusal
from fdl_tasks.boxes.specs import Target, parse_data_source
from fdl_tasks.boxes.ssh.shell import options
from fdl_tasks.cluster.model import Ssh
from fdl_tasks.errors import PermanentError, PrepareError, TransientError

CASES = Path(__file__).parents[1] / "cases/boxes/sshfs"
FAR = Target("exa:/data")


def ssh_words(argv: Sequence[str]) -> list[str]:
    """The words that sshfs makes of ``ssh_command``: split at spaces, libfuse's escapes undone."""
    (command,) = [word.removeprefix("ssh_command=") for word in argv if word.startswith("ssh_command=")]
    return command.replace("\\,", ",").replace("\\\\", "\\").split(" ")


def test_the_users_options_come_before_ours_and_the_key_and_the_port_are_there() -> None:
    ssh = Ssh("ctrl", 2222, "join-user", "/etc/flodl/join_key", options=("ServerAliveInterval=5",))
    target = parse_data_source("sshfs://flodl@exa:2222/flodl/data")
    argv = mount_words(target, Path("/flodl/data"), options(ssh, target.port))
    assert argv[:3] == ["sshfs", "flodl@exa:/flodl/data", "/flodl/data"]
    words = ssh_words(argv)
    assert words.index("-oServerAliveInterval=5") < words.index("-oServerAliveInterval=15")
    assert {"-oIdentityFile=/etc/flodl/join_key", "-oport=2222", "-oBatchMode=yes"} <= set(words)
    assert {"ro", "reconnect"} <= set(argv)
    assert "join-user" not in " ".join(argv)


def test_without_an_ssh_block_the_defaults_are_there_and_no_key_or_port() -> None:
    argv = mount_words(parse_data_source("sshfs://exa/data"), Path("/mnt/d"), options(None))
    words = ssh_words(argv)
    assert {"ro", "reconnect"} <= set(argv)
    assert {"-oServerAliveInterval=15", "-oServerAliveCountMax=3", "-oBatchMode=yes"} <= set(words)
    assert "-oStrictHostKeyChecking=accept-new" in words
    assert not [word for word in words if "IdentityFile" in word or "port=" in word]


@pytest.mark.parametrize(
    ("case", "kind", "words"),
    [
        ("no-device", PermanentError, "--device /dev/fuse"),
        ("device-closed", PermanentError, "failed to open /dev/fuse: Permission denied"),
        ("no-capability", PermanentError, "SYS_ADMIN"),
        ("wrong-device", PermanentError, "mount failed: Invalid argument"),
        ("unknown-option", PermanentError, "KnownHostsCommand"),
        ("no-mountpoint", PermanentError, "bad mount point"),
        ("not-the-users", PermanentError, "no write access to mountpoint"),
        ("bad-keyword", PermanentError, "Bad configuration option: ciphersx"),
        ("died-meanwhile", TransientError, "Transport endpoint is not connected"),
        ("wrong-key", TransientError, "Permission denied (publickey)"),
        ("wrong-key", TransientError, "data_path:"),
        ("forced-command", TransientError, "internal-sftp -R"),
        ("forced-command", TransientError, "name only `data_path:`"),
        ("no-subsystem", TransientError, "internal-sftp"),
        ("refused", TransientError, "Connection refused"),
        ("timed-out", TransientError, "Connection timed out"),
        ("host-key", TransientError, "Host key verification failed."),
        ("no-such-directory", TransientError, "/srv/nope: No such file or directory"),
        ("not-a-directory", TransientError, "Not a directory"),
        ("ended", TransientError, "Connection reset by peer"),
    ],
)
def test_only_a_box_that_cannot_mount_is_permanent(case: str, kind: type[PrepareError], words: str) -> None:
    found = refusal(FAR, Path("/mnt/far"), 1, (CASES / f"{case}.txt").read_text().splitlines())
    assert type(found) is kind
    assert words in str(found)
    assert str(found).startswith("/mnt/far: exa:/data could not be mounted: ")
    assert case == "ended" or "reset by peer" not in str(found)


def test_an_sshfs_that_says_nothing_is_told_by_its_exit_code() -> None:
    assert "sshfs ended with 137" in str(refusal(FAR, Path("/mnt/far"), 137, []))


@pytest.mark.parametrize(
    ("setting", "travels"),
    [
        ("Port=22", "in ssh's words"),
        ("Ciphers=a,b", "in ssh's words"),
        ("Port 22", "in ssh's words"),
        ("KnownHostsCommand=/bin/echo %H x", "in ssh's words"),
        ('IdentityFile="/a b/key"', "apart"),
        ("ProxyCommand=sh -c 'nc %h,%p'", "apart"),
        ("IdentityFile=/back\\slash", "apart"),
    ],
)
def test_a_setting_goes_where_it_stays_whole(setting: str, travels: str) -> None:
    argv = mount_words(FAR, Path("/mnt/far"), [setting])
    assert len([word for word in argv if word == "-o"]) == (4 if travels == "in ssh's words" else 5)
    assert all("\\," in word for word in argv[3:] if "," in word)


def test_all_values_of_a_keyword_go_one_way_so_that_the_first_still_wins() -> None:
    argv = mount_words(FAR, Path("/mnt/far"), ['IdentityFile="/a b"', "Port=1", "identityfile=/c", "port=2"])
    assert [word for word in argv if "dentity" in word] == ['IdentityFile="/a b"', "identityfile=/c"]
    assert ssh_words(argv) == ["ssh", "-oPort=1", "-oport=2"]


def test_the_words_of_sshfs_are_told_from_those_of_the_clean_up() -> None:
    said = ["read: Connection reset by peer", "fusermount3: failed to unmount /m: Invalid argument"]
    assert isinstance(refusal(FAR, Path("/m"), 1, said), TransientError)
    said.append("fusermount: mount failed: Operation not permitted")
    assert isinstance(refusal(FAR, Path("/m"), 1, said), PermanentError)
