"""Inference on the CPU compared with the alternatives: eager, torch.compile, ONNX Runtime and OpenVINO.

All contenders for a model are built first and then run in turn, round after round, in one process, in float32. Each
model has a process of its own. With one thread, the figures are CPU time, so that other load on the machine counts
less; with more threads, they are wall-clock time. They are medians of rounds, and quotients of medians. ONNX Runtime
and OpenVINO take part if they can be imported; `torch.onnx.export` writes their input. `thunder` is the recipe
`default`, `thunder, freeze` the recipe `freeze`, and `thunder without packed-linear` multiplies only by PyTorch's
library.

Usage: python -m benchmarks.cpu_peers [--models llama-1x128 decode-1x1 ...] [--threads 1 2] [--rounds 40] [--out FILE]
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

import thunder_core
from benchmarks.cpu_models import MODELS
from benchmarks.engines import Call, export, installed_engines
from benchmarks.steady import in_turn
from thunder_core.backend.claiming.tuning import tuning
from thunder_core.workflow.benchmark import processor_name

TUNING = 10.0  # seconds for measurements of kernels in each program


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
    engines = installed_engines()
    content = export(model, inputs) if engines else b""
    return calls | {name: make(content, inputs, threads) for name, make in engines.items()}


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
    processes = ProcessPoolExecutor(1, mp_context=get_context("spawn"), max_tasks_per_child=1)
    for threads, name in itertools.product(options.threads, options.models):
        rows.append(row := processes.submit(measure_model, name, threads, options.rounds).result())
        print(f"{name}, {threads} threads, {row['clock']} time over eager's", end="  ")
        print("  ".join(f"{who} {value:.3f}" for who, value in row["over eager"].items()), flush=True)
    if options.out:
        result = {"processor": processor_name(), "torch": torch.__version__, "rows": rows}
        options.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    sys.exit(main())
