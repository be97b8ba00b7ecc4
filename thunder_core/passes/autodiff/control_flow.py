"""Derivatives of branches and loops, made of the derivatives of the functions that are passed to them.

The backward of a `cond` is another `cond` with the same predicate, whose branches are the backwards of the original
branches. Each backward takes the operands again, and recomputes the intermediates of its branch. Therefore, only the
operands are saved, whichever branch runs. PyTorch's own derivative of `cond` does the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from thunder_core.passes.autodiff.derivation import VJP, Derivation
from thunder_core.passes.autodiff.function_backward import DifferentiatedFunction, FunctionBackward, SweepOf
from thunder_core.passes.autodiff.scan import derive_scan
from thunder_core.passes.autodiff.tape import Underivable
from thunder_core.passes.autodiff.vjp import is_differentiable_proxy
from thunder_core.tracing.capture.torch_facts.symbols import symbol_of
from thunder_core.tracing.ir.proxy import Proxy, TensorProxy
from thunder_core.tracing.ir.symbol import BoundSymbol
from thunder_core.tracing.ir.trace import Trace, numbers_of
from thunder_core.tracing.library.control_flow import cond, map_slices, scan


def derive_control_flow(bsym: BoundSymbol, requires_grad_names: frozenset[str], sweep_of: SweepOf) -> Derivation | None:
    """Return the derivation of a call of a higher-order operator; None if autograd tracks none of its results.

    Raises `Underivable` for an operator that is not in `DERIVATIONS`, and for functions that cannot be derived or
    recomputed. In these cases, autograd has to record the operations of the call.
    """
    if not any(map(is_differentiable_proxy, bsym.outputs)):
        return None
    derive = DERIVATIONS.get(bsym.symbol.target)
    if derive is None:
        raise Underivable("autograd records its operations")
    try:
        return derive(bsym, requires_grad_names, sweep_of)
    except Underivable as error:
        # `missing_formula` is not passed on, because it would blame the whole call for the one operation without a
        # formula.
        raise Underivable(str(error)) from error


@dataclass(eq=False)
class BranchDerivation(Derivation):
    """A call of `cond` with the derivatives of its branches; `indices` are the differentiated operands' positions."""

    branches: tuple[DifferentiatedFunction, ...] = field(repr=False)
    indices: tuple[int, ...]

    def _differentiate(
        self, cotangents: Sequence[TensorProxy | None], accumulated: Sequence[TensorProxy | None]
    ) -> VJP:
        if any(accumulated):
            raise Underivable("its gradients are accumulated separately")
        by_result = {proxy.name: cotangent for proxy, cotangent in zip(self.results, cotangents, strict=True)}
        incoming = [by_result.get(proxy.name) for proxy in self.bsym.output]
        backwards = [branch.backward(incoming, self.indices) for branch in self.branches]
        operands = self.bsym.args[3]
        for backward in backwards:
            indices_without_gradient = [index for index, gradient in enumerate(backward.gradients) if gradient is None]
            backward.fill_zeros(indices_without_gradient, self.differentiated_inputs)
        used = [
            index for index, _ in enumerate(operands) if any(reads_input(backward, index) for backward in backwards)
        ]
        traces, numbers = backward_traces(backwards, used, [backward.function.name for backward in backwards])
        names = tuple(
            None if proxy is None else proxy.with_name(f"%c{index}") for index, proxy in enumerate(cotangents)
        )
        arguments = (*(operands[index] for index in used), *numbers, *(name for name in names if name is not None))
        gradients = tuple(like.with_name(f"%d{index}") for index, like in enumerate(traces[0].output))
        call = BoundSymbol(symbol_of(cond), (self.bsym.args[0], *traces, arguments), {}, gradients, fresh=True)
        return VJP(names, (call,), gradients, (None,) * len(gradients))


def derive_branch(bsym: BoundSymbol, requires_grad_names: frozenset[str], sweep_of: SweepOf) -> BranchDerivation:
    """Return the derivation of a `cond`. As in eager PyTorch, all results require gradients if any operand does."""
    operands = bsym.args[3]
    requires_grad = [isinstance(operand, Proxy) and operand.name in requires_grad_names for operand in operands]
    indices = tuple(index for index, flag in enumerate(requires_grad) if flag)
    return BranchDerivation(
        bsym=bsym,
        differentiated_inputs=tuple(operands[index] for index in indices),
        results=tuple(proxy for proxy in bsym.output if is_differentiable_proxy(proxy)),
        bsyms=(bsym,),
        branches=tuple(DifferentiatedFunction.of(branch, requires_grad, sweep_of) for branch in bsym.args[1:3]),
        indices=indices,
    )


def reads_input(backward: FunctionBackward, index: int) -> bool:
    """Whether the backward of a function reads the function's input at an index."""
    return backward.function.inputs[index].name in backward.names_read()


def backward_traces(
    backwards: Sequence[FunctionBackward], used: Sequence[int], names: Sequence[str]
) -> tuple[list[Trace], tuple[Proxy, ...]]:
    """Return the backwards as traces that take the inputs at the indices `used`, symbolic numbers, and cotangents.

    The second result has these symbolic numbers: all that any backward reads and that are not among the inputs.
    """
    traces = [
        Trace(
            name=f"{name}_backward",
            inputs=(*(backward.function.inputs[index] for index in used), *backward.cotangents),
            bound_symbols=tuple(backward.bsyms),
            output=tuple(backward.gradients),
            made_by="differentiate",
        )
        for backward, name in zip(backwards, names, strict=True)
    ]
    numbers = numbers_of(*traces)
    index = len(used)
    inputs = [(*trace.inputs[:index], *numbers, *trace.inputs[index:]) for trace in traces]
    return [replace(trace, inputs=branch_inputs) for trace, branch_inputs in zip(traces, inputs, strict=True)], numbers


DERIVATIONS: dict[Callable[..., Any], Callable[[BoundSymbol, frozenset[str], SweepOf], Derivation | None]] = {
    cond: derive_branch,
    scan: derive_scan,
    map_slices: derive_scan,
}
