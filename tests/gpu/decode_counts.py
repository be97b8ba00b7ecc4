"""Counts of a Llama's programs for sm_90, without a GPU: programs, graphs, kernels a layer, copied bytes and memory.

The model has the width and the vocabulary of Llama 3.2 1B, and no data. `generate` runs on the meta device, and the
kernels are compiled for the GPU. The programs also run on a stand-in for the GPU (`simulated_gpu.py`), which notes what
a driver would launch, capture, replay and copy. Run as a program, this module prints the counts as JSON; it runs in a
process of its own, because Triton's interpreter, which the tests enable, compiles nothing.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator
from math import prod
from typing import Any

import torch
import transformers

import thunder_core as thunder
from tests.gpu.simulated_gpu import COPIES, COPY_IN, COPY_OUT, Call, simulated_gpu
from thunder_core.backend.runtime.program import Program
from thunder_core.compilation.compiler import specializations_of
from thunder_core.compilation.compiler.for_device import compile_for
from thunder_core.compilation.memory import program_memory
from thunder_core.passes.transforms.quantize import Quantize
from thunder_core.tracing.analysis.aliasing import computes_nothing
from thunder_core.tracing.ir.proxy import TensorProxy
from thunder_core.tracing.ir.symbol import BoundSymbol
from thunder_core.workflow.pipeline.generation.values_without_device import values_on_meta
from thunder_executors.triton import ahead
from thunder_recipes.hf_llama3_hopper import HFLlama3Hopper

LAYERS, PROMPT, TOKENS = 16, 16, 64
SIZES = {
    "hidden_size": 2048,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 8192,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
}
SCHEMES = ("int8-weight-only", "int4-weight-only")
KINDS = {"weights": "module.", "cache": "kwargs['past_key_values']"}
ONE_CALL = ("sdpa", "joined")  # executors whose bound symbol is one call of a library


def llama(layers: int) -> Any:
    """Return a Llama in bfloat16 on the meta device."""
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(num_hidden_layers=layers, **SIZES))
    return model.to(torch.bfloat16).eval()


def generate(
    layers: int, padding: int = 0, scheme: str = "", texts: int = 1, new_tokens: int = TOKENS
) -> list[Program]:
    """Return the programs of the recipe's executors for a GPU that generate texts of 64 tokens, the latest first.

    The prompt begins with some tokens of padding. The weights are quantized with a `scheme`, if one is given.
    """
    recipe = HFLlama3Hopper()
    model = Quantize(scheme).restructure(llama(layers)) if scheme else llama(layers)
    executors = [name for name in recipe.executors if name != "nvfuser"]
    compiled = thunder.jit(model, executors=executors, transforms=recipe.setup_transforms())
    absent = compile_for(compiled, torch.device("cuda"), "sm_90", [])
    with torch.no_grad(), values_on_meta():
        ids = torch.arange(5, 5 + PROMPT).unsqueeze(0).to("meta")
        lengths = {"max_new_tokens": new_tokens, "min_new_tokens": new_tokens}
        text: Any = absent
        mask = (torch.arange(PROMPT) >= padding).long().unsqueeze(0).to("meta")
        for _ in range(texts):
            tokens = text.generate(input_ids=ids, attention_mask=mask, do_sample=False, **lengths)
            assert tokens.shape == (1, PROMPT + new_tokens)
    return list(specializations_of(absent).programs)


def graphs_of(program: Program) -> list[BoundSymbol]:
    """Return the graphs of a program."""
    return [bsym for bsym in program.last("computation").bound_symbols if bsym.executor == "cudagraphs"]


def launches(part: BoundSymbol) -> int:
    """Return the kernels and calls of libraries of a bound symbol within a graph."""
    if part.executor == "inductor":
        target: Any = part.symbol.target
        return sum(
            line.strip().startswith("triton_") for line in target.machine_code.text.partition("def ")[2].splitlines()
        )
    if part.executor in ONE_CALL:
        return 1
    if part.executor == "triton":
        return len(ahead.launches(part))
    return sum(not computes_nothing(operation) for operation in part.at_level("aten"))


def inputs_of(graph: BoundSymbol) -> Iterator[tuple[TensorProxy, bool]]:
    """Yield the tensors that a graph reads, and whether each is copied before a replay."""
    captured: Any = graph.symbol.target
    in_place = {*captured.static, *captured.held}
    tensors = [value for value in graph.args[captured.constants :] if isinstance(value, TensorProxy)]
    yield from ((tensor, index not in in_place) for index, tensor in enumerate(tensors))


def counts(layers: int) -> dict[str, Any]:
    """Return the counts of the program that computes a token."""
    with simulated_gpu() as gpu:
        programs = generate(layers)
    decode = programs[0]
    graphs = graphs_of(decode)
    parts = [part for graph in graphs for part in graph.subsymbols]
    read = [pair for graph in graphs for pair in inputs_of(graph)]
    origins = decode.last("computation").origins
    copied = {origins.get(tensor.name, tensor.name): size(tensor) for tensor, is_copied in read if is_copied}
    memory = program_memory(decode)
    return {
        "programs": len(programs),
        "graphs": len(graphs),
        "outside of graphs": sum(
            bool(bsym.executor) and bsym.executor != "cudagraphs" for bsym in decode.last("computation").bound_symbols
        ),
        "launches": by_executor(parts),
        "names": calls_of_token(programs),
        "copied": {str(name): number for name, number in copied.items()},
        "parameters": sum(not is_copied for _, is_copied in read),
        "own memory": memory.own,
        "memory": memory_of(decode),
        "prompt": prompt_counts(programs),
        "calls": [counts_of(call) for call in gpu.calls if call.program is decode],
    }


def counts_of(call: Call) -> dict[str, Any]:
    """Return what the stand-in noted about a call: launches of its graphs and outside of them, replays, and copies."""
    outside = {name: number for name, number in call.launches.items() if name not in COPIES}
    return {
        "captured": [dict(graph.launches) for graph in call.captured],
        "replayed": len(call.replayed),
        "outside": outside,
        "copied in": call.copied[COPY_IN],
        "copied out": call.copied[COPY_OUT],
    }


def memory_of(program: Program) -> dict[str, int]:
    """Return the bytes of the weights and of the cache that a program reads, and the bytes that its graphs hold."""
    computation = program.last("computation")
    sizes: Counter[str] = Counter()
    for proxy in computation.inputs:
        if isinstance(proxy, TensorProxy):
            origin = str(computation.origins.get(proxy.name, proxy.name))
            kind = next((kind for kind, start in KINDS.items() if origin.startswith(start)), "arguments")
            sizes[kind] += size(proxy)
    targets: list[Any] = [graph.symbol.target for graph in graphs_of(program)]
    held = sum(recording.nbytes for target in targets for recording in target.recordings.values())
    return {**sizes, "graphs": held}


def counts_of_prompts(layers: int) -> list[dict[str, Any]]:
    """Return what the stand-in noted about the prompts of three equally long texts: the second one is captured."""
    with simulated_gpu() as gpu:
        programs = generate(layers, texts=3, new_tokens=4)
    return [counts_of(call) for call in gpu.calls if call.program is programs[-1]]


def calls_of_token(programs: list[Program]) -> dict[str, int]:
    """Return the calls by name in the graph of the program that computes a token."""
    return dict(Counter(part.symbol.short_name for graph in graphs_of(programs[0]) for part in graph.subsymbols))


def prompt_counts(programs: list[Program]) -> dict[str, Any]:
    """Return the counts of the program that computes a prompt: graphs, calls outside of them, and calls by name."""
    bsyms = programs[-1].last("computation").bound_symbols
    parts = Counter(part.symbol.short_name for bsym in bsyms for part in (bsym.subsymbols or (bsym,)))
    return {
        "graphs": sum(bsym.executor == "cudagraphs" for bsym in bsyms),
        "outside of graphs": [
            bsym.symbol.short_name for bsym in bsyms if bsym.executor and bsym.executor != "cudagraphs"
        ],
        "calls": dict(parts),
    }


def by_executor(parts: list[BoundSymbol]) -> dict[str, int]:
    """Return the launches of each executor."""
    found: Counter[str] = Counter()
    for part in parts:
        found[part.executor or "torch"] += launches(part)
    return dict(found)


def size(tensor: TensorProxy) -> int:
    """Return the bytes of a tensor with constant sizes."""
    return int(prod(tensor.shape)) * tensor.dtype.itemsize


if __name__ == "__main__":
    found = {str(layers): counts(layers) for layers in map(int, sys.argv[1:])}
    found["prompts"] = counts_of_prompts(2)
    found["padded"] = prompt_counts(generate(2, padding=3))
    found |= {scheme: calls_of_token(generate(1, scheme=scheme)) for scheme in SCHEMES}
    print(json.dumps(found))
