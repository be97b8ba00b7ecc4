"""Names to modules: which executors, recipes, transforms and lookasides there are, and why one cannot be loaded.

A folder's modules are the list. They are named and described from their source text, so that listing runs no code of
theirs and one whose dependency is missing is listed with its reason. Other people's packages join by one entry point
of the group `thunder.executors`, `thunder.recipes` or `thunder.transforms` that names their package folder or their
module. This is the one file that imports dynamically.
"""

from __future__ import annotations

import ast
import difflib
import importlib
import importlib.metadata
import importlib.util
import os
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, TypeAlias

from thunder_core.foundation.errors import AmbiguousName, EnvironmentLacks, ThunderError, UnknownName

Group: TypeAlias = Literal["executors", "recipes", "transforms", "lookasides", "commands"]

# Known without entry points, so that a checkout on PYTHONPATH works without being installed.
BUILTIN: dict[Group, tuple[str, ...]] = {
    "executors": ("thunder_executors",),
    "recipes": ("thunder_recipes",),
    "transforms": ("thunder_core.passes.transforms",),
    "lookasides": tuple(
        f"thunder_core.frontend.acquire.lookasides.{kind}" for kind in ("functions", "operators", "state")
    ),
    "commands": ("thunder_cli.commands",),
}
# The commands that list a group, and say what each of its plug-ins lacks here.
LISTED_BY: dict[Group, str] = {"executors": "thunder executors", "recipes": "thunder recipes"}
ENTRY_POINTS: dict[Group, str] = {
    "executors": "thunder.executors",
    "recipes": "thunder.recipes",
    "transforms": "thunder.transforms",
}
# The extra of ours that installs a package, by the name that it is imported by.
EXTRAS = {"triton": "triton", "nvfuser_direct": "nvfuser", "torchao": "quantize"}

ALIKE = 0.6  # of the letters of two names, from where one may be meant by the other
SHORTEST = 3  # letters of a name that may stand for a longer one
FILE = "thunder_file_"  # begins the name of a module that was loaded from a file
_file_folders: set[Path] = set()


@dataclass(frozen=True)
class Listed:
    """One plug-in as its source describes it: `reason` says why it cannot be loaded, None that nothing is missing."""

    name: str
    summary: str
    module: str
    reason: str | None


def names(group: Group) -> list[str]:
    """The names of a group's plug-ins, sorted; words are joined by hyphens (`hf_bert.py` is `hf-bert`)."""
    return sorted(_sources(group))


def listing(group: Group) -> list[Listed]:
    """The plug-ins of a group, sorted by name and described without importing any of them."""
    return [_described(name, *source) for name, source in sorted(_sources(group).items())]


def packages() -> frozenset[str]:
    """The top-level packages that executors and recipes come from: Thunder's own, and those of installed plug-ins."""
    return frozenset({"thunder_core"} | {place.partition(".")[0] for group in ENTRY_POINTS for place in _places(group)})


def definitions(group: Group, base: str) -> Iterator[tuple[str, str]]:
    """Each class of a group that names this base, by its plug-in and its own name; read from the source."""
    for name, (_, path) in _sources(group).items():
        for node in _classes(path):
            if any(ast.unparse(one) == base for one in node.bases):
                yield name, node.name


def provided(group: Group) -> Iterator[str]:
    """The words that classes of a group say they provide (`provides = ("word",)`); read from the source."""
    for _, path in _sources(group).values():
        for inner in (inner for kind in _classes(path) for inner in kind.body):
            if isinstance(inner, ast.Assign | ast.AnnAssign) and isinstance(inner.value, ast.Tuple):
                targets = inner.targets if isinstance(inner, ast.Assign) else [inner.target]
                if any(isinstance(one, ast.Name) and one.id == "provides" for one in targets):
                    yield from (str(one.value) for one in inner.value.elts if isinstance(one, ast.Constant))


def _classes(path: Path) -> list[ast.ClassDef]:
    """The classes of a file; none where it is not Python, which its listing tells."""
    return _classes_of(path, path.stat().st_mtime_ns)


@lru_cache(maxsize=256)
def _classes_of(path: Path, _changed: int) -> list[ast.ClassDef]:
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (SyntaxError, UnicodeDecodeError):
        return []
    return [node for node in tree.body if isinstance(node, ast.ClassDef)]


def load(group: Group, name: str) -> ModuleType:
    """The module of the plug-in `name`; hyphens and underscores are the same.

    Raises UnknownName with the nearest names, AmbiguousName with the full names of several of that name, and
    EnvironmentLacks when a dependency is not installed.
    """
    wanted, module, path = _source(group, name)
    try:
        return importlib.import_module(module)
    except ThunderError:
        raise
    except ImportError as error:
        raise _not_loadable(group, wanted, _described(wanted, module, path).reason or str(error)) from error


def load_file(path: Path) -> ModuleType:
    """The module in a file that is not on the path of imports; raises whatever its code does. It is run once.

    It may import its neighbours by their names, now and later; what is installed comes before them.
    """
    whole = path.resolve()
    name = f"{FILE}{path.stem}_{zlib.crc32(str(whole).encode()):08x}"
    _file_folders.add(whole.parent)
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, whole)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        with neighbours_first(str(whole.parent)):
            spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


@contextmanager
def neighbours_first(folder: str) -> Iterator[None]:
    """Put a folder at the end of the path of imports, and leave folders of other files out while the block runs."""
    others = [place for place in sys.path if Path(place) in _file_folders and place != folder]
    forgotten = {name: one for name, one in list(sys.modules.items()) if others and _home(one) in others}
    sys.path[:] = [*(place for place in sys.path if place not in (*others, folder)), folder]
    for name in forgotten:
        del sys.modules[name]
    try:
        yield
    finally:
        sys.path.extend(others)
        sys.modules.update({name: one for name, one in forgotten.items() if name not in sys.modules})


def _home(module: ModuleType) -> str:
    """The folder of the file of a top-level module, unless the module was loaded from a file; else empty."""
    name, file = str(vars(module).get("__name__", "")), vars(module).get("__file__")
    if not isinstance(file, str) or "." in name or name.startswith(FILE):
        return ""
    return str(Path(file).parent)


def file_folders() -> frozenset[Path]:
    """The folders of the files that `load_file` has run."""
    return frozenset(_file_folders)


def require(group: Group, name: str) -> None:
    """Raise what `load` would raise for a plug-in, as far as its name and its source tell; it is not imported."""
    described = _described(*_source(group, name))
    if described.reason is not None:
        raise _not_loadable(group, described.name, described.reason)


def source_of(group: Group, name: str) -> tuple[str, Path]:
    """The module of the plug-in `name` and its file, which is not imported; raises UnknownName."""
    return _source(group, name)[1:]


def file_of(module: str) -> Path | None:
    """The one file of a module that is no package, by its dotted name; None where there is none, or several."""
    files = _files(module)
    return files[0] if len(files) == 1 else None


def is_loaded(module: str) -> bool:
    """Whether a module has been imported, or is being imported."""
    return module in sys.modules


def lazy_face(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """The `__getattr__` of a package whose names are loaded from these modules of it when they are first used.

    No name may be that of a module of the package, which would take its place as soon as it is imported.
    """

    def load_name(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = imported(f"{package}.{homes[name]}:{name}")
        setattr(sys.modules[package], name, value)
        return value

    return load_name


def imported(path: str) -> object:
    """The object at `module:qualname`, importing the module; raises ImportError or AttributeError where it is not."""
    module, _, qualname = path.partition(":")
    found: object = importlib.import_module(module)
    for part in qualname.split(".") if qualname else ():
        found = getattr(found, part)
    return found


@contextmanager
def kept_running(doing: str) -> Iterator[None]:
    """Raise ImportError where the block, which runs the code of others, would end this process."""
    try:
        yield
    except (SystemExit, GeneratorExit) as end:
        raise ImportError(f"{doing} would have ended this process: {type(end).__name__}({end})") from end


def nearest(name: str, known: Iterable[str]) -> list[str]:
    """Up to three of the known names that look most like the given one, whatever its case."""
    by_lower = {one.lower(): one for one in sorted(known)}
    alike = difflib.get_close_matches(name.lower(), by_lower, n=3, cutoff=ALIKE)
    longer = (one for one in by_lower if min(len(one), len(name)) >= SHORTEST and is_beginning(one, name.lower()))
    return [by_lower[near] for near in dict.fromkeys((*alike, *longer))][:3]


def is_beginning(one: str, other: str) -> bool:
    """Whether one of two names begins with the other."""
    return one.startswith(other) or other.startswith(one)


def meant(name: str, known: Iterable[str], *, dashes: str = "") -> str:
    """The question whether one of the nearest names was meant, as the begin of a sentence; empty where none is near."""
    near = [f"{dashes}{one}" for one in nearest(name, known)]
    return f"did you mean {' or '.join(near)}? " if near else ""


def unknown_name(kind: str, name: str, known: Collection[str]) -> UnknownName:
    """The error for a name that does not exist, suggesting the nearest of those that do."""
    return UnknownName(
        f"there is no {kind} called {name!r}", fix=f"{meant(name, known)}known: {', '.join(sorted(known)) or 'none'}"
    )


def installed(package: str) -> bool:
    """Whether a top-level package can be found; it is not imported."""
    top = package.partition(".")[0]
    if top in sys.modules:
        return sys.modules[top] is not None
    return importlib.util.find_spec(top) is not None


def _source(group: Group, name: str) -> tuple[str, str, Path]:
    """The name, the module and the file of the plug-in `name`; raises UnknownName and AmbiguousName."""
    sources = _sources(group)
    if (wanted := _hyphenated(name)) not in sources:
        require_one(group, name, [full for full, (module, _) in sources.items() if _short(module) == wanted])
        raise unknown_name(group.removesuffix("s"), name, sources)
    return wanted, *sources[wanted]


def require_one(group: Group, name: str, full_names: Sequence[str]) -> None:
    """Raise `AmbiguousName` where several plug-ins have a name; `full_names` are those by which each can be given."""
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


def _hyphenated(name: str) -> str:
    return name.strip().replace("_", "-")


def _sources(group: Group) -> dict[str, tuple[str, Path]]:
    """Name -> (module, its file); modules that share a name go by their full dotted names alone."""
    modules = {module: path for place in _places(group) for module, path in _modules(place)}
    counts = Counter(map(_short, modules))
    return {
        _short(module) if counts[_short(module)] == 1 else _hyphenated(module): (module, path)
        for module, path in modules.items()
    }


def _short(module: str) -> str:
    """The name of a plug-in by the last part of its module's."""
    return _hyphenated(module.rpartition(".")[2])


def _places(group: Group) -> list[str]:
    foreign = _foreign(group, importlib.metadata.entry_points, _installed()) if group in ENTRY_POINTS else ()
    return [*BUILTIN[group], *foreign]


@lru_cache(maxsize=8)
def _foreign(
    group: Group, read: Callable[..., Iterable[importlib.metadata.EntryPoint]], _installed: object
) -> tuple[str, ...]:
    """The places of other people's plug-ins, sorted; reading what all packages declare takes milliseconds."""
    return tuple(sorted({point.value for point in read(group=ENTRY_POINTS[group])} - set(BUILTIN[group])))


def _installed() -> tuple[object, ...]:
    """A value that is another one when a package is installed or removed, or packages are found in other ways."""
    return (*((path, _changed(path)) for path in sys.path), *map(id, sys.meta_path))


def _changed(path: str) -> int:
    """When a folder, or an archive, was last changed; 0 for one that is not there."""
    try:
        return os.stat(path or os.curdir).st_mtime_ns  # noqa: PTH116 - at each compilation, for each entry of the path
    except OSError:
        return 0


def _modules(place: str) -> Iterator[tuple[str, Path]]:
    """The public modules of a package folder, or the one module that `place` names."""
    for folder in _folders(place):
        for path in sorted(folder.iterdir()):
            is_package = (path / "__init__.py").is_file()
            if not path.name.startswith("_") and (path.suffix == ".py" or is_package):
                yield f"{place}.{path.stem}", path / "__init__.py" if is_package else path
    for file in _files(place):
        yield place, file


def _roots(top: str) -> tuple[list[Path], Path | None]:
    """The places of a top-level name: its folders if it is a package, else its file."""
    spec = importlib.util.find_spec(top)
    if spec is None:
        return [], None
    if spec.submodule_search_locations is not None:
        return [Path(folder) for folder in spec.submodule_search_locations], None
    return [], Path(spec.origin) if spec.origin else None


def _folders(place: str) -> list[Path]:
    """The folders of a dotted package; only found, since find_spec would import the parents of a dotted name."""
    top, *rest = place.split(".")
    return [inner for folder in _roots(top)[0] if (inner := folder.joinpath(*rest)).is_dir()]


def _files(place: str) -> list[Path]:
    """The file of a dotted name that is a module and no package."""
    top, *rest = place.split(".")
    folders, file = _roots(top)
    if not rest:
        return [file] if file is not None else []
    candidates = [folder.joinpath(*rest).with_suffix(".py") for folder in folders]
    return [path for path in candidates if path.is_file()]


def _described(name: str, module: str, path: Path) -> Listed:
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (SyntaxError, UnicodeDecodeError) as error:
        return Listed(name, "", module, f"{path} is not Python: {error}")
    summary = (ast.get_docstring(tree) or "").partition("\n")[0]
    lacking = sorted({package for package in _imported(tree) if not installed(package)})
    reason = f"needs {', '.join(lacking)}, not installed here{_command(lacking)}" if lacking else None
    return Listed(name, summary, module, reason)


def _command(lacking: Iterable[str]) -> str:
    """The command that installs the missing packages that are known, as the end of a sentence."""
    extras = sorted({EXTRAS[package] for package in lacking if package in EXTRAS})
    return f': pip install "thunder-optimize[{",".join(extras)}]"' if extras else ""


def _imported(tree: ast.Module) -> Iterator[str]:
    """The packages that a module imports unconditionally; what stands in a `try` or an `if` is optional."""
    for node in tree.body:
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module.partition(".")[0]
