"""PyTorch's own compilers, tracers and function transforms that a program calls.

A function compiled by `torch.compile` is traced as the original function, because a program of Thunder replaces it.
Compilers and transforms that run functions under modes of their own, unseen by the tracer, are refused with the
program's line.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NoReturn

import torch
from torch._ops import HigherOrderOperator
from torch.autograd import forward_ad

from thunder_core.foundation.errors import OperationFailed
from thunder_core.frontend.acquire.lookasides.functions.parallel_modules import PARALLEL_MODULES
from thunder_core.frontend.acquire.lookasides.operators.transformers_attention import uncompiled_attention
from thunder_core.frontend.acquire.lookasides.operators.triton_kernels import launch_of
from thunder_core.frontend.acquire.lookasides.state.output_capturing import INSTALLER, install_hooks
from thunder_core.frontend.acquire.lookasides.table import lookaside
from thunder_core.frontend.acquire.traced_run import TracedRun
from thunder_core.tracing.capture.failures import hides

# the original function, as an attribute of results of torch.compile and torch.compiler.disable
ORIGINAL = "_torchdynamo_orig_callable"
DYNAMO = ("torch._dynamo.", "thunder_core.compilation.dynamo.")
OPTIMIZED_MODULE = ("torch._dynamo.eval_frame", "OptimizedModule.__call__")

C: Any = torch._C
DERIVATIVES = "; torch.func.jvp, thunder_core.grad, value_and_grad, vjp and jvp are traced"
WRITES = "; or call the function itself: the transform Functionalize replaces in-place writes"
NESTING = {  # maps the function that enters a transform to the transform's name and an alternative
    C._functorch._func_increment_nesting: ("torch.func.functionalize", WRITES),
    forward_ad.enter_dual_level: ("forward-mode derivatives (torch.autograd.forward_ad)", DERIVATIVES),
}
# Functions that trace their arguments, by module and name, because some of these modules take long to import.
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


@lookaside(*NESTING)
def enter_transform(
    acquisition: TracedRun, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Callable[..., Any]:
    """Refuse a transform before it begins. `torch.func.jvp` may enter a dual level within its own level."""
    if function is forward_ad.enter_dual_level and acquisition.recorder.levels.depth:
        return function
    return refuse(acquisition, *NESTING[function])


def foreign(acquisition: TracedRun, function: Any, plain: Any) -> Callable[..., Any] | None:
    """Return the replacement of a Python function that is known by its name; None for other functions."""
    original = plain.__dict__.get(ORIGINAL)
    # not a wrapper of the function
    if original is not None and str(plain.__globals__.get("__name__")).startswith(DYNAMO):
        acquisition.outside.attribute(plain, ORIGINAL, original)
        owner = () if plain is function else (function.__self__,)
        return lambda *args, **kwargs: acquisition.machine.call(original, *owner, *args, **kwargs)
    if (replaced := launch_of(acquisition, function, plain) or uncompiled_attention(acquisition, plain)) is not None:
        return replaced
    if not _is_known(plain.__module__, plain.__qualname__):
        return None
    name = (plain.__module__, plain.__qualname__)
    stand_in = STAND_INS.get(name)
    return refuse(acquisition, TRACERS[name]) if stand_in is None else stand_in(acquisition, function)


def refuse_operator(acquisition: TracedRun, operator: HigherOrderOperator) -> NoReturn:
    """Raise the error for an operator that takes functions, and store it in case the program swallows the error."""
    acquisition.recorder.failure = hides(operator, acquisition.place().source)
    raise acquisition.recorder.failure


def refuse(acquisition: TracedRun, name: str, alternative: str = "") -> NoReturn:
    """Raise the error for code that runs functions unseen by the tracer, and store the error."""
    acquisition.recorder.failure = OperationFailed(
        f"the program calls {name}, which runs a function that the tracer cannot see",
        fix=f"call it outside the compiled program, or compile its result{alternative}",
        where=acquisition.place().source,
    )
    raise acquisition.recorder.failure


@cache
def _is_known(module: str | None, name: str) -> bool:
    return (module, name) in TRACERS or (module, name) in STAND_INS


def _run_module(acquisition: TracedRun, function: Any) -> Callable[..., Any]:
    """Run the original module in place of a module that torch.compile made."""

    def run(*args: Any, **kwargs: Any) -> Any:
        module, *rest = args if type(function).__name__ == "function" else (function.__self__, *args)
        original = acquisition.machine.load_attr(module, "_orig_mod")
        return acquisition.machine.call(original, *rest, **kwargs)

    return run


STAND_INS: dict[tuple[str, str], Callable[[Any, Any], Callable[..., Any]]] = {
    OPTIMIZED_MODULE: _run_module,
    INSTALLER: install_hooks,
    **PARALLEL_MODULES,
}
