"""Settings from captured answers of ``ssh -G``: what is honoured, what is refused by name."""

from pathlib import Path

import pytest

from fdl_tasks.cluster.model import Ssh
from fdl_tasks.errors import Stage, TransportError
from fdl_tasks.hosts.settings import Settings, options_of, parse

CASES = Path(__file__).parents[1] / "cases" / "ssh-G"
PLAIN = (CASES / "plain.txt").read_text()


def parsed(answer: str, how: Ssh | None = None, agent: str | None = None) -> Settings:
    return parse(how or Ssh("node1"), answer, agent)


def changed(keyword: str, value: str) -> str:
    kept = [line for line in PLAIN.splitlines() if line.split(" ")[0] != keyword]
    return "\n".join([*kept, f"{keyword} {value}"])


def test_defaults() -> None:
    found = parsed(PLAIN, agent="/run/agent")
    assert (found.hostname, found.port, found.user) == ("node1", 22, "root")
    assert (found.strict, found.proxy, found.key_name) == ("yes", (), "node1")
    assert (found.connect_limit, found.alive_interval, found.alive_count) == (10.0, 15, 3)
    assert (found.identity_agent, found.identities_only, found.batch_overruled) == ("/run/agent", False, False)
    assert Path("~/.ssh/id_ed25519").expanduser() in found.identity_files


def test_everything_that_is_honoured() -> None:
    options = ("ProxyJump=me@bastion:2200,inner", "StrictHostKeyChecking=accept-new", "HostKeyAlias=node-a")
    how = Ssh("node1", 2222, "ubuntu", "/keys/cluster", options=options, host_keys=("SHA256:x",))
    found = parsed((CASES / "everything.txt").read_text(), how, "/run/agent")
    assert (found.hostname, found.port, found.user) == ("node1", 2222, "ubuntu")
    assert (found.strict, found.alias, found.key_name) == ("accept-new", "node-a", "node-a")
    assert found.known_hosts == (Path("/run/known"),)
    assert found.identity_files == (Path("/keys/cluster"),)
    assert (found.identities_only, found.identity_agent) == (True, None)
    assert (found.connect_limit, found.alive_interval) == (3.0, 5)
    assert (found.family, found.compression, found.environment) == ("inet", True, (("FOO", "bar"),))
    assert dict(found.algorithms)["kex"] == ("curve25519-sha256",)
    assert found.pins == ("SHA256:x",)
    assert found.proxy == (
        *("ssh", "-i", "/keys/cluster", "-o", "StrictHostKeyChecking=accept-new", "-o", "BatchMode=yes"),
        *("-o", "ConnectTimeout=3", "-o", "ServerAliveInterval=15", "-o", "ServerAliveCountMax=3"),
        *(
            "-o",
            "ProxyCommand=ssh -i /keys/cluster -o StrictHostKeyChecking=accept-new -o BatchMode=yes"
            " -o ConnectTimeout=3 -o ServerAliveInterval=15 -o ServerAliveCountMax=3 -W '[%h]:%p' -- ssh://me@bastion:2200",
        ),
        *("-W", "[node1]:2222", "--", "ssh://inner"),
    )


@pytest.mark.parametrize(
    ("setting", "strict"),
    [("ask", "yes"), ("true", "yes"), ("yes", "yes"), ("accept-new", "accept-new"), ("no", "no"), ("false", "no")],
)
def test_strict_unless_the_user_says_otherwise(setting: str, strict: str) -> None:
    assert parsed(changed("stricthostkeychecking", setting)).strict == strict


def test_a_port_other_than_22_stands_in_the_name_of_the_known_key() -> None:
    assert parsed(changed("port", "2222")).key_name == "[node1]:2222"


@pytest.mark.parametrize(
    ("keyword", "value"),
    [
        ("knownhostscommand", "/usr/bin/keys %H"),
        ("pkcs11provider", "/usr/lib/opensc.so"),
        ("certificatefile", "~/.ssh/id-cert.pub"),
        ("revokedhostkeys", "/etc/ssh/revoked"),
        ("remotecommand", "tmux attach"),
        ("bindinterface", "eth1"),
    ],
)
def test_what_cannot_be_honoured_is_named(keyword: str, value: str) -> None:
    assert parsed(changed(keyword, "none")).hostname == "node1"
    with pytest.raises(TransportError, match=keyword) as caught:
        parsed(changed(keyword, value))
    assert caught.value.stage is Stage.SETTINGS
    assert value in str(caught.value)


@pytest.mark.parametrize(
    ("command", "script"),
    [
        ("nc -x proxy %h %p", "exec nc -x proxy node1 22"),
        ("connect %r@%n 100%%", "exec connect root@node1 100%"),
        ("none", None),
    ],
)
def test_a_proxy_command_has_its_tokens_filled_in(command: str, script: str | None) -> None:
    assert parsed(changed("proxycommand", command)).proxy == (("sh", "-c", script) if script else ())


def test_an_unknown_token_is_an_error_and_not_passed_on() -> None:
    with pytest.raises(TransportError, match="'%X'"):
        parsed(changed("proxycommand", "nc %X"))


def test_percent_signs_in_options_survive_every_hop() -> None:
    how = Ssh("node1", options=("UserKnownHostsFile=/k/%d",))
    argv = parsed(changed("proxyjump", "a,b,c"), how).proxy
    nested = next(word for word in argv if word.startswith("ProxyCommand="))
    assert "UserKnownHostsFile=/k/%d" in argv
    assert "UserKnownHostsFile=/k/%%d" in nested
    assert "UserKnownHostsFile=/k/%%%%d" in nested
    assert nested.endswith(" -W '[%h]:%p' -- ssh://b")


def test_a_proxy_that_passes_a_descriptor_is_named() -> None:
    answer = changed("proxycommand", "nc -F %h %p").replace("proxyusefdpass no", "proxyusefdpass yes")
    with pytest.raises(TransportError, match="proxyusefdpass"):
        parsed(answer)


@pytest.mark.parametrize(
    ("line", "files"),
    [
        ("/a/known /b/known", ["/a/known", "/b/known"]),
        ("/a b/known /c", ["/a b/known", "/c"]),
        ("/dev/null", []),
        ("none", []),
    ],
)
def test_known_hosts_files_keep_their_blanks(line: str, files: list[str]) -> None:
    assert [str(file) for file in parsed(changed("userknownhostsfile", line)).known_hosts] == files


def test_tokens_and_variables_in_key_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHERE", "/keys")
    assert parsed(changed("identityfile", "${WHERE}/%r@%h:%p")).identity_files == (Path("/keys/root@node1:22"),)
    assert parsed(changed("identityfile", "none")).identity_files == ()
    with pytest.raises(TransportError, match="IdentityFile has '%C'"):
        parsed(changed("identityfile", "/keys/%C"))


@pytest.mark.parametrize(("keyword", "value"), [("connecttimeout", "0"), ("serveralivecountmax", "0")])
def test_no_limit_is_our_limit(keyword: str, value: str) -> None:
    found = parsed(changed(keyword, value))
    assert (found.connect_limit, found.alive_count) == (10.0, 3)


@pytest.mark.parametrize("jump", ["none", ""])
def test_no_jump_is_no_jump(jump: str) -> None:
    assert parsed(changed("proxyjump", jump or "none")).proxy == ()


def test_cluster_yml_comes_before_its_options() -> None:
    how = Ssh("t", 2222, "ubuntu", "/k", options=("Port=1", "BatchMode=no"))
    assert options_of(how) == ("-p", "2222", "-l", "ubuntu", "-i", "/k", "-o", "Port=1", "-o", "BatchMode=no")


def test_a_users_batch_mode_is_seen_to_be_overruled() -> None:
    assert parsed(changed("batchmode", "no")).batch_overruled


@pytest.mark.parametrize(
    ("setting", "agent"),
    [("none", None), ("SSH_AUTH_SOCK", "/inherited"), ("/run/other", "/run/other"), ("$NO_SUCH_VARIABLE", None)],
)
def test_the_agent_is_the_one_that_the_settings_name(setting: str, agent: str | None) -> None:
    assert parsed(changed("identityagent", setting), agent="/inherited").identity_agent == agent
