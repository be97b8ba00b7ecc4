"""Regions as FX graphs of what Inductor takes: decomposed by its own table, on fake tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._inductor.decomposition import select_decomp_table
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

from thunder_core.ir.proxy import Proxy, TensorProxy
from thunder_core.ir.tree import replace_leaves
from thunder_core.lower.region import Region
from thunder_executors.inductor.attention import KERNEL, attention_backward


def graph_of(region: Region) -> tuple[GraphModule, list[FakeTensor]]:
    """The region as a graph that returns a tuple, and fake tensors like its inputs."""
    mode = FakeTensorMode()
    with mode:
        fakes: Any = [_empty(proxy) for proxy in region.inputs]

    def run(*given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(laid_out(*pair) for pair in zip(evaluate(region, given), region.outputs, strict=True))

    with mode, torch.no_grad():
        graph = make_fx(run, decomposition_table=select_decomp_table(), tracing_mode="real")(*fakes)
    ends = next(iter(reversed(graph.graph.nodes)))
    ends.meta["user_visible_output_idxs"] = list(range(len(region.outputs)))
    ends.meta["original_output_strides"] = [proxy.stride for proxy in region.outputs]
    return graph, fakes


# Decompositions may lay a tensor out otherwise than PyTorch does, and then it cannot be viewed as it was.
INSTEAD: dict[object, Callable[..., Any]] = {
    torch.ops.aten.view.default: torch.ops.aten.reshape.default,
    KERNEL: attention_backward,
}


def evaluate(region: Region, given: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    """Run the operations of a region one by one, as PyTorch has them."""
    values: dict[str, Any] = dict(zip((proxy.name for proxy in region.inputs), given, strict=True))

    def value(leaf: Any) -> Any:
        return values[leaf.name] if isinstance(leaf, Proxy) else leaf

    for operation in region.operations:
        result = INSTEAD.get(operation.symbol.target, operation.symbol.target)(
            *replace_leaves(operation.args, value), **replace_leaves(dict(operation.kwargs), value)
        )
        _bind(operation.output, result, values)
    return tuple(values[proxy.name] for proxy in region.outputs)


def same_layout(shape: Sequence[int], one: Sequence[int], other: Sequence[int]) -> bool:
    """Whether strides address the same memory: those of sizes of one do not matter."""
    return all(size < 2 or first == second for size, first, second in zip(shape, one, other, strict=True))


def laid_out(result: torch.Tensor, proxy: TensorProxy) -> torch.Tensor:
    """The result, copied where decompositions give another order of dimensions in memory than PyTorch itself does."""
    if same_layout(proxy.shape, result.stride(), proxy.stride):
        return result
    order = sorted(range(len(proxy.shape)), key=lambda place: -proxy.stride[place])
    back = [order.index(place) for place in range(len(order))]
    return result.permute(order).clone(memory_format=torch.contiguous_format).permute(back)


def _bind(names: Any, result: Any, values: dict[str, Any]) -> None:
    if isinstance(names, Proxy):
        values[names.name] = result
    elif isinstance(names, tuple | list):
        for name, item in zip(names, result, strict=True):
            _bind(name, item, values)


def _empty(proxy: TensorProxy) -> torch.Tensor:
    return torch.empty_strided(proxy.shape, proxy.stride, dtype=proxy.dtype, device=proxy.device)
