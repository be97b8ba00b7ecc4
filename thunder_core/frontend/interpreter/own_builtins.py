"""Builtins of the interpreter's own: a program that replaces `len` replaces it for itself alone."""

import builtins
import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

BUILTINS = dict(vars(builtins))


class BuiltinsFinder:
    """Finds the modules of a package, which then run with the builtins of this moment."""

    def __init__(self, package: str) -> None:
        self.package = package

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """The spec of a module of the package, its loader prepared."""
        if not name.startswith(f"{self.package}."):
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            execute = functools.partial(_execute, spec.loader.exec_module)
            spec.loader.exec_module = execute  # type: ignore[method-assign]
        return spec


def _execute(execute: Callable[[ModuleType], None], module: ModuleType) -> None:
    """Run a module whose functions take these builtins: a function has those that its globals name when it is made."""
    module.__dict__["__builtins__"] = BUILTINS
    execute(module)


@contextmanager
def own_builtins(package: str) -> Iterator[None]:
    """A context in which modules of a package that are imported keep the builtins of this moment for good."""
    finder = BuiltinsFinder(package)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
