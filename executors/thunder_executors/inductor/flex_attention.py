"""Flex attention as an Inductor graph: the operator, with graphs for its score and mask functions."""

from __future__ import annotations

import operator
import re
from typing import Any

import torch
from torch._higher_order_ops.flex_attention import flex_attention
from torch._inductor.decomposition import select_decomp_table
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx import Graph, GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

from thunder_core.backend.fusion.region import Region
from thunder_core.tracing.ir.attention import ElementFunction
from thunder_core.tracing.ir.evaluate import evaluate
from thunder_core.tracing.ir.proxy import TensorProxy
from thunder_core.tracing.ir.tree import replace_leaves

THREADS = re.compile(r"int64_t num_thread = \d+;")


def is_attention(region: Region) -> bool:
    """Whether a region is one flex attention."""
    return len(region.operations) == 1 and region.operations[0].symbol.target is flex_attention


def with_threads_of_call(source: str) -> str:
    """Return the source of an attention kernel that asks ATen for the number of threads at each call."""
    return THREADS.sub("int64_t num_thread = at::get_num_threads();", source)


def attention_graph(region: Region) -> tuple[GraphModule, list[FakeTensor]]:
    """Return the region as a graph that returns the result in a tuple, and fake tensors for its inputs."""
    mode, root, graph = FakeTensorMode(), torch.nn.Module(), Graph()
    (operation,) = region.operations
    with mode:
        fakes: Any = [_empty(proxy) for proxy in region.inputs]
    nodes = {proxy.name: graph.placeholder(proxy.name) for proxy in region.inputs}
    for proxy, fake in zip(region.inputs, fakes, strict=True):
        nodes[proxy.name].meta["val"] = fake

    def node_of(leaf: Any) -> Any:
        if isinstance(leaf, ElementFunction):
            name = f"function_{len(root._modules)}"
            root.add_module(name, element_graph(leaf, mode))
            return graph.get_attr(name)
        return nodes[leaf.name] if isinstance(leaf, TensorProxy) else leaf

    attention = graph.call_function(flex_attention, replace_leaves(operation.args, node_of))
    with mode:
        value = _empty(region.outputs[0])
        rows = torch.empty(value.shape[:-1])
    attention.meta["val"] = (value, rows, rows)
    result = graph.call_function(operator.getitem, (attention, 0))
    result.meta["val"] = value
    ends = graph.output((result,))
    ends.meta["user_visible_output_idxs"] = [0]
    ends.meta["original_output_strides"] = [region.outputs[0].stride]
    return GraphModule(root, graph), fakes


def element_graph(function: ElementFunction, mode: FakeTensorMode) -> GraphModule:
    """Return a score or mask function as a separate graph."""

    def run(*tensors: torch.Tensor) -> Any:
        values: dict[str, Any] = dict(zip((proxy.name for proxy in function.inputs), tensors, strict=True))
        evaluate(function.operations, values)
        return values[function.output.name]

    with mode:
        tensors = [_empty(proxy) for proxy in function.inputs]
        return make_fx(run, decomposition_table=select_decomp_table())(*tensors)


def _empty(proxy: TensorProxy) -> torch.Tensor:
    return torch.empty_strided(proxy.shape, proxy.stride, dtype=proxy.dtype, device=proxy.device)
