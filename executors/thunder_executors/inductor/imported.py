"""Import Inductor without warnings and without its pool of compiler processes, and compile graphs with it."""

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

# Deprecations inside PyTorch do not concern the user.
with config.patch(compile_threads=1), warnings.catch_warnings(action="ignore"):
    import torch._inductor.compile_fx as compiler
    from torch._inductor.async_compile import AsyncCompile

from thunder_executors.inductor.lowered_sizes import require_traced_sizes
from thunder_executors.inductor.reinplacing import careful_reinplacing
from thunder_executors.inductor.slices import slices_with_expressions

__all__ = ["AsyncCompile", "compiled_graph"]

propagate_fake_tensors = compiler.fake_tensor_prop


def compiled_graph(graph: GraphModule, fakes: Sequence[FakeTensor | torch.SymInt]) -> Any:
    """Return the function that Inductor compiles from a graph whose nodes have values recorded by `make_fx`."""
    with (
        mock.patch.object(compiler, "fake_tensor_prop", fake_mode_of),
        require_traced_sizes(),
        slices_with_expressions(),
        careful_reinplacing(),
        torch.no_grad(),
    ):
        return compiler.compile_fx_inner(graph, fakes)


def fake_mode_of(graph: GraphModule, fakes: Sequence[Any], force_allow_non_fake_inputs: bool = False) -> Any:
    """Return the fake tensor mode of the values that a graph's nodes have; if a node has none, recompute all values.

    Inductor's own function recomputes the values of every graph, and compares symbolic sizes with one.
    """
    mode = detect_fake_mode(fakes)
    if mode is None or any("val" not in node.meta for node in graph.graph.nodes if node.op != "output"):
        return propagate_fake_tensors(graph, fakes, force_allow_non_fake_inputs)
    return mode
