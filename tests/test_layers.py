"""The floors of the house: imports run only downward, which is read from the source, so no install is needed."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = {
    "thunder_core": ROOT / "thunder_core",
    "thunder_cli": ROOT / "thunder_cli",
    "thunder_executors": ROOT / "executors" / "thunder_executors",
    "thunder_recipes": ROOT / "recipes" / "thunder_recipes",
}

# From the ground up. Rooms on one floor do not know each other.
FLOORS = (
    ("thunder_core.printable",),
    ("thunder_core.errors", "thunder_core.disk"),
    (
        "thunder_core.ir",
        "thunder_core.interpreter",
        "thunder_core.plugins",
        "thunder_core.cache",
        "thunder_core.compile_options",
        "thunder_core.digest",
        "thunder_core.target",
        "thunder_core.tolerance",
    ),
    ("thunder_core.requirement", "thunder_core.declaration", "thunder_core.free_memory"),
    ("thunder_core.transform", "thunder_core.analysis"),
    ("thunder_core.capture",),
    ("thunder_core.patterns",),
    ("thunder_core.claiming",),
    ("thunder_core.fusion", "thunder_core.recipe"),
    ("thunder_core.transforms",),
    ("thunder_core.autodiff",),
    ("thunder_core.acquire", "thunder_core.run", "thunder_executors"),
    ("thunder_core.derived", "thunder_core.nested"),
    ("thunder_core.compiler", "thunder_recipes"),
    (
        "thunder_core.derivatives",
        "thunder_core.functional",
        "thunder_core.memory",
        "thunder_core.models",
        "thunder_core.validation",
        "thunder_core.benchmark",
    ),
    ("thunder_core.report",),
    ("thunder_core.artifact",),
    ("thunder_core.pipeline",),
    ("thunder_core.inspect",),
    ("thunder_cli",),
)
FLOOR_OF = {room: number for number, floor in enumerate(FLOORS) for room in floor}

FACE = "thunder_core"  # `thunder_core/__init__.py`: names that are loaded when they are first used
IMPORTS_BY_NAME = {
    "thunder_core/plugins.py": "this is what it is for",
    "thunder_core/acquire/lookasides/imports.py": "stands in for the program's own import statements",
    "thunder_core/__init__.py": "the lazy face of the package",
    "thunder_core/interpreter/imports.py": "runs the program's own import statements",
    "thunder_core/interpreter/builtin/__init__.py": "the folder is imported whole",
    "thunder_core/interpreter/opcodes/__init__.py": "the folder is imported whole",
}
NO_TORCH = (
    "thunder_core.printable",
    "thunder_core.errors",
    "thunder_core.plugins",
    "thunder_core.interpreter",
    "thunder_core.cache",
    "thunder_core.compile_options",
    "thunder_core.digest",
    "thunder_core.disk",
    "thunder_core.target",
    "thunder_core.tolerance",
    FACE,
)


@dataclass(frozen=True)
class Import:
    """One import statement: in which file and line, of which module, and whether it stands in a function."""

    file: str
    line: int
    source: str
    target: str
    inside: bool

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.source} imports {self.target}"


def files() -> Iterator[tuple[str, Path]]:
    for package, folder in PACKAGES.items():
        for path in sorted(folder.rglob("*.py")):
            parts = path.relative_to(folder).with_suffix("").parts
            yield ".".join((package, *parts)).removesuffix(".__init__"), path


def targets(node: ast.AST, module: str, is_package: bool) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        above = module.split(".")[: len(module.split(".")) - node.level + is_package] if node.level else []
        base = ".".join([*above, *([node.module] if node.module else [])])
        # `from thunder_core import plugins` imports the module plugins; a longer path already names its room.
        yield from (f"{base}.{alias.name}" for alias in node.names) if base in PACKAGES else (base,)


def imports_of(module: str, path: Path) -> Iterator[Import]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    functions = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)]
    nested = {id(inner) for function in functions for inner in ast.walk(function)}
    for node in ast.walk(tree):
        for target in targets(node, module, path.name == "__init__.py"):
            yield Import(str(path.relative_to(ROOT)), node.lineno, module, target, id(node) in nested)


ALL = [found for module, path in files() for found in imports_of(module, path)]


def room_of(module: str) -> str:
    """The room that a module lies in: the longest known prefix of its name."""
    parts = module.split(".")
    prefixes = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
    return next((prefix for prefix in prefixes if prefix in FLOOR_OF), FACE)


def test_there_is_something_to_read() -> None:
    assert len(ALL) > 200
    assert {found.source.partition(".")[0] for found in ALL} == set(PACKAGES)


def test_every_module_has_a_floor() -> None:
    homeless = {module for module, _ in files() if module != FACE and room_of(module) == FACE}
    assert not homeless, f"give these a floor in {Path(__file__).name}"


def test_imports_run_only_downward() -> None:
    ours = [found for found in ALL if found.target.partition(".")[0] in PACKAGES and found.source != FACE]
    upward = [
        str(found)
        for found in ours
        if room_of(found.source) != room_of(found.target)
        and room_of(found.target) != FACE
        and FLOOR_OF[room_of(found.target)] >= FLOOR_OF[room_of(found.source)]
    ]
    assert not upward, "\n".join(upward)


def test_nobody_imports_the_plug_ins_by_their_own_names() -> None:
    """Recipes and executors are found by name, so that a missing backend breaks nothing."""
    plugged = ("thunder_executors", "thunder_recipes")
    direct = [
        str(found)
        for found in ALL
        if found.target.startswith(plugged) and found.source.partition(".")[0] != found.target.partition(".")[0]
    ]
    assert not direct, "\n".join(direct)


def test_functions_import_nothing() -> None:
    hidden = [str(found) for found in ALL if found.inside and not found.source.startswith("thunder_cli.")]
    assert not hidden, "\n".join(hidden)


def test_only_plugins_imports_by_name() -> None:
    found = [
        f"{name}:{node.lineno}"
        for _, path in files()
        if (name := str(path.relative_to(ROOT))) not in IMPORTS_BY_NAME
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute | ast.Name)
        and (getattr(node, "attr", None) or getattr(node, "id", None)) in {"import_module", "__import__"}
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("room", NO_TORCH)
def test_the_ground_floors_need_no_torch(room: str) -> None:
    heavy = ("torch", "transformers", "numpy")
    inside = (found for found in ALL if (found.source == room if room == FACE else room_of(found.source) == room))
    assert not [str(found) for found in inside if found.target.partition(".")[0] in heavy]


def test_nothing_is_unpickled() -> None:
    unsafe = ("pickle", "marshal", "shelve", "dill", "cloudpickle")
    assert not [str(found) for found in ALL if found.target.partition(".")[0] in unsafe]


@pytest.mark.parametrize("name", ["utils", "util", "common", "helpers", "misc", "base_utils"])
def test_every_file_is_named_for_what_it_is(name: str) -> None:
    assert not [str(path) for _, path in files() if path.stem == name]
