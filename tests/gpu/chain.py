"""The whole chain of a Llama by the Hopper recipe, on a stand-in for a GPU: made, validated, loaded, measured.

The CPU is in place of the GPU, and the executors are those of the recipe, except nvFuser. They claim operations as on a
GPU, and Thunder's kernels are chosen without measurements. An operation of Thunder computes its reference by PyTorch,
in the memory that its launcher allocates, and its launches are counted: in Triton's interpreter, a step of the chain
would take several minutes. g++ compiles Inductor's regions, and PyTorch computes the attention of cuDNN. A stand-in
records the graphs; its replays overwrite the memory of results. So values are real, and each validation compares them
with eager PyTorch.

Prompts are not replayed here. transformers makes the token counters of a new cache on the CPU, which here is the device
of the graph: the graph of a prompt increments the counters of one cache in place, and no other prompt has this cache.
On a GPU, the counters are copied to the GPU before the graph (`decode_counts`), and prompts are replayed.

Usage: python -m tests.gpu.chain make|use FOLDER. Both run in processes of their own, and print counts as JSON.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch.utils._pytree import tree_leaves

from tests.executors.cudagraphs.stand_in import StandIn
from thunder_core.tracing.ir.proxy import TensorProxy
from thunder_core.tracing.ir.symbol import BoundSymbol
from thunder_core.workflow.artifact.loading import load
from thunder_core.workflow.models.request.request import ModelRequest
from thunder_core.workflow.models.request.sample_models import SAMPLES
from thunder_core.workflow.pipeline import Request, optimize
from thunder_core.workflow.pipeline.generation_bench import bench_artifacts_generation
from thunder_core.workflow.pipeline.request.bench_request import BenchRequest
from thunder_core.workflow.pipeline.request.validate_request import ValidateRequest
from thunder_core.workflow.pipeline.validate import validate_artifact
from thunder_executors import joined, sdpa
from thunder_executors.cudagraphs import CudaGraphs, cannot_be_recorded, graph
from thunder_executors.triton import measurement
from thunder_executors.triton.launch import recorded_launches
from thunder_executors.triton.operations import OPERATORS, Operator
from thunder_recipes.hf_llama3_hopper import HFLlama3Hopper

PROMPT, TOKENS = 4, 4


class Hopper(HFLlama3Hopper):
    """The Hopper recipe on the CPU, without nvFuser."""

    device, dtype = "cpu", "float32"
    requirements = ()
    executors = tuple(name for name in HFLlama3Hopper.executors if name != "nvfuser")


def wraps(self: CudaGraphs, bsym: BoundSymbol) -> bool:
    """Whether the operations of a bound symbol could be recorded on a GPU."""
    tensors = [proxy for proxy in (*bsym.inputs, *bsym.outputs) if isinstance(proxy, TensorProxy)]
    return bool(tensors) and not any(map(cannot_be_recorded, bsym.at_level("aten")))


def is_attention(bsym: BoundSymbol) -> bool:
    """Whether a bound symbol is attention, on any device."""
    return bsym.symbol.name == sdpa.ATTENTION


def choose_kernel(product: measurement.Measurable, budget: object) -> measurement.Choice:
    """Choose the first of Thunder's kernels for a product, because nothing can be measured."""
    return measurement.Choice(next(iter(product.candidates)))


@contextmanager
def graphs_on_cpu() -> Iterator[StandIn]:
    """Within the context, the recipe's executors claim operations on the CPU, and a stand-in records CUDA graphs."""
    cuda = StandIn()
    compute_references()
    with ExitStack() as stack:
        for patch in patches(cuda):
            stack.enter_context(patch)
        yield cuda


def patches(cuda: StandIn) -> Iterator[Any]:
    """Yield the replacements of what needs a GPU."""
    yield mock.patch.object(CudaGraphs, "missing", lambda self: None)
    yield mock.patch.object(CudaGraphs, "wraps", wraps)
    yield mock.patch.object(graph, "CUDA", cuda)
    yield mock.patch.object(sdpa.ScaledDotProductAttention, "missing", lambda self: None)
    yield mock.patch.object(sdpa, "is_on_cuda", is_attention)
    yield mock.patch.dict(vars(joined.EXECUTOR), devices=("cpu",))
    yield mock.patch.object(measurement, "_choice_of", choose_kernel)


LAUNCHED: Counter[str] = Counter()  # the launches of Thunder's kernels by name


def compute_references() -> None:
    """Let each operation of Thunder compute its reference by PyTorch, and note the launches that it would make."""
    for operator in OPERATORS.values():
        operator.operation.register_kernel("cpu", partial(compute_reference, operator))


def compute_reference(operator: Operator, *args: Any, **kwargs: Any) -> Any:
    """Note the launches of an operation, and compute its results by PyTorch, in the memory that it allocates."""
    with recorded_launches() as launches:
        results = operator.launcher(*args, **kwargs)
    LAUNCHED.update(launch.kernel.fn.__name__ for launch in launches)
    pairs = zip(tree_leaves(results), tree_leaves(operator.reference(*args, **kwargs)), strict=True)
    for result, value in pairs:
        result.copy_(value)
    return results


def counts(cuda: StandIn) -> dict[str, Any]:
    """Return the numbers of captures, replays and launches, and the bytes of parameters and caches that are copied."""
    functions: list[Any] = list(graph.GRAPH_MEMORY._owners)
    copied = [
        buffer.memory.nbytes
        for function in functions
        for recording in function.recordings.values()
        for number, buffer in recording.buffers.items()
        if number in (*function.static, *function.held)
    ]
    failures = sum(len(function.failures) for function in functions)
    return {
        "records": cuda.records,
        "replays": cuda.replays,
        "copied": sum(copied),
        "failures": failures,
        "launched": dict(LAUNCHED),
    }


def make(folder: Path, cuda: StandIn) -> dict[str, Any]:
    """Optimize, validate and measure a small Llama, and write the artifact."""
    request = Request(
        recipe=Hopper,
        model=ModelRequest(sample=SAMPLES["llama"], task="generate"),
        out=folder,
        include_weights=True,
        prompt_length=PROMPT,
        new_tokens=TOKENS,
        batch=1,
        runs=2,
        warmup=1,
    )
    optimize(request)
    return {"made": counts(cuda)}


def use(folder: Path, cuda: StandIn) -> dict[str, Any]:
    """Validate the artifact, generate with it several times, and measure it; return the counts after each."""
    found: dict[str, Any] = {
        "state": validate_artifact(folder, ValidateRequest(write=False)).state,
        "validated": counts(cuda),
    }
    loaded = load(folder, strict=True)
    eager = load(folder)._thunder.subject
    prompt = torch.arange(3, 3 + PROMPT).unsqueeze(0)
    options = {"attention_mask": torch.ones_like(prompt), "max_new_tokens": TOKENS, "do_sample": False}
    expected = eager.generate(prompt, **options)
    found["equal"] = []
    for _ in range(4):
        found["equal"].append(torch.equal(loaded.generate(prompt, **options), expected))
        found.setdefault("generated", []).append(counts(cuda))
    lengths = {"prompt_length": PROMPT, "new_tokens": TOKENS}
    suite = bench_artifacts_generation(
        [folder], BenchRequest(generates=True, batches=(1,), runs=3, warmup=2, **lengths)
    )
    found["measured"] = counts(cuda)
    found["texts"] = {text.name: text.equal for text in suite.generations[0].texts}
    return found


if __name__ == "__main__":
    with graphs_on_cpu() as cuda:
        print(json.dumps({"make": make, "use": use}[sys.argv[1]](Path(sys.argv[2]), cuda)))
