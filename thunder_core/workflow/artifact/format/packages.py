"""The packages that a printed trace imports, and the packages that every machine with Thunder has."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator

PRESENT_PACKAGES = frozenset({"torch", "thunder_core", "thunder_executors", "builtins", *sys.stdlib_module_names})


def package_of(path: str) -> str:
    """Return the top-level package of `module:qualname`."""
    return path.partition(":")[0].partition(".")[0]


def imported_packages(text: str) -> set[str]:
    """Return the top-level packages that a printed trace imports."""
    return {package_of(module) for node in ast.parse(text).body for module, _ in imports_of(node)}


def imports_of(node: ast.stmt) -> Iterator[tuple[str, str]]:
    """Yield each module that a statement imports, with the name that it binds."""
    if isinstance(node, ast.ImportFrom):
        yield from ((node.module or "", alias.asname or alias.name) for alias in node.names)
    elif isinstance(node, ast.Import):
        yield from ((alias.name, alias.asname or alias.name.partition(".")[0]) for alias in node.names)
