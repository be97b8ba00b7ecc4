"""Rooms by their own names: `thunder_core.errors` is `thunder_core.foundation.errors`.

The wings (`foundation`, `tracing`, ...) order the rooms for people who read the source. Programs that use a room do not
name its wing. Generated code does: it names `thunder_core.tracing.library`, which is no room of this table.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec, spec_from_loader
from types import CodeType, ModuleType
from typing import Any

PACKAGE = "thunder_core"
ROOMS_OF = {
    "foundation": ("errors", "options", "package", "plugins", "printable", "storage"),
    "tracing": ("analysis", "capture", "extension", "ir"),
    "backend": ("cache", "claiming", "functionalization", "fusion", "parallel", "patterns", "quantization", "runtime"),
    "passes": ("autodiff", "recipe", "transforms"),
    "frontend": ("acquire", "interpreter"),
    "compilation": ("compiler", "dynamo", "memory"),
    "workflow": (
        "artifact",
        "benchmark",
        "fault_localization",
        "inspect",
        "models",
        "pipeline",
        "recipe_search",
        "report",
        "validation",
    ),
}
WING_OF = {room: wing for wing, rooms in ROOMS_OF.items() for room in rooms}


class RoomFinder(MetaPathFinder):
    """Finds `thunder_core.ROOM` and the modules in it, which lie in the room's wing."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,  # noqa: ARG002 - the signature is `importlib`'s
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        """The spec of the module in the room's wing, or None for a name that begins with no room."""
        package, _, inner = fullname.partition(".")
        if package != PACKAGE or (wing := WING_OF.get(inner.partition(".")[0])) is None:
            return None
        found = find_spec(f"{PACKAGE}.{wing}.{inner}")
        if found is None:
            return None
        is_package = found.submodule_search_locations is not None
        return spec_from_loader(fullname, SameModule(found), origin=found.origin, is_package=is_package)


class SameModule(Loader):
    """Loads the module of another name: both names are of one module."""

    def __init__(self, spec: ModuleSpec) -> None:
        self.spec = spec

    def create_module(self, spec: ModuleSpec) -> ModuleType:  # noqa: ARG002 - the signature is `importlib`'s
        """The module of the other name, which is imported first if need be."""
        return importlib.import_module(self.spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Leave the module as it is, and give it back its own spec, which `importlib` has replaced."""
        module.__spec__ = self.spec

    def get_code(self, fullname: str) -> CodeType | None:  # noqa: ARG002
        """The code of the module, for `python -m`."""
        loader: Any = self.spec.loader
        code: CodeType | None = loader.get_code(self.spec.name)
        return code


def register() -> None:
    """Let rooms be imported by their own names."""
    if not any(isinstance(finder, RoomFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, RoomFinder())
