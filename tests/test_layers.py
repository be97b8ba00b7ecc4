"""The layers of the packages: imports run only downward.

Imports are read from the source, so no installation is needed.
"""

from __future__ import annotations

import ast
import functools
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from docs.layers import LAYERS, PAGE, levels, render
from thunder_core.foundation.short_names import PACKAGES_OF

pytestmark = pytest.mark.source

ROOT = Path(__file__).resolve().parent.parent
ROOT_PACKAGES = {
    "thunder_core": ROOT / "thunder_core",
    "thunder_cli": ROOT / "thunder_cli",
    "thunder_executors": ROOT / "executors" / "thunder_executors",
    "thunder_recipes": ROOT / "recipes" / "thunder_recipes",
}

LEVEL_OF = {package: number for number, level in enumerate(levels()) for package in level}
# Packages that programs do not import: their names are internal.
INTERNAL = {
    "foundation": {
        "caller_frames",
        "descriptions",
        "memory_limits",
        "model_configs",
        "module_files",
        "own_builtins",
        "progress_marks",
        "quick_objects",
        "short_names",
        "signal_handlers",
        "similar_names",
        "tested_versions",
        "time_format",
        "type_flags",
        "transformers_versions",
    },
    "tracing": {"library"},
    "passes": {"replay"},
    "compilation": {"gradients"},
}
EMPTY = {f"thunder_core.{layer}" for layer in LAYERS}  # packages that only contain packages

FACE = "thunder_core"  # `thunder_core/__init__.py`: names that are loaded at their first use
IMPORTS_BY_NAME = {
    "thunder_core/foundation/plugins.py": "this is what it is for",
    "thunder_core/frontend/acquire/lookasides/state/imports.py": "stands in for the program's own import statements",
    "thunder_core/__init__.py": "the lazy face of the package",
    "thunder_core/foundation/short_names.py": "imports a package by its short name",
    "thunder_core/frontend/interpreter/imports.py": "runs the program's own import statements",
    "thunder_core/frontend/interpreter/builtin/__init__.py": "the folder is imported whole",
    "thunder_core/frontend/interpreter/opcodes/__init__.py": "the folder is imported whole",
}
LISTS_FOLDERS = (
    "thunder_core.foundation.plugins",
)  # of what is in them nothing is named: it is found by the names of files
NO_TORCH = (
    "thunder_core.foundation.printable",
    "thunder_core.foundation.progress_marks",
    "thunder_core.foundation.package",
    "thunder_core.foundation.errors",
    "thunder_core.foundation.tested_versions",
    "thunder_core.foundation.similar_names",
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
    """An import: its file, line and target, and its form.

    Imports under `TYPE_CHECKING` count like all others. So do modules that are imported by name, which are found in the
    text that names them ("thunder_core.workflow.artifact.format.compilers:compiler_of").
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
    for package, folder in ROOT_PACKAGES.items():
        for path in sorted(folder.rglob("*.py")):
            parts = path.relative_to(folder).with_suffix("").parts
            yield ".".join((package, *parts)).removesuffix(".__init__"), path


MODULES = dict(files())
NAMED = re.compile(rf"({'|'.join(ROOT_PACKAGES)})(\.\w+)+(:[\w.]+)?")


@functools.cache
def tree_of(module: str) -> ast.Module:
    """The syntax tree of one of our modules.

    Parsing all modules takes seconds, which the collection of tests avoids.
    """
    return ast.parse(MODULES[module].read_text(encoding="utf-8"))


def targets(node: ast.AST, module: str, is_package: bool) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        above = module.split(".")[: len(module.split(".")) - node.level + is_package] if node.level else []
        base = ".".join([*above, *([node.module] if node.module else [])])
        # `from package import tree` imports the module tree; `from package.tree import leaves` only package.tree.
        yield from dict.fromkeys(name if (name := f"{base}.{alias.name}") in MODULES else base for alias in node.names)


def named(node: ast.AST, package: str | None) -> str | None:
    """The module of ours that a text names for a late import, also in the short form of a package's face.

    A text may name an object in a module, with a colon or a dot before its name.
    """
    if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
        return None
    if package is not None and f"{package}.{node.value}" in MODULES:
        return f"{package}.{node.value}"
    module = node.value.partition(":")[0] if NAMED.fullmatch(node.value) else ""
    return next((known for known in (module, module.rpartition(".")[0]) if known in MODULES), None)


def is_own_package(target: str, source: str) -> bool:
    """Whether a module names its own package to find neighbouring files, which is no import."""
    return source.startswith(f"{target}.")


def with_places(node: ast.AST, inside: bool = False, for_types: bool = False) -> Iterator[tuple[ast.AST, bool, bool]]:
    """Each node of a tree, whether it is inside a function, and whether only type checkers read it."""
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


def package_of(module: str) -> str:
    """The package of a module: the longest prefix of its name that has a level."""
    parts = module.split(".")
    prefixes = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
    return next((prefix for prefix in prefixes if prefix in LEVEL_OF), FACE)


def test_the_source_tree_is_found() -> None:
    assert len(all_imports()) > 200
    assert {found.source.partition(".")[0] for found in all_imports()} == set(ROOT_PACKAGES)
    named = {(found.source, found.target) for found in all_imports() if found.by_name}
    assert ("thunder_core.workflow.artifact.retracing", "thunder_core.workflow.artifact.format.compilers") in named
    assert (FACE, "thunder_core.compilation.compiler") in named & {
        (found.source, found.target) for found in all_imports() if found.for_types
    }


def test_every_module_has_a_level() -> None:
    homeless = {module for module in MODULES if module not in {FACE, *EMPTY} and package_of(module) == FACE}
    assert not homeless, "give these a level in docs/layers.py"


def test_the_page_has_the_table_of_layers() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert render(page) == page, "run `make docs`"
    assert all(f"| `{layer}/` |" in page for layer in LAYERS)


def test_short_names_are_the_packages_of_the_layers() -> None:
    folders = {
        layer: {path.name.removesuffix(".py") for path in (ROOT / "thunder_core" / layer).iterdir()}
        - {"__init__", "__pycache__"}
        for layer in LAYERS
    }
    assert list(LAYERS) == list(PACKAGES_OF)
    for layer, packages in PACKAGES_OF.items():
        assert folders[layer] - set(packages) == INTERNAL.get(layer, set())


FLAT = 26  # modules of a folder, including its `__init__.py`
LARGE = {ROOT / "thunder_core" / "frontend" / "interpreter"}  # one module for each part of CPython


def test_no_folder_is_too_large_to_look_over() -> None:
    sizes = Counter(path.parent for path in MODULES.values() if path.parent not in LARGE)
    assert not {str(folder): size for folder, size in sizes.items() if size > FLAT}


def test_imports_run_only_downward() -> None:
    ours = [
        found for found in all_imports() if found.target.partition(".")[0] in ROOT_PACKAGES and found.source != FACE
    ]
    upward = [
        str(found)
        for found in ours
        if package_of(found.source) != package_of(found.target)
        and package_of(found.target) != FACE
        and LEVEL_OF[package_of(found.target)] >= LEVEL_OF[package_of(found.source)]
    ]
    assert not upward, "\n".join(upward)


def circles() -> Iterator[frozenset[str]]:
    """The sets of modules that import each other through modules of the set. Imports for types count."""
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
    """The modules that a module imports, directly or through others."""
    reached: set[str] = set()
    waiting = [start]
    while waiting:
        new = imported[waiting.pop()] & imported.keys() - reached
        reached |= new
        waiting.extend(new)
    return reached


def test_imports_form_no_cycle() -> None:
    assert not [sorted(circle) for circle in circles()]


def test_plug_ins_are_not_imported_by_their_own_names() -> None:
    """Recipes and executors are found by name, so that a missing backend breaks nothing."""
    plugged = ("thunder_executors", "thunder_recipes")
    direct = [
        str(found)
        for found in all_imports()
        if found.target.startswith(plugged) and found.source.partition(".")[0] != found.target.partition(".")[0]
    ]
    assert not direct, "\n".join(direct)


def test_core_imports_its_lookasides_in_one_place() -> None:
    """Only the module that composes runs imports the rules of the lookasides; a listing imports their tables."""
    folder = "thunder_core.frontend.acquire.lookasides"
    imports = {
        (found.source, found.target)
        for found in all_imports()
        if found.target.startswith(folder) and not found.source.startswith(folder)
    }
    assert imports == {
        ("thunder_core.frontend.acquire.acquire", f"{folder}.rules"),
        ("thunder_core.compilation.compiler.lookaside_listing", folder),
    }


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


@pytest.mark.parametrize("package", NO_TORCH)
def test_the_lowest_packages_need_no_torch(package: str) -> None:
    heavy = ("torch", "transformers", "numpy")
    inside = (
        found
        for found in all_imports()
        if (found.source == package if package == FACE else package_of(found.source) == package)
    )
    assert not [str(found) for found in inside if found.target.partition(".")[0] in heavy]


def test_reading_a_recipe_from_its_source_needs_no_torch() -> None:
    inside = [
        found for found in all_imports() if found.source in NO_TORCH_MODULES and not (found.for_types or found.by_name)
    ]
    allowed = {package for package in NO_TORCH if package != FACE} | {*NO_TORCH_MODULES}
    ours = [found for found in inside if found.target.partition(".")[0] in ROOT_PACKAGES]
    assert {found.source for found in ours} == {*NO_TORCH_MODULES} - {"thunder_core.passes.recipe.module_source"}
    assert not [str(found) for found in ours if {found.target, package_of(found.target)}.isdisjoint(allowed)]
    assert not [str(found) for found in inside if found.target.partition(".")[0] in ("torch", "transformers", "numpy")]


def test_nothing_is_unpickled() -> None:
    unsafe = ("pickle", "marshal", "shelve", "dill", "cloudpickle")
    assert not [str(found) for found in all_imports() if found.target.partition(".")[0] in unsafe]


@pytest.mark.parametrize("name", ["utils", "util", "common", "helpers", "misc", "base_utils"])
def test_files_have_no_vague_names(name: str) -> None:
    assert not [str(path) for path in MODULES.values() if path.stem == name]


def test_no_two_public_classes_have_the_same_name() -> None:
    homes: dict[str, list[str]] = {}
    for module in MODULES:
        for node in tree_of(module).body:
            if isinstance(node, ast.ClassDef) and module.startswith("thunder_core.") and not node.name.startswith("_"):
                homes.setdefault(node.name, []).append(module)
    assert not {name: modules for name, modules in homes.items() if len(modules) > 1}
