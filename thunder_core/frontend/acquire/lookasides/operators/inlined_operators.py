"""Higher-order operators that only call the functions passed to them.

The functions are interpreted, and their bound symbols become part of the program's trace.

Graphs of `torch.export` and regions of `torch.compile` contain such operators, for casts and for switches of autograd.
In eager PyTorch, the operators only call the functions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from torch._C import DispatchKey
from torch._ops import _higher_order_ops as operators

from thunder_core.frontend.acquire.lookasides.operators.higher_order import HANDLERS, higher_order
from thunder_core.frontend.acquire.traced_run import TracedRun

# Names of operators whose Python method `__call__` does all the work.
OPERATORS_BY_CALL = ("wrap", "wrap_with_set_grad_enabled", "wrap_with_autocast", "register_hook")
# Names of operators whose kernel for eager PyTorch does all the work.
OPERATORS_BY_KERNEL = ("out_dtype", "auto_functionalized", "auto_functionalized_v2", "print")


@higher_order("local_map_hop")
def call_function(run: TracedRun, function: Callable[..., Any], *operands: Any, **kwargs: Any) -> Any:
    """Interpret the function of `local_map`."""
    return run.machine.call(function, *operands, **kwargs)


@higher_order("invoke_quant", "invoke_quant_packed")
def call_quantized(run: TracedRun, function: Callable[..., Any], *operands: Any, **scheme: object) -> Any:
    """Interpret the function. The quantization scheme is ignored, as in eager PyTorch."""
    return run.machine.call(function, *operands)


@higher_order("invoke_subgraph")
def call_subgraph(run: TracedRun, subgraph: Callable[..., Any], identifier: object, *operands: Any) -> Any:
    """Interpret the function. A boxed function takes its operands in one list."""
    boxed = getattr(subgraph, "_boxed_call", False)
    return run.machine.call(subgraph, *([list(operands)] if boxed else operands))


@higher_order("hints_wrapper")
def call_with_hints(
    run: TracedRun,
    body: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    hints: object,
) -> Any:
    """Interpret the function. The hints for compilers are ignored, as in eager PyTorch."""
    return run.machine.call(body, *args, **kwargs)


@higher_order("strict_mode")
def call_strictly(run: TracedRun, function: Callable[..., Any], operands: Sequence[Any]) -> Any:
    """Interpret the function of `strict_mode`."""
    return run.machine.call(function, *operands)


def interpret_call(name: str, run: TracedRun, *args: Any, **kwargs: Any) -> Any:
    """Interpret the `__call__` of an operator."""
    return run.machine.call(type(operators[name]).__call__, operators[name], *args, **kwargs)


def interpret_kernel(name: str, run: TracedRun, *args: Any, **kwargs: Any) -> Any:
    """Interpret the kernel that an operator runs in eager PyTorch, below autograd."""
    return run.machine.call(operators[name].py_kernels[DispatchKey.CompositeExplicitAutograd], *args, **kwargs)


for names, interpret in ((OPERATORS_BY_CALL, interpret_call), (OPERATORS_BY_KERNEL, interpret_kernel)):
    HANDLERS.update({name: partial(interpret, name) for name in names})
