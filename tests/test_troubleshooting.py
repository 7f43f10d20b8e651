"""docs/troubleshooting.md has an entry for every message that the library can print, and none for another."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from tests.messages import GAP, Message, collect

PAGE = Path(__file__).resolve().parents[1] / "docs" / "troubleshooting.md"
# Where the messages of a section are made, below fdl_tasks/.
SECTIONS = {
    "cluster.yml": ("cluster/",),
    "Templates": ("scripts.py",),
    "ssh": ("hosts/",),
    "Preflight": ("checks/",),
    "prebuild-clean": ("builds/clean.py",),
    "Verification": ("builds/",),
    "Builds": ("builds/", "stamp.py"),
    "Images": ("images/",),
    "Boxes: GPUs": ("boxes/gpu/",),
    "Boxes: data and directories": ("boxes/data/",),
    "Boxes: source": ("boxes/source/", "boxes/specs.py"),
    "Boxes: libtorch": ("boxes/torch/",),
    "Boxes: build": ("boxes/recipe.py", "boxes/build.py"),
    "Boxes: in every step": ("boxes/",),
    "Usage": ("tasks/", "settings.py", "report/", "builds/run.py"),
}


@dataclass(frozen=True)
class Entry:
    section: str
    phrase: str

    def covers(self, message: Message) -> bool:
        """Whether somebody who reads the message finds this entry: its words, in their order.

        One or two words are too few to stand for whatever has them: those are the message's beginning.
        """
        if not message.place.removeprefix("fdl_tasks/").startswith(SECTIONS[self.section]):
            return False
        if len(re.findall(r"[\w'-]+", self.phrase)) < 3:
            return message.text.removeprefix(f"{GAP}: ").startswith(self.phrase)
        return re.search(pattern(self.phrase), message.text) is not None


@cache
def pattern(phrase: str) -> str:
    return ".*".join(re.escape(part.strip()) for part in phrase.split(GAP))


def entries(text: str) -> list[Entry]:
    """Every row of a table: the phrase in its first cell."""
    found, section = [], ""
    for line in text.splitlines():
        if line.startswith("## "):
            section = line[3:]
        elif row := re.match(r"\| (`+) ?(.+?) ?\1 \|", line):
            found.append(Entry(section, row[2]))
    return found


MESSAGES = collect()
ENTRIES = entries(PAGE.read_text())


def missing(messages: list[Message], there: list[Entry]) -> list[str]:
    """What to add: the place in the source, the section, and the row to write."""
    rows = []
    for message in messages:
        if not any(entry.covers(message) for entry in there):
            made = message.place.removeprefix("fdl_tasks/")
            section = next((name for name, places in SECTIONS.items() if made.startswith(places)), "")
            where = f"add below `## {section}`" if section else "add a section for it, to SECTIONS here too"
            rows.append(f"{message.place}: {where}:\n| `{message.text}` | why, and what to do |")
    return rows


def test_every_message_has_its_entry() -> None:
    rows = missing(MESSAGES, ENTRIES)
    assert not rows, f"docs/troubleshooting.md lacks {len(rows)}:\n" + "\n".join(rows)


def test_no_entry_is_about_a_message_that_is_not_printed() -> None:
    orphans = [f"{entry.section}: {entry.phrase}" for entry in ENTRIES if not any(map(entry.covers, MESSAGES))]
    assert orphans == []


def test_no_entry_stands_twice_in_a_section() -> None:
    assert len(set(ENTRIES)) == len(ENTRIES)


def test_every_section_is_known_and_every_row_is_an_entry() -> None:
    text = PAGE.read_text()
    assert {entry.section for entry in ENTRIES} == set(SECTIONS)
    rows = [line for line in text.splitlines() if line.startswith("| ") and not line.startswith("| message")]
    assert len(rows) == len(ENTRIES)


@pytest.mark.parametrize(
    ("source", "texts"),
    [
        ("raise UsageError('no such thing')", ["no such thing"]),
        ("raise BuildError(f'no room at {path}', hint='make some')", ["no room at …"]),
        ("class Odd(BuildError): ...\ndef f(): raise Odd('is of its own kind')", ["is of its own kind"]),
        ("def f():\n    what = f'{a} is cold' if b else 'all is warm'\n    raise FdlError(what)",
         ["… is cold", "all is warm"]),
        ("def bad(why): return BuildError(why)\ndef f(): raise bad('it is raining')", ["it is raining"]),
        ("def bad(why): return BuildError(f'{why}, says {a}')\ndef f(): raise bad('it rains')",
         ["it rains"]),
        ("def end(): return f'ended by {n}'\ndef f(): raise BuildError(end())", ["ended by …"]),
        ("WHY = {1: 'too cold', 2: 'too warm'}\ndef f(n): raise BuildError(f'x', where=n) if n else BuildError(WHY[n])",
         ["too cold", "too warm"]),
        ("def warning(rule, text): return Verdict(rule, 1, text)\ndef f(): return warning('r', 'is too full')",
         ["is too full"]),
        ("def ok(rule, text): return Verdict(rule, 0, text)\ndef f(): return ok('r', 'all is well')", []),
        ("def f(): return replace(item, error='is still there')", ["is still there"]),
        ("def f():\n    why = f'no room at {a}'\n    return replace(item, error=why)", ["no room at …"]),
        ("def f(): return Finding(error=f'it says {a}' + b)", ["it says ……"]),
        ("def f():\n    why = 'is cold there'\n    why = f(why)\n    return Tagged(why)", ["is cold there"]),
        ("def failed(label, why): return Node(label, why)\ndef f(): return failed('a', 'does not answer')",
         ["does not answer"]),
        ("WHY = 'it is gone'\ndef f():\n    kind, what = BuildError, 'all is well'\n    if n:\n        what = WHY\n"
         "    return kind(f'source: {what}')", ["source: all is well", "source: it is gone"]),
        ("def why(n):\n    return 'is old' if n else ''\ndef f():\n    if x := why(n): raise BuildError(f'{a} {x}')",
         ["… is old"]),
        ("def f(): raise KeyError('not for people')", []),
    ],
)  # fmt: skip
def test_messages_are_found_however_they_are_put_together(tmp_path: Path, source: str, texts: list[str]) -> None:
    (tmp_path / "pkg").mkdir()
    family = "class FdlError(Exception): ...\nclass UsageError(FdlError): ...\nclass BuildError(FdlError): ...\n"
    (tmp_path / "pkg" / "errors.py").write_text(family)
    (tmp_path / "pkg" / "code.py").write_text(source)
    assert sorted(message.text for message in collect(tmp_path / "pkg")) == sorted(texts)


def test_a_message_without_an_entry_is_told_with_the_row_to_write() -> None:
    [row] = missing([Message("the moon is made of …", "fdl_tasks/builds/plan.py:7")], ENTRIES)
    assert row.startswith("fdl_tasks/builds/plan.py:7: add below `## Verification`:\n| `the moon is made of …` |")
