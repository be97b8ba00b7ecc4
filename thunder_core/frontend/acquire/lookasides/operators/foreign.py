"""Calls of PyTorch's own compilers, tracers and function transforms in a program.

For a function that `torch.compile` has compiled, the original function is traced instead. Other compilers and
transforms run functions under modes of their own, so that the tracer cannot record the functions. A program that calls
one of them is left to eager PyTorch, or refused with the program's line.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NoReturn

import torch
from torch._ops import HigherOrderOperator
from torch.autograd import forward_ad

from thunder_core.frontend.acquire.lookaside_table import lookaside_of_each
from thunder_core.frontend.acquire.lookasides.functions.parallel_modules import PARALLEL_MODULES
from thunder_core.frontend.acquire.lookasides.operators.transformers_attention import COMPILING, uncompiled_attention
from thunder_core.frontend.acquire.lookasides.operators.triton_kernels import launch_kernel
from thunder_core.frontend.acquire.lookasides.state.output_capturing import INSTALLER, record_hooks
from thunder_core.frontend.acquire.outside.call_traits import owner_of
from thunder_core.frontend.acquire.traced_run import TracedRun
from thunder_core.frontend.interpreter.callables import callable_attribute
from thunder_core.frontend.interpreter.observer import NOT_TAKEN
from thunder_core.tracing.capture.failures import hides
from thunder_core.tracing.capture.torch_facts.triton_launches import RUNS

# The attribute in which results of torch.compile and torch.compiler.disable hold the original function.
ORIGINAL_ATTRIBUTE = "_torchdynamo_orig_callable"
# The modules whose functions run a compiled function: Dynamo, and Thunder's backend for Dynamo.
DYNAMO = ("torch._dynamo.", "thunder_core.compilation.dynamo.")
OPTIMIZED_MODULE = ("torch._dynamo.eval_frame", "OptimizedModule.__call__")

C: Any = torch._C
# Alternatives that an error's fix adds.
DERIVATIVES = "; torch.func.jvp, thunder_core.grad, value_and_grad, vjp and jvp are traced"
WRITES = "; or call the function itself: the transform Functionalize replaces in-place writes"
# The functions that enter a transform, with the name of the transform and an alternative.
NESTING = {
    C._functorch._func_increment_nesting: ("torch.func.functionalize", WRITES),
    forward_ad.enter_dual_level: ("forward-mode derivatives (torch.autograd.forward_ad)", DERIVATIVES),
}
# Functions that trace or compile their arguments, and their names in messages. The functions are given by module and
# name, because some of these modules take long to import.
TRACERS = {
    ("torch.jit._trace", "trace"): "torch.jit.trace",
    ("torch.jit._trace", "trace_module"): "torch.jit.trace_module",
    ("torch.jit._freeze", "freeze"): "torch.jit.freeze",
    ("torch.jit._freeze", "optimize_for_inference"): "torch.jit.optimize_for_inference",
    ("torch.export", "export"): "torch.export.export",
    ("torch.export._trace", "_export"): "torch.export.export",
    ("torch._dynamo.eval_frame", "export"): "torch._dynamo.export",
    ("torch._dynamo.eval_frame", "explain"): "torch._dynamo.explain",
    ("torch._functorch.aot_autograd", "aot_function"): "aot_function",
    ("torch._functorch.aot_autograd", "aot_module"): "aot_module",
    ("torch._inductor", "aot_compile"): "torch._inductor.aot_compile",
    ("torch.onnx", "export"): "torch.onnx.export",
}


@lookaside_of_each(*NESTING)
def enter_transform(function: Callable[..., Any], run: TracedRun, /, *args: Any, **kwargs: Any) -> Any:
    """Leave the program to eager PyTorch before it enters a transform that cannot be traced.

    The exception is a dual level that `torch.func.jvp` enters within a level of its own: `jvp` is traced.
    """
    if function is not forward_ad.enter_dual_level or not run.recorder.levels.depth:
        leave_to_eager(run, *NESTING[function])
    return run.machine.call_uninterpreted(function, args, kwargs)


def call_foreign(run: TracedRun, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a function of PyTorch's compilers or tracers; return `NOT_TAKEN` for all other functions.

    For a function that `torch.compile` compiled, the original function is called. For a function in `STAND_INS`, its
    stand-in is called. For a function in `TRACERS`, the program is left to eager PyTorch.
    """
    plain = callable_attribute(function, "__func__", function)
    original = plain.__dict__.get(ORIGINAL_ATTRIBUTE)
    # The user's own wrapper, to which `functools.wraps` has copied the attribute, is interpreted.
    if original is not None and str(plain.__globals__.get("__name__")).startswith(DYNAMO):
        run.outside.note_attribute_read(plain, ORIGINAL_ATTRIBUTE, original)
        return run.machine.call(original, *owner_of(function), *args, **kwargs)
    name = (plain.__module__, plain.__qualname__)
    if not _is_listed(*name):
        return NOT_TAKEN
    stand_in = STAND_INS.get(name)
    if stand_in is None:
        leave_to_eager(run, TRACERS[name])
    return stand_in(run, function, args, kwargs)


def refuse_operator(run: TracedRun, operator: HigherOrderOperator) -> NoReturn:
    """Raise the error for a higher-order operator that cannot be traced.

    The error is also stored in the recorder, because the program may catch it.
    """
    raise run.recorder.fail(hides(operator, run.location().source))


def leave_to_eager(run: TracedRun, name: str, alternative: str = "") -> NoReturn:
    """Leave the program to eager PyTorch, because it calls code that runs a function which the tracer cannot see."""
    run.leave_to_eager(
        f"the program calls {name}, which runs a function that the tracer cannot see",
        f"call it outside the compiled program, or compile its result{alternative}",
    )


@cache
def _is_listed(module: str | None, name: str) -> bool:
    return (module, name) in TRACERS or (module, name) in STAND_INS


def _run_module(run: TracedRun, function: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call the original module in place of the `OptimizedModule` that `torch.compile` returned."""
    module, *rest = (*owner_of(function), *args)
    return run.machine.call(run.machine.load_attr(module, "_orig_mod"), *rest, **kwargs)


# The functions that are called in place of functions, which are given by module and name.
STAND_INS: dict[tuple[str, str], Callable[[Any, Any, Any, Any], Any]] = {
    OPTIMIZED_MODULE: _run_module,
    INSTALLER: record_hooks,
    COMPILING: uncompiled_attention,
    **dict.fromkeys(RUNS, launch_kernel),
    **PARALLEL_MODULES,
}
