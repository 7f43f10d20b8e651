"""The run manifest: what is read, what is refused with its key and line, and what a person is told of it."""

from pathlib import Path

import pytest

from fdl_tasks.boxes.source.manifest import Digest, Manifest, parse, told
from fdl_tasks.errors import PermanentError

CASES = Path(__file__).parents[1] / "cases" / "boxes" / "manifest"
HASH = "0" * 63 + "a"


def test_a_published_manifest_is_read_whole() -> None:
    manifest, notes = parse((CASES / "published.yml").read_bytes(), "/t/.fdl-run.yml")
    assert manifest == Manifest(
        bin="target/release/ddp-bench",
        cwd="ddp-bench",
        build="cargo build --release --features cuda\n",
        args=("--epochs", "10", "--name", "a b"),
        origin="ctrl:/srv/mono",
        rustc="rustc 1.86.0 (05f9846f8 2025-03-31)",
        published_epoch=1_750_000_000,
        run="0123456789abcdef0123456789abcdef",
        built=True,
        digest=Digest("9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08", 214, 1_234_567),
    )
    assert notes == ()


def test_unknown_keys_are_ignored_with_one_note() -> None:
    raw = f"bin: x\nlater: 1\nodd\\e: {{a: 1}}\ndigest: {{sha256: {HASH}, blake3: y}}\n".encode()
    manifest, notes = parse(raw, "/t/m")
    assert manifest == Manifest("x", digest=Digest(HASH))
    assert notes == ("/t/m: ignored, since it is not known here: later, odd\\e, digest.blake3",)


@pytest.mark.parametrize(
    ("text", "manifest"),
    [
        ("bin: ../target/release/x\ncwd: sub", Manifest("../target/release/x", "sub")),
        ("bin: x\nargs: []\ncwd: null\nbuild:\nbuilt: false", Manifest("x")),
        ("bin: x\nargs: ['', \"a\\nb\", 0x10]", Manifest("x", args=("", "a\nb", "0x10"))),
        ("bin: x\nrun: 12345678901234567890123456789012", Manifest("x", run="12345678901234567890123456789012")),
        ("bin: x\nrun: 00e1", Manifest("x", run="00e1")),
        ("bin: x\npublished_epoch: 0", Manifest("x", published_epoch=0)),
        (f"bin: x\ndigest: {{sha256: {HASH.upper()}}}", Manifest("x", digest=Digest(HASH))),
    ],
)
def test_a_manifest_written_by_hand_is_read(text: str, manifest: Manifest) -> None:
    assert parse(text.encode(), "m") == (manifest, ())


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", "empty"),
        ("- bin", "mapping"),
        ("bin: [", "m"),
        ("bin: x\nbin: y", "bin"),
        ("cwd: x", "`bin`"),
        ("bin:", "`bin`"),
        ("bin: ''", "`bin`"),
        ("bin: [x]", "`bin`"),
        ("bin: 1.5", "`bin`"),
        ('bin: "x\\e[2J"', "`bin`"),
        ("bin: x\ncwd: ' '", "`cwd`"),
        ("bin: x\nbuild: true", "`build`"),
        ('bin: x\nbuild: "a\\0b"', "`build`"),
        ("bin: x\nargs: --epochs 10", "`args`"),
        ("bin: x\nargs: [[a]]", "`args`"),
        ('bin: x\nargs: ["a\\0b"]', "`args`"),
        ("bin: x\nbuilt: yes", "`built`"),
        ("bin: x\nbuilt: 1", "`built`"),
        ("bin: x\npublished_epoch: -1", "`published_epoch`"),
        ("bin: x\npublished_epoch: 1.5", "`published_epoch`"),
        ("bin: x\npublished_epoch: soon", "`published_epoch`"),
        ("bin: x\nrun: {a: b}", "`run`"),
        ("bin: x\ndigest: abc", "`digest`"),
        ("bin: x\ndigest: {}", "`digest.sha256`"),
        ("bin: x\ndigest: {sha256: abc}", "`digest.sha256`"),
        (f"bin: x\ndigest: {{sha256: {HASH}, files: many}}", "`digest.files`"),
        (f"bin: x\ndigest: {{sha256: {HASH}, bytes: -1}}", "`digest.bytes`"),
    ],
)
def test_a_malformed_manifest_is_permanent_and_says_where(text: str, names: str) -> None:
    with pytest.raises(PermanentError, match="malformed") as caught:
        parse(text.encode(), "/t/m")
    assert names in str(caught.value) and caught.value.where.startswith("/t/m")
    assert "\x1b" not in str(caught.value)


def test_a_name_that_is_far_too_long_is_printed_nowhere() -> None:
    with pytest.raises(PermanentError, match="`run`: expected at most 4096 characters, found 900000") as caught:
        parse(b"bin: x\nrun: " + b"r" * 900_000, "/t/m")
    assert len(str(caught.value)) < 200


def test_a_fault_has_its_line() -> None:
    with pytest.raises(PermanentError) as caught:
        parse(b"bin: x\ncwd: y\nbuilt: yes\n", "/t/m")
    assert caught.value.where == "/t/m:3"


@pytest.mark.parametrize("raw", [b"\xff\xfe", b"bin: \x00", b"a: &a [*a]", b"[" * 5000, b"{a: b" * 2000])
def test_bytes_that_are_no_manifest_are_permanent(raw: bytes) -> None:
    with pytest.raises(PermanentError, match="malformed"):
        parse(raw, "m")


NOW = 1_000_000


@pytest.mark.parametrize(
    ("age", "says"),
    [
        (0, ", published just now, "),
        (90, ", published just now, "),
        (91, ", published 1 min ago, "),
        (5399, ", published 89 min ago, "),
        (5400, ", published 1 h ago, "),
        (172_799, ", published 47 h ago, "),
        (172_800, ", published 2 d ago, "),
        (NOW, ", published 11 d ago, "),
        (-1, "x, built by"),
    ],
)
def test_the_age_is_told_roughly_and_not_at_all_when_the_clocks_disagree(age: int, says: str) -> None:
    (note,) = told(Manifest("x", published_epoch=NOW - age, built=True), NOW, None)
    assert says in note


def test_a_run_is_told_in_one_line() -> None:
    manifest = Manifest("target/x", "sub", run="0123456789abcdef", published_epoch=NOW - 600)
    assert told(manifest, NOW, None) == [
        "run 01234567: target/x in sub, published 10 min ago, NOT built by its publisher"
    ]
    assert told(Manifest("x", built=True), NOW, "rustc 1") == ["x, built by its publisher"]


def test_another_compiler_is_worth_a_note() -> None:
    manifest = Manifest("x", rustc="rustc 1.86.0")
    assert len(told(manifest, NOW, "rustc 1.86.0")) == len(told(manifest, NOW, None)) == 1
    assert "rustc 1.86.0" in told(manifest, NOW, "rustc 1.80.0")[1]
    assert "rustc 1.80.0" in told(manifest, NOW, "rustc 1.80.0")[1]
