"""Import statements inside functions: the path to an imported module is the module's name."""

from __future__ import annotations

import builtins
import importlib
import sys
import types
from collections.abc import Callable
from typing import Any

from thunder_core.frontend.acquire.lookasides.table import lookaside_of_each
from thunder_core.frontend.acquire.traced_run import TracedRun


@lookaside_of_each(builtins.__import__, importlib.import_module)
def import_module(function: Callable[..., Any], run: TracedRun, /, *args: Any, **kwargs: Any) -> Any:
    """Import natively, record the path to the module, and guard that Python still has this module under its name."""
    module = function(*args, **kwargs)
    if isinstance(module, types.ModuleType):
        outside = run.outside
        if outside.path_of(module) is None:
            outside.root("module", module.__name__, module)
        if sys.modules.get(module.__name__) is module:
            modules = outside.globals_root(vars(sys)).item("modules", sys.modules)
            outside.read(modules.item(module.__name__, module), module)
    return module
