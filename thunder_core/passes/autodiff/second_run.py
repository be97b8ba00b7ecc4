"""A second run of a program that writes to its inputs: on copies of the inputs, with their values before the writes.

Autograd records the second run, for derivatives without a compiled backward, such as derivatives of derivatives. Before
the first run, written inputs are copied if the results depend on them. For example, the results of a BatchNorm in
training do not depend on its running statistics, so these are not copied.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from thunder_core.backend.runtime.autograd_signature import AutogradSignature
from thunder_core.tracing.analysis.aliasing import alias_sets, names_written_to
from thunder_core.tracing.capture.torch_facts.writes import updates_statistics, written_values
from thunder_core.tracing.ir.proxy import TensorProxy
from thunder_core.tracing.ir.sizes import generic_hint_of
from thunder_core.tracing.ir.symbol import BoundSymbol
from thunder_core.tracing.ir.trace import Trace
from thunder_core.tracing.ir.tree import leaves
from thunder_core.tracing.library.objects import CHECK_NAMES

MAXIMUM_BYTES = 64 << 20  # limit for the copies that each call makes for a derivative that may never be requested


def written_inputs(trace: Trace, results: Iterable[int]) -> tuple[tuple[int, ...], tuple[int, ...] | None]:
    """Return the indices of the inputs that a trace writes to, and of the written inputs that the results depend on.

    The second result is None if the trace cannot run on copies, because written inputs overlap with other inputs, or
    because the inputs are too large to be copied in each call.
    """
    names = names_written_to(trace)
    written = tuple(index for index, proxy in enumerate(trace.inputs) if proxy.name in names)
    if any(trace.inputs[index].name in group for index in written for group in trace.aliases):
        return written, None
    needed = frozenset[str]().union(*names_of_needed_inputs(trace, results))
    indices = tuple(index for index in written if trace.inputs[index].name in needed)
    proxies = [trace.inputs[index] for index in indices]
    is_small = sum(map(_bytes_of, proxies)) <= MAXIMUM_BYTES
    return written, indices if is_small else None


def names_of_needed_inputs(trace: Trace, results: Iterable[int]) -> list[frozenset[str]]:
    """Return, for each of these results, the names of the inputs whose values before the first write affect it.

    Inputs that affect a check of the trace affect each result.
    """
    aliasing = alias_sets(trace.bound_symbols, trace.aliases)
    sources: dict[str, frozenset[str]] = {}

    def read(name: str) -> frozenset[str]:
        return sources.get(aliasing.representative(name), frozenset())

    for proxy in trace.inputs:
        sources[aliasing.representative(proxy.name)] = read(proxy.name) | {proxy.name}
    checked: frozenset[str] = frozenset()
    for operation in trace.at_level("aten"):
        written = _names_written(operation)
        # the results of the operation do not depend on its running statistics
        skipped = written if updates_statistics(operation.symbol.target) else ()
        values = frozenset[str]().union(*(read(proxy.name) for proxy in operation.inputs if proxy.name not in skipped))
        if operation.symbol.name in CHECK_NAMES or not (operation.tensors or written):
            checked |= values
        for name in (*(proxy.name for proxy in operation.outputs), *written):
            sources[aliasing.representative(name)] = read(name) | values
    return [checked | read(trace.output[index].name) for index in results]


def _names_written(operation: BoundSymbol) -> tuple[str, ...]:
    """Return the names that an operation writes to."""
    target = operation.symbol.target
    if not isinstance(target, torch._ops.OpOverload):
        return operation.mutates
    values = written_values(target, operation.args, operation.kwargs)
    return tuple(leaf.name for leaf in leaves(list(values)) if isinstance(leaf, TensorProxy))


def _bytes_of(proxy: object) -> int:
    if not isinstance(proxy, TensorProxy):
        return 0
    elements = 1
    for size in proxy.shape:
        elements *= generic_hint_of(size)
    return elements * proxy.dtype.itemsize


def former_values(signature: AutogradSignature, inputs: Sequence[Any]) -> dict[int, torch.Tensor]:
    """Return copies of the inputs that a second run needs as they are before the writes, by index."""
    return {index: inputs[index].detach().clone() for index in signature.kept or ()}


def inputs_before_writes(
    signature: AutogradSignature, inputs: Sequence[Any], former: dict[int, torch.Tensor]
) -> list[Any] | None:
    """Return the inputs for a second run, with copies of written inputs; None if the program cannot run again.

    If a written input requires a gradient, the gradient of its copy flows to the input.
    """
    copied = {index: inputs[index] for index in signature.copied_inputs}
    if (signature.writes and not copied) or any(value.requires_grad and not value.is_leaf for value in copied.values()):
        return None
    values = list(inputs)
    with torch.enable_grad():
        for index, value in copied.items():
            values[index] = WithValue.apply(value, former.get(index, value))  # type: ignore[no-untyped-call]
    return values


def reason_against_second_run(signature: AutogradSignature, inputs: Sequence[Any]) -> str:
    """Return why a program with these inputs cannot run again, for an error message."""
    written = [inputs[index] for index in signature.written]
    if signature.kept is not None:
        return "autograd tracks an input that the program writes to"
    shapes = " and ".join(str(list(tensor.shape)) for tensor in written[:3])
    if sum(tensor.nbytes for tensor in written) > MAXIMUM_BYTES:
        return f"copies of the inputs of shape {shapes} would take more than {MAXIMUM_BYTES >> 20} MiB in each call"
    return f"inputs of shape {shapes} share memory with inputs, and the program writes to this memory"


class WithValue(torch.autograd.Function):
    """A function that returns a copy of `value`, and whose gradient flows to another tensor."""

    @staticmethod
    def forward(_: object, tensor: torch.Tensor, value: torch.Tensor) -> torch.Tensor:  # noqa: ARG004
        """Return a copy of the value."""
        return value.detach().clone()

    @staticmethod
    def backward(_: object, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        """Return the copy's gradient as the gradient of the tensor."""
        return gradient, None
