"""The backward of a function passed to a higher-order operator (`cond`, `scan`).

The backward recomputes the function's intermediate values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch

from thunder_core.passes.autodiff.derivation import fresh_names
from thunder_core.passes.autodiff.functionalize_inplace import functionalize_tracked_writes
from thunder_core.passes.autodiff.refusals import require_unwritten
from thunder_core.passes.autodiff.step import Step
from thunder_core.passes.autodiff.tape import Underivable
from thunder_core.passes.autodiff.vjp import bsyms_for
from thunder_core.tracing.analysis.aliasing import alias_sets
from thunder_core.tracing.analysis.grad_mode import sets_grad_mode
from thunder_core.tracing.capture.fakes.fake import empty, new_mode
from thunder_core.tracing.capture.symbolic.shape_env import number_of
from thunder_core.tracing.capture.torch_facts.symbols import symbol_of
from thunder_core.tracing.ir.proxy import NumberProxy, TensorProxy, environment_of, tensor_proxy
from thunder_core.tracing.ir.sizes import comparison_keys
from thunder_core.tracing.ir.symbol import BoundSymbol
from thunder_core.tracing.ir.trace import Trace
from thunder_core.tracing.ir.tree import replace_leaves


class Sweep(Protocol):
    """The reverse sweep over a function: `thunder_core.passes.autodiff.reverse_sweep.ReverseSweep`."""

    steps: list[Step]
    requires_grad_names: set[str]

    def apply_vjps(self, cotangents: Mapping[str, TensorProxy]) -> tuple[list[BoundSymbol], dict[str, TensorProxy]]:
        """Return the bound symbols that compute gradients from the `cotangents`, and all gradients by tensor name."""

    def forward(self, saved: Sequence[TensorProxy]) -> Trace:
        """Return the trace of the function, which also returns the tensors `saved` after its results."""


SweepOf = Callable[[Trace, Iterator[str]], Sweep]


@dataclass(eq=False)
class FunctionBackward:
    """The bound symbols that compute gradients of a function's inputs.

    The bound symbols read the function's inputs and the gradients of its results. `cotangents` are the gradients of all
    results that have one. `gradients` has, for each differentiated input, a contiguous tensor in its own memory, or
    None if no result depends on the input.
    """

    function: Trace
    names: Iterator[str]
    cotangents: tuple[TensorProxy, ...]
    bsyms: list[BoundSymbol]
    gradients: list[TensorProxy | None]

    def call(self, target: Callable[..., Any], *args: Any, **kwargs: Any) -> TensorProxy:
        """Append a call of an operation that returns one tensor, and return its proxy."""
        bsym = bind_operation(next(self.names), target, *args, **kwargs)
        self.bsyms.append(bsym)
        proxy: TensorProxy = bsym.output
        return proxy

    def fill_zeros(self, indices: Sequence[int], like: Sequence[TensorProxy]) -> None:
        """Replace the gradients at these indices by zeros; `like` are the differentiated inputs."""
        for index in indices:
            self.gradients[index] = zeros_of(self.call, like[index])

    def names_read(self) -> set[str]:
        """Return the names of the values that the bound symbols read."""
        return {proxy.name for bsym in self.bsyms for proxy in bsym.inputs}


@dataclass(eq=False)
class DifferentiatedFunction:
    """A function whose inputs at some indices require gradients, with the reverse sweep over it."""

    function: Trace
    sweep: Sweep
    names: Iterator[str]

    @classmethod
    def of(cls, function: Trace, requires_grad: Sequence[bool], sweep_of: SweepOf) -> DifferentiatedFunction:
        """Prepare a function for differentiation; raise `Underivable` if it cannot be run again in the backward."""
        inputs = tuple(
            replace(proxy, requires_grad=flag) if isinstance(proxy, TensorProxy) else proxy
            for proxy, flag in zip(function.inputs, requires_grad, strict=True)
        )
        if any(bsym.ordered and not sets_grad_mode(bsym) for bsym in function.bound_symbols):
            raise Underivable("the function passed to a higher-order operator draws random numbers or changes a state")
        if len({proxy.name for proxy in function.output}) < len(function.output):
            raise Underivable("the function passed to a higher-order operator returns the same tensor twice")
        function = replace(function, inputs=inputs)
        function = functionalize_tracked_writes(function) or function
        names = fresh_names(function)
        return cls(function, sweep_of(function, names), names)

    def backward(self, cotangents: Sequence[TensorProxy | None], indices: Sequence[int]) -> FunctionBackward:
        """Return the bound symbols that compute the gradients of the inputs at `indices`.

        `cotangents` has one gradient, or None, for each result of the function.
        """
        renamed_cotangents = [None if proxy is None else proxy.with_name(next(self.names)) for proxy in cotangents]
        seeds = {
            proxy.name: cotangent
            for proxy, cotangent in zip(self.function.output, renamed_cotangents, strict=True)
            if cotangent is not None and proxy.name in self.sweep.requires_grad_names
        }
        bsyms, by_name = self.sweep.apply_vjps(seeds)
        gradients = [by_name.get(self.function.inputs[index].name) for index in indices]
        saved = external_inputs(bsyms, {proxy.name for proxy in seeds.values()})
        require_unwritten(self.sweep.steps, {proxy.name for proxy in saved}, self.function.aliases)
        bsyms = [*self.sweep.forward(saved).bound_symbols, *bsyms]
        present_cotangents = tuple(cotangent for cotangent in renamed_cotangents if cotangent is not None)
        backward = FunctionBackward(self.function, self.names, present_cotangents, bsyms, gradients)
        _copy_into_own_contiguous_memory(backward)
        backward.bsyms = bsyms_for(backward.bsyms, backward.gradients)
        return backward


def zeros_of(call: Callable[..., TensorProxy], like: TensorProxy) -> TensorProxy:
    """Return contiguous zeros of the shape, dtype and device of a tensor, made by `call(target, *args, **kwargs)`."""
    sizes = [number_of(size) for size in like.shape]
    return call(torch.ops.aten.zeros.default, sizes, dtype=like.dtype, device=like.device)


def bind_operation(name: str, target: Callable[..., Any], *args: Any, **kwargs: Any) -> BoundSymbol:
    """Return the bound symbol of a call. The call has one result, which gets this name.

    The operation runs on fake tensors to find the metadata of the result.
    """
    proxies = [leaf for leaf in (*args, *kwargs.values()) if isinstance(leaf, TensorProxy)]

    def value(leaf: object) -> Any:
        return empty(leaf) if isinstance(leaf, TensorProxy) else leaf.value if isinstance(leaf, NumberProxy) else leaf

    numbers = [leaf for sizes in args if isinstance(sizes, list) for leaf in sizes if isinstance(leaf, NumberProxy)]
    with new_mode(environment_of((*proxies, *numbers))):
        values, named = replace_leaves((args, kwargs), value)
        result = tensor_proxy(name, target(*values, **named))
    return BoundSymbol(symbol_of(target), args, kwargs, result)


def external_inputs(bsyms: Sequence[BoundSymbol], available: set[str]) -> list[TensorProxy]:
    """Return the tensors that the bound symbols read but do not define, and that are not in `available`."""
    read = {p.name: p for bsym in bsyms for p in bsym.inputs if isinstance(p, TensorProxy)}
    defined = {proxy.name for bsym in bsyms for proxy in bsym.defines} | available
    return [proxy for name, proxy in read.items() if name not in defined]


def _copy_into_own_contiguous_memory(backward: FunctionBackward) -> None:
    """Copy each gradient that is not contiguous, has a lazy conjugate or negative bit, or shares memory.

    A gradient may share memory with another gradient or with an input of the backward.
    """
    aliasing = alias_sets(backward.bsyms, backward.function.aliases)
    arguments = (*backward.function.inputs, *backward.cotangents)
    representatives = {aliasing.representative(proxy.name) for proxy in arguments}
    for index, gradient in enumerate(backward.gradients):
        if gradient is None:
            continue
        memory = aliasing.representative(gradient.name)
        copy = bind_operation("", torch.ops.aten.clone.default, gradient, memory_format=torch.contiguous_format)
        is_contiguous = comparison_keys(copy.output.stride) == comparison_keys(gradient.stride)
        if memory in representatives or not is_contiguous or not gradient.is_resolved:
            copy = replace(copy, output=copy.output.with_name(next(backward.names)))
            backward.bsyms.append(copy)
            backward.gradients[index] = copy.output
        representatives.add(memory)
