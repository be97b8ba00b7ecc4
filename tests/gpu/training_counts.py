"""Counts of a training step of a Llama for sm_90, without a GPU: launches of a layer, graphs, memory and logits.

The model is that of `decode_counts.py`, called with labels and without a mask and a cache. Forward and backward run on
the same stand-in for the GPU, where attention is cuDNN's. Run as a program, this module prints the counts as JSON.
"""

from __future__ import annotations

import json
import sys
from math import prod
from typing import Any

import torch

import thunder_core as thunder
from tests.gpu.decode_counts import SIZES, llama
from tests.gpu.simulated_gpu import simulated_gpu
from thunder_core.backend.claiming.device_code import targeting
from thunder_core.backend.runtime.program import Program
from thunder_core.compilation.compiler import trace_for
from thunder_core.compilation.memory import program_memory
from thunder_core.tracing.ir.trace import Trace
from thunder_recipes.hf_llama3_hopper import HFLlama3Hopper

BATCH, LENGTH = 4, 2048
LOGITS = BATCH * LENGTH * SIZES["vocab_size"]  # elements


def program_of_step(layers: int) -> Program:
    """Return the program of the recipe's executors for a training step, with the backward of the loss."""
    recipe = HFLlama3Hopper()
    executors = [name for name in recipe.executors if name != "nvfuser"]
    compiled = thunder.jit(llama(layers).train(), executors=executors, transforms=recipe.setup_transforms())
    ids = torch.zeros(BATCH, LENGTH, dtype=torch.int64)
    inputs = {"input_ids": ids, "labels": ids.clone(), "use_cache": False}
    program, _ = trace_for(compiled, torch.device("cuda"), (), inputs, target="sm_90")
    derivative: Any = program.derivative
    results = [derivative.body.output[index] for index in derivative.differentiated.results]
    with targeting("sm_90"):
        derivative.compile_backward(tuple(result.shape == () for result in results))
    return program


def claimed_traces(program: Program) -> tuple[Trace, Trace]:
    """Return the forward and the backward before values are freed."""
    return program.traces("computation")[-2], program.traces("backward")[-2]


def counts(layers: int) -> dict[str, Any]:
    """Return the counts of a training step: launches of forward and backward, graphs, memory, and copies of logits."""
    with simulated_gpu() as gpu:
        program = program_of_step(layers)
        traces = claimed_traces(program)
        values: dict[str, Any] = {}
        calls = [gpu.run(program, trace, values) for trace in traces]
    memory = program_memory(program)
    bsyms = [bsym for trace in traces for bsym in trace.bound_symbols]
    logits = {proxy.dtype for bsym in bsyms for proxy in bsym.tensors if prod(proxy.shape) == LOGITS}
    return {
        "graphs": sum(bsym.executor == "cudagraphs" for bsym in bsyms),
        "launches": [dict(call.launches) for call in calls],
        "copied": [dict(call.copied) for call in calls],
        "outside": memory.outside,
        "saved": memory.saved,
        "own memory": memory.own,
        "logits": sorted(map(str, logits)),
    }


if __name__ == "__main__":
    print(json.dumps({layers: counts(int(layers)) for layers in sys.argv[1:]}))
