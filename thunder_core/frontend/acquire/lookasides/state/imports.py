"""Import statements inside functions: the path to an imported module is the module's name."""

from __future__ import annotations

import builtins
import types
from typing import Any

from thunder_core.frontend.acquire.lookasides.table import lookaside
from thunder_core.frontend.acquire.traced_run import TracedRun


@lookaside(builtins.__import__)
def import_module(run: TracedRun, /, *args: Any, **kwargs: Any) -> Any:
    """Import natively, and record the path to the module."""
    module = builtins.__import__(*args, **kwargs)
    if isinstance(module, types.ModuleType) and run.outside.path_of(module) is None:
        run.outside.root("module", module.__name__, module)
    return module
