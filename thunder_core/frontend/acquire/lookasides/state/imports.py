"""Import statements inside functions: the path to an imported module is the module's name."""

from __future__ import annotations

import builtins
import importlib
import sys
import types
from collections.abc import Callable
from typing import Any

from thunder_core.frontend.acquire.lookaside_table import lookaside_of_each
from thunder_core.frontend.acquire.outside.paths import Path
from thunder_core.frontend.acquire.traced_run import TracedRun


@lookaside_of_each(builtins.__import__, importlib.import_module)
def import_module(function: Callable[..., Any], run: TracedRun, /, *args: Any, **kwargs: Any) -> Any:
    """Import natively, record the path to the module, and guard that Python still has this module under its name.

    If Python does not find the module, guard that `sys.modules` still lacks the module.
    """
    try:
        module = function(*args, **kwargs)
    except ModuleNotFoundError as error:
        if isinstance(error.name, str):
            note_missing_module(run, error.name)
        raise
    outside = run.outside
    if isinstance(module, types.ModuleType) and outside.path_of(module) is None:
        outside.root("module", module.__name__, module)
    level = kwargs.get("level", args[4] if len(args) > 4 else 0)
    names = () if level else (name_of_result(function, *args, **kwargs),)
    own_name = getattr(module, "__name__", None)
    name = next((key for key in (*names, own_name) if key is not None and sys.modules.get(key) is module), None)
    if name is not None:
        outside.read(path_of_modules(run).item(name, module), module)
    return module


def name_of_result(function: object, name: str, *rest: Any, **kwargs: Any) -> str:
    """Return the absolute name of the module that an import returns: for `import a.b`, this is `a`."""
    from_list = kwargs.get("fromlist", rest[2] if len(rest) > 2 else ())
    return name if function is importlib.import_module or from_list else name.partition(".")[0]


def note_missing_module(run: TracedRun, name: str) -> None:
    """Guard that no module of this name was imported. Folders and finders are not guarded: machines have others."""
    outside, modules = run.outside, path_of_modules(run)
    if name in sys.modules:  # `sys.modules` blocks the import with None
        outside.read(modules.item(name, sys.modules[name]), sys.modules[name])
    else:
        outside.guard_absence(modules, name)


def path_of_modules(run: TracedRun) -> Path:
    """Return the path to `sys.modules`."""
    return run.outside.globals_root(vars(sys)).item("modules", sys.modules)
