"""The private names of PyTorch that the project uses, with the files that use them.

`python -m tests.versions.private_names` prints the names that the installed PyTorch lacks. Run it first with a new
version.
"""

from __future__ import annotations

import ast
import importlib
import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("thunder_core", "thunder_cli", "executors", "recipes")
LIBRARY = "torch"
PATH = re.compile(r"torch(\.\w+)*:\w+")  # of names that are imported late
# Names that only some builds or versions have. The code checks for them before use.
OPTIONAL = {"torch._C._cuda_clearCublasWorkspaces": "builds for CUDA"}


@cache
def private_names() -> dict[str, list[str]]:
    """Each private name, dotted, with the files that use it: `torch._C._functorch.maybe_current_level`."""
    found = defaultdict(set)
    for folder in FOLDERS:
        for file in sorted((ROOT / folder).rglob("*.py")):
            for name in names_in(ast.parse(file.read_text(encoding="utf-8"))):
                if is_private(name):
                    found[name].add(str(file.relative_to(ROOT)))
    longest = without_prefixes(found)
    return {name: sorted(found[name]) for name in sorted(longest)}


def without_prefixes(names: Mapping[str, Any]) -> list[str]:
    """The names that are not the beginning of another name."""
    parents = {".".join(name.split(".")[:length]) for name in names for length in range(1, name.count(".") + 1)}
    return [name for name in names if name not in parents]


def is_private(name: str) -> bool:
    """Whether a part of a dotted name begins with an underscore; special names such as `__doc__` are not private."""
    return any(part.startswith("_") and not part.startswith("__") for part in name.split("."))


def names_in(module: ast.Module) -> Iterator[str]:
    """The dotted names in PyTorch that a module imports or reads."""
    aliases = dict(imported_names(module))
    yield from aliases.values()
    for node in ast.walk(module):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and PATH.fullmatch(node.value):
            yield node.value.replace(":", ".")
        if isinstance(node, ast.Attribute) and (chain := chain_of(node)) and chain[0] in aliases:
            yield ".".join((aliases[chain[0]], *chain[1:]))


def imported_names(module: ast.Module) -> Iterator[tuple[str, str]]:
    """The names that imports from PyTorch bind, with their dotted names."""
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == LIBRARY:
                    yield (alias.asname, alias.name) if alias.asname else (LIBRARY, LIBRARY)
                    if not alias.asname:
                        yield alias.name, alias.name
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == LIBRARY:
            for alias in node.names:
                yield alias.asname or alias.name, f"{node.module}.{alias.name}"


def chain_of(node: ast.expr) -> list[str]:
    """The parts of `a.b.c`, or an empty result for an attribute of an expression that is not a name."""
    if isinstance(node, ast.Name):
        return [node.id]
    if isinstance(node, ast.Attribute) and (chain := chain_of(node.value)):
        return [*chain, node.attr]
    return []


@cache
def first_missing(name: str) -> str:
    """The shortest prefix of a name that the installed PyTorch lacks, or empty if PyTorch has the whole name."""
    found: list[Any] = [torch]
    parts = name.split(".")
    for length in range(2, len(parts) + 1):
        found = [
            attribute for value in found for attribute in values_of(value, parts[length - 1], ".".join(parts[:length]))
        ]
        if not found:
            return ".".join(parts[:length])
    return ""


def values_of(value: Any, attribute: str, name: str) -> Iterator[Any]:
    """The values that a dotted name may have: an attribute, an annotation of a class, and a module."""
    if hasattr(value, attribute):
        yield getattr(value, attribute)
    elif isinstance(value, type) and attribute in getattr(value, "__annotations__", {}):
        yield None
    with suppress(ImportError):
        yield importlib.import_module(name)


def main() -> int:
    """Print the missing names with the files that use them, and return 1 if there are any."""
    missing = {name: files for name, files in private_names().items() if name not in OPTIONAL and first_missing(name)}
    for name, files in missing.items():
        print(f"{name}  lacks {first_missing(name)}  {', '.join(files)}")
    print(f"{len(missing)} of {len(private_names())} private names are missing in PyTorch {torch.__version__}")
    return bool(missing)


if __name__ == "__main__":
    sys.exit(main())
