"""Detaching of a recorded loop's inputs that no result depends on: in eager PyTorch, their gradients are None."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch

from thunder_core.frontend.acquire.lookasides.operators.loop_values import LoopNotRecordable
from thunder_core.frontend.acquire.subtraces import Subtraces
from thunder_core.tracing.capture.torch_facts.graph import graph_of
from thunder_core.tracing.capture.torch_facts.modes import without_our_functions
from thunder_core.tracing.ir.proxy import Proxy

Arguments = tuple[tuple[Any, ...], ...]


def detach_unreached(
    subtraces: Subtraces, inputs: Sequence[torch.Tensor], arguments: Arguments, results: Sequence[torch.Tensor]
) -> Arguments:
    """Return the arguments of a recorded loop, and detach each tensor on which no result depends.

    `arguments` are the initial carried tensors, the stacked slices, and the operands. In the sub-trace of one
    iteration, `inputs` represent the carried tensors and the slices, and `results` are the carried tensors and the
    rows. Raises `LoopNotRecordable` for a carried tensor that gets a gradient for some numbers of iterations only.
    """
    if not torch.is_grad_enabled():
        return arguments
    initial, slices, operands = arguments
    representing = [*inputs, *(subtraces.recorder.tensors.tensor_named(proxy.name) for proxy in operands)]
    reaching = [results_reaching(subtraces, tensor, results) for tensor in representing]
    require_lasting_gradients(reaching[: len(initial)])
    pairs = zip((*initial, *slices, *operands), reaching, strict=True)
    proxies = [proxy if indices else detach_proxy(subtraces, proxy) for proxy, indices in pairs]
    end = len(initial) + len(slices)
    return tuple(proxies[: len(initial)]), tuple(proxies[len(initial) : end]), tuple(proxies[end:])


def results_reaching(subtraces: Subtraces, tensor: object, results: Sequence[torch.Tensor]) -> set[int]:
    """Return the indices of the results whose autograd graph contains a tensor.

    Returns all indices for a value that is not a tensor, and for a tensor that requires no gradient.
    """
    every = set(range(len(results)))
    if not isinstance(tensor, torch.Tensor):
        return every
    with without_our_functions():
        fake = subtraces.fake(tensor)
        if not fake.requires_grad:
            return every
        graphs = [graph_of([subtraces.fake(result)]) for result in results]
        node = fake.grad_fn
        return {index for index, graph in enumerate(graphs) if any(belongs_to(entry, node, fake) for entry in graph)}


def belongs_to(entry: object, node: object, fake: torch.Tensor) -> bool:
    """Whether an autograd node is the tensor's `grad_fn`, or, if `node` is None, accumulates the tensor's gradient."""
    return entry is node if node is not None else getattr(entry, "variable", None) is fake


def require_lasting_gradients(reaching: Sequence[Collection[int]]) -> None:
    """Raise `LoopNotRecordable` for a carried tensor whose gradients come from the first iterations only.

    `reaching` has, for each carried tensor, the indices of the results that depend on the tensor. Indices beyond the
    carried tensors are those of rows. A tensor's gradient exists for all numbers of iterations if a row depends on the
    tensor, or if the next value of a carried tensor with such a gradient does. This may be the tensor itself.
    """
    lasting = {index for index, indices in enumerate(reaching) if indices}
    while True:
        reaching_end = {
            index for index in lasting if any(end >= len(reaching) or end in lasting for end in reaching[index])
        }
        if reaching_end == lasting:
            break
        lasting = reaching_end
    if any(indices and index not in lasting for index, indices in enumerate(reaching)):
        raise LoopNotRecordable("the gradient of a variable is None for some numbers of iterations")


def detach_proxy(subtraces: Subtraces, proxy: Proxy) -> Proxy:
    """Record `detach` of a tensor, and return the proxy of the result; return a proxy without a tensor unchanged."""
    physical = subtraces.recorder.tensors.tensor_named(proxy.name)
    if physical is None:
        return proxy
    (tensor,) = subtraces.to_program([physical])
    return subtraces.recorder.proxy_of(subtraces.run.machine.call(torch.Tensor.detach, tensor))
