"""Static analysis of a module's source: it finds the object that each name refers to, without an import."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

TYPE_CHECKING = "typing.TYPE_CHECKING"


class Undecided(Exception):
    """Raised if the source does not determine a fact, so that the module has to be imported."""


@dataclass(frozen=True)
class ModuleSource:
    """A module by its dotted name, with its classes and the names that it binds.

    `paths` maps each name to the dotted path of its object. The path is None for a name that is assigned, decorated or
    bound twice.
    """

    name: str
    classes: Mapping[str, ast.ClassDef]
    paths: Mapping[str, str | None]

    def path_of(self, node: ast.expr) -> str:
        """Return the dotted path that a name or attribute refers to (`int` for a builtin); raises `Undecided`."""
        if isinstance(node, ast.Attribute):
            return f"{self.path_of(node.value)}.{node.attr}"
        if not isinstance(node, ast.Name):
            raise Undecided(ast.unparse(node))
        path = self.paths.get(node.id, node.id)
        if path is None:
            raise Undecided(node.id)
        return path


def read_module(name: str, file: Path) -> ModuleSource:
    """Return the module in a file; raise `Undecided` if running the module could do more than bind names."""
    try:
        body = ast.parse(file.read_text(encoding="utf-8")).body
    except (OSError, ValueError, SyntaxError, RecursionError) as error:
        raise Undecided(str(error)) from error
    classes = {node.name: node for node in body if isinstance(node, ast.ClassDef)}
    paths: dict[str, str | None] = {}
    for node in body:
        for bound, path in bindings(node, name):
            paths[bound] = None if bound in paths else path
    for node in body:
        require_inert(node, paths)
    return ModuleSource(name, classes, paths)


def bindings(node: ast.stmt, module: str) -> Iterator[tuple[str, str | None]]:
    """Yield the names that a statement binds, each with the dotted path of its value; raises `Undecided`."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return
    if (binds := BINDINGS_BY_STATEMENT.get(type(node))) is None:
        raise Undecided(ast.unparse(node))
    yield from binds(node, module)


def bindings_of_import(node: ast.Import, _: str) -> Iterator[tuple[str, str | None]]:
    """Yield the names that `import a.b` or `import a.b as c` binds."""
    for alias in node.names:
        top = alias.name.partition(".")[0]
        yield (alias.asname, alias.name) if alias.asname else (top, top)


def bindings_of_from(node: ast.ImportFrom, module: str) -> Iterator[tuple[str, str | None]]:
    """Yield the names that `from a import b` binds; raise `Undecided` for a star."""
    above = module.split(".")[: -node.level] if node.level else []
    base = ".".join([*above, *([node.module] if node.module else [])])
    for alias in node.names:
        if alias.name == "*":
            raise Undecided(ast.unparse(node))
        yield alias.asname or alias.name, f"{base}.{alias.name}"


def bindings_of_definition(node: ast.ClassDef | ast.FunctionDef, module: str) -> Iterator[tuple[str, str | None]]:
    """Yield the name of a class or function, with its path; the path is None if there is a decorator."""
    yield node.name, None if node.decorator_list else f"{module}.{node.name}"


def bindings_of_assignment(node: ast.Assign | ast.AnnAssign, _: str) -> Iterator[tuple[str, str | None]]:
    """Yield the assigned names, without their values."""
    for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
        if not isinstance(target, ast.Name):
            raise Undecided(ast.unparse(node))
        yield target.id, None


def bindings_for_types(node: ast.If, module: str) -> Iterator[tuple[str, str | None]]:
    """Yield the names imported only for type checkers, without values; raise `Undecided` for other conditions."""
    is_for_types = ast.unparse(node.test) in ("TYPE_CHECKING", TYPE_CHECKING) and not node.orelse
    if not is_for_types:
        raise Undecided(ast.unparse(node.test))
    for inner in node.body:
        yield from ((name, None) for name, _ in bindings(inner, module))


# For each kind of statement, the function that yields the names that the statement binds. Another kind of statement
# makes the source undecided.
BINDINGS_BY_STATEMENT: Mapping[type[ast.stmt], Callable[..., Iterator[tuple[str, str | None]]]] = {
    ast.Import: bindings_of_import,
    ast.ImportFrom: bindings_of_from,
    ast.ClassDef: bindings_of_definition,
    ast.FunctionDef: bindings_of_definition,
    ast.Assign: bindings_of_assignment,
    ast.AnnAssign: bindings_of_assignment,
    ast.If: bindings_for_types,
}


def require_inert(node: ast.stmt, paths: Mapping[str, str | None]) -> None:
    """Raise `Undecided` for a statement with a call whose arguments use names of the module.

    The call could change the objects of these names.
    """
    for call in (
        inner
        for expression in evaluated_expressions(node)
        for inner in ast.walk(expression)
        if isinstance(inner, ast.Call)
    ):
        values = [*call.args, *(keyword.value for keyword in call.keywords)]
        if any(isinstance(inner, ast.Name) and inner.id in paths for value in values for inner in ast.walk(value)):
            raise Undecided(ast.unparse(call))


def evaluated_expressions(node: ast.stmt) -> list[ast.expr]:
    """Return the expressions of a module's statement that run at import, except expressions inside classes."""
    if isinstance(node, ast.ClassDef | ast.FunctionDef):
        return node.decorator_list
    return [node.value] if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None else []
