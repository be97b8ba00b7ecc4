"""Sub-traces: separate traces of the functions that a program passes to a higher-order operator."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from thunder_core.foundation.errors import OperationFailed
from thunder_core.frontend.acquire.batches import BatchedTensors
from thunder_core.frontend.acquire.held_objects import SideEffects
from thunder_core.frontend.acquire.outside.recording import Recording
from thunder_core.tracing.capture.torch_facts.autograd_nodes import tracked_from_call
from thunder_core.tracing.capture.torch_facts.graph import memory_of
from thunder_core.tracing.capture.torch_facts.modes import without_our_functions, without_recording
from thunder_core.tracing.capture.torch_facts.symbols import symbol_of
from thunder_core.tracing.capture.transform_levels import is_wrapped
from thunder_core.tracing.ir.proxy import Proxy, TensorProxy, tensor_proxy
from thunder_core.tracing.ir.symbol import BoundSymbol
from thunder_core.tracing.ir.trace import Trace
from thunder_core.tracing.ir.tree import leaves

FIX_IN_TRANSFORM = "call the operator outside the transform, or write the branch or loop in Python"
FIX = "compute the value before the operator is called, or write the branch or loop in Python"


@dataclass(frozen=True)
class SubtraceRecording:
    """The bound symbols that a function of the program recorded, and the fakes that it returned."""

    bound_symbols: tuple[BoundSymbol, ...]
    results: tuple[torch.Tensor, ...]


class Subtraces:
    """Records functions of a program separately, for one call of the higher-order operator named `operator`."""

    def __init__(self, run: Recording, operator: str) -> None:
        self.run = run
        self.recorder = run.recorder
        self.operator = operator
        levels = self.recorder.levels.batches
        if levels is None:
            raise self.refuse("is traced inside a derivative of torch.func (grad, vjp, jvp)", FIX_IN_TRANSFORM)
        self.batches = BatchedTensors(run, levels)

    def refuse(self, reason: str, fix: str = FIX) -> OperationFailed:
        """Return the error for a function that cannot be a sub-trace, and store the error."""
        where = self.run.location().source
        return self.recorder.fail(
            OperationFailed(f"a function passed to `{self.operator}` {reason}", fix=fix, where=where)
        )

    def placeholder(self, like: TensorProxy) -> torch.Tensor:
        """Return a new tensor with the metadata of a proxy, for an argument or a result of the function."""
        proxy = replace(like, name=self.recorder.tensors.next_name())
        with without_our_functions():
            fake = self.recorder.tensors.new_tensor(proxy)
            return tracked_from_call(fake) if proxy.requires_grad else fake

    def fake(self, value: object) -> Any:
        """Return the physical fake of a tensor that the program sees, or another value unchanged."""
        if not isinstance(value, torch.Tensor):
            return value
        physical = self.batches.physical(value) if is_wrapped(value) else value
        with without_our_functions():
            return self.recorder.tensors.fake(physical)

    def record(
        self, function: Callable[..., Any], run: Callable[[], Sequence[Any]], inputs: Sequence[torch.Tensor]
    ) -> SubtraceRecording:
        """Run a function of the program, and move the bound symbols that it recorded out of the program.

        `run` calls the function, and `inputs` are the tensors that it is called with. Raises `OperationFailed` for a
        function that asks for values of tensors, changes objects or tensors that it has not created, draws random
        numbers outside of PyTorch, or returns memory that it does not own.
        """
        start, reads_before = len(self.recorder.bound_symbols), len(self.recorder.data_dependent.bsyms_read)
        effects = SideEffects(self.run, function)
        with without_our_functions():
            torch.clear_autocast_cache()  # the function may not reuse earlier casts
        results = tuple(run())
        with without_our_functions():
            torch.clear_autocast_cache()
        if effects.change_objects():
            raise self.refuse("changes an object from outside, or prints", "return the new value instead")
        if effects.draw_numbers():
            raise self.refuse("draws random numbers outside of PyTorch", "draw them before, or by PyTorch")
        bsyms = tuple(self.recorder.bound_symbols[start:])
        self.recorder.replace_from(start, ())
        if len(self.recorder.data_dependent.bsyms_read) != reads_before:
            raise self.refuse("reads the value of a tensor")
        defined = {proxy.name for bsym in bsyms for proxy in bsym.defines}
        if self._writes_outside(bsyms, defined):
            raise self.refuse("writes to a tensor from outside", "write to a copy: `x.clone().add_(1)`")
        self._require_own_memory(results, inputs, defined)
        return SubtraceRecording(bsyms, results)

    def _writes_outside(self, bsyms: Sequence[BoundSymbol], defined: set[str]) -> bool:
        """Whether bound symbols write to the memory of a tensor that they have not created, such as to a view of it."""
        written = {name for bsym in bsyms for name in bsym.mutates}
        if not written:
            return False
        read = {proxy.name for bsym in bsyms for proxy in bsym.inputs} - defined
        return not written <= defined or not self.memories(written).isdisjoint(self.memories(read))

    def memories(self, names: Iterable[str]) -> set[int]:
        """Return the identities of the memory of the tensors with these names."""
        tensors = (self.recorder.tensors.tensor_named(name) for name in names)
        return {memory_of(self.fake(tensor)) for tensor in tensors if tensor is not None}

    def _require_own_memory(
        self, results: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], defined: set[str]
    ) -> None:
        """Raise `OperationFailed` for results that share memory with each other, or with tensors of the program."""
        fakes = [self.recorder.tensors.fake(tensor) for tensor in results]
        if any(self.recorder.tensors.proxy(fake).name not in defined for fake in fakes):
            raise self.refuse("returns a tensor from outside", "return a copy: `x.clone()`")
        memories = [memory_of(fake) for fake in fakes]
        memories_before = {memory_of(self.recorder.tensors.fake(tensor)) for tensor in inputs}
        memories_before |= {
            memory_of(self.recorder.tensors.fake(tensor)) for tensor, _ in self.recorder.inputs.values()
        }
        if len(set(memories)) < len(memories) or not memories_before.isdisjoint(memories):
            raise self.refuse("returns tensors that share memory", "return copies: `x.clone()`")

    def inline(self, recordings: Iterable[SubtraceRecording]) -> None:
        """Append the bound symbols of recordings to the bound symbols of the program."""
        for recording in recordings:
            self.recorder.replace_from(len(self.recorder.bound_symbols), recording.bound_symbols)

    def to_program(self, physical: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """Return the logical tensors of physical tensors."""
        return tuple(self.batches.logical(self.recorder.tensors.to_real(tensor)) for tensor in physical)

    def trace(
        self, recording: SubtraceRecording, name: str, inputs: Sequence[Proxy], operands: Sequence[Proxy]
    ) -> Trace:
        """Return the sub-trace of a recording: a function of the inputs and of the operands that it also reads."""
        output = tuple(self.recorder.proxy_of(tensor) for tensor in recording.results)
        return Trace(
            name=self.run.name_function(f"{name}_{self.recorder.tensors.next_name()[1:]}"),
            inputs=(*inputs, *operands),
            bound_symbols=recording.bound_symbols,
            output=output,
        )

    def operands(self, recordings: Iterable[SubtraceRecording], inputs: Sequence[torch.Tensor]) -> tuple[Proxy, ...]:
        """Return the tensors that the functions read besides their arguments, in the order of the first reads."""
        operands: dict[str, Proxy] = {}
        for recording in recordings:
            defined = {self.recorder.proxy_of(tensor).name for tensor in inputs}
            for bsym in recording.bound_symbols:
                operands |= {proxy.name: proxy for proxy in bsym.inputs if proxy.name not in defined}
                defined |= {proxy.name for proxy in bsym.defines}
        return tuple(operands.values())

    def like(self, result: torch.Tensor, *, requires_grad: bool) -> torch.Tensor:
        """Return a new tensor for a result of the operator, with the metadata of a tensor that a function returned.

        Integers and booleans require no gradient.
        """
        tracked = requires_grad and (result.is_floating_point() or result.is_complex())
        return self.placeholder(replace(self.recorder.proxy_of(result), requires_grad=tracked))

    def stack(self, result: torch.Tensor, length: int | torch.SymInt, *, requires_grad: bool) -> torch.Tensor:
        """Return a new tensor for a result of the operator: `length` tensors with the metadata of `result`, stacked."""
        row = self.recorder.tensors.fake(result)
        with without_recording(), torch._C.DisableTorchFunction(), self.recorder.tensors.mode:
            stack = torch.empty((length, *row.shape), dtype=row.dtype, device=row.device)
        tracked = requires_grad and (stack.is_floating_point() or stack.is_complex())
        with without_our_functions():  # the program asks for no strides
            proxy = tensor_proxy("", stack)
        return self.placeholder(replace(proxy, requires_grad=tracked))

    def emit(self, target: Callable[..., Any], args: tuple[Any, ...], results: Sequence[torch.Tensor]) -> None:
        """Record the call of an operator. The call is ordered if a bound symbol of one of its sub-traces is ordered."""
        bodies = [leaf for leaf in leaves(args) if isinstance(leaf, Trace)]
        ordered = any(bsym.ordered for body in bodies for bsym in body.bound_symbols)
        output = tuple(self.recorder.proxy_of(result) for result in results)
        self.recorder.emit(BoundSymbol(symbol_of(target), args, {}, output, fresh=True, ordered=ordered))
