"""Plug-ins by name: list, describe and load the executors, recipes, transforms and lookasides.

Each public module of a plug-in folder is a plug-in. Names and descriptions are read from the source, so a listing runs
no code of a plug-in, and shows why a plug-in with a missing dependency cannot be loaded. Other packages add plug-ins by
an entry point of the group `thunder.executors`, `thunder.recipes` or `thunder.transforms`, which names a package folder
or a module. This is the only file that imports modules by computed names.
"""

from __future__ import annotations

import ast
import importlib
import importlib.metadata
import importlib.util
import os
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, TypeAlias

from thunder_core.foundation.errors import AmbiguousName, EnvironmentLacks, ThunderError
from thunder_core.foundation.module_files import files_of, folders_of, modules_in
from thunder_core.foundation.similar_names import unknown_name

Group: TypeAlias = Literal["executors", "recipes", "transforms", "lookasides", "commands"]

# Folders that need no entry points, so that a checkout on PYTHONPATH works without being installed.
BUILTIN: dict[Group, tuple[str, ...]] = {
    "executors": ("thunder_executors",),
    "recipes": ("thunder_recipes",),
    "transforms": ("thunder_core.passes.transforms",),
    "lookasides": tuple(
        f"thunder_core.frontend.acquire.lookasides.{kind}" for kind in ("functions", "operators", "state")
    ),
    "commands": ("thunder_cli.commands",),
}
# A plug-in of Thunder in each group whose package a file of the user can hide.
OWN_PLUGINS: dict[Group, str] = {"executors": "thunder_executors.torch", "recipes": "thunder_recipes.default"}
# The commands that list the plug-ins of a group, with the reason why a plug-in cannot be loaded on this machine.
LISTED_BY: dict[Group, str] = {"executors": "thunder executors", "recipes": "thunder recipes"}
ENTRY_POINTS: dict[Group, str] = {
    "executors": "thunder.executors",
    "recipes": "thunder.recipes",
    "transforms": "thunder.transforms",
}
# The extras of Thunder that install packages, by the names that Python imports.
EXTRAS = {"triton": "triton", "nvfuser_direct": "nvfuser", "torchao": "quantize"}

FILE = "thunder_file_"  # the prefix of the names of modules that are loaded from files
_file_folders: set[Path] = set()


@dataclass(frozen=True)
class PluginDescription:
    """The description of a plug-in, read from its source. `reason` says why it cannot be loaded; None if it can."""

    name: str
    summary: str
    module: str
    reason: str | None


def names(group: Group) -> list[str]:
    """Return the names of a group's plug-ins, sorted, with hyphens between words (`hf_bert.py` is `hf-bert`)."""
    return sorted(_sources(group))


def listing(group: Group) -> list[PluginDescription]:
    """Return the descriptions of a group's plug-ins, sorted by name, without importing any plug-in."""
    return [_describe(name, *source) for name, source in sorted(_sources(group).items())]


def packages() -> frozenset[str]:
    """Return the top-level packages of executors and recipes: Thunder's and those of installed plug-ins."""
    return frozenset(
        {"thunder_core"} | {name.partition(".")[0] for group in ENTRY_POINTS for name in _plugin_modules(group)}
    )


def definitions(group: Group, base: str) -> Iterator[tuple[str, str]]:
    """Yield the classes of a group with the base class `base`, as pairs: the plug-in's name, and the class name."""
    for name, (_, path) in _sources(group).items():
        for node in _classes(path):
            if any(ast.unparse(each) == base for each in node.bases):
                yield name, node.name


def provided_names(group: Group) -> Iterator[str]:
    """Yield the names in `provides = ("name",)` of the classes of a group, read from the source."""
    for _, path in _sources(group).values():
        for inner in (inner for kind in _classes(path) for inner in kind.body):
            if isinstance(inner, ast.Assign | ast.AnnAssign) and isinstance(inner.value, ast.Tuple):
                targets = inner.targets if isinstance(inner, ast.Assign) else [inner.target]
                if any(isinstance(each, ast.Name) and each.id == "provides" for each in targets):
                    yield from (str(item.value) for item in inner.value.elts if isinstance(item, ast.Constant))


def _classes(path: Path) -> list[ast.ClassDef]:
    """Return the classes of a file, or none if the file is not valid Python (the listing reports that)."""
    return _classes_of(path, path.stat().st_mtime_ns)


@lru_cache(maxsize=256)
def _classes_of(path: Path, _change_time: int) -> list[ast.ClassDef]:
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (SyntaxError, UnicodeDecodeError):
        return []
    return [node for node in tree.body if isinstance(node, ast.ClassDef)]


def load(group: Group, name: str) -> ModuleType:
    """Import and return the module of the plug-in `name`; hyphens and underscores are equivalent.

    Raises UnknownName with the nearest names, AmbiguousName with the full names if several plug-ins have this name, and
    EnvironmentLacks if a dependency is not installed.
    """
    hyphenated, module, path = _source(group, name)
    try:
        return importlib.import_module(module)
    except ThunderError:
        raise
    except ImportError as error:
        raise _not_loadable(group, hyphenated, _describe(hyphenated, module, path).reason or str(error)) from error


def load_file(path: Path) -> ModuleType:
    """Load and return the module of a file outside the import path; raise the errors of its code.

    The file runs only once. It may import other files of its folder by name, now and later. An installed module takes
    precedence over a file of the folder with the same name.
    """
    absolute = path.resolve()
    name = f"{FILE}{path.stem}_{zlib.crc32(str(absolute).encode()):08x}"
    _file_folders.add(absolute.parent)
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, absolute)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        with _with_import_folder(str(absolute.parent)):
            spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


@contextmanager
def _with_import_folder(folder: str) -> Iterator[None]:
    """During the block, the import path ends with a folder, and has no folder of another file that was loaded."""
    others = [entry for entry in sys.path if Path(entry) in _file_folders and entry != folder]
    forgotten = {name: module for name, module in list(sys.modules.items()) if others and _folder_of(module) in others}
    sys.path[:] = [*(entry for entry in sys.path if entry not in (*others, folder)), folder]
    for name in forgotten:
        del sys.modules[name]
    try:
        yield
    finally:
        sys.path.extend(others)
        sys.modules.update({name: module for name, module in forgotten.items() if name not in sys.modules})


def _folder_of(module: ModuleType) -> str:
    """Return the folder of a top-level module's file; empty for other modules and for modules of `load_file`."""
    name, file = str(vars(module).get("__name__", "")), vars(module).get("__file__")
    if not isinstance(file, str) or "." in name or name.startswith(FILE):
        return ""
    return str(Path(file).parent)


def file_folders() -> frozenset[Path]:
    """Return the folders of the files that `load_file` has run."""
    return frozenset(_file_folders)


def require(group: Group, name: str) -> None:
    """Check the name and the source of a plug-in without importing it; raise the same errors as `load`."""
    described = _describe(*_source(group, name))
    if described.reason is not None:
        raise _not_loadable(group, described.name, described.reason)


def source_of(group: Group, name: str) -> tuple[str, Path]:
    """Return the module name and the file of the plug-in `name`, without importing it; raise UnknownName."""
    return _source(group, name)[1:]


def file_of(module: str) -> Path | None:
    """Return the file of a module that is not a package, by its dotted name; None if there is no file, or several."""
    files = files_of(module)
    return files[0] if len(files) == 1 else None


def is_loaded(module: str) -> bool:
    """Whether a module has been imported, or is being imported."""
    return module in sys.modules


def lazy_face(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """Return a `__getattr__` for a package that imports the module of a name when the name is first used.

    `homes` maps each name to its module. A name must differ from the names of the package's modules, because importing
    a module would replace the name.
    """

    def load_name(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = import_object(f"{package}.{homes[name]}:{name}")
        setattr(sys.modules[package], name, value)
        return value

    return load_name


def import_object(path: str) -> object:
    """Import and return the object at `module:qualname`; raise ImportError or AttributeError if it does not exist."""
    module, _, qualname = path.partition(":")
    value: object = importlib.import_module(module)
    for name in qualname.split(".") if qualname else ():
        value = getattr(value, name)
    return value


@contextmanager
def refuse_exit(doing: str) -> Iterator[None]:
    """Raise ImportError if the block, which runs code of another package, raises an exception that ends a process."""
    try:
        yield
    except (SystemExit, GeneratorExit) as end:
        raise ImportError(f"{doing} would have ended this process: {type(end).__name__}({end})") from end


def is_installed(package: str) -> bool:
    """Whether a top-level package is installed; the package is not imported."""
    top = package.partition(".")[0]
    if top in sys.modules:
        return sys.modules[top] is not None
    return importlib.util.find_spec(top) is not None


def _source(group: Group, name: str) -> tuple[str, str, Path]:
    """Return the full name, the module and the file of the plug-in `name`; raise UnknownName or AmbiguousName."""
    sources = _sources(group)
    if (hyphenated := _hyphenate(name)) not in sources:
        require_one(group, name, [full for full, (module, _) in sources.items() if _short_name(module) == hyphenated])
        raise unknown_name(group.removesuffix("s"), name, sources)
    return hyphenated, *sources[hyphenated]


def require_one(group: Group, name: str, full_names: Sequence[str]) -> None:
    """Raise `AmbiguousName` if several plug-ins have the name; `full_names` are their unambiguous names."""
    if len(full_names) > 1:
        kind = group.removesuffix("s")
        raise AmbiguousName(
            f"{len(full_names)} installed packages have the {kind} {name!r}: {' and '.join(full_names)}",
            fix=f"use one of these names, or uninstall the package whose {kind} you do not want",
        )


def _not_loadable(group: Group, name: str, reason: str) -> EnvironmentLacks:
    return EnvironmentLacks(
        f"the {group.removesuffix('s')} {name!r} cannot be loaded: {reason}",
        fix="install the missing package"
        + (f"; `{LISTED_BY[group]}` lists the available {group}" if group in LISTED_BY else ""),
    )


def _hyphenate(name: str) -> str:
    return name.strip().replace("_", "-")


def _sources(group: Group) -> dict[str, tuple[str, Path]]:
    """Return the module and the file of each plug-in by name. If short names are equal, the names are dotted."""
    modules = {module: path for module_name in _plugin_modules(group) for module, path in modules_in(module_name)}
    _require_own_plugins(group, modules)
    counts = Counter(map(_short_name, modules))
    return {
        _short_name(module) if counts[_short_name(module)] == 1 else _hyphenate(module): (module, path)
        for module, path in modules.items()
    }


def _require_own_plugins(group: Group, modules: Mapping[str, Path]) -> None:
    """Raise `AmbiguousName` if another module has the name of Thunder's package, which then cannot be imported."""
    if group not in OWN_PLUGINS or OWN_PLUGINS[group] in modules:
        return
    package = OWN_PLUGINS[group].partition(".")[0]
    for path in (*files_of(package), *folders_of(package)):
        raise AmbiguousName(
            f"{path} has the name of Thunder's package {package} and hides its {group}", fix=f"rename {path}"
        )


def _short_name(module: str) -> str:
    """Return the name of a plug-in: the last part of its module's name."""
    return _hyphenate(module.rpartition(".")[2])


def _plugin_modules(group: Group) -> list[str]:
    foreign = (
        _modules_of_other_packages(group, importlib.metadata.entry_points, _installation_state())
        if group in ENTRY_POINTS
        else ()
    )
    return [*BUILTIN[group], *foreign]


@lru_cache(maxsize=8)
def _modules_of_other_packages(
    group: Group, read: Callable[..., Iterable[importlib.metadata.EntryPoint]], _installation_state: object
) -> tuple[str, ...]:
    """Return the sorted modules of other packages' plug-ins. The result is cached: reading takes milliseconds."""
    return tuple(sorted({point.value for point in read(group=ENTRY_POINTS[group])} - set(BUILTIN[group])))


def _installation_state() -> tuple[object, ...]:
    """Return a value that changes when a package is installed or removed, or when the import system changes."""
    return (*((path, _change_time(path)) for path in sys.path), *map(id, sys.meta_path))


def _change_time(path: str) -> int:
    """Return the time of the last change of a folder or an archive, or 0 if it does not exist."""
    try:
        return os.stat(path or os.curdir).st_mtime_ns  # noqa: PTH116 - faster; called for each path entry
    except OSError:
        return 0


def _describe(name: str, module: str, path: Path) -> PluginDescription:
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (SyntaxError, UnicodeDecodeError) as error:
        return PluginDescription(name, "", module, f"{path} is not Python: {error}")
    summary = (ast.get_docstring(tree) or "").partition("\n")[0]
    missing_packages = sorted({package for package in _imported_packages(tree) if not is_installed(package)})
    reason = (
        f"needs {', '.join(missing_packages)}, not installed here{_command(missing_packages)}"
        if missing_packages
        else None
    )
    return PluginDescription(name, summary, module, reason)


def _command(packages: Iterable[str]) -> str:
    """Return a command that installs missing packages, as the end of a sentence.

    Empty if Thunder has no extra for them.
    """
    extras = sorted({EXTRAS[package] for package in packages if package in EXTRAS})
    return f': pip install "thunder-optimize[{",".join(extras)}]"' if extras else ""


def _imported_packages(tree: ast.Module) -> Iterator[str]:
    """Yield the packages that a module imports unconditionally; an import within `try` or `if` is optional."""
    for node in tree.body:
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module.partition(".")[0]
