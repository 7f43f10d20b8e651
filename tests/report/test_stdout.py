from __future__ import annotations

import io
import json
import os
from pathlib import Path

import pytest

from fdl_tasks.errors import FdlError
from fdl_tasks.report.stdout import dumps, emit, emit_json


def test_json_is_one_line_unescaped_in_the_order_given() -> None:
    assert dumps({"b": "naïve", "a": [1, None, True]}) == '{"b":"naïve","a":[1,null,true]}'


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1", "ascii"])
@pytest.mark.parametrize("value", ["naïve", "漢字", "lone \udcff surrogate"])
def test_json_is_valid_in_any_encoding(monkeypatch: pytest.MonkeyPatch, encoding: str, value: str) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(raw, encoding=encoding))
    emit_json({"path": value})
    assert json.loads(raw.getvalue().decode(encoding)) == {"path": value}


def test_a_table_is_printed_in_any_encoding(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(raw, encoding="ascii"))
    emit("naïve")
    assert raw.getvalue() == b"na\\xefve\n"


def test_a_closed_stdout_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout", None)
    emit("nobody reads this")


def test_a_reader_that_went_away_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w") as stream:
        monkeypatch.setattr("sys.stdout", stream)
        emit("x" * 100_000)
        emit("and again")


def test_a_full_disk_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with Path("/dev/full").open("w") as stream:
        monkeypatch.setattr("sys.stdout", stream)
        with pytest.raises(FdlError, match="can't be written to stdout: No space left"):
            emit("a result")
