"""The pictures of docs/pictures/: there, linked, small, and without a trace of the machine they were made on."""

from __future__ import annotations

import re
import socket
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.pictures import ALL, PICTURES, Picture, healthy, svg
from tests.terminal import Screen

TOP = Path(__file__).resolve().parents[1]
NAMES = [picture.name for picture in ALL]
PAGES = [TOP / "README.md", *(TOP / "docs").glob("*.md")]


def words(text: str) -> str:
    """What a picture says."""
    root = ElementTree.fromstring(text)
    return " ".join(" ".join(node.itertext()) for node in root.iter("{http://www.w3.org/2000/svg}text"))


def test_there_is_no_picture_that_the_session_does_not_make() -> None:
    assert sorted(path.stem for path in PICTURES.iterdir()) == sorted(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_picture_is_small_and_fetches_nothing(name: str) -> None:
    text = (PICTURES / f"{name}.svg").read_text()
    assert len(text) < 60_000
    assert "@font-face" not in text
    assert not re.search(r"url\((?!#)|<image|<script|href=", text)


@pytest.mark.parametrize("name", NAMES)
def test_a_picture_tells_nothing_of_the_machine_it_was_made_on(name: str) -> None:
    said = words((PICTURES / f"{name}.svg").read_text()).replace("\xa0", " ")
    assert f"$ fdl-tasks {next(picture.words for picture in ALL if picture.name == name)}" in said
    for path in re.findall(r"(?<![\w.:/])/[\w./-]+", said):
        assert path.startswith(("/srv/mo", "/home/box", "/mnt/", "/flodl/data", "/dev/kfd")), path
    assert not re.search(rf"\b{re.escape(socket.gethostname())}\b", said)
    assert "Traceback" not in said
    assert "a bug in" not in said


@pytest.mark.parametrize("name", NAMES)
def test_a_picture_is_shown_on_a_page(name: str) -> None:
    assert any(f"pictures/{name}.svg)" in page.read_text() for page in PAGES)


def test_drawing_replaces_the_projects_path_and_keeps_columns_where_they_are(tmp_path: Path) -> None:
    screen = Screen(100, 5)
    screen.feed(f"a\r\n   \x1b[31mred\x1b[0m   {tmp_path}/target\r\n")
    text = svg(Picture("x", "preflight", healthy), screen, tmp_path)
    assert str(tmp_path) not in text
    spans = {said: float(at) for at, said in re.findall(r'<text [^>]*x="([0-9.]+)"[^>]*>([^<]*)</text>', text)}
    assert spans == {
        "$&#160;fdl-tasks&#160;preflight": 0,
        "a": 0,
        "red": pytest.approx(3 * 12.2),
        "/srv/mono/target": pytest.approx(9 * 12.2),
    }
    assert text == svg(Picture("x", "preflight", healthy), screen, tmp_path)
