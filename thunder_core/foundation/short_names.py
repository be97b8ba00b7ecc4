"""Short names of packages: `thunder_core.errors` is `thunder_core.foundation.errors`.

The layers (`foundation`, `tracing`, ...) group the packages for readers of the source. Users import a package without
its layer. `thunder_core.tracing.library` is not in this table: generated code imports it by its full name.
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
PACKAGES_OF = {
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
LAYER_OF = {package: layer for layer, packages in PACKAGES_OF.items() for package in packages}


class PackageFinder(MetaPathFinder):
    """The import finder for `thunder_core.PACKAGE` and its modules.

    The files are in the folder of the package's layer.
    """

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,  # noqa: ARG002 - the signature is `importlib`'s
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        """Return the spec of the module in the package's layer; None for a name outside the packages of the table."""
        root, _, inner = fullname.partition(".")
        if root != PACKAGE or (layer := LAYER_OF.get(inner.partition(".")[0])) is None:
            return None
        spec = find_spec(f"{PACKAGE}.{layer}.{inner}")
        if spec is None:
            return None
        is_package = spec.submodule_search_locations is not None
        return spec_from_loader(fullname, SameModule(spec), origin=spec.origin, is_package=is_package)


class SameModule(Loader):
    """A loader that returns the module of the full name, so that both names refer to one module."""

    def __init__(self, spec: ModuleSpec) -> None:
        self.spec = spec

    def create_module(self, spec: ModuleSpec) -> ModuleType:  # noqa: ARG002 - the signature is `importlib`'s
        """Import and return the module of the full name."""
        return importlib.import_module(self.spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Leave the module unchanged, and restore its own spec, which `importlib` has replaced."""
        module.__spec__ = self.spec

    def get_code(self, fullname: str) -> CodeType | None:  # noqa: ARG002
        """Return the code of the module, for `python -m`."""
        loader: Any = self.spec.loader
        code: CodeType | None = loader.get_code(self.spec.name)
        return code


def register_short_names() -> None:
    """Make the packages importable by their short names."""
    if not any(isinstance(finder, PackageFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, PackageFinder())
