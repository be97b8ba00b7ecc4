"""The whole chain of a Llama by the Hopper recipe, on a stand-in for CUDA graphs: made, validated, loaded, measured.

The CPU is in place of the GPU: PyTorch computes the operations, and a stand-in records the graphs; its replays
overwrite the memory of results. So values are real, and each validation compares them with eager PyTorch.

Usage: python -m tests.gpu.chain make|use FOLDER. Both run in processes of their own, and print counts as JSON.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch

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
from thunder_executors.cudagraphs import CudaGraphs, cannot_be_recorded, graph
from thunder_recipes.hf_llama3_hopper import HFLlama3Hopper

PROMPT, TOKENS = 4, 4


class Hopper(HFLlama3Hopper):
    """The Hopper recipe without the executors that need a GPU or a compiler."""

    device, dtype = "cpu", "float32"
    requirements = ()
    executors = ("cudagraphs", "torch")


def wraps(self: CudaGraphs, bsym: BoundSymbol) -> bool:
    """Whether the operations of a bound symbol could be recorded on a GPU."""
    tensors = [proxy for proxy in (*bsym.inputs, *bsym.outputs) if isinstance(proxy, TensorProxy)]
    return bool(tensors) and not any(map(cannot_be_recorded, bsym.at_level("aten")))


@contextmanager
def graphs_on_cpu() -> Iterator[StandIn]:
    """Within the context, programs on the CPU have CUDA graphs, which a stand-in records."""
    cuda = StandIn()
    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(CudaGraphs, "missing", lambda self: None))
        stack.enter_context(mock.patch.object(CudaGraphs, "wraps", wraps))
        stack.enter_context(mock.patch.object(graph, "CUDA", cuda))
        yield cuda


def counts(cuda: StandIn) -> dict[str, int]:
    """Return the numbers of captures and replays, and the bytes of parameters and caches that replays copy."""
    functions: list[Any] = list(graph.GRAPH_MEMORY._owners)
    copied = [
        buffer.memory.nbytes
        for function in functions
        for recording in function.recordings.values()
        for number, buffer in recording.buffers.items()
        if number in (*function.static, *function.held)
    ]
    failures = sum(len(function.failures) for function in functions)
    return {"records": cuda.records, "replays": cuda.replays, "copied": sum(copied), "failures": failures}


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
