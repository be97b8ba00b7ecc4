"""The inputs of a recorded loop whose gradients are None in eager PyTorch, because no result depends on them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch

from thunder_core.frontend.acquire.lookasides.operators.loop_values import Unsteady
from thunder_core.frontend.acquire.subtraces import Subtraces
from thunder_core.tracing.capture.torch_facts.graph import graph_of
from thunder_core.tracing.capture.torch_facts.modes import without_our_functions
from thunder_core.tracing.ir.proxy import Proxy

Arguments = tuple[tuple[Any, ...], ...]


def detach_unreached(
    subtraces: Subtraces, inputs: Sequence[torch.Tensor], arguments: Arguments, results: Sequence[torch.Tensor]
) -> Arguments:
    """Return the arguments of a loop, the carried tensors first; tensors that no gradient reaches are detached.

    `inputs` represent the carried tensors and the slices in an iteration, and `results` are its results, the carried
    tensors first. Raises `Unsteady` for a carried tensor that gets a gradient for some numbers of iterations only.
    """
    if not torch.is_grad_enabled():
        return arguments
    initial, slices, operands = arguments
    representing = [*inputs, *(subtraces.recorder.tensors.named(proxy.name) for proxy in operands)]
    reaching = [results_reaching(subtraces, tensor, results) for tensor in representing]
    require_steady_gradients(reaching[: len(initial)])
    pairs = zip((*initial, *slices, *operands), reaching, strict=True)
    proxies = [proxy if indices else detach_proxy(subtraces, proxy) for proxy, indices in pairs]
    end = len(initial) + len(slices)
    return tuple(proxies[: len(initial)]), tuple(proxies[len(initial) : end]), tuple(proxies[end:])


def results_reaching(subtraces: Subtraces, tensor: object, results: Sequence[torch.Tensor]) -> set[int]:
    """Return the indices of the results whose graph contains a tensor; all indices if it requires no gradient."""
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
    """Whether a node of autograd's graph computed a tensor, or accumulates its gradient."""
    return entry is node if node is not None else getattr(entry, "variable", None) is fake


def require_steady_gradients(reaching: Sequence[Collection[int]]) -> None:
    """Raise `Unsteady` for a carried tensor whose gradients come from the first iterations only.

    `reaching` has the indices of the results that depend on each carried tensor. The gradient lasts if a row depends on
    the tensor, or a carried tensor whose gradient lasts, and if the tensor depends on itself in a later iteration.
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
        raise Unsteady("the gradient of a variable is None for some numbers of iterations")


def detach_proxy(subtraces: Subtraces, proxy: Proxy) -> Proxy:
    """Return the proxy of a detached tensor."""
    physical = subtraces.recorder.tensors.named(proxy.name)
    if physical is None:
        return proxy
    (tensor,) = subtraces.to_program([physical])
    return subtraces.recorder.proxy_of(subtraces.run.machine.call(torch.Tensor.detach, tensor))
