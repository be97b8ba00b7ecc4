"""Thunder: a compiler for PyTorch programs, whose traces can be read as Python source after each pass.

The public names are imported when they are first used, so that an import of the interpreter alone
(`thunder_core.frontend.interpreter`, or `thunder_core.interpreter` for short) needs only the standard library.
"""

from __future__ import annotations

import importlib
import os
from types import ModuleType
from typing import TYPE_CHECKING, Any

from thunder_core.foundation.package import __version__
from thunder_core.foundation.short_names import LAYER_OF, register_short_names

# SymPy caches the results of 1,000 expressions by default. Programs with symbolic sizes have several thousand.
# SymPy reads the variable once, when it is imported.
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
        tracing_attempts,
    )
    from thunder_core.compilation.dynamo import graphs, splits, thunderfx
    from thunder_core.compilation.gradients import grad, jvp, value_and_grad, vjp
    from thunder_core.compilation.memory import examine_memory
    from thunder_core.foundation.errors import RecompileWarning, ThunderError
    from thunder_core.passes.autodiff.rules import register_derivative
    from thunder_core.passes.recipe import Lookaside, Plugin, Recipe, Transform
    from thunder_core.tracing.library.model_output import ModelOutput
    from thunder_core.workflow.artifact.loading import load
    from thunder_core.workflow.artifact.saving import save
    from thunder_core.workflow.pipeline import compile
    from thunder_core.workflow.recipe_search import search

# The public names by the module that defines them.
NAMES_OF_MODULE = {
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
        "tracing_attempts",
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
register_short_names()  # `thunder_core.errors` is `thunder_core.foundation.errors`
_MODULE_OF_NAME = {name: module for module, names in NAMES_OF_MODULE.items() for name in names}

__all__ = [*_MODULE_OF_NAME, "__version__"]  # noqa: PLE0604 - the names are the keys of a dict


def __getattr__(name: str) -> Any:
    if name in LAYER_OF:
        return importlib.import_module(f"{__name__}.{name}")
    if name not in _MODULE_OF_NAME:
        raise AttributeError(f"module 'thunder_core' has no attribute {name!r}")
    value = getattr(_import_module_of(name), name)
    globals()[name] = value
    return value


def _import_module_of(name: str) -> ModuleType:
    """Import the module of a public name; raise `TorchNotTested` if that fails on an untested PyTorch."""
    try:
        return importlib.import_module(_MODULE_OF_NAME[name])
    except Exception:
        importlib.import_module("thunder_core.foundation.tested_versions").require_tested_torch()
        raise


def __dir__() -> list[str]:
    return sorted(__all__)
