"""The renderer: what the lint lets through, and that any text comes out of a real shell as it went in."""

import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fdl_tasks.errors import TemplateError
from fdl_tasks.scripts import END, Scripts, Slots, lint, quote

HEAD = "#!/bin/sh\n# says hello\nNAME={{ name }}\nset -- {{ rest }}\n"

# text that a shell word can hold: no NUL, nothing that UTF-8 can't spell
words = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))


def own(folder: Path, **templates: str) -> Scripts:
    for name, text in templates.items():
        (folder / f"{name}.sh").write_text(text)
    return Scripts(folder)


def test_lint_tells_words_from_sequences() -> None:
    assert lint("t", HEAD + 'echo "$NAME" "$@"\n') == Slots(frozenset({"name"}), frozenset({"rest"}))


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ('NAME="{{ name }}"\n', 1),
        ("NAME='{{ name }}'\n", 1),
        ("# {{ name }}\n", 1),
        ("cat <<E\nNAME={{ name }}\nE\n", 2),
        ("echo hi\nNAME={{ name }}\n", 2),
        ("echo {{ name }}\n", 1),
        ("NAME={{ name }} other\n", 1),
        ("NAME={{ name }}; rm -rf /\n", 1),
        ("NAME=a{{ name }}\n", 1),
        ("NAME={{ name|safe }}\n", 1),
        ("NAME={{ name ~ other }}\n", 1),
        ("NAME={{name}}\n", 1),
        ("set -- {{ rest }} more\n", 1),
        ("{% set name = 1 %}\n", 1),
        ("{% for x in xs %}\n", 1),
        ("{% macro m() %}{% endmacro %}\n", 1),
        ("{% raw %}\n", 1),
        ("\n\n{# a comment #}\n", 3),
        ('echo "${#NAME}"\n', 1),
        ("NAME={{ name }}\x0bEVIL={{ name }}\n", 1),
    ],
)
def test_lint_refuses_jinja_where_a_value_could_break_out(source: str, line: int) -> None:
    with pytest.raises(TemplateError) as caught:
        lint("t.sh", source)
    assert caught.value.where == f"t.sh:{line}"
    assert "NAME={{ value }}" in str(caught.value)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("ddp-bench", "ddp-bench"),
        ("target/cluster/exa", "target/cluster/exa"),
        ("", "''"),
        ("a b", "'a b'"),
        ("it's", "'it'\"'\"'s'"),
        ("$(touch x)", "'$(touch x)'"),
        (7, "7"),
        (Path("/a b"), "'/a b'"),
        (["a b", 1, ""], "'a b' 1 ''"),
        ((), ""),
    ],
)
def test_quote_spells_a_value_as_shell_words(value: object, text: str) -> None:
    assert quote(value) == text


@pytest.mark.parametrize("value", [None, True, 1.5, {"a": 1}, {"a"}, b"x", [None], object(), "a\0b", "\udcff"])
def test_quote_refuses_what_has_no_certain_spelling(value: object) -> None:
    with pytest.raises(TemplateError):
        quote(value)


def test_render_ends_with_the_mark_that_the_bootstrap_looks_for(tmp_path: Path) -> None:
    script = own(tmp_path, t=HEAD + 'echo "$NAME" "$@"\n').render("t.sh", name="a b", rest=["x", "y z"])
    assert script.name == "t.sh"
    assert script.text == (f"#!/bin/sh\n# says hello\nNAME='a b'\nset -- x 'y z'\necho \"$NAME\" \"$@\"\n{END}\n")


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"name": "a"}, "was given no rest"),
        ({"name": "a", "rest": [], "more": "b"}, "takes no value named 'more'"),
        ({"name": ["a", "b"], "rest": []}, "'name' must be one value"),
        ({"name": "a", "rest": "b"}, "'rest' must be a sequence"),
    ],
)
def test_render_refuses_values_that_the_template_does_not_take(
    tmp_path: Path, values: dict[str, str], says: str
) -> None:
    with pytest.raises(TemplateError, match=says):
        own(tmp_path, t=HEAD).render("t.sh", **values)


def test_a_users_template_wins_and_is_linted(tmp_path: Path) -> None:
    (tmp_path / "prolog.sh").write_text("echo mine\n")
    assert own(tmp_path, t='{% include "prolog.sh" %}\n').render("t.sh").text == f"echo mine\n{END}\n"
    with pytest.raises(TemplateError, match=r"bad\.sh:1"):
        own(tmp_path, bad='X="{{ x }}"\n').render("bad.sh", x="1")


def test_an_included_template_is_linted_too(tmp_path: Path) -> None:
    (tmp_path / "prolog.sh").write_text('X="{{ x }}"\n')
    with pytest.raises(TemplateError, match=r"prolog\.sh:1"):
        own(tmp_path, t='{% include "prolog.sh" %}\n').render("t.sh")


def test_a_missing_template_names_the_folders(tmp_path: Path) -> None:
    with pytest.raises(TemplateError, match=r"no-such\.sh: no such template[\s\S]*" + str(tmp_path)):
        Scripts(tmp_path).render("no-such.sh")
    with pytest.raises(TemplateError, match="folder of own templates"):
        Scripts(tmp_path / "nowhere")


SHELLS = [shell for shell in (["dash"], ["bash"], ["busybox", "sh"]) if shutil.which(shell[0])]


@pytest.mark.subprocess
@pytest.mark.parametrize("shell", SHELLS, ids=lambda shell: shell[0])
@settings(max_examples=150, deadline=None)
@given(word=words, rest=st.lists(words, max_size=4))
def test_any_text_comes_back_from_a_real_shell_byte_for_byte(shell: list[str], word: str, rest: list[str]) -> None:
    echo = '#!/bin/sh\nWORD={{ word }}\nset -- {{ rest }}\nprintf \'%s\\0\' "$WORD" "$@"\n'
    script = _rendered(echo, word=word, rest=rest)
    done = subprocess.run([*shell, "-c", script], capture_output=True, check=True, env={"LC_ALL": "C"})
    assert done.stdout.split(b"\0")[:-1] == [text.encode() for text in (word, *rest)]
    assert done.stderr == b""


def _rendered(source: str, **values: str | list[str]) -> str:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        return own(Path(folder), t=source).render("t.sh", **values).text
