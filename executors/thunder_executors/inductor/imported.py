"""Inductor, imported in silence and without its pool of processes: what it compiles is compiled here."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any
from unittest import mock

import torch
from torch._guards import detect_fake_mode
from torch._inductor import config
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import GraphModule

# What PyTorch finds deprecated in itself is not the user's.
with config.patch(compile_threads=1), warnings.catch_warnings(action="ignore"):
    import torch._inductor.compile_fx as compiler
    from torch._inductor.async_compile import AsyncCompile

from thunder_executors.inductor.lowered_sizes import sizes_as_traced
from thunder_executors.inductor.reinplacing import careful_reinplacing

__all__ = ["AsyncCompile", "compiled_graph"]

propagated = compiler.fake_tensor_prop


def compiled_graph(graph: GraphModule, fakes: Sequence[FakeTensor]) -> Any:
    """The function that Inductor compiles a graph to whose nodes have their values, as `make_fx` notes them."""
    with (
        mock.patch.object(compiler, "fake_tensor_prop", fake_mode_of),
        sizes_as_traced(),
        careful_reinplacing(),
        torch.no_grad(),
    ):
        return compiler.compile_fx_inner(graph, fakes)


def fake_mode_of(graph: GraphModule, fakes: Sequence[Any], force_allow_non_fake_inputs: bool = False) -> Any:
    """The mode of a graph's values, which are found anew where a node has none.

    Inductor finds them anew for every graph, with functions in C++ that ask whether symbolic sizes are one.
    """
    mode = detect_fake_mode(fakes)
    if mode is None or any("val" not in node.meta for node in graph.graph.nodes if node.op != "output"):
        return propagated(graph, fakes, force_allow_non_fake_inputs)
    return mode
