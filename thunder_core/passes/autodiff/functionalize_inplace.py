"""Functionalization of writes to tensors that autograd tracks, for programs that eager PyTorch differentiates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from thunder_core.backend.runtime.randomness import RandomState
from thunder_core.passes.autodiff.refusals import underivable
from thunder_core.passes.autodiff.rules import is_live
from thunder_core.passes.autodiff.tape import Underivable
from thunder_core.passes.autodiff.vjp import call_with_rule, is_differentiable_proxy
from thunder_core.passes.transforms.functionalize import Functionalize
from thunder_core.tracing.analysis.aliasing import alias_sets, aliased_inputs
from thunder_core.tracing.analysis.grad_mode import grad_modes, tracked_by_autograd
from thunder_core.tracing.capture.failures import needs_value
from thunder_core.tracing.capture.fakes.faithful import FaithfulMode
from thunder_core.tracing.capture.fakes.fake import fake_like, new_mode
from thunder_core.tracing.capture.symbolic.probed_floats import restrict_to_stand_ins
from thunder_core.tracing.capture.torch_facts.settings import settings_of
from thunder_core.tracing.ir.evaluate import evaluate
from thunder_core.tracing.ir.proxy import NumberProxy, TensorProxy, environment_of, tensor_proxy
from thunder_core.tracing.ir.symbol import BoundSymbol, Symbol
from thunder_core.tracing.ir.trace import Trace
from thunder_core.tracing.library.checks import REQUIRE
from thunder_core.tracing.library.control_flow import Body, cond
from thunder_core.tracing.library.objects import CHECK_NAMES

# PyTorch's gradient for the first argument of this operation is wrong: it is zero for the elements that the operation
# leaves unchanged, and not for the elements that it overwrites.
SCATTER_WITH_WRONG_DERIVATIVE = "torch.ops.aten.as_strided_scatter.default"


def functionalize_tracked_writes(trace: Trace) -> Trace | None:
    """Return a functionalized trace that computes the same results; None if the trace must stay as it is.

    The trace must stay as it is if it writes to no tracked tensor, if eager PyTorch raises an error for it
    (`autograd_refuses`), or if the functionalized trace would have a wrong derivative. It must also stay if it applies
    a user's `torch.autograd.Function` whose backward has to run after the program: `autograd_refuses` would run this
    backward now, which may change the program's objects.
    """
    tracked = tracked_by_autograd(trace)
    writes = any(name in tracked for bsym in trace.bound_symbols for name in bsym.mutates)
    if not writes or _has_live_backward(trace) or autograd_refuses(trace):
        return None
    functional = Functionalize()(trace)
    tracked = tracked_by_autograd(functional)
    scatters = (bsym for bsym in functional.bound_symbols if bsym.symbol.name == SCATTER_WITH_WRONG_DERIVATIVE)
    return None if any(bsym.args[0].name in tracked for bsym in scatters) else functional


def require_accepted_writes(trace: Trace) -> None:
    """Raise `Underivable` if a trace writes to tracked tensors while autograd is off, and eager PyTorch refuses it.

    A trace with a backward that has to run after the program is not checked, because the check would run this backward.
    """
    if _has_live_backward(trace):
        return
    tracked = tracked_by_autograd(trace)
    for bsym, enabled in zip(trace.bound_symbols, grad_modes(trace.bound_symbols), strict=True):
        if not enabled and any(name in tracked for name in bsym.mutates):
            if autograd_refuses(trace):
                raise underivable(bsym, "it writes to a tensor that needs a gradient")
            return


def _has_live_backward(trace: Trace) -> bool:
    """Whether a trace applies a user's `torch.autograd.Function` whose backward has to run after the program."""
    return any(is_live(bsym.symbol.target) for bsym in trace.bound_symbols)


def autograd_refuses(trace: Trace) -> bool:
    """Whether eager PyTorch raises an error in the forward or backward of a trace, for example because of a write.

    The bound symbols run on tensors without data, and autograd compares the versions of the tensors that it saved.
    """
    mode = new_mode(environment_of(trace.inputs), estimates_sizes=True)
    restores = [RandomState.now().put_back, *(setting.keep() for setting in settings_of(trace.bound_symbols))]
    try:
        with torch.enable_grad(), torch._C._DisableAutocast(), mode:
            values = _input_values(trace, mode)
            aliasing = alias_sets(trace.bound_symbols, trace.aliases)
            written = {aliasing.representative(name) for bsym in trace.bound_symbols for name in bsym.mutates}
            for bsym in trace.bound_symbols:
                if _only_reads_values(bsym):
                    values.update(_fakes_of_results(bsym, mode))
                else:
                    _run(bsym, values, mode, lambda name: aliasing.representative(name) in written)
            results = [values[proxy.name] for proxy in trace.outputs if isinstance(proxy, TensorProxy)]
            roots = [result for result in results if result.requires_grad]
            torch.autograd.backward(roots, [torch.ones_like(root) for root in roots])
    except Exception:  # PyTorch may raise any exception for the program
        return True
    finally:
        for restore in restores:
            restore()
    return False


def _run(bsym: BoundSymbol, values: dict[str, Any], mode: FaithfulMode, is_written: Callable[[str], bool]) -> None:
    """Run a bound symbol on tensors without data, and add its results to `values`.

    If the bound symbol fails because it needs data, its results are fakes with the metadata in the trace, provided that
    the bound symbol does not write, that autograd tracks no result, and that no bound symbol writes to memory that a
    result may share. In all other cases, the error of the bound symbol is raised.
    """
    if bsym.symbol.target is cond:
        bsym = replace(bsym, symbol=Symbol(bsym.symbol.name, run_both_branches))
    try:
        evaluate([bsym], values, call_with_rule)
    except Exception as error:  # PyTorch raises different exceptions for this
        if (
            not needs_value(error)
            or bsym.mutates
            or _is_tracked(bsym, values)
            or (_may_share_memory(bsym) and any(is_written(proxy.name) for proxy in bsym.outputs))
        ):
            raise
        values.update((proxy.name, fake_like(proxy, mode)) for proxy in bsym.tensors)


def run_both_branches(
    predicate: torch.Tensor, true_branch: Body, false_branch: Body, operands: Sequence[Any]
) -> tuple[torch.Tensor, ...]:
    """Run both branches of a `cond`, so that autograd saves the tensors of both, and select between their results.

    The predicate needs no data.
    """
    is_true = predicate.reshape(()).bool()
    pairs = zip(true_branch(*operands), false_branch(*operands), strict=True)
    return tuple(torch.where(is_true, *pair) for pair in pairs)


def _may_share_memory(bsym: BoundSymbol) -> bool:
    """Whether a result of a bound symbol may share memory with an input or with another result."""
    return len(bsym.outputs) > 1 or any(any(aliased_inputs(operation)) for operation in bsym.at_level("aten"))


def _fakes_of_results(bsym: BoundSymbol, mode: FaithfulMode) -> dict[str, torch.Tensor]:
    """Return fakes for the tensor results of a bound symbol that is not run.

    Raises `Underivable` if autograd might track one of these results.
    """
    if any(map(is_differentiable_proxy, bsym.tensors)):
        raise Underivable(f"`{bsym.symbol.name}` may return a tensor that autograd tracks")
    return {proxy.name: fake_like(proxy, mode) for proxy in bsym.tensors}


def _is_tracked(bsym: BoundSymbol, values: dict[str, Any]) -> bool:
    """Whether autograd would track a result of a bound symbol."""
    reads_tracked = any(getattr(values.get(proxy.name), "requires_grad", False) for proxy in bsym.inputs)
    return reads_tracked and any(map(is_differentiable_proxy, bsym.outputs))


def _input_values(trace: Trace, mode: FaithfulMode) -> dict[str, Any]:
    """Return the values of a trace's inputs and constants by name.

    Tensors are fakes, symbolic integers are themselves, and symbolic floats are replaced by numbers.
    """
    proxies = [proxy for proxy in trace.inputs if isinstance(proxy, TensorProxy)]
    constants = {name: value for name, value in trace.constants.items() if isinstance(value, torch.Tensor)}
    values = {name: fake_like(tensor_proxy(name, value), mode) for name, value in constants.items()}
    symbols = {proxy.name: proxy.value for proxy in trace.inputs if isinstance(proxy, NumberProxy)}
    floats = {name: value for name, value in symbols.items() if isinstance(value, torch.SymFloat)}
    numbers = {**symbols, **restrict_to_stand_ins(floats)}
    fakes = {proxy.name: fake_like(proxy, mode).requires_grad_(proxy.requires_grad) for proxy in proxies}
    return {**values, **numbers, **fakes}


def _only_reads_values(bsym: BoundSymbol) -> bool:
    """Whether a bound symbol only checks values, or only returns numbers read from tensors.

    Autograd records neither.
    """
    returns_numbers = bool(bsym.outputs) and not bsym.tensors
    return bsym.symbol.name in {*CHECK_NAMES, REQUIRE} or (returns_numbers and not bsym.mutates)
