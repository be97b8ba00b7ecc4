"""The files of modules and packages, which are found without importing them."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path


def modules_in(module_name: str) -> Iterator[tuple[str, Path]]:
    """Yield the public modules of a package folder, or the single module of that name, with their files."""
    for folder in folders_of(module_name):
        for path in sorted(folder.iterdir()):
            is_package = (path / "__init__.py").is_file()
            if not path.name.startswith("_") and (path.suffix == ".py" or is_package):
                yield f"{module_name}.{path.stem}", path / "__init__.py" if is_package else path
    for file in files_of(module_name):
        yield module_name, file


def _roots(top: str) -> tuple[list[Path], Path | None]:
    """Return the folders of a top-level name if it is a package, and otherwise its file."""
    has_no_spec = top in sys.modules and getattr(sys.modules[top], "__spec__", None) is None
    spec = None if has_no_spec else importlib.util.find_spec(top)
    if spec is None:
        return [], None
    if spec.submodule_search_locations is not None:
        return [Path(folder) for folder in spec.submodule_search_locations], None
    return [], Path(spec.origin) if spec.origin else None


def folders_of(module_name: str) -> list[Path]:
    """Return the folders of a dotted package, without `find_spec`, which would import the parent packages."""
    top, *rest = module_name.split(".")
    return [inner for folder in _roots(top)[0] if (inner := folder.joinpath(*rest)).is_dir()]


def files_of(module_name: str) -> list[Path]:
    """Return the file of a dotted name that is a module and not a package."""
    top, *rest = module_name.split(".")
    folders, file = _roots(top)
    if not rest:
        return [file] if file is not None else []
    candidates = [folder.joinpath(*rest).with_suffix(".py") for folder in folders]
    return [path for path in candidates if path.is_file()]
