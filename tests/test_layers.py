"""The floors of the house: imports run only downward, which is read from the source, so no install is needed."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator, Mapping
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

# From the ground up. The rooms of a floor stand above each other as well, in the order in which they are written; rooms
# that are written in one pair of parentheses do not know each other.
FLOORS = {
    "ground": (
        ("thunder_core.foundation.printable", "thunder_core.foundation.package"),
        ("thunder_core.foundation.errors",),
        ("thunder_core.foundation.tested_versions", "thunder_core.foundation.transformers_versions"),
        ("thunder_core.foundation.storage", "thunder_core.foundation.plugins", "thunder_core.foundation.options"),
    ),
    "programs": (
        (
            "thunder_core.tracing.ir",
            "thunder_core.tracing.library",
            "thunder_core.frontend.interpreter",
            "thunder_core.backend.cache",
        ),
        ("thunder_core.backend.quantization",),
    ),
    "recording": (
        ("thunder_core.tracing.analysis", "thunder_core.tracing.extension"),
        ("thunder_core.tracing.capture",),
    ),
    "executors": (
        ("thunder_core.backend.patterns", "thunder_core.backend.runtime", "thunder_core.backend.functionalization"),
        ("thunder_core.backend.claiming",),
        ("thunder_core.backend.fusion", "thunder_core.passes.recipe"),
    ),
    "transforms": (
        ("thunder_core.passes.transforms",),
        ("thunder_core.passes.autodiff",),
    ),
    "compiler": (
        ("thunder_core.frontend.acquire", "thunder_executors"),
        ("thunder_core.compilation.compiler", "thunder_recipes"),
        ("thunder_core.compilation.dynamo",),
    ),
    "models": (
        (
            "thunder_core.compilation.gradients",
            "thunder_core.functional",
            "thunder_core.compilation.memory",
            "thunder_core.workflow.models",
            "thunder_core.workflow.benchmark",
        ),
        ("thunder_core.workflow.validation",),
        ("thunder_core.workflow.fault_localization",),
        ("thunder_core.workflow.report",),
        ("thunder_core.workflow.artifact",),
    ),
    "commands": (
        ("thunder_core.workflow.pipeline",),
        ("thunder_core.workflow.inspect",),
        ("thunder_cli",),
    ),
}
STOREYS = [rooms for floor in FLOORS.values() for rooms in floor]
HEIGHT_OF = {room: height for height, rooms in enumerate(STOREYS) for room in rooms}

FACE = "thunder_core"  # `thunder_core/__init__.py`: names that are loaded when they are first used
IMPORTS_BY_NAME = {
    "thunder_core/foundation/plugins.py": "this is what it is for",
    "thunder_core/frontend/acquire/lookasides/state/imports.py": "stands in for the program's own import statements",
    "thunder_core/__init__.py": "the lazy face of the package",
    "thunder_core/frontend/interpreter/imports.py": "runs the program's own import statements",
    "thunder_core/frontend/interpreter/builtin/__init__.py": "the folder is imported whole",
    "thunder_core/frontend/interpreter/opcodes/__init__.py": "the folder is imported whole",
}
LISTS_FOLDERS = (
    "thunder_core.foundation.plugins",
)  # of what is in them nothing is named: it is found by the names of files
NO_TORCH = (
    "thunder_core.foundation.printable",
    "thunder_core.foundation.package",
    "thunder_core.foundation.errors",
    "thunder_core.foundation.tested_versions",
    "thunder_core.foundation.storage",
    "thunder_core.foundation.plugins",
    "thunder_core.foundation.options",
    "thunder_core.frontend.interpreter",
    "thunder_core.backend.cache",
    FACE,
)
NO_TORCH_MODULES = (
    "thunder_core.passes.recipe",
    *(f"thunder_core.passes.recipe.{name}" for name in ("options", "source", "module_source")),
)


@dataclass(frozen=True)
class Import:
    """An import: in which file and line, of which module, and how it is written.

    Imports under `TYPE_CHECKING` count like all others, and so do modules that are imported by name, which is told from
    the text that names them ("thunder_core.workflow.artifact.format.compilers:compiler_of").
    """

    file: str
    line: int
    source: str
    target: str
    inside: bool = False
    by_name: bool = False
    for_types: bool = False

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.source} {'names' if self.by_name else 'imports'} {self.target}"


def files() -> Iterator[tuple[str, Path]]:
    for package, folder in PACKAGES.items():
        for path in sorted(folder.rglob("*.py")):
            parts = path.relative_to(folder).with_suffix("").parts
            yield ".".join((package, *parts)).removesuffix(".__init__"), path


MODULES = dict(files())
NAMED = re.compile(rf"({'|'.join(PACKAGES)})(\.\w+)+(:[\w.]+)?")


@functools.cache
def tree_of(module: str) -> ast.Module:
    """The syntax tree of a module of ours; parsing all of them takes seconds, which collecting the tests need not."""
    return ast.parse(MODULES[module].read_text(encoding="utf-8"))


def targets(node: ast.AST, module: str, is_package: bool) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        above = module.split(".")[: len(module.split(".")) - node.level + is_package] if node.level else []
        base = ".".join([*above, *([node.module] if node.module else [])])
        # `from thunder_core.tracing.ir import tree` imports the module tree; `from thunder_core.tracing.ir.tree import leaves` no more.
        yield from dict.fromkeys(name if (name := f"{base}.{alias.name}") in MODULES else base for alias in node.names)


def named(node: ast.AST, package: str | None) -> str | None:
    """The module of ours that a text names, to be imported when it is needed; a package's face names its own in short.

    A text may name what is in a module, with a colon or a point before it.
    """
    if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
        return None
    if package is not None and f"{package}.{node.value}" in MODULES:
        return f"{package}.{node.value}"
    module = node.value.partition(":")[0] if NAMED.fullmatch(node.value) else ""
    return next((known for known in (module, module.rpartition(".")[0]) if known in MODULES), None)


def is_own_package(target: str, source: str) -> bool:
    """Whether a module names the package that it lies in, for the files beside it: that is no import."""
    return source.startswith(f"{target}.")


def with_places(node: ast.AST, inside: bool = False, for_types: bool = False) -> Iterator[tuple[ast.AST, bool, bool]]:
    """Each node of a tree, whether it stands in a function, and whether only type checkers read it."""
    yield node, inside, for_types
    inside = inside or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
    for_types = for_types or (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
    for child in ast.iter_child_nodes(node):
        yield from with_places(child, inside, for_types)


def imports_of(module: str, path: Path) -> Iterator[Import]:
    file, is_package = str(path.relative_to(ROOT)), path.name == "__init__.py"
    for node, inside, for_types in with_places(tree_of(module)):
        for target in targets(node, module, is_package):
            yield Import(file, node.lineno, module, target, inside=inside, for_types=for_types)
        target = None if module in LISTS_FOLDERS else named(node, module if is_package else None)
        if target is not None and not is_own_package(target, module):
            yield Import(file, node.lineno, module, target, by_name=True)


@functools.cache
def all_imports() -> tuple[Import, ...]:
    """All imports of our modules."""
    return tuple(found for module, path in files() for found in imports_of(module, path))


def room_of(module: str) -> str:
    """The room that a module lies in: the longest known prefix of its name."""
    parts = module.split(".")
    prefixes = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
    return next((prefix for prefix in prefixes if prefix in HEIGHT_OF), FACE)


def test_there_is_something_to_read() -> None:
    assert len(all_imports()) > 200
    assert {found.source.partition(".")[0] for found in all_imports()} == set(PACKAGES)
    named = {(found.source, found.target) for found in all_imports() if found.by_name}
    assert ("thunder_core.workflow.artifact.retracing", "thunder_core.workflow.artifact.format.compilers") in named
    assert (FACE, "thunder_core.compilation.compiler") in named & {
        (found.source, found.target) for found in all_imports() if found.for_types
    }


def test_every_module_has_a_floor() -> None:
    homeless = {module for module in MODULES if module != FACE and room_of(module) == FACE}
    assert not homeless, f"give these a floor in {Path(__file__).name}"


def test_the_page_has_these_floors() -> None:
    """`docs/design.md` tells of the same rooms, from the top down; a semicolon is a step."""
    page = (
        (ROOT / "docs" / "design.md").read_text(encoding="utf-8").partition("## Floors")[2].partition("\n\nRecipes")[0]
    )
    rows = re.findall(r"^\| (\w+) \| (.*) \|$", page, re.MULTILINE)[1:]
    assert [name for name, _ in rows] == list(reversed(FLOORS))
    for name, told in rows:
        storeys = re.sub(r"\([^)]*\)", "", told).split(";")
        assert len(storeys) == len(FLOORS[name])
        for storey, rooms in zip(storeys, reversed(FLOORS[name]), strict=True):
            named = {room.removeprefix("thunder_core.").replace(".", "/") for room in rooms}
            assert named == set(re.findall(r"`([\w/]+?)(?:/|\.py)`", storey))


def test_imports_run_only_downward() -> None:
    ours = [found for found in all_imports() if found.target.partition(".")[0] in PACKAGES and found.source != FACE]
    upward = [
        str(found)
        for found in ours
        if room_of(found.source) != room_of(found.target)
        and room_of(found.target) != FACE
        and HEIGHT_OF[room_of(found.target)] >= HEIGHT_OF[room_of(found.source)]
    ]
    assert not upward, "\n".join(upward)


def circles() -> Iterator[frozenset[str]]:
    """The sets of modules each of which imports, through others of the set, all of it; imports for types count."""
    waiting: dict[str, set[str]] = {module: set() for module in MODULES}
    for found in all_imports():
        if found.target in MODULES and found.target != found.source:
            waiting[found.source].add(found.target)
    while leaves := [module for module, targets in waiting.items() if not targets & waiting.keys()]:
        for module in leaves:
            del waiting[module]
    reached = {module: _reachable(module, waiting) for module in waiting}
    yield from {
        frozenset(other for other in reached[module] if module in reached[other])
        for module in waiting
        if module in reached[module]
    }


def _reachable(start: str, imported: Mapping[str, set[str]]) -> set[str]:
    """What a module imports, what that imports, and so on."""
    reached: set[str] = set()
    waiting = [start]
    while waiting:
        new = imported[waiting.pop()] & imported.keys() - reached
        reached |= new
        waiting.extend(new)
    return reached


def test_there_is_no_circle_of_imports() -> None:
    assert not [sorted(circle) for circle in circles()]


def test_nobody_imports_the_plug_ins_by_their_own_names() -> None:
    """Recipes and executors are found by name, so that a missing backend breaks nothing."""
    plugged = ("thunder_executors", "thunder_recipes")
    direct = [
        str(found)
        for found in all_imports()
        if found.target.startswith(plugged) and found.source.partition(".")[0] != found.target.partition(".")[0]
    ]
    assert not direct, "\n".join(direct)


def test_functions_import_nothing() -> None:
    hidden = [str(found) for found in all_imports() if found.inside and not found.source.startswith("thunder_cli.")]
    assert not hidden, "\n".join(hidden)


def test_only_plugins_imports_by_name() -> None:
    found = [
        f"{name}:{node.lineno}"
        for module, path in MODULES.items()
        if (name := str(path.relative_to(ROOT))) not in IMPORTS_BY_NAME
        for node in ast.walk(tree_of(module))
        if isinstance(node, ast.Attribute | ast.Name)
        and (getattr(node, "attr", None) or getattr(node, "id", None)) in {"import_module", "__import__"}
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("room", NO_TORCH)
def test_the_ground_floors_need_no_torch(room: str) -> None:
    heavy = ("torch", "transformers", "numpy")
    inside = (
        found for found in all_imports() if (found.source == room if room == FACE else room_of(found.source) == room)
    )
    assert not [str(found) for found in inside if found.target.partition(".")[0] in heavy]


def test_what_a_recipes_source_tells_needs_no_torch() -> None:
    inside = [
        found for found in all_imports() if found.source in NO_TORCH_MODULES and not (found.for_types or found.by_name)
    ]
    allowed = {room for room in NO_TORCH if room != FACE} | {*NO_TORCH_MODULES}
    ours = [found for found in inside if found.target.partition(".")[0] in PACKAGES]
    assert {found.source for found in ours} == {*NO_TORCH_MODULES} - {"thunder_core.passes.recipe.module_source"}
    assert not [str(found) for found in ours if {found.target, room_of(found.target)}.isdisjoint(allowed)]
    assert not [str(found) for found in inside if found.target.partition(".")[0] in ("torch", "transformers", "numpy")]


def test_nothing_is_unpickled() -> None:
    unsafe = ("pickle", "marshal", "shelve", "dill", "cloudpickle")
    assert not [str(found) for found in all_imports() if found.target.partition(".")[0] in unsafe]


@pytest.mark.parametrize("name", ["utils", "util", "common", "helpers", "misc", "base_utils"])
def test_every_file_is_named_for_what_it_is(name: str) -> None:
    assert not [str(path) for path in MODULES.values() if path.stem == name]
