"""Import statements inside functions: the path to an imported module is the module's name."""

from __future__ import annotations

import builtins
import types
from collections.abc import Callable
from typing import Any

from thunder_core.frontend.acquire.lookasides.table import lookaside
from thunder_core.frontend.acquire.traced_run import TracedRun


@lookaside(builtins.__import__)
def import_module(
    acquisition: TracedRun, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Callable[..., Any]:
    """Import natively, and record the path to the module."""

    def run(*args: Any, **kwargs: Any) -> Any:
        module = function(*args, **kwargs)
        if isinstance(module, types.ModuleType) and acquisition.outside.path_of(module) is None:
            acquisition.outside.root("module", module.__name__, module)
        return module

    return run
