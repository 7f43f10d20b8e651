"""The envelope's exact bytes: another program reads them (the cases of seeds/000)."""

from __future__ import annotations

import json

import pytest

from fdl_tasks.builds.envelope import ENV_NAME, Entry, Envelope, to_json

B = Entry("target/cluster/host-b/release/bench", "/opt/lt-b/lib")
A = Entry("target/cluster/host-a/release/bench", "/opt/lt-a/lib")


@pytest.mark.parametrize(
    ("envelope", "expected"),
    [
        ({}, "{}"),
        (
            {"host-b": B, "host-a": A},
            '{"host-a":{"bin":"target/cluster/host-a/release/bench","ld_library_path":"/opt/lt-a/lib"},'
            '"host-b":{"bin":"target/cluster/host-b/release/bench","ld_library_path":"/opt/lt-b/lib"}}',
        ),
        (
            {"h": Entry("t/x", "/l", "ddp-bench")},
            '{"h":{"bin":"t/x","ld_library_path":"/l","cwd_subpath":"ddp-bench"}}',
        ),
        (
            {"köln": Entry("t/ü", '/a "b"\n/\\', "ß")},
            '{"köln":{"bin":"t/ü","ld_library_path":"/a \\"b\\"\\n/\\\\","cwd_subpath":"ß"}}',
        ),
    ],
)
def test_the_bytes_are_as_the_launcher_expects_them(envelope: Envelope, expected: str) -> None:
    assert to_json(envelope) == expected


def test_what_is_read_back_is_what_was_written() -> None:
    one = Entry("t/c/h1/release/x", "/opt/lt/lib", "ddp-bench")
    back = json.loads(to_json({"h1": one, "h2": B}))
    assert {host: Entry(**fields) for host, fields in back.items()} == {"h1": one, "h2": B}


def test_the_variable_is_the_launchers() -> None:
    assert ENV_NAME == "FLODL_INTERNAL_PREBUILD_PER_HOST"
