"""Image references: read once into parts, written back as they were, refused when Docker could misread them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fdl_tasks.cluster import ImageRef
from fdl_tasks.errors import UsageError

HEX = "0123456789abcdef" * 4


@pytest.mark.parametrize(
    ("text", "parts", "tagged"),
    [
        ("x", ("", "x", None, None), "x:latest"),
        ("x:24", ("", "x", "24", None), "x:24"),
        ("repo/vllm:24", ("", "repo/vllm", "24", None), "repo/vllm:24"),
        (
            "nvcr.io/nvidia/vllm:26.01-py3",
            ("nvcr.io", "nvidia/vllm", "26.01-py3", None),
            "nvcr.io/nvidia/vllm:26.01-py3",
        ),
        ("localhost/x", ("localhost", "x", None, None), "localhost/x:latest"),
        ("box:5000/x", ("box:5000", "x", None, None), "box:5000/x:latest"),
        ("box:5000/a/b:t", ("box:5000", "a/b", "t", None), "box:5000/a/b:t"),
        ("[::1]:5000/x:t", ("[::1]:5000", "x", "t", None), "[::1]:5000/x:t"),
        ("Host/x", ("Host", "x", None, None), "Host/x:latest"),
        (f"x@sha256:{HEX}", ("", "x", None, f"sha256:{HEX}"), "x"),
        (f"r.io/x:t@sha256:{HEX}", ("r.io", "x", "t", f"sha256:{HEX}"), "r.io/x:t"),
        ("a__b/c--d.e", ("", "a__b/c--d.e", None, None), "a__b/c--d.e:latest"),
    ],
)
def test_a_reference_has_four_parts_and_is_written_back_as_it_was(
    text: str, parts: tuple[str, str, str | None, str | None], tagged: str
) -> None:
    ref = ImageRef.parse(text)
    assert (ref.registry, ref.repository, ref.tag, ref.digest) == parts
    assert str(ref) == text
    assert ref.tagged == tagged


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "it is empty"),
        ("-x", "begins with '-'"),
        ("--privileged", "begins with '-'"),
        (" x", "a blank"),
        ("x y", "a blank"),
        ("x\n", "a blank or a control character"),
        ("x\0", "a control character"),
        ("x:", "its tag is empty"),
        (":t", "its repository is empty"),
        ("@sha256:" + HEX, "its repository is empty"),
        ("x@", "its digest is empty"),
        ("box:5000/", "its repository is empty"),
        ("/x", "its repository is '/x'"),
        ("a//b", "its repository is 'a//b'"),
        ("a/", "its repository is 'a/'"),
        ("X", "its repository is 'X'"),
        ("a/B", "its repository is 'a/B'"),
        ("x:-t", "its tag is '-t'"),
        ("x:" + "t" * 129, "its tag is 't"),
        ("x@sha256:abc", "its digest is 'sha256:abc'"),
        (f"x@md5:{HEX}", "its digest is 'md5:"),
        (f"x@sha256:{HEX.upper()}", "its digest is"),
        (f"x@sha256:{HEX}@sha256:{HEX}", "its digest is"),
        ("box:port/x", "its registry is 'box:port'"),
        ("-.io/x", "begins with '-'"),
        ("a.io-/x", "its registry is 'a.io-'"),
        (HEX, "an image's id"),
    ],
)
def test_a_reference_that_could_be_misread_is_refused(text: str, why: str) -> None:
    with pytest.raises(UsageError) as caught:
        ImageRef.parse(text)
    assert why in caught.value.what
    assert caught.value.exit_code == 2


@given(st.text(alphabet="aB1.:/@-_ \n[]", max_size=20) | st.text())
def test_whatever_is_taken_is_written_back_the_same(text: str) -> None:
    try:
        ref = ImageRef.parse(text)
    except UsageError:
        return
    assert str(ref) == text
    assert ImageRef.parse(ref.tagged).name == ref.name
