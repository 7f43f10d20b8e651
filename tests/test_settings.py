from __future__ import annotations

from typing import Any

import pytest
from invoke.config import Config
from invoke.context import Context, MockContext

from fdl_tasks.errors import UsageError
from fdl_tasks.settings import DEFAULTS, count, libtorch_settings, setting, words


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


@pytest.mark.parametrize(
    ("config", "environment", "value"),
    [
        ({}, None, None),
        ({"fdl": {"libtorch": {"version": "2.11.0"}}}, None, "2.11.0"),
        ({"fdl": {"libtorch": {"version": "2.11.0"}}}, "2.12.0", "2.11.0"),
        ({"fdl": {"libtorch": {"version": None}}}, "2.12.0", "2.12.0"),
        ({"fdl": {"libtorch": "not a mapping"}}, "2.12.0", "2.12.0"),
        ({"fdl": None}, "2.12.0", "2.12.0"),
    ],
)
def test_a_setting_may_stand_in_a_group(
    monkeypatch: pytest.MonkeyPatch, config: dict[str, Any], environment: str | None, value: object
) -> None:
    if environment is not None:
        monkeypatch.setenv("INVOKE_FDL_LIBTORCH_VERSION", environment)
    assert setting(Context(Config(config)), "libtorch.version") == value


def test_settings_of_libtorch_are_the_defaults_but_for_what_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = libtorch_settings(Context(Config({"fdl": {**DEFAULTS}})))
    assert (plain.base_url, plain.release, plain.sha256) == ("https://download.pytorch.org/libtorch", "2.10.0", None)
    monkeypatch.setenv("INVOKE_FDL_LIBTORCH_BASE_URL", "http://mirror/x")
    monkeypatch.setenv("INVOKE_FDL_LIBTORCH_SHA256", "a" * 64)
    told = libtorch_settings(Context(Config({"fdl": {"libtorch": {"version": "2.11.0"}}})))
    assert (told.base_url, told.release, told.sha256) == ("http://mirror/x", "2.11.0", "a" * 64)
    assert libtorch_settings(Context(), "b" * 64).sha256 == "b" * 64


@pytest.mark.parametrize(
    ("config", "sha256", "message"),
    [
        ({"base_url": "file:///srv"}, None, "fdl.libtorch.base_url"),
        ({"version": 2.1}, None, "fdl.libtorch.version"),
        ({"sha256": "abc"}, None, "'abc' is no SHA-256"),
        ({"sha256": "a" * 64}, "", "'' is no SHA-256"),
    ],
)
def test_settings_of_libtorch_that_cannot_be_right_are_refused(
    config: dict[str, Any], sha256: str | None, message: str
) -> None:
    with pytest.raises(UsageError) as told:
        libtorch_settings(Context(Config({"fdl": {"libtorch": config}})), sha256)
    assert message in told.value.what


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
