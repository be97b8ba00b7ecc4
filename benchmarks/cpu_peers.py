"""Inference on the CPU compared with the alternatives: eager, torch.compile, ONNX Runtime and OpenVINO.

All contenders are built first and then run in turn, round after round, in one process, in float32. With one thread, the
figures are CPU time, so that other load on the machine counts less; with more threads, they are wall-clock time. They
are medians of rounds, and quotients of medians. ONNX Runtime and OpenVINO take part if they can be imported;
`torch.onnx.export` writes their input. `thunder` is the recipe `default`, `thunder, freeze` the recipe `freeze`, and
`thunder without packed-linear` multiplies only by PyTorch's library.

Usage: python -m benchmarks.cpu_peers [--models llama-1x128 decode-1x1 ...] [--threads 1 2] [--rounds 40] [--out FILE]
"""

from __future__ import annotations

import argparse
import importlib.util
import io
import itertools
import json
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

import thunder_core
from benchmarks.cpu_models import MODELS
from thunder_core.backend.claiming.tuning import tuning
from thunder_core.workflow.benchmark import processor_name

WARM_UP = 5
TUNING = 10.0  # seconds for measurements of kernels in each program
Call = Callable[[], Any]


def export(model: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> bytes:
    """Return the model as ONNX."""
    program = torch.onnx.export(model, inputs, dynamo=True, verbose=False)
    assert program is not None
    buffer = io.BytesIO()
    program.save(buffer)
    return buffer.getvalue()


def onnx_runtime(content: bytes, inputs: tuple[torch.Tensor, ...], threads: int) -> Call:
    """Return the call of ONNX Runtime."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    inputs_by_name = {
        argument.name: value.numpy() for argument, value in zip(session.get_inputs(), inputs, strict=True)
    }
    return lambda: session.run(None, inputs_by_name)


def openvino(content: bytes, inputs: tuple[torch.Tensor, ...], threads: int) -> Call:
    """Return the call of OpenVINO, in float32 like the others."""
    import openvino as ov

    core = ov.Core()
    settings = {"INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": "f32", "NUM_STREAMS": 1}
    request = core.compile_model(core.read_model(io.BytesIO(content)), "CPU", settings).create_infer_request()
    arrays = [value.numpy() for value in inputs]
    return lambda: request.infer(arrays)


PEERS: dict[str, tuple[str, Callable[..., Call]]] = {
    "ONNX Runtime": ("onnxruntime", onnx_runtime),
    "OpenVINO": ("openvino", openvino),
}


COMPILED: dict[str, dict[str, Any]] = {
    "torch.compile": {},
    "torch.compile, freezing": {"options": {"freezing": True}},
    "torch.compile, max-autotune": {"mode": "max-autotune"},
}


def contenders(model: torch.nn.Module, inputs: tuple[torch.Tensor, ...], threads: int) -> dict[str, Call]:
    """Return the call of each contender, by name."""
    modules = {
        "eager": model,
        "thunder": thunder_core.compile(model),
        "thunder, freeze": thunder_core.compile(model, "freeze"),
        "thunder without packed-linear": thunder_core.compile(model, without=("packed-linear",)),
        **{name: torch.compile(model, **settings) for name, settings in COMPILED.items()},
    }
    calls: dict[str, Call] = {name: partial(module, *inputs) for name, module in modules.items()}
    there = {name: make for name, (package, make) in PEERS.items() if importlib.util.find_spec(package)}
    content = export(model, inputs) if there else b""
    return calls | {name: make(content, inputs, threads) for name, make in there.items()}


def in_turn(calls: dict[str, Call], rounds: int, clock: Callable[[], float]) -> dict[str, float]:
    """Return the median milliseconds of each call."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(WARM_UP + rounds):
        for name, call in calls.items():
            start = clock()
            call()
            if number >= WARM_UP:
                times[name].append(clock() - start)
    return {name: 1e3 * statistics.median(values) for name, values in times.items()}


def measure_model(name: str, threads: int, rounds: int) -> dict[str, Any]:
    """Return a row: the milliseconds of each contender, and their quotients by eager's."""
    torch.manual_seed(0)
    torch.set_num_threads(threads)
    torch.compiler.reset()
    model, inputs = MODELS[name]()
    with torch.no_grad(), tuning(TUNING):
        calls = contenders(model, inputs, threads)
        milliseconds = in_turn(calls, rounds, time.process_time if threads == 1 else time.perf_counter)
    clock = "CPU" if threads == 1 else "wall"
    ratios = {who: value / milliseconds["eager"] for who, value in milliseconds.items()}
    return {"model": name, "threads": threads, "clock": clock, "milliseconds": milliseconds, "over eager": ratios}


def main() -> None:
    """Print the table, and write it as JSON if requested."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows = []
    for threads, name in itertools.product(options.threads, options.models):
        rows.append(row := measure_model(name, threads, options.rounds))
        print(f"{name}, {threads} threads, {row['clock']} time over eager's", end="  ")
        print("  ".join(f"{who} {value:.3f}" for who, value in row["over eager"].items()), flush=True)
    if options.out:
        result = {"processor": processor_name(), "torch": torch.__version__, "rows": rows}
        options.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    sys.exit(main())
