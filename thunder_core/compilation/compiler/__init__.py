"""The whole way of a program: acquire, transform, claim, free, generate; `jit` asks for it, and traces are left to see.

`compiler.py` goes the way, one line a stage; `nested.py` has the calls of compiled functions within it.
"""

from thunder_core.compilation.compiler.check_listing import CheckedOperation, checks
from thunder_core.compilation.compiler.compiler import (
    AUTOGRAD_OFF,
    CLEANUP_TRANSFORMS,
    NOTHING_FOLLOWED,
    Compiler,
    CompilerLackingExecutor,
    compiled_by,
    compiler_by_names,
)
from thunder_core.compilation.compiler.entry import compile_in_order, jit, register_operators
from thunder_core.compilation.compiler.for_device import trace_for
from thunder_core.compilation.compiler.last_call import (
    cache_hits,
    cache_misses,
    last_backward_reason,
    last_backward_traces,
    last_epilogue_traces,
    last_program,
    last_prologue_traces,
    last_traces,
    recompile_reasons,
    specializations_of,
)
from thunder_core.compilation.compiler.lookaside_listing import LookasideDescription, lookasides

__all__ = [
    "AUTOGRAD_OFF",
    "CLEANUP_TRANSFORMS",
    "NOTHING_FOLLOWED",
    "CheckedOperation",
    "Compiler",
    "CompilerLackingExecutor",
    "LookasideDescription",
    "cache_hits",
    "cache_misses",
    "checks",
    "compile_in_order",
    "compiled_by",
    "compiler_by_names",
    "jit",
    "last_backward_reason",
    "last_backward_traces",
    "last_epilogue_traces",
    "last_program",
    "last_prologue_traces",
    "last_traces",
    "lookasides",
    "recompile_reasons",
    "register_operators",
    "specializations_of",
    "trace_for",
]
