"""Functionalization of writes to tensors that autograd tracks, if eager PyTorch's backward accepts the writes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from thunder_core.backend.runtime.randomness import RandomState
from thunder_core.passes.autodiff.rules import is_live
from thunder_core.passes.autodiff.tape import first_line
from thunder_core.passes.autodiff.vjp import call_with_rule, is_differentiable_proxy
from thunder_core.passes.transforms.functionalize import Functionalize
from thunder_core.tracing.analysis.aliasing import alias_sets
from thunder_core.tracing.analysis.grad_mode import followed_by_autograd
from thunder_core.tracing.capture.failures import needs_value
from thunder_core.tracing.capture.fakes.faithful import FaithfulMode
from thunder_core.tracing.capture.fakes.fake import fake_like, new_mode
from thunder_core.tracing.capture.symbolic.probed_floats import with_stand_ins_alone
from thunder_core.tracing.capture.torch_facts.settings import settings_of
from thunder_core.tracing.ir.evaluate import evaluate
from thunder_core.tracing.ir.proxy import NumberProxy, TensorProxy, environment_of, tensor_proxy
from thunder_core.tracing.ir.symbol import BoundSymbol
from thunder_core.tracing.ir.trace import Trace
from thunder_core.tracing.library.checks import REQUIRE
from thunder_core.tracing.library.objects import EXPECTATIONS

# PyTorch's derivative of this operation has the gradient where it should have zeros.
WITH_WRONG_DERIVATIVE = "torch.ops.aten.as_strided_scatter.default"


def functionalize_followed_writes(trace: Trace) -> Trace | None:
    """Return the functionalized trace; None if it writes to no tracked tensor, or if eager PyTorch refuses a write.

    None as well if a backward has to run after the program: it would run here, and write to the program's objects.

    PyTorch itself decides: the bound symbols run on tensors without data, forward and backward, and autograd compares
    the versions of saved tensors.
    """
    requires_grad_names = followed_by_autograd(trace)
    writes = any(name in requires_grad_names for bsym in trace.bound_symbols for name in bsym.mutates)
    live = any(is_live(bsym.symbol.target) for bsym in trace.bound_symbols)
    if not writes or live or autograd_error(trace):
        return None
    functional = Functionalize()(trace)
    followed = followed_by_autograd(functional)
    scatters = (bsym for bsym in functional.bound_symbols if bsym.symbol.name == WITH_WRONG_DERIVATIVE)
    return None if any(bsym.args[0].name in followed for bsym in scatters) else functional


def autograd_error(trace: Trace) -> str:
    """Return the error of eager PyTorch when it runs a trace forward and backward; empty if there is none."""
    mode = new_mode(environment_of(trace.inputs))
    restores = [RandomState.now().put_back, *(setting.keep() for setting in settings_of(trace.bound_symbols))]
    try:
        with torch.enable_grad(), torch._C._DisableAutocast(), mode:
            values = _given_values(trace, mode)
            aliasing = alias_sets(trace.bound_symbols, trace.aliases)
            written = {aliasing.representative(name) for bsym in trace.bound_symbols for name in bsym.mutates}
            for bsym in trace.bound_symbols:
                if not _asks_for_values(bsym):
                    _run(bsym, values, mode, lambda name: aliasing.representative(name) in written)
            results = [values[proxy.name] for proxy in trace.outputs if isinstance(proxy, TensorProxy)]
            ends = [result for result in results if result.requires_grad]
            torch.autograd.backward(ends, [torch.ones_like(end) for end in ends])
    except Exception as error:  # PyTorch may raise any exception for the program
        return first_line(error) or type(error).__name__
    finally:
        for restore in restores:
            restore()
    return ""


def _run(bsym: BoundSymbol, values: dict[str, Any], mode: FaithfulMode, is_written: Callable[[str], bool]) -> None:
    """Run a bound symbol without data; if it needs values, give it results as recorded in the trace.

    This is sound if autograd tracks none of the results, and nothing writes to memory that they may share.
    """
    try:
        evaluate([bsym], values, call_with_rule)
    except Exception as error:  # PyTorch raises different exceptions for this
        if (
            not needs_value(error)
            or bsym.mutates
            or _is_followed(bsym, values)
            or any(is_written(proxy.name) for proxy in bsym.outputs)
        ):
            raise
        values.update((proxy.name, fake_like(proxy, mode)) for proxy in bsym.tensors)


def _is_followed(bsym: BoundSymbol, values: dict[str, Any]) -> bool:
    """Whether autograd would track a result of a bound symbol."""
    requires_grad_names = any(getattr(values.get(proxy.name), "requires_grad", False) for proxy in bsym.inputs)
    return requires_grad_names and any(map(is_differentiable_proxy, bsym.outputs))


def _given_values(trace: Trace, mode: FaithfulMode) -> dict[str, Any]:
    """Return fakes for the inputs and constants of a trace, its symbolic integers, and values for floats."""
    proxies = [proxy for proxy in trace.inputs if isinstance(proxy, TensorProxy)]
    constants = {name: value for name, value in trace.constants.items() if isinstance(value, torch.Tensor)}
    values = {name: fake_like(tensor_proxy(name, value), mode) for name, value in constants.items()}
    symbols = {proxy.name: proxy.value for proxy in trace.inputs if isinstance(proxy, NumberProxy)}
    floats = {name: value for name, value in symbols.items() if isinstance(value, torch.SymFloat)}
    numbers = {**symbols, **with_stand_ins_alone(floats)}
    fakes = {proxy.name: fake_like(proxy, mode).requires_grad_(proxy.requires_grad) for proxy in proxies}
    return {**values, **numbers, **fakes}


def _asks_for_values(bsym: BoundSymbol) -> bool:
    """Whether a bound symbol reads a value out of a tensor, or checks a value: autograd does not record that."""
    takes = bool(bsym.outputs) and not bsym.tensors
    return bsym.symbol.name in {*EXPECTATIONS, REQUIRE} or (takes and not bsym.mutates)
