"""The wheel: complete, and usable without the checkout."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
RENDER = "from fdl_tasks.scripts import Scripts; print(Scripts().path('checks/probe.sh')); import fdl_tasks.tasks"


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    [wheel] = folder.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(folder / "in")
    return folder / "in"


@pytest.mark.subprocess
def test_the_wheel_has_every_template_and_file_of_the_package(unpacked: Path) -> None:
    def files(folder: Path) -> set[str]:
        found = (path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
        return {str(path.relative_to(folder)) for path in found}

    assert files(unpacked / "fdl_tasks" / "templates") == files(ROOT / "templates")
    assert files(unpacked / "fdl_tasks") >= files(ROOT / "fdl_tasks")


@pytest.mark.subprocess
def test_templates_are_found_without_the_checkout(unpacked: Path, tmp_path: Path) -> None:
    env = {**os.environ, "PYTHONPATH": str(unpacked)}
    done = subprocess.run([sys.executable, "-c", RENDER], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.stdout.strip() == str(unpacked / "fdl_tasks" / "templates" / "checks" / "probe.sh"), done.stderr
