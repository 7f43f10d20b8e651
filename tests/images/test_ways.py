"""Ways between nodes: which addresses could do, the exact ssh command line, and what the answers mean."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fdl_tasks.cluster.model import Ssh, Worker
from fdl_tasks.errors import FdlError, ScriptError
from fdl_tasks.hosts.settings import Settings
from fdl_tasks.hosts.settings import parse as parse_settings
from fdl_tasks.images import logins
from fdl_tasks.images.addresses import Candidates, Peer, Way, alias, candidates, known_hosts
from fdl_tasks.images.logins import Reach, Route, Tried, route
from fdl_tasks.images.ways import peer, ssh_argv
from fdl_tasks.testing import FakeHost

PLAIN = (Path(__file__).parents[1] / "cases/ssh-G/plain.txt").read_text()
KEY = ("ssh-ed25519", "AAAAC3NzaC1lZDI1NTE5AAAAIB7K")
FABRIC = Way("b", "10.78.0.2", 22, "root", alias("b"), "~/.ssh/id", True)
MANAGEMENT = replace(FABRIC, address="10.77.0.2", fabric=False)


def settings(**fields: Any) -> Settings:
    return replace(parse_settings(Ssh("node1"), PLAIN, None), **{"hostname": "10.77.0.2", "user": "root", **fields})


def node(label: str, found: Settings | None = None, ssh: Ssh | None = None, **fields: Any) -> Peer:
    """A node with a fabric and a management address."""
    known = {"fabric_ip": "10.78.0.2", **fields}
    return Peer(Worker(label, "/srv", ssh or Ssh(label), **known), found or settings(), (KEY,))


SOURCE = node("a")


def addresses(target: Peer, source: Peer = SOURCE, **how: bool) -> list[str]:
    return [way.address for way in candidates(source, target, **how).ways]


# -- candidates -----------------------------------------------------------------------------------


def test_the_fabric_comes_first_and_both_have_the_port_and_user_that_openssh_resolved() -> None:
    found = candidates(SOURCE, node("b", settings(port=2222, user="lab")))
    assert [(way.address, way.port, way.user, way.fabric) for way in found.ways] == [
        ("10.78.0.2", 2222, "lab", True),
        ("10.77.0.2", 2222, "lab", False),
    ]
    assert found.refused == ()


@pytest.mark.parametrize(
    ("target", "ways"),
    [
        (node("b", fabric_ip=None), ["10.77.0.2"]),
        (node("b", mgmt_ip="node-b.lan"), ["10.78.0.2", "node-b.lan"]),
        (node("b", mgmt_ip="10.78.0.2"), ["10.78.0.2"]),
        (node("b", fabric_ip="fe80::1%ib0"), ["fe80::1%ib0", "10.77.0.2"]),
        (node("b", settings(proxy=("ssh", "-W"))), ["10.78.0.2"]),
        (node("b", settings(proxy=("ssh", "-W")), mgmt_ip="10.77.0.9"), ["10.78.0.2", "10.77.0.9"]),
        (node("b", transport="local"), ["10.78.0.2"]),
        (node("b", transport="local", mgmt_ip="10.77.0.1", fabric_ip=None), ["10.77.0.1"]),
    ],
)
def test_addresses_that_could_do(target: Peer, ways: list[str]) -> None:
    assert addresses(target) == ways


@pytest.mark.parametrize(
    "address",
    ["127.0.0.1", "127.9.9.9", "::1", "0.0.0.0", "::", "::ffff:127.0.0.1", "localhost", "LOCALHOST.", "localhost.lan"],
)
def test_a_loopback_address_is_no_way_between_nodes_and_says_so(address: str) -> None:
    for target in (node("b", settings(hostname=address)), node("b", mgmt_ip=address)):
        found = candidates(SOURCE, target)
        assert [way.address for way in found.ways] == ["10.78.0.2"]
        assert len(found.refused) == 1 and address in found.refused[0] and "loopback" in found.refused[0]
    assert addresses(node("b", fabric_ip=address)) == ["10.77.0.2"]


@pytest.mark.parametrize("address", ["-oProxyCommand=x", "a b", "root@b", "b;id", "[::1]", "b/c", ""])
def test_what_is_no_address_reaches_no_command_line(address: str) -> None:
    found = candidates(SOURCE, node("b", settings(hostname=address), fabric_ip=None))
    assert found.ways == () and "neither a name nor an address" in found.refused[0]


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        (node("b", settings(proxy=("ssh",)), fabric_ip=None), "behind a jump or a proxy"),
        (node("b", transport="local", fabric_ip=None), "is this machine"),
        (Peer(Worker("b", "/", Ssh("b"), fabric_ip="10.78.0.2"), None, (KEY,)), "no connection to it was made"),
        (replace(node("b"), host_keys=()), "host key is not known"),
        (replace(node("b"), fault="identity_file x is not there"), "identity_file x is not there"),
        (replace(node("b"), host_keys=(("ssh-rsa", "AAA\n* ssh-rsa BBB"),)), "characters that no known_hosts file"),
        (node("b", settings(user="-oProxyCommand=x")), "can't be handed on to ssh"),
        (node("b", settings(user="a b")), "can't be handed on to ssh"),
        (node("b", ssh=Ssh("b", identity_file="/keys/100%h")), "set node_identity_file"),
    ],
)
def test_a_target_without_a_way_says_why(target: Peer, reason: str) -> None:
    found = candidates(SOURCE, target)
    assert found.ways == () and reason in found.refused[0]


def test_only_the_fabric_when_it_is_required() -> None:
    assert addresses(node("b"), require_fabric=True) == ["10.78.0.2"]
    found = candidates(SOURCE, node("b", fabric_ip=None), require_fabric=True)
    assert found.ways == () and "no fabric_ip" in found.refused[0]


@pytest.mark.parametrize(
    ("source", "target", "key"),
    [
        (SOURCE, node("b", ssh=Ssh("b", identity_file="~/keys/cluster")), "~/.ssh/cluster"),
        (SOURCE, node("b", settings(identity_files=(Path("/u/.ssh/one"),))), "~/.ssh/one"),
        (SOURCE, node("b"), None),  # ssh's own list of keys that may be there: nobody named one
        (node("a", ssh=Ssh("a", node_identity_file="~/n")), node("b", ssh=Ssh("b", identity_file="/k/c")), "~/n"),
        (node("a", ssh=Ssh("a", node_identity_file="/n")), node("b"), "/n"),
        (node("a", transport="local"), node("b", ssh=Ssh("b", identity_file="/keys/c")), "/keys/c"),
    ],
)
def test_the_key_for_the_login(source: Peer, target: Peer, key: str | None) -> None:
    assert {way.key_file for way in candidates(source, target).ways} == {key}


def test_aes_only_when_both_have_it() -> None:
    fast = replace(SOURCE, aes=True)
    assert candidates(fast, replace(node("b"), aes=True)).ways[0].aes
    assert (
        not candidates(fast, node("b")).ways[0].aes and not candidates(SOURCE, replace(node("b"), aes=True)).ways[0].aes
    )


# -- what reaches ssh -----------------------------------------------------------------------------


def test_the_pinned_keys_are_one_line_a_key_under_an_alias_that_means_nothing_else() -> None:
    odd = replace(node("n*,!é|#"), host_keys=(KEY, ("ssh-rsa", "AAAB3+/=")))
    lines = known_hosts([odd, replace(node("c"), fault="x"), node("d")]).splitlines()
    assert lines == [
        f"{alias('n*,!é|#')} {KEY[0]} {KEY[1]}",
        f"{alias('n*,!é|#')} ssh-rsa AAAB3+/=",
        f"{alias('d')} {KEY[0]} {KEY[1]}",
    ]
    assert alias("d") != alias("D") and all(char in "fdl-0123456789abcdef" for char in alias("n*,!é|#"))
    assert known_hosts([replace(node("b"), host_keys=(("ssh-rsa", "AAA\n* ssh-rsa BBB"),))]) == ""


def test_the_whole_command_line() -> None:
    words = " ".join(ssh_argv(replace(FABRIC, port=2222, aes=True), "/tmp/x"))
    assert words == (
        "ssh -T -o BatchMode=yes -o ConnectTimeout=10 -o StrictHostKeyChecking=yes"
        " -o UserKnownHostsFile=/tmp/x/known_hosts -o GlobalKnownHostsFile=/dev/null"
        f" -o HostKeyAlias={alias('b')} -o UpdateHostKeys=no -o VerifyHostKeyDNS=no -o CheckHostIP=no"
        " -o IgnoreUnknown=KnownHostsCommand -o KnownHostsCommand=none -o ForwardAgent=no -o ForwardX11=no"
        " -o ClearAllForwardings=yes -o PermitLocalCommand=no -o RemoteCommand=none -o ProxyCommand=none"
        " -o ControlMaster=no -o ControlPath=none -o Compression=no -o ServerAliveInterval=15"
        " -o ServerAliveCountMax=4 -o LogLevel=ERROR -o Ciphers=aes128-gcm@openssh.com,aes256-gcm@openssh.com,"
        "chacha20-poly1305@openssh.com,aes128-ctr,aes192-ctr,aes256-ctr -o IdentitiesOnly=yes -i ~/.ssh/id"
        " -p 2222 -l root -- 10.78.0.2"
    )


def test_without_a_key_or_aes_nothing_is_said_of_them() -> None:
    words = ssh_argv(replace(FABRIC, key_file=None), ".")
    assert "-i" not in words and not [word for word in words if word.startswith(("Identit", "Ciphers"))]


@pytest.mark.subprocess
def test_openssh_takes_every_option_and_the_configuration_can_undo_none(tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text(
        "Host *\n ForwardAgent yes\n ControlMaster auto\n ControlPath /tmp/%C\n ProxyJump bastion\n Compression yes\n"
        " StrictHostKeyChecking no\n UserKnownHostsFile /dev/null\n RemoteCommand id\n LogLevel QUIET\n Port 9\n"
        " HostKeyAlias other\n BatchMode no\n VerifyHostKeyDNS yes\n User eve\n LocalForward 1 a:1\n"
    )
    name, *words = ssh_argv(replace(FABRIC, aes=True), "/tmp/x")
    done = subprocess.run([name, "-G", "-F", config, *words], capture_output=True, text=True, check=True)
    found = dict(line.partition(" ")[::2] for line in done.stdout.splitlines())
    wanted = {
        "hostname": "10.78.0.2",
        "user": "root",
        "port": "22",
        "stricthostkeychecking": "true",
        "batchmode": "yes",
    }
    wanted |= {"userknownhostsfile": "/tmp/x/known_hosts", "hostkeyalias": alias("b"), "forwardagent": "no"}
    wanted |= {"compression": "no", "loglevel": "ERROR", "verifyhostkeydns": "false", "controlmaster": "false"}
    assert {name: found[name] for name in wanted} == wanted
    assert found["ciphers"].startswith("aes128-gcm@openssh.com,aes256-gcm@openssh.com,chacha20")
    assert not {"proxyjump", "controlpath", "remotecommand"} & found.keys()
    assert found.get("proxycommand", "none") == "none" and found["clearallforwardings"] == "yes"


def test_a_local_node_is_pinned_to_this_machines_own_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ssh_host_ed25519_key.pub").write_text(" ".join(KEY) + " root@here\n")
    (tmp_path / "ssh_host_rsa_key.pub").write_text("\n")
    monkeypatch.setattr("fdl_tasks.images.ways.resolve", lambda ssh: settings(user="me", port=2200))
    here = Worker("b", "/", Ssh("b"), transport="local", mgmt_ip="10.77.0.1")
    found = peer(here, FakeHost("b"), aes=True, own_keys=tmp_path)
    assert (found.host_keys, found.aes) == ((KEY,), True)
    [way] = candidates(SOURCE, found).ways
    assert (way.user, way.port, way.address) == ("me", 2200, "10.77.0.1")


def test_a_host_that_showed_no_key_is_never_given_this_machines() -> None:
    assert peer(Worker("b", "/", Ssh("b")), FakeHost("b")).host_keys == ()


# -- how the logins went --------------------------------------------------------------------------

CHANGED = (
    "@@@@\t@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @\tThe fingerprint for the ED25519 key sent by the "
    f"remote host is\tSHA256:{'x' * 43}.\tHost key verification failed."
)


@pytest.mark.parametrize(
    ("code", "said", "reach"),
    [
        ("0", "", Reach.OK),
        ("0", "a login banner", Reach.OK),
        ("255", "ssh: connect to host 10.78.0.2 port 22: Connection timed out", Reach.TRANSPORT),
        ("255", "root@10.78.0.2: Permission denied (publickey).", Reach.TRANSPORT),
        ("255", CHANGED, Reach.IMPOSTOR),
        ("255", "No RSA host key is known for fdl-1\tHost key verification failed.", Reach.IMPOSTOR),
        ("255", "kex_exchange_identification: Connection closed by remote host", Reach.DROPPED),
        ("255", "ssh_exchange_identification: read: Connection reset by peer", Reach.DROPPED),
        ("255", "Connection reset by 10.78.0.2 port 22", Reach.DROPPED),
        ("255", "Connection closed by fe80::1%ib0 port 22", Reach.DROPPED),
        ("255", "Connection to 10.78.0.2 closed by remote host.", Reach.DROPPED),
        ("255", "Received disconnect from 10.78.0.2 port 22:2: Too many authentication failures", Reach.TRANSPORT),
        ("-", "", Reach.TRANSPORT),
        ("1", "This account is currently not available.", Reach.OTHER),
    ],
)
def test_a_login_is_judged_by_sshs_code_and_words(code: str, said: str, reach: Reach) -> None:
    value = f"0 {code} {said}"
    [tried] = logins.parse(f"x\n__FDL_WAY__ {len(value)} {value}\n__FDL_END__ 0 \n", [FABRIC], "a")
    assert tried.reach is reach
    assert reach is not Reach.IMPOSTOR or "SHA256:" in tried.said or "host key" in tried.said


def test_a_warning_of_sshs_is_not_the_reason() -> None:
    words = "ssh: connect to host 10.78.0.2 port 22: Connection refused"
    value = f"0 255 Warning: Identity file /root/.ssh/id not accessible: No such file or directory.\t{words}"
    [tried] = logins.parse(f"__FDL_WAY__ {len(value)} {value}\n__FDL_END__ 0 \n", [FABRIC], "a")
    assert tried.said == words


def test_a_cut_answer_and_a_source_without_ssh_are_errors() -> None:
    with pytest.raises(ScriptError, match="cut off"):
        logins.parse("__FDL_WAY__ 4 0 0 \n", [FABRIC], "a")
    with pytest.raises(FdlError, match="no ssh"):
        logins.parse("__FDL_NOSSH__ 0 \n__FDL_END__ 0 \n", [FABRIC], "a")
    [tried] = logins.parse("__FDL_END__ 0 \n", [FABRIC], "a")  # its line was not whole
    assert tried.reach is Reach.TRANSPORT


def routed(*reaches: Reach, refused: Sequence[str] = ()) -> Route:
    ways = [FABRIC, MANAGEMENT][: len(reaches)]
    tried = {way: Tried(way, reach, "words") for way, reach in zip(ways, reaches, strict=True)}
    return route(Candidates("b", tuple(ways), tuple(refused)), tried)


def test_both_ways_are_kept_in_order() -> None:
    assert routed(Reach.OK, Reach.OK) == Route("b", (FABRIC, MANAGEMENT))


@pytest.mark.parametrize("reach", [Reach.TRANSPORT, Reach.DROPPED, Reach.IMPOSTOR])
def test_a_transport_failure_yields_to_the_next_address_with_a_warning(reach: Reach) -> None:
    found = routed(reach, Reach.OK)
    assert (found.ways, found.error) == ((MANAGEMENT,), None)
    assert len(found.notes) == 1 and "fabric address 10.78.0.2 port 22" in found.notes[0] and "words" in found.notes[0]
    assert ("ANOTHER machine" in found.notes[0]) is (reach is Reach.IMPOSTOR)


def test_any_other_failure_does_not_yield() -> None:
    found = routed(Reach.OTHER, Reach.OK)
    assert found.ways == () and found.error and "would not help" in found.error


def test_a_target_that_no_way_reaches_is_an_error_with_every_reason() -> None:
    found = routed(Reach.TRANSPORT, refused=["its ssh address 127.0.0.1 is a loopback address"])
    assert found.error and "10.78.0.2" in found.error and "loopback" in found.error
    assert (route(Candidates("b", ()), {}).error or "").endswith("it has no address")
