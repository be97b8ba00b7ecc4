"""Counts of a Llama's prompt for sm_90, without a GPU: programs, graphs, launches of a layer, copied bytes and memory.

The model is that of `decode_counts.py`, and the programs run on the same stand-in for the GPU. A prompt is one call of
the model without an attention mask, for the logits of the last token. Run as a program, this module prints the counts
as JSON.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch

import thunder_core as thunder
from tests.gpu.decode_counts import counts_of, graphs_of, inputs_of, llama, memory_of
from tests.gpu.simulated_gpu import simulated_gpu
from thunder_core.backend.claiming.free import free_after_last_use
from thunder_core.backend.runtime.program import Program
from thunder_core.compilation.compiler import specializations_of
from thunder_core.compilation.compiler.for_device import compile_for
from thunder_core.compilation.memory.use import memory_use
from thunder_core.tracing.ir.proxy import Proxy
from thunder_core.tracing.ir.symbol import BoundSymbol
from thunder_core.tracing.ir.trace import Trace
from thunder_core.workflow.pipeline.generation.values_without_device import values_on_meta
from thunder_recipes.hf_llama3_hopper import HFLlama3Hopper

PROMPT, CALLS = 2048, 3


def call_with_prompts(layers: int, *, has_mask: bool = False, **options: Any) -> list[Program]:
    """Return the programs of the recipe's executors that compute a prompt several times, with or without a mask."""
    recipe = HFLlama3Hopper()
    executors = [name for name in recipe.executors if name != "nvfuser"]
    compiled = thunder.jit(llama(layers), executors=executors, transforms=recipe.setup_transforms())
    absent = compile_for(compiled, torch.device("cuda"), "sm_90", [])
    with torch.no_grad(), values_on_meta():
        ids = torch.zeros(1, PROMPT, dtype=torch.int64).to("meta")
        options |= {"attention_mask": torch.ones(1, PROMPT, dtype=torch.int64).to("meta")} if has_mask else {}
        for _ in range(CALLS):
            absent(input_ids=ids, **options)
    return list(specializations_of(absent).programs)


def counts(layers: int, **options: Any) -> dict[str, Any]:
    """Return the counts of a program for a prompt."""
    with simulated_gpu() as gpu:
        programs = call_with_prompts(layers, **options)
    bsyms = programs[0].last("computation").bound_symbols
    graphs = graphs_of(programs[0])
    parts = [part for graph in graphs for part in graph.subsymbols]
    read = [pair for graph in graphs for pair in inputs_of(graph)]
    return {
        "programs": len(programs),
        "graphs": len(graphs),
        "outside of graphs": sum(bool(bsym.executor) and bsym.executor != "cudagraphs" for bsym in bsyms),
        "attention": [attention_of(part) for part in (*bsyms, *parts) if part.executor == "sdpa"],
        "copied": [tensor.name for tensor, is_copied in read if is_copied],
        "read in place": sum(not is_copied for _, is_copied in read),
        "memory": memory_of(programs[0]),
        "peak": [peak_of(graph) for graph in graphs],
        "calls": [counts_of(call) for call in gpu.calls],
    }


def attention_of(part: BoundSymbol) -> list[Any]:
    """Return whether a call of attention has a mask, is causal, and attends by groups."""
    return [part.kwargs["attn_mask"] is not None, part.kwargs["is_causal"], part.kwargs.get("enable_gqa", False)]


def peak_of(graph: BoundSymbol) -> int:
    """Return the most bytes that the temporaries and results of a graph occupy."""
    inputs = tuple(value for value in graph.args if isinstance(value, Proxy))
    trace = free_after_last_use(Trace("graph", inputs, graph.subsymbols, graph.output))
    return memory_use(trace).own


if __name__ == "__main__":
    found: dict[str, Any] = {layers: counts(int(layers), logits_to_keep=1, use_cache=False) for layers in sys.argv[1:]}
    found["cache"] = counts(2, logits_to_keep=1)
    found["all logits"] = counts(2)
    found["mask"] = counts(2, has_mask=True, logits_to_keep=1, use_cache=False)
    print(json.dumps(found))
