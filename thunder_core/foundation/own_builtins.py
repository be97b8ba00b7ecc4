"""A private copy of the builtins for Thunder's packages: a program that replaces `len` does not affect them."""

import builtins
import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

BUILTINS = dict(vars(builtins))


class BuiltinsFinder:
    """Finds the modules of a package, which then run with a copy of the current builtins."""

    def __init__(self, package: str) -> None:
        self.package = package

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Return the spec of a module of the package, with a prepared loader."""
        if not name.startswith(f"{self.package}."):
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            execute = functools.partial(_execute, spec.loader.exec_module)
            spec.loader.exec_module = execute  # type: ignore[method-assign]
        return spec


def _execute(execute: Callable[[ModuleType], None], module: ModuleType) -> None:
    """Run a module with the copied builtins. Its functions use them too: they take `__builtins__` of their globals."""
    module.__dict__["__builtins__"] = BUILTINS
    execute(module)


@contextmanager
def own_builtins(package: str) -> Iterator[None]:
    """Return a context.

    Modules of the package that are imported in it use a copy of the current builtins from then on.
    """
    finder = BuiltinsFinder(package)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
