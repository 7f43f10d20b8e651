"""Host keys judged: pins first, then known keys, then how strict the user is."""

import threading
from pathlib import Path

import pytest

from fdl_tasks.hosts.keys import Judgement, KnownKey, Offered, append_line, judge, key_types, parse_keygen

ED = Offered("ssh-ed25519", "AAAAed", "SHA256:ed")
SAME = KnownKey("", "ssh-ed25519", "AAAAed", "known_hosts:1")
OTHER = KnownKey("", "ssh-ed25519", "AAAAother", "known_hosts:2")
RSA = KnownKey("", "ssh-rsa", "AAAArsa", "known_hosts:3")


@pytest.mark.parametrize(
    ("pins", "known", "strict", "judgement"),
    [
        (["SHA256:ed"], [], "yes", Judgement.KNOWN),
        (["SHA256:no", "SHA256:ed"], [OTHER], "yes", Judgement.KNOWN),
        (["SHA256:no"], [SAME], "yes", Judgement.CHANGED),
        (["SHA256:no"], [SAME], "no", Judgement.CHANGED),
        (["SHA256:no"], [], "accept-new", Judgement.CHANGED),
        ([], [SAME], "yes", Judgement.KNOWN),
        ([], [OTHER, SAME], "yes", Judgement.KNOWN),
        ([], [OTHER], "yes", Judgement.CHANGED),
        ([], [OTHER], "accept-new", Judgement.CHANGED),
        ([], [RSA], "yes", Judgement.CHANGED),
        ([], [OTHER], "no", Judgement.IGNORED),
        ([], [], "yes", Judgement.UNKNOWN),
        ([], [], "accept-new", Judgement.ADD),
        ([], [], "no", Judgement.IGNORED),
    ],
)
def test_judge(pins: list[str], known: list[KnownKey], strict: str, judgement: Judgement) -> None:
    assert judge(ED, pins, known, strict) is judgement


def test_the_answer_of_ssh_keygen_is_read_with_markers_and_places() -> None:
    answer = (
        "# Host [10.0.0.1]:2222 found: line 3 \n|1|c2FsdA==|aGFzaA== ssh-ed25519 AAAAed\n"
        "# Host [10.0.0.1]:2222 found: line 9 REVOKED\n@revoked [10.0.0.1]:2222 ssh-rsa AAAArsa a comment\n"
        "# Host x found: line 11\nbroken\n"
    )
    assert parse_keygen(answer, "kh") == [
        KnownKey("", "ssh-ed25519", "AAAAed", "kh:3"),
        KnownKey("@revoked", "ssh-rsa", "AAAArsa", "kh:9"),
    ]


def test_key_types_begin_with_those_of_known_keys() -> None:
    ours = ["ssh-ed25519", "ecdsa-sha2-nistp256", "rsa-sha2-512", "rsa-sha2-256"]
    assert key_types([RSA], ours) == ["rsa-sha2-512", "rsa-sha2-256", "ssh-ed25519", "ecdsa-sha2-nistp256"]
    assert key_types([], ours) == ours


def test_lines_of_many_writers_stay_whole(tmp_path: Path) -> None:
    file = tmp_path / "ssh" / "known_hosts"
    file.parent.mkdir()
    file.write_text("without an end")
    writers = [threading.Thread(target=append_line, args=(file, f"host{n} key")) for n in range(20)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    first, *rest = file.read_text().splitlines()
    assert first == "without an end"
    assert sorted(rest) == sorted(f"host{n} key" for n in range(20))
