"""Thunder: a source-to-source compiler for PyTorch programs that can be read at every stage.

The names of this package are loaded when they are first used, so that `import thunder_core.interpreter` needs nothing
but the standard library.
"""

from __future__ import annotations

import importlib
import os
from types import ModuleType
from typing import TYPE_CHECKING, Any

from thunder_core.foundation import rooms
from thunder_core.foundation.package import __version__

# Programs with symbolic sizes have several thousand expressions, of which SymPy remembers the last 1,000 by default.
# It reads this once, when it is first imported.
os.environ.setdefault("SYMPY_CACHE_SIZE", "16000")

if TYPE_CHECKING:
    from thunder_core.backend.claiming.executor import Executor, OperatorExecutor, register_executor
    from thunder_core.backend.claiming.operator import Operator
    from thunder_core.backend.fusion.fuse import Fused, FusionExecutor, Refusal
    from thunder_core.backend.patterns.pattern import pattern
    from thunder_core.compilation.compiler import (
        cache_hits,
        cache_misses,
        checks,
        jit,
        last_backward_reason,
        last_backward_traces,
        last_epilogue_traces,
        last_program,
        last_prologue_traces,
        last_traces,
        lookasides,
        recompile_reasons,
    )
    from thunder_core.compilation.dynamo import graphs, splits, thunderfx
    from thunder_core.compilation.gradients import grad, jvp, value_and_grad, vjp
    from thunder_core.compilation.memory import examine_memory
    from thunder_core.foundation.errors import RecompileWarning, ThunderError
    from thunder_core.passes.autodiff.rules import register_derivative
    from thunder_core.passes.recipe import Lookaside, Plugin, Recipe, Transform
    from thunder_core.tracing.library.model_output import ModelOutput
    from thunder_core.workflow.pipeline import compile
    from thunder_core.workflow.recipe_search import search

HOMES = {
    "thunder_core.compilation.compiler": (
        "cache_hits",
        "cache_misses",
        "checks",
        "jit",
        "last_backward_reason",
        "last_backward_traces",
        "last_epilogue_traces",
        "last_program",
        "last_prologue_traces",
        "last_traces",
        "lookasides",
        "recompile_reasons",
    ),
    "thunder_core.passes.autodiff.rules": ("register_derivative",),
    "thunder_core.compilation.gradients": ("grad", "jvp", "value_and_grad", "vjp"),
    "thunder_core.compilation.dynamo": ("graphs", "splits", "thunderfx"),
    "thunder_core.foundation.errors": ("RecompileWarning", "ThunderError"),
    "thunder_core.backend.claiming.executor": ("Executor", "OperatorExecutor", "register_executor"),
    "thunder_core.backend.claiming.operator": ("Operator",),
    "thunder_core.backend.patterns.pattern": ("pattern",),
    "thunder_core.backend.fusion.fuse": ("Fused", "FusionExecutor", "Refusal"),
    "thunder_core.compilation.memory": ("examine_memory",),
    "thunder_core.workflow.pipeline": ("compile",),
    "thunder_core.workflow.recipe_search": ("search",),
    "thunder_core.passes.recipe": ("Lookaside", "Plugin", "Recipe", "Transform"),
    "thunder_core.tracing.library.model_output": ("ModelOutput",),
    "thunder_core.workflow.artifact.loading": ("load",),
    "thunder_core.workflow.artifact.saving": ("save",),
}
rooms.register()
_HOME = {name: home for home, names in HOMES.items() for name in names}

__all__ = [*_HOME, "__version__"]  # noqa: PLE0604 (the table above is the list)


def __getattr__(name: str) -> Any:
    if name in rooms.WING_OF:
        return importlib.import_module(f"{__name__}.{name}")
    if name not in _HOME:
        raise AttributeError(f"module 'thunder_core' has no attribute {name!r}")
    value = getattr(_home_of(name), name)
    globals()[name] = value
    return value


def _home_of(name: str) -> ModuleType:
    """Import the module of a name; raises `TorchNotTested` if that fails on a release that was never tested."""
    try:
        return importlib.import_module(_HOME[name])
    except Exception:
        importlib.import_module("thunder_core.foundation.tested_versions").require_tested_torch()
        raise


def __dir__() -> list[str]:
    return sorted(__all__)
