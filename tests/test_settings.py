from __future__ import annotations

from typing import Any

import pytest
from invoke.config import Config
from invoke.context import Context, MockContext

from fdl_tasks.errors import UsageError
from fdl_tasks.settings import count, setting, words


@pytest.mark.parametrize(
    ("config", "environment", "flag", "value"),
    [
        ({}, None, None, None),
        ({}, None, 3, 3),
        ({}, "5", None, "5"),
        ({}, "5", 3, 3),
        ({"fdl": {"width": 4}}, "5", None, 4),
        ({"fdl": {"width": 4}}, None, 3, 3),
        ({"fdl": {"width": None}}, "5", None, "5"),
        ({"fdl": {"width": ""}}, None, None, None),
        ({"fdl": "not a mapping"}, None, None, None),
        ({"fdl": {}}, "", None, None),
    ],
)
def test_a_flag_beats_the_configuration_beats_nothing(
    monkeypatch: pytest.MonkeyPatch, config: dict[str, Any], environment: str | None, flag: int | None, value: object
) -> None:
    if environment is not None:
        monkeypatch.setenv("INVOKE_FDL_WIDTH", environment)
    assert setting(Context(Config(config)), "width", flag) == value


@pytest.mark.parametrize("c", [MockContext(), Context(), object(), None])
def test_any_context_will_do(c: object) -> None:
    assert setting(c, "cluster") is None


@pytest.mark.parametrize(("given", "number"), [(None, None), (4, 4), ("4", 4), (" 16 ", 16)])
def test_a_count_is_a_whole_number(given: str | int | None, number: int | None) -> None:
    assert count("--jobs", given) == number


@pytest.mark.parametrize("given", [0, -1, "0", "-3", "x", "1.5", "", True, "²", "1_0"])
def test_what_is_no_count_is_refused(given: str | int) -> None:
    with pytest.raises(UsageError, match="--jobs takes a whole number of at least 1"):
        count("--jobs", given)


@pytest.mark.parametrize(
    ("given", "found"),
    [
        (None, ()),
        ([], ()),
        ("one", ("one",)),
        (["b", "a", "b"], ("b", "a")),
        (("x",), ("x",)),
        (iter(["x", "y"]), ("x", "y")),
    ],
)
def test_words_take_whatever_a_caller_gives(given: Any, found: tuple[str, ...]) -> None:
    assert words(given) == found
