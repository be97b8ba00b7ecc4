"""The folders of installed packages: a package elsewhere may be a folder of the same name in the current folder."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import sys
from collections.abc import Iterable, Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

import torch

from thunder_core.foundation import package
from thunder_core.foundation.storage.installed import installers_folders

WITHOUT_FILE = ("built-in", "frozen")


def stray_location(name: str) -> str | None:
    """Return the location of a top-level package that is not installed, such as a folder in the current folder.

    Return None if the package is installed, if `PYTHONPATH` leads to it, or if it does not exist.
    """
    if name in sys.modules or (spec := importlib.util.find_spec(name)) is None or spec.origin in WITHOUT_FILE:
        return None
    strays = [path for path in locations(spec) if not is_beneath(path, installation_folders())]
    strays = [path for path in strays if not is_beneath(path, editable_folders())]
    return str(strays[0]) if strays else None


def is_beneath(path: Path, folders: Iterable[Path]) -> bool:
    """Whether a path is one of the folders, or inside one of them."""
    return any(path.is_relative_to(folder) for folder in folders)


def locations(spec: ModuleSpec) -> Iterator[Path]:
    """Yield the folders of a package's modules, or the file of a module; some packages have neither."""
    for path in spec.submodule_search_locations or ([spec.origin] if spec.origin else []):
        yield Path(path).resolve()


def installation_folders() -> tuple[Path, ...]:
    """Return the folders of Python's library, of installed packages, of PyTorch, of Thunder and of `PYTHONPATH`.

    Absolute entries of `PYTHONPATH` are deliberate. An empty or relative entry depends on the current folder and does
    not count.
    """
    python_path = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if Path(path).is_absolute()]
    package_folders = [str(Path(folder).parent) for folder in (torch.__path__[0], package.FOLDER)]
    return tuple(Path(path).resolve() for path in (*installers_folders(), *package_folders, *python_path))


def editable_folders() -> Iterator[Path]:
    """Yield the source folders of packages that were installed in place (`pip install -e`)."""
    for distribution in importlib.metadata.distributions(path=installers_folders()):
        record = json.loads(distribution.read_text("direct_url.json") or "{}")
        if record.get("dir_info", {}).get("editable"):
            yield Path(url2pathname(urlsplit(record["url"]).path)).resolve()
