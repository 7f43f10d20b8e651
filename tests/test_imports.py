"""Which module may import which: an arrow that runs the wrong way fails here."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

TOP = Path(__file__).resolve().parents[1]
PACKAGE = TOP / "fdl_tasks"
MODULES = {".".join(path.relative_to(TOP).with_suffix("").parts): path for path in sorted(PACKAGE.rglob("*.py"))}

# A module imports from layers of a lower number only, or from its own package.
LAYERS = {
    "errors": 0,
    "outcome": 1,
    "arch": 1,
    "sizes": 1,
    "stamp": 1,
    "files": 1,
    "cluster": 2,
    "scripts": 2,
    "hosts": 3,
    "alone": 4,
    "checks": 4,
    "builds": 5,
}
LAYERS |= {"images": 5, "boxes": 5, "report": 6, "settings": 6, "testing": 6, "tasks": 7, "__init__": 8}

# Where a package from outside may be imported: a folder or a module, below fdl_tasks.
THIRD_PARTY = {
    "invoke": ("tasks", "__init__"),
    "fabric": ("hosts.ssh",),
    "paramiko": ("hosts.ssh", "hosts.keys", "hosts.identity"),
    "cryptography": ("hosts.identity",),
    "jinja2": ("scripts",),
    "yaml": ("cluster.load",),
    "pydantic": ("cluster",),
    "pydantic_core": ("cluster",),
    "rich": ("report",),
    "filelock": ("alone", "builds.clean"),
    "psutil": ("builds", "checks", "boxes"),
    "elftools": ("builds",),
    "requests": ("boxes.torch.download",),
    "pynvml": ("boxes.gpu.survey",),
}

PURE = [
    "arch",
    "boxes.gpu.coverage",
    "boxes.gpu.gpus",
    "boxes.source.manifest",
    "boxes.recipe",
    "boxes.specs",
    "boxes.data.sshfs",
    "boxes.torch.variants",
    "boxes.wanted",
    "builds.cargo",
    "builds.envelope",
    "builds.judge",
    "builds.plan",
    "builds.readback",
    "checks.probe",
    "checks.verdicts",
    "cluster.model",
    "cluster.show",
    "images.addresses",
    "images.answer",
    "images.facts",
    "images.identity",
    "images.judge",
    "images.logins",
    "images.plan",
    "images.result",
    "images.sent",
    "images.source",
    "images.transports",
    "images.tree",
    "outcome",
    "sizes",
]
IMPURE = {"os", "subprocess", "socket", "time", "threading", "shutil", "tempfile", *THIRD_PARTY}


def imported(name: str, tree: ast.AST) -> Iterator[str]:
    """Absolute names of everything that a module imports, wherever the import stands."""
    parents = name.split(".")
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = parents[: len(parents) - node.level] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            yield from (f"{module}.{alias.name}" for alias in node.names)


IMPORTS = {name: set(imported(name, ast.parse(path.read_text()))) for name, path in MODULES.items()}


def part(name: str) -> str:
    """The package or top module of ``fdl_tasks`` that a name belongs to."""
    return name.split(".")[1]


def below(name: str) -> str:
    return name.removeprefix("fdl_tasks.").removesuffix(".__init__")


def wrong_arrows(imports: dict[str, set[str]]) -> list[str]:
    return [
        f"{name} imports {target}"
        for name, targets in imports.items()
        for target in sorted(targets)
        if target.startswith("fdl_tasks.") and part(target) != part(name) and part(name) != "__init__"
        if LAYERS[part(target)] >= LAYERS[part(name)]
    ]


def strangers(imports: dict[str, set[str]]) -> list[str]:
    """Imports of packages from outside, in a place that is not theirs."""
    return [
        f"{name} imports {target}"
        for name, targets in imports.items()
        for target in sorted(targets)
        if (package := target.split(".")[0]) not in sys.stdlib_module_names | {"fdl_tasks"}
        if not any((below(name) + ".").startswith(place + ".") for place in THIRD_PARTY.get(package, ()))
    ]


def test_modules_import_from_lower_layers_only() -> None:
    assert wrong_arrows(IMPORTS) == []


def test_a_package_from_outside_is_imported_only_in_its_place() -> None:
    assert strangers(IMPORTS) == []


@pytest.mark.parametrize("name", PURE)
def test_a_pure_module_imports_nothing_that_acts(name: str) -> None:
    assert {target.split(".")[0] for target in IMPORTS[f"fdl_tasks.{name}"]} & IMPURE == set()


@pytest.mark.parametrize("name", [name for name in MODULES if part(name) not in ("report", "tasks")])
def test_nothing_below_the_report_prints(name: str) -> None:
    nodes = list(ast.walk(ast.parse(MODULES[name].read_text())))
    printing = [n.lineno for n in nodes if isinstance(n, ast.Name) and n.id in ("print", "input", "breakpoint")]
    streams = [n.lineno for n in nodes if isinstance(n, ast.Attribute) and n.attr in ("stdout", "stderr", "stdin")
               if isinstance(n.value, ast.Name) and n.value.id == "sys"]  # fmt: skip
    assert (printing, streams) == ([], [])


def test_the_library_imports_invoke_only_when_a_task_is_asked_for() -> None:
    tops = {
        node.module or ""
        for node in ast.parse((PACKAGE / "__init__.py").read_text()).body
        if isinstance(node, ast.ImportFrom)
    }
    assert tops == {"__future__", "importlib", "typing"}


@pytest.mark.parametrize(
    ("name", "target", "found"),
    [
        ("fdl_tasks.hosts.base", "fdl_tasks.report.table.render", wrong_arrows),
        ("fdl_tasks.checks.sweep", "fdl_tasks.builds.plan", wrong_arrows),
        ("fdl_tasks.cluster.model", "fdl_tasks.scripts.Script", wrong_arrows),
        ("fdl_tasks.report.table", "invoke.task", strangers),
        ("fdl_tasks.hosts.settings", "paramiko", strangers),
        ("fdl_tasks.hosts.local", "numpy", strangers),
    ],
)
def test_the_checks_above_see_a_wrong_arrow(name: str, target: str, found: object) -> None:
    assert callable(found)
    assert found({name: {target}}) == [f"{name} imports {target}"]


def test_relative_imports_are_read_as_what_they_name() -> None:
    tree = ast.parse("from ..outcome import Event\nfrom . import flags\nimport os.path\nfrom .. import arch")
    found = list(imported("fdl_tasks.tasks.checks", tree))
    assert found == ["fdl_tasks.outcome.Event", "fdl_tasks.tasks.flags", "os.path", "fdl_tasks.arch"]
