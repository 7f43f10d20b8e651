"""The JSON Schema for editors is the code's own, and as strict about names as the code is."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from importlib.resources import files
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fdl_tasks.cluster import names, schema

SHIPPED = files("fdl_tasks.cluster") / "cluster.schema.json"
LETTERS = st.text(alphabet="ab-./:\\ _\n~$A=1", max_size=6) | st.text(max_size=6)


def nodes(tree: Any) -> Iterator[dict[str, Any]]:
    if isinstance(tree, dict):
        yield tree
    for child in tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ():
        yield from nodes(child)


def pattern_of(form: Any) -> str:
    return str(next(part.json_schema["pattern"] for part in form.__metadata__ if hasattr(part, "json_schema")))


def test_the_shipped_schema_is_what_the_code_makes() -> None:
    assert SHIPPED.read_text(encoding="utf-8") == schema.schema_text(), (
        "write it anew: fdl_tasks.cluster.schema.schema_text()"
    )


def test_every_block_is_closed_and_every_reference_leads_somewhere() -> None:
    tree = json.loads(SHIPPED.read_text(encoding="utf-8"))
    blocks = tree["$defs"]
    assert all(block["additionalProperties"] is False for block in blocks.values())
    assert all(node["additionalProperties"] is False for node in nodes(tree) if "patternProperties" in node)
    targets = {node["$ref"].removeprefix("#/$defs/") for node in nodes(tree) if "$ref" in node}
    assert targets == set(blocks)


@pytest.mark.parametrize(
    ("rule", "form"),
    [
        (names.segment, schema.Segment),
        (names.variant, schema.Variant),
        (names.env_key, schema.EnvKey),
        (names.pin, schema.Pin),
    ],
)
@given(text=LETTERS)
def test_a_name_that_the_code_takes_an_editor_takes_too(rule: Any, form: Any, text: str) -> None:
    try:
        rule(text)
    except ValueError:
        return
    assert re.search(pattern_of(form), text)


@pytest.mark.parametrize("reserved", [*sorted(names.RESERVED_ENV), "FLODL_INTERNAL_X"])
def test_a_reserved_variable_is_refused_by_the_schema_too(reserved: str) -> None:
    pattern = pattern_of(schema.EnvKey)
    assert not re.search(pattern, reserved)
    assert re.search(pattern, f"X{reserved}")
    assert re.search(pattern, "LD_LIBRARY_PATH")
