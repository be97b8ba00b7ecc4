"""Derivatives of `scan` and `map`: a reverse scan over the slices, which runs the backward of the function.

A scan calls `carry, row = f(carry, x, operands)` for one slice x after another. The backward is a scan from the last
slice to the first. It carries the gradient of the carry and the accumulated gradients of the operands; its rows are the
gradients of the slices. The backward recomputes the intermediates of f from the carries, so the forward also returns
the stacked carries. PyTorch's own derivative of `scan` does the same.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch

from thunder_core.passes.autodiff.derivation import VJP, Derivation
from thunder_core.passes.autodiff.function_backward import (
    DifferentiatedFunction,
    FunctionBackward,
    SweepOf,
    bind_operation,
    zeros_of,
)
from thunder_core.passes.autodiff.tape import Underivable
from thunder_core.passes.autodiff.vjp import is_differentiable_proxy
from thunder_core.tracing.capture.symbolic.shape_env import number_of
from thunder_core.tracing.capture.torch_facts.symbols import symbol_of
from thunder_core.tracing.ir.proxy import Proxy, TensorProxy, slice_proxy
from thunder_core.tracing.ir.symbol import BoundSymbol
from thunder_core.tracing.ir.trace import Trace, numbers_of, with_subtraces
from thunder_core.tracing.library.control_flow import map_slices, scan

aten = torch.ops.aten
Cotangents = Sequence[TensorProxy | None]


@dataclass(frozen=True)
class ScanCall:
    """The arguments of a call of `scan`, or of `map_slices`, which is a scan without carries."""

    function: Trace
    initial: tuple[TensorProxy, ...]
    slices: tuple[TensorProxy, ...]
    operands: tuple[Any, ...]

    @classmethod
    def of(cls, bsym: BoundSymbol) -> ScanCall:
        """Return the arguments of a bound symbol."""
        function, *initial, slices, operands = bsym.args
        return cls(function, initial[0] if initial else (), slices, operands)

    @cached_property
    def inputs(self) -> tuple[Any, ...]:
        """The arguments for the inputs of the function, in order: carries, slices, operands."""
        return (*self.initial, *self.slices, *self.operands)

    def is_slice(self, index: int) -> bool:
        """Whether the input of the function at an index is a slice."""
        return 0 <= index - len(self.initial) < len(self.slices)

    def is_operand(self, index: int) -> bool:
        """Whether the input of the function at an index is the same for all slices."""
        return index >= len(self.initial) + len(self.slices)

    def stack(self, name: str, row: TensorProxy) -> TensorProxy:
        """Return the proxy of a stack of rows, one for each slice."""
        sizes = [number_of(size) for size in (self.slices[0].shape[0], *row.shape)]
        stack: TensorProxy = bind_operation(
            name, aten.empty.memory_format, sizes, dtype=row.dtype, device=row.device
        ).output
        return stack

    def bound_symbol(self, outputs: Sequence[TensorProxy]) -> BoundSymbol:
        """Return the bound symbol of the call, with these results."""
        rest = (tuple(self.slices), tuple(self.operands))
        args = (self.function, tuple(self.initial), *rest) if self.initial else (self.function, *rest)
        target = scan if self.initial else map_slices
        return BoundSymbol(symbol_of(target), args, {}, tuple(outputs), fresh=True)


@dataclass(eq=False)
class ScanDerivation(Derivation):
    """A call of `scan` or `map` with the derivative of its function.

    `indices` are the positions of the differentiated inputs. `stacks` has the carries that the backward of the function
    reads: it maps the position of a carry to the stack of the carry's values before each step.
    """

    call: ScanCall = field(repr=False)
    function: DifferentiatedFunction = field(repr=False)
    indices: tuple[int, ...]
    stacks: dict[int, TensorProxy]

    def _differentiate(self, cotangents: Cotangents, accumulated: Cotangents) -> VJP:
        if any(accumulated):
            raise Underivable("a scan cannot add to gradients that were accumulated before")
        names = tuple(
            None if proxy is None else proxy.with_name(f"%c{index}") for index, proxy in enumerate(cotangents)
        )
        by_result = {proxy.name: cotangent for proxy, cotangent in zip(self.results, names, strict=True)}
        backward = ReverseScan(self, [by_result.get(proxy.name) for proxy in self.bsym.output])
        return VJP(names, tuple(backward.bsyms), backward.gradients, (None,) * len(self.indices))


class ReverseScan:
    """The bound symbols of the backward of a `scan`, and the `gradients` of the differentiated inputs.

    `cotangents` are the cotangents of the call's results: first of the final carries, then of the stacked rows.
    """

    def __init__(self, derivation: ScanDerivation, cotangents: Cotangents) -> None:
        self.derivation, self.call = derivation, derivation.call
        self.bsyms: list[BoundSymbol] = []
        self._names: Iterator[str] = (f"%b{count}" for count in itertools.count())
        count = len(self.call.initial)
        carries = {
            index: self._last_gradient(proxy, cotangents[index])
            for index, proxy in enumerate(self.call.initial)
            if is_differentiable_proxy(proxy)
        }
        stacks = [None if proxy is None else self._reverse(proxy) for proxy in cotangents[count:]]
        rows = [None if stack is None else slice_proxy(stack) for stack in stacks]
        backward = self._backward_of_function([*(carries.get(index) for index in range(count)), *rows], [*carries])
        self.gradients = self._append_scan(backward, carries, [stack for stack in stacks if stack is not None])

    def _append(self, target: Callable[..., Any], *args: Any, **kwargs: Any) -> TensorProxy:
        """Append a call of an operation that returns one tensor, and return its proxy."""
        self.bsyms.append(bind_operation(next(self._names), target, *args, **kwargs))
        proxy: TensorProxy = self.bsyms[-1].output
        return proxy

    def _zeros(self, like: TensorProxy) -> TensorProxy:
        return zeros_of(self._append, like)

    def _last_gradient(self, carry: TensorProxy, cotangent: TensorProxy | None) -> TensorProxy:
        """Return the gradient of a final carry as a contiguous tensor: its cotangent, or zeros."""
        if cotangent is None:
            return self._zeros(carry)
        return self._append(aten.clone.default, cotangent, memory_format=torch.contiguous_format)

    def _reverse(self, stack: TensorProxy) -> TensorProxy:
        """Return a stack in reverse order; without carries, the order does not matter, and the stack is unchanged."""
        return self._append(aten.flip.default, stack, [0]) if self.call.initial else stack

    def _backward_of_function(self, cotangents: Cotangents, carries: list[int]) -> FunctionBackward:
        """Return the backward of the function, with gradients of the carries, then of the other `indices`."""
        function, indices = self.derivation.function, self._differentiated_indices(carries)
        backward = function.backward(cotangents, indices)
        missing = [number for number, gradient in enumerate(backward.gradients) if gradient is None]
        backward.fill_zeros(missing, [function.function.inputs[index] for index in indices])  # type: ignore[misc]
        return backward

    def _differentiated_indices(self, carries: list[int]) -> list[int]:
        return [*carries, *(index for index in self.derivation.indices if index >= len(self.call.initial))]

    def _append_scan(
        self, backward: FunctionBackward, carries: dict[int, TensorProxy], cotangents: Sequence[TensorProxy]
    ) -> tuple[TensorProxy, ...]:
        """Append the reverse scan, and return the gradients of the differentiated inputs."""
        call = self.call
        gradients: dict[int, Any] = dict(zip(self._differentiated_indices([*carries]), backward.gradients, strict=True))
        accumulators = {
            index: gradients[index].with_name(next(backward.names)) for index in gradients if call.is_operand(index)
        }
        slice_indices = [index for index in gradients if call.is_slice(index)]
        totals = [backward.call(aten.add.Tensor, total, gradients[index]) for index, total in accumulators.items()]
        results = (*(gradients[index] for index in carries), *totals, *(gradients[index] for index in slice_indices))
        sliced, operands = self._indices_read(backward)
        trace = self._reverse_function(backward, len(carries), [*accumulators.values()], sliced, operands, results)
        numbers = numbers_of(trace)
        reverse = ScanCall(
            replace(trace, inputs=(*trace.inputs, *numbers)),
            (*carries.values(), *(self._zeros(call.inputs[index]) for index in accumulators)),
            (*(self._reverse(self._stack_of_input(index)) for index in sliced), *cotangents),
            (*(call.inputs[index] for index in operands), *numbers),
        )
        count = len(carries) + len(accumulators)
        outputs = [proxy.with_name(next(self._names)) for proxy in trace.output[:count]]
        outputs += [reverse.stack(next(self._names), proxy) for proxy in trace.output[count:]]
        self.bsyms.append(reverse.bound_symbol(outputs))
        by_index = dict(zip((*carries, *accumulators, *slice_indices), outputs, strict=True))
        by_index |= {index: self._reverse(by_index[index]) for index in slice_indices}
        return tuple(by_index[index] for index in self.derivation.indices)

    def _indices_read(self, backward: FunctionBackward) -> tuple[list[int], list[int]]:
        """Return the indices of the inputs that the backward of the function reads.

        The first list has the indices of carries and slices: at least one, because a scan needs a slice for its length.
        The second list has the indices of operands.
        """
        names_read = backward.names_read()
        inputs = self.derivation.function.function.inputs
        read = [index for index, proxy in enumerate(inputs) if proxy.name in names_read]
        sliced = [index for index in read if not self.call.is_operand(index)]
        return sliced or [len(self.call.initial)], [index for index in read if self.call.is_operand(index)]

    def _reverse_function(
        self,
        backward: FunctionBackward,
        carries: int,
        accumulators: Sequence[TensorProxy],
        sliced: Sequence[int],
        operands: Sequence[int],
        results: tuple[Any, ...],
    ) -> Trace:
        """Return the function of the reverse scan.

        Its inputs are the gradients of the carries, the accumulators, the slices and stacked carries, the cotangents of
        the rows, and the operands.
        """
        inputs = self.derivation.function.function.inputs
        return Trace(
            name=f"{self.call.function.name}_backward",
            inputs=(
                *(*backward.cotangents[:carries], *accumulators),
                *(*(inputs[index] for index in sliced), *backward.cotangents[carries:]),
                *(inputs[index] for index in operands),
            ),
            bound_symbols=tuple(backward.bsyms),
            output=results,
            made_by="differentiate",
        )

    def _stack_of_input(self, index: int) -> TensorProxy:
        """Return the stack of all values that the function's input at an index has in the loop."""
        return self.call.inputs[index] if self.call.is_slice(index) else self.derivation.stacks[index]


def derive_scan(bsym: BoundSymbol, requires_grad_names: frozenset[str], sweep_of: SweepOf) -> ScanDerivation:
    """Return the derivation of a call of `scan` or `map`, whose results all require gradients if an input does."""
    call = ScanCall.of(bsym)
    count = len(call.initial)
    requires_grad = [isinstance(value, Proxy) and value.name in requires_grad_names for value in call.inputs]
    # If the function combines a carry with operands that require gradients, the carry requires one from the second step
    # on.
    tracked = [is_differentiable_proxy(proxy) for proxy in call.initial] + requires_grad[count:]
    function = DifferentiatedFunction.of(call.function, tracked, sweep_of)
    read = indices_of_read_carries(function, tracked, count)
    copies = [bind_operation(next(function.names), aten.clone.default, call.function.inputs[index]) for index in read]
    stacks = {index: call.stack(f"%s{index}", copy.output) for index, copy in zip(read, copies, strict=True)}
    stacking = call.function.having(
        (*call.function.bound_symbols, *copies),
        made_by="differentiate",
        output=(*call.function.output, *(copy.output for copy in copies)),
    )
    output = (*bsym.output, *stacks.values())
    forward = replace(with_subtraces(bsym, lambda _: stacking), output=output) if read else bsym
    indices = tuple(index for index, flag in enumerate(requires_grad) if flag)
    return ScanDerivation(
        bsym=bsym,
        differentiated_inputs=tuple(call.inputs[index] for index in indices),
        results=tuple(proxy for proxy in bsym.output if is_differentiable_proxy(proxy)),
        bsyms=(forward,),
        call=call,
        function=function,
        indices=indices,
        stacks=stacks,
    )


def indices_of_read_carries(function: DifferentiatedFunction, tracked: Sequence[bool], count: int) -> list[int]:
    """Return the indices of the carries that the backward of a function reads if all results have cotangents."""
    cotangents = [proxy if is_differentiable_proxy(proxy) else None for proxy in function.function.output]
    indices = [index for index, flag in enumerate(tracked) if flag]
    read = function.backward(cotangents, indices).names_read()
    return [index for index, proxy in enumerate(function.function.inputs[:count]) if proxy.name in read]
