"""The places where packages were installed, so that a folder that happens to be on the path is told from them."""

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
    """The place that a top-level package which was installed nowhere would be imported from.

    None for one that was installed, that lies where the user's `PYTHONPATH` leads, or that is not there at all.
    """
    if name in sys.modules or (spec := importlib.util.find_spec(name)) is None or spec.origin in WITHOUT_FILE:
        return None
    strays = [path for path in locations(spec) if not is_beneath(path, installation_folders())]
    strays = [path for path in strays if not is_beneath(path, editable_folders())]
    return str(strays[0]) if strays else None


def is_beneath(path: Path, folders: Iterable[Path]) -> bool:
    """Whether a path is one of the folders, or lies in one."""
    return any(path.is_relative_to(folder) for folder in folders)


def locations(spec: ModuleSpec) -> Iterator[Path]:
    """The folders that a package's modules come from, or the file of a module; a package may have none of its own."""
    for place in spec.submodule_search_locations or ([spec.origin] if spec.origin else []):
        yield Path(place).resolve()


def installation_folders() -> tuple[Path, ...]:
    """The folders of Python's own library and of installed packages, and those that PyTorch and Thunder came from.

    What `PYTHONPATH` names in full was put there on purpose; an empty or relative entry is wherever the process is.
    """
    named = [place for place in os.environ.get("PYTHONPATH", "").split(os.pathsep) if Path(place).is_absolute()]
    known = [str(Path(folder).parent) for folder in (torch.__path__[0], package.FOLDER)]
    return tuple(Path(place).resolve() for place in (*installers_folders(), *known, *named))


def editable_folders() -> Iterator[Path]:
    """The folders of sources that were installed in place (`pip install -e`), as installers' records say."""
    for distribution in importlib.metadata.distributions(path=installers_folders()):
        record = json.loads(distribution.read_text("direct_url.json") or "{}")
        if record.get("dir_info", {}).get("editable"):
            yield Path(url2pathname(urlsplit(record["url"]).path)).resolve()
