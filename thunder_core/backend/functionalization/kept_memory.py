"""Find the tensors of a trace whose in-place writes functionalization must keep, by their alias sets."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

import torch

from thunder_core.tracing.analysis.aliasing import AliasSets
from thunder_core.tracing.analysis.grad_mode import grad_modes, tracking_starts
from thunder_core.tracing.capture.torch_facts.settings import changes_later_results
from thunder_core.tracing.capture.torch_facts.switches import switches_inference_mode
from thunder_core.tracing.capture.torch_facts.writes import is_reshaping, updates_statistics
from thunder_core.tracing.ir.proxy import Proxy, TensorProxy
from thunder_core.tracing.ir.symbol import BoundSymbol
from thunder_core.tracing.ir.trace import Trace
from thunder_core.tracing.ir.tree import leaves
from thunder_core.tracing.library.overlap import span

RESIZING_OPERATIONS = ("aten.set_.", "aten.resize_.", "aten.resize_as_.")
DETACHING_OPERATIONS = ("aten.detach.", "aten.data.")  # autograd does not see writes to their results
# Writes to its result do not increase the version of its input. The final `copy_` of functionalization would.
DATA_OPERATION = "aten.data."
FACTORY = re.compile(r"torch\.ops\.aten\.(new_\w+|\w+_like|zeros|ones|full|empty|rand|randn|eye|arange)\.")
AS_STRIDED = "aten.as_strided."  # may address memory outside of its input


class KeptMemory:
    """Finds the alias sets of a trace whose in-place writes must be kept. A representative stands for an alias set.

    Autograd starts to track some alias sets only at a later write, because they are first used with grad mode off, or
    detached. `kept_representatives` stores the index of this write in `separated_at`. From this write on,
    functionalization gives the written tensor its own memory.
    """

    def __init__(self, trace: Trace, aliasing: AliasSets) -> None:
        self.trace = trace
        self.aliasing = aliasing
        self.tracking_starts = tracking_starts(trace)
        self.tracked = {aliasing.representative(name) for name in self.tracking_starts}
        self.separated_at: dict[str, int] = {}
        self.outside_counts = Counter(
            aliasing.representative(name) for name in (*(p.name for p in trace.inputs), *trace.constants)
        )

    def kept_representatives(self) -> set[str]:
        """Return the representatives of the alias sets whose in-place writes must be kept."""
        representatives = {
            representative
            for representative, count in self.outside_counts.items()
            if count > 1 or representative in self.tracked
        }
        enabled = torch.is_grad_enabled()  # of a trace without bound symbols; otherwise the loop sets the last mode
        bsyms = self.trace.bound_symbols
        tracked_since = self._memory_tracked_since_writes()
        for index, (bsym, enabled) in enumerate(zip(bsyms, grad_modes(bsyms), strict=True)):
            touched = self._detached_memory(bsym) if enabled else self._representatives((*bsym.inputs, *bsym.outputs))
            touched &= self.tracked
            representatives |= {
                representative for representative in touched if index > tracked_since.get(representative, -1)
            }
            self.separated_at |= {
                representative: tracked_since[representative] for representative in touched - representatives
            }
            representatives |= self._kept_for_ordered(bsym) if bsym.ordered else set()
            for operation in bsym.at_level("aten"):
                representatives |= self._kept_for_operation(operation, bsym)
            if switches_inference_mode(bsym) or changes_later_results(bsym):  # later operations give other results
                return {
                    self.aliasing.representative(name) for each in self.trace.bound_symbols for name in each.mutates
                }
        if enabled:
            return representatives
        return representatives | self.tracked  # autograd would not track the final copies

    def _representatives(self, proxies: Iterable[Proxy]) -> set[str]:
        return {self.aliasing.representative(proxy.name) for proxy in proxies}

    def _memory_tracked_since_writes(self) -> dict[str, int]:
        """Return, by alias set, the index of the write at which autograd starts to track the alias set.

        The result has only alias sets without inputs and constants, of which no older tensor except the written one is
        used after this write.
        """
        tracked_since: dict[str, int] = {}
        for name, index in self.tracking_starts.items():
            representative = self.aliasing.representative(name)
            tracked_since[representative] = min(index, tracked_since.get(representative, index))
        defined_at = {p.name: index for index, bsym in enumerate(self.trace.bound_symbols) for p in bsym.defines}
        last_read_at = {p.name: index for index, bsym in enumerate(self.trace.bound_symbols) for p in bsym.inputs}
        last_read_at |= {proxy.name: len(self.trace.bound_symbols) for proxy in self.trace.outputs}
        lasting: dict[str, set[str]] = {}
        for name, index in last_read_at.items():
            representative = self.aliasing.representative(name)
            if defined_at.get(name, -1) < tracked_since.get(representative, -1) <= index:
                lasting.setdefault(representative, set()).add(name)
        return {
            representative: index
            for representative, index in tracked_since.items()
            if index >= 0
            and representative not in self.outside_counts
            and lasting.get(representative) == set(self.trace.bound_symbols[index].mutates)
        }

    def _detached_memory(self, bsym: BoundSymbol) -> set[str]:
        """Return the alias sets of the tensors that a bound symbol detaches, if the detached tensors are used.

        Tensors that the bound symbol has just created do not count.

        Autograd does not track a write through a detached tensor as a write to its source, and vice versa.
        """
        detaching = (
            operation
            for operation in bsym.at_level("aten")
            if is_detaching(operation) and _is_used(operation, bsym) and not detaches_new_tensor(operation, bsym)
        )
        return {
            representative for operation in detaching for representative in self._representatives(operation.outputs)
        }

    def _kept_for_ordered(self, bsym: BoundSymbol) -> set[str]:
        """Return the alias sets to keep because of a bound symbol that changes the state of the process.

        Of a bound symbol without known aten operations, all alias sets that it reads or returns are kept. Of another
        one, they are kept if it writes to a tensor or returns memory of its inputs, unless the default generator is the
        only state that its operations may change.
        """
        if bsym.subsymbols and all(map(_changes_only_default_generator, bsym.at_level("aten"))):
            return set()
        inputs, outputs = self._representatives(bsym.inputs), self._representatives(bsym.outputs)
        only_reads = bool(bsym.subsymbols) and not bsym.mutates and not inputs & outputs
        return set() if only_reads else inputs | outputs

    def _kept_for_operation(self, operation: BoundSymbol, bsym: BoundSymbol) -> set[str]:
        """Return the alias sets to keep because of an aten operation of a bound symbol.

        These are resized memory; memory of the trace's inputs, constants or outputs that an in-place view operation
        such as `unsqueeze_` changes; memory of inputs and constants that `.data` or `as_strided` reads; memory that
        autograd tracks if `as_strided` may leave its input; and running statistics that are updated without a
        declaration in the schema, if autograd tracks an output.
        """
        name = operation.symbol.name.removeprefix("torch.ops.")
        memory = self._representatives(operation.outputs)
        if name.startswith(RESIZING_OPERATIONS):
            return memory
        target = operation.symbol.target
        if isinstance(target, torch._ops.OpOverload) and is_reshaping(target):
            return memory & (
                self.outside_counts.keys() | self._representatives(self.trace.outputs)
            )  # the object is visible outside
        if name.startswith(DATA_OPERATION):
            return memory & self.outside_counts.keys()
        if is_as_strided(operation):
            return memory & (self.outside_counts.keys() | (set() if _stays_within(operation) else self.tracked))
        if updates_statistics(target) and any(proxy.name in self.tracking_starts for proxy in bsym.outputs):
            return {self.aliasing.representative(name) for name in bsym.mutates}
        return set()


def is_as_strided(operation: BoundSymbol) -> bool:
    """Whether an operation is `aten.as_strided`, which may address memory outside of its input."""
    return operation.symbol.name.removeprefix("torch.ops.").startswith(AS_STRIDED)


def _stays_within(operation: BoundSymbol) -> bool:
    """Whether the metadata proves that `as_strided` addresses only elements of its input.

    The result is False if the call has an offset, or if the input has gaps.
    """
    (source, *_), result = operation.args, operation.output
    offset = operation.args[3] if len(operation.args) > 3 else operation.kwargs.get("storage_offset")
    if offset is not None or not isinstance(source, TensorProxy) or not isinstance(result, TensorProxy):
        return False
    source_layout, result_layout = (
        torch.empty_strided(proxy.shape, proxy.stride, device="meta") for proxy in (source, result)
    )
    return bool(torch.ops.aten.is_non_overlapping_and_dense(source_layout)) and span(result_layout) <= span(
        source_layout
    )


def _changes_only_default_generator(operation: BoundSymbol) -> bool:
    """Whether the default random number generator is the only state of the process that an operation may change.

    This holds for ATen operators that take neither a generator nor another object that is no tensor.
    """
    target = operation.symbol.target
    return isinstance(target, torch._ops.OpOverload) and not any(
        isinstance(leaf, torch.Generator | Proxy) and not isinstance(leaf, TensorProxy)
        for leaf in leaves((operation.args, dict(operation.kwargs)))
    )


def is_detaching(operation: BoundSymbol) -> bool:
    """Whether an operation is `aten.detach` or `aten.data`."""
    return operation.symbol.name.removeprefix("torch.ops.").startswith(DETACHING_OPERATIONS)


def detaches_new_tensor(operation: BoundSymbol, bsym: BoundSymbol) -> bool:
    """Whether an operation of a bound symbol detaches a tensor that the same bound symbol creates.

    A factory function (`zeros`, `new_empty`) creates the tensor. Autograd does not track such a tensor, so the detached
    tensor is only an alias of it.
    """
    if not is_detaching(operation):
        return False
    inputs = {proxy.name for proxy in operation.inputs}
    makers = [maker for maker in bsym.at_level("aten") if any(proxy.name in inputs for proxy in maker.defines)]
    return bool(makers) and all(FACTORY.match(maker.symbol.name) for maker in makers)


def _is_used(operation: BoundSymbol, bsym: BoundSymbol) -> bool:
    """Whether another operation of a bound symbol reads the result of an operation, or the bound symbol returns it."""
    outputs = {proxy.name for proxy in operation.outputs}
    readers = (reader for reader in bsym.at_level("aten") if reader is not operation)
    return any(proxy.name in outputs for reader in readers for proxy in reader.inputs) or any(
        proxy.name in outputs for proxy in bsym.outputs
    )
