"""Every message that the library can print for a failure, read from its source.

A message is what is handed to an error of the ``FdlError`` family, to a ``Fault``, to a ``Verdict`` that is not
ok, or to the ``error`` of an outcome, wherever it was put together: in an f-string (what it fills in is ``…``
here), in a variable, by a function of the same module. A function that passes its own parameter on as a message
is followed to its callers.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

TOP = Path(__file__).resolve().parents[1]
GAP = "…"
# Who takes a message, and as which argument. Errors that are found in the source are added.
TAKERS = {"Fault": {3}, "Verdict": {2}, "TransportError": {1}, "_exit": {1}, "failed": {1}, "Tagged": {0}, "Start": {0}}
TAKERS |= {"Finding": {2}, "_WrongError": {1}, "_Again": {0}, "kind": {0}}  # kind: an error, of the class that it is of
# They make verdicts that are no failure, take the name of a flag or of what their message is about, write a file.
NO_MESSAGE = {"ok", "count", "full", "_inside", "_prove", "write"}
FACTS = {"ValueError": {"cluster", "specs.py", "manifest.py"}}  # errors of Python's that become messages there


@dataclass(frozen=True)
class Message:
    """``text`` as printed, with a gap for what is filled in."""

    text: str
    place: str


@dataclass(frozen=True)
class _Module:
    name: str
    tree: ast.Module
    shared: dict[str, str]  # constants of all modules, by their names

    @property
    def constants(self) -> dict[str, str]:
        assigned = [node for node in self.tree.body if isinstance(node, ast.Assign)]
        found = {_name(node.targets[0]): getattr(node.value, "value", None) for node in assigned}
        return {name: value for name, value in found.items() if isinstance(value, str)}

    @property
    def functions(self) -> dict[str, ast.FunctionDef]:
        return {node.name: node for node in ast.walk(self.tree) if isinstance(node, ast.FunctionDef)}


def collect(package: Path = TOP / "fdl_tasks") -> list[Message]:
    """All of them, each text once."""
    shared: dict[str, str] = {}
    modules = [
        _Module(str(path.relative_to(package.parent)), ast.parse(path.read_text()), shared)
        for path in sorted(package.rglob("*.py"))
    ]
    for module in modules:
        shared |= module.constants
    takers = {**TAKERS, **{name: {0} for name in _family(modules) if name not in TAKERS}}
    while more := {key: at for key, at in _passing_on(modules, takers) if not at <= takers.get(key, set())}:
        takers |= {key: takers.get(key, set()) | at for key, at in more.items()}
    found = [message for module in modules for message in _in_module(module, takers)]
    return list({message.text: message for message in found}.values())


def _family(modules: list[_Module]) -> set[str]:
    """Names of the errors: ``FdlError`` and all that derive from it."""
    family, size = {"FdlError"}, 0
    while len(family) > size:
        size = len(family)
        for module in modules:
            for node in ast.walk(module.tree):
                if isinstance(node, ast.ClassDef) and {_name(base) for base in node.bases} & family:
                    family.add(node.name)
    return family


def _name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def _calls(module: _Module, takers: dict[str, set[int]]) -> Iterator[tuple[ast.FunctionDef | None, ast.expr]]:
    """Every expression that is a message, with the function it stands in."""
    for function, node in _nodes(module.tree, None):
        if (
            isinstance(node, ast.keyword)
            and node.arg == "error"
            and isinstance(node.value, ast.Constant | ast.JoinedStr | ast.Name | ast.BinOp)
        ):
            yield function, node.value
        elif isinstance(node, ast.Call) and (name := _name(node.func)) not in NO_MESSAGE:
            at = takers.get(name) or ({0} if FACTS.get(name, set()) & {*module.name.split("/")} else set())
            yield from ((function, node.args[n]) for n in at if n < len(node.args))
        elif (
            isinstance(node, ast.Yield) and module.name.endswith("crosscheck.py") and isinstance(node.value, ast.Tuple)
        ):
            yield function, node.value.elts[1]


def _nodes(node: ast.AST, function: ast.FunctionDef | None) -> Iterator[tuple[ast.FunctionDef | None, ast.AST]]:
    inner = node if isinstance(node, ast.FunctionDef) else function
    for child in ast.iter_child_nodes(node):
        yield inner, child
        yield from _nodes(child, inner)


def _passing_on(modules: list[_Module], takers: dict[str, set[int]]) -> Iterator[tuple[str, set[int]]]:
    """Functions that hand a parameter on as a message."""
    for module in modules:
        for function, expression in _calls(module, takers):
            if function and function.name != "__init__":
                names = [argument.arg for argument in function.args.args if argument.arg != "self"]
                if (first := _beginning(expression)) in names:
                    yield function.name, {names.index(first)}


def _beginning(expression: ast.expr) -> str:
    """The name of the variable that a message is, or begins with."""
    if isinstance(expression, ast.JoinedStr) and isinstance(expression.values[0], ast.FormattedValue):
        expression = expression.values[0].value
    return expression.id if isinstance(expression, ast.Name) else ""


def _in_module(module: _Module, takers: dict[str, set[int]]) -> Iterator[Message]:
    for function, expression in _calls(module, takers):
        for text in _texts(expression, module, function):
            text = " ".join(text.split())
            if len([word for word in text.split() if any(char.isalpha() for char in word)]) > 1:
                yield Message(text, f"{module.name}:{expression.lineno}")


def _texts(node: ast.AST, module: _Module, function: ast.FunctionDef | None) -> list[str]:
    """What an expression may be as text. What can't be told from here is a gap."""
    if isinstance(node, ast.Constant):
        return [node.value] if isinstance(node.value, str) else []
    if isinstance(node, ast.JoinedStr):
        return _joined(node, module, function)
    if isinstance(node, ast.IfExp):
        return _texts(node.body, module, function) + _texts(node.orelse, module, function)
    if isinstance(node, ast.BoolOp):
        return [text for value in node.values for text in _texts(value, module, function)]
    if isinstance(node, ast.BinOp):
        return [a + b for a in _texts(node.left, module, function) for b in _texts(node.right, module, function)]
    if isinstance(node, ast.Name) and function:
        return _assigned(node.id, module, function)
    if isinstance(node, ast.Subscript):
        return _values(_name(node.value), module)
    if isinstance(node, ast.Call) and (called := module.functions.get(_name(node.func))):
        returns = [n.value for n in ast.walk(called) if isinstance(n, ast.Return) and n.value]
        return [text for value in returns for text in _texts(value, module, called)] if called != function else [GAP]
    return _of_method(node, module, function) if isinstance(node, ast.Call) else [GAP]


def _joined(node: ast.JoinedStr, module: _Module, function: ast.FunctionDef | None) -> list[str]:
    """The constant parts. A filled-in choice between texts counts as its texts, anything else as a gap."""
    texts = [""]
    for part in node.values:
        ends = [GAP]
        if isinstance(part, ast.Constant):
            ends = [str(part.value)]
        elif isinstance(part, ast.FormattedValue) and isinstance(part.value, ast.Name) and function:
            ends = _assigned(part.value.id, module, function)
        texts = [text + end for text in texts for end in ends]
    return texts


def _assigned(name: str, module: _Module, function: ast.FunctionDef) -> list[str]:
    found: list[str] = []
    for node in ast.walk(function):
        if isinstance(node, ast.Assign | ast.NamedExpr):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                pairs = [(target, node.value)]
                if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                    pairs = list(zip(target.elts, node.value.elts, strict=True))
                found += [
                    text for to, value in pairs if _name(to) == name and isinstance(to, ast.Name)
                    if isinstance(value, ast.Constant | ast.JoinedStr | ast.IfExp | ast.Call) or _name(value).isupper()
                    if name not in [_name(part) for part in ast.walk(value) if isinstance(part, ast.expr)]
                    for text in _texts(value, module, function)
                ]  # fmt: skip
    return found or [module.constants.get(name) or (module.shared.get(name) if name.isupper() else None) or GAP]


def _values(name: str, module: _Module) -> list[str]:
    """The texts of a dictionary of the module."""
    for node in module.tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict) and _name(node.targets[0]) == name:
            return [text for value in node.value.values for text in _texts(value, module, None)]
    return [GAP]


def _of_method(node: ast.Call, module: _Module, function: ast.FunctionDef | None) -> list[str]:
    """``separator.join([…])``: its texts, one after another. ``NAMES.get(…)``: any of the dictionary's."""
    if _name(node.func) == "join" and node.args and isinstance(node.args[0], ast.List):
        parts = [_texts(part, module, function)[0] for part in node.args[0].elts if not isinstance(part, ast.Starred)]
        return [f"{' '.join(parts)} {GAP}"]
    if isinstance(node.func, ast.Attribute) and node.func.attr == "get":
        default = _texts(node.args[1], module, function) if len(node.args) > 1 else []
        return [*_values(_name(node.func.value), module), *default]
    return [GAP]
