"""Every script the library ships: linted, read by ShellCheck once rendered, POSIX sh."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from fdl_tasks.hosts.local import bootstrap
from fdl_tasks.scripts import Scripts, folders

TEMPLATES = folders(None)[0]
NAMES = sorted(str(path.relative_to(TEMPLATES)) for path in TEMPLATES.rglob("*.sh"))
PARTS = {part for name in NAMES for part in Scripts().slots(name).includes}
RUN = [name for name in NAMES if name not in PARTS | {"hosts/bootstrap.sh"}]


def rendered(name: str) -> str:
    slots = Scripts().slots(name)
    values: dict[str, str | list[str]] = dict.fromkeys(slots.word, "it's a value")
    return Scripts().render(name, **values, **{key: ["a b", "c"] for key in slots.words}).text


@pytest.mark.parametrize("name", RUN)
def test_a_template_says_what_it_does_and_begins_with_the_prolog(name: str) -> None:
    assert Scripts().path(name).read_text().startswith("# ")
    assert Scripts().slots(name).includes[0] == "prolog.sh"


@pytest.mark.lab
@pytest.mark.parametrize("name", [*RUN, "hosts/bootstrap.sh"])
def test_shellcheck_has_nothing_to_say(name: str, tmp_path: Path) -> None:
    if not shutil.which("shellcheck"):
        pytest.skip("shellcheck is not installed")
    script = tmp_path / "script.sh"
    script.write_text(rendered(name))
    done = subprocess.run(["shellcheck", "--shell=sh", "--severity=style", script], capture_output=True, text=True)
    assert done.stdout == ""


def test_the_bootstrap_is_one_line_that_every_login_shell_reads_alike() -> None:
    assert not re.search(r"!(?! )|[\n'\\]", bootstrap())
