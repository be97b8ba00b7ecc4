"""Lookasides: what runs in place of a function while a program is being traced.

A lookaside is asked with (acquisition, function, args, kwargs) before its function is called, and answers with the
callable to run natively instead, or with None to let the call go its way. Each module of this folder is imported.
"""

from __future__ import annotations

from thunder_core.acquire.lookasides import (
    autograd,
    checkpoint,
    checks,
    classes,
    compiled,
    compiling,
    containers,
    copies,
    coroutines,
    finalizers,
    flex_attention,
    foreign,
    function,
    function_transforms,
    generators,
    higher_order,
    identity,
    imports,
    inlined_operators,
    modules,
    numbers,
    output,
    selective_checkpoint,
    state,
    tensors,
    warned,
)
from thunder_core.acquire.lookasides.table import (
    LOOKASIDES,
    Lookaside,
    is_native_code,
    lookaside,
    runs_alone,
    runs_natively,
)

__all__ = [
    "LOOKASIDES",
    "Lookaside",
    "autograd",
    "checkpoint",
    "checks",
    "classes",
    "compiled",
    "compiling",
    "containers",
    "copies",
    "coroutines",
    "finalizers",
    "flex_attention",
    "foreign",
    "function",
    "function_transforms",
    "generators",
    "higher_order",
    "identity",
    "imports",
    "inlined_operators",
    "is_native_code",
    "lookaside",
    "modules",
    "numbers",
    "output",
    "runs_alone",
    "runs_natively",
    "selective_checkpoint",
    "state",
    "tensors",
    "warned",
]
