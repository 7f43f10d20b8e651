"""Small binaries made with cc: what a build may have produced."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

NEWER = "GLIBC_2.99 { global: newer; local: *; };"  # a version node that no real glibc has


def cc(*words: str | Path, source: str, at: Path) -> Path:
    """Compile ``source`` to ``at``."""
    at.parent.mkdir(parents=True, exist_ok=True)
    argv = ["cc", "-x", "c", "-", "-x", "none", *map(str, words), "-o", str(at)]
    subprocess.run(argv, input=source, text=True, check=True, capture_output=True)
    return at


def library(at: Path, *symbols: str, needs: Sequence[Path] = (), versions: str = "") -> Path:
    """A shared library that exports these functions, each in the version that the linker script says."""
    words: list[str | Path] = ["-shared", "-fPIC", f"-Wl,-soname,{at.name}", "-Wl,--no-as-needed", *needs]
    if versions:
        script = at.parent / f"{at.name}.map"
        at.parent.mkdir(parents=True, exist_ok=True)
        script.write_text(versions)
        words.append(f"-Wl,--version-script={script}")
    source = "".join(f"int {name}(void) {{ return 0; }}\n" for name in symbols)
    return cc(*words, source=source, at=at)


def program(at: Path, *calls: str, needs: Sequence[Path] = (), static: bool = False) -> Path:
    """A program that calls these functions; exit code 0."""
    declared = "".join(f"int {name}(void);\n" for name in calls)
    source = f"{declared}int main(void) {{ return {' + '.join(f'{name}()' for name in calls) or 0}; }}\n"
    words = ["-static"] if static else ["-Wl,--no-as-needed", *needs, *(f"-Wl,-rpath-link,{n.parent}" for n in needs)]
    return cc(*words, source=source, at=at)
