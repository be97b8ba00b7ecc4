"""Short names of rooms: `thunder_core.errors` is `thunder_core.foundation.errors`.

The wings (`foundation`, `tracing`, ...) group the rooms for readers of the source. Programs that use a room do not name
its wing. Generated code names the wing of `thunder_core.tracing.library`, which is not in this table.
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
    """The finder of `thunder_core.ROOM` and its modules, whose files are in the room's wing."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,  # noqa: ARG002 - the signature is `importlib`'s
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        """Return the spec of the module in the room's wing, or None if the name does not begin with a room."""
        package, _, inner = fullname.partition(".")
        if package != PACKAGE or (wing := WING_OF.get(inner.partition(".")[0])) is None:
            return None
        spec = find_spec(f"{PACKAGE}.{wing}.{inner}")
        if spec is None:
            return None
        is_package = spec.submodule_search_locations is not None
        return spec_from_loader(fullname, SameModule(spec), origin=spec.origin, is_package=is_package)


class SameModule(Loader):
    """A loader that returns the module of another name, so that both names refer to one module."""

    def __init__(self, spec: ModuleSpec) -> None:
        self.spec = spec

    def create_module(self, spec: ModuleSpec) -> ModuleType:  # noqa: ARG002 - the signature is `importlib`'s
        """Import and return the module of the other name."""
        return importlib.import_module(self.spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Leave the module unchanged, and restore its own spec, which `importlib` has replaced."""
        module.__spec__ = self.spec

    def get_code(self, fullname: str) -> CodeType | None:  # noqa: ARG002
        """The code of the module, for `python -m`."""
        loader: Any = self.spec.loader
        code: CodeType | None = loader.get_code(self.spec.name)
        return code


def register_short_names() -> None:
    """Make the rooms importable by their short names."""
    if not any(isinstance(finder, RoomFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, RoomFinder())
