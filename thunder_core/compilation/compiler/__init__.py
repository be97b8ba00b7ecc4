"""The compiler: it traces a program, transforms the trace, claims it for executors, and generates code.

`jit` is the entry point. `compiler.py` runs the stages. `nested.py` records the calls of compiled functions within a
program. The traces of every stage can be inspected.

The names below are loaded when they are first used, because planning an optimization needs few of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from thunder_core.foundation import plugins

if TYPE_CHECKING:
    from thunder_core.compilation.compiler.binding import bind_compiler
    from thunder_core.compilation.compiler.check_listing import CheckedOperation, checks
    from thunder_core.compilation.compiler.cleanup import CLEANUP_TRANSFORMS
    from thunder_core.compilation.compiler.compiler import (
        AUTOGRAD_OFF,
        NOTHING_REQUIRES_GRAD,
        Compiler,
        CompilerLackingExecutor,
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
        tracing_attempts,
    )
    from thunder_core.compilation.compiler.lookaside_listing import LookasideDescription, lookasides

HOMES = {
    "AUTOGRAD_OFF": "compiler",
    "CLEANUP_TRANSFORMS": "cleanup",
    "CheckedOperation": "check_listing",
    "Compiler": "compiler",
    "CompilerLackingExecutor": "compiler",
    "LookasideDescription": "lookaside_listing",
    "NOTHING_REQUIRES_GRAD": "compiler",
    "cache_hits": "last_call",
    "cache_misses": "last_call",
    "checks": "check_listing",
    "compile_in_order": "entry",
    "bind_compiler": "binding",
    "compiler_by_names": "compiler",
    "jit": "entry",
    "last_backward_reason": "last_call",
    "last_backward_traces": "last_call",
    "last_epilogue_traces": "last_call",
    "last_program": "last_call",
    "last_prologue_traces": "last_call",
    "last_traces": "last_call",
    "lookasides": "lookaside_listing",
    "recompile_reasons": "last_call",
    "register_operators": "entry",
    "specializations_of": "last_call",
    "trace_for": "for_device",
    "tracing_attempts": "last_call",
}

__all__ = [
    "AUTOGRAD_OFF",
    "CLEANUP_TRANSFORMS",
    "NOTHING_REQUIRES_GRAD",
    "CheckedOperation",
    "Compiler",
    "CompilerLackingExecutor",
    "LookasideDescription",
    "bind_compiler",
    "cache_hits",
    "cache_misses",
    "checks",
    "compile_in_order",
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
    "tracing_attempts",
]

__getattr__ = plugins.lazy_face(__name__, HOMES)
