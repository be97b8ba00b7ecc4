"""Tracing compared with Dynamo: from the first call to the finished trace, for Llamas of several depths, in one run.

Each measurement is a separate process: the model is built and runs in eager PyTorch first, modules are imported, and
then one first call is timed. Thunder's time is that of its interpreter, which records the trace with guards at both
levels (torch and ATen); Dynamo's time is that of `torch.compile(backend="eager")`. The unit is CPU seconds, so that
other load on the machine does not count.

Usage: python -m benchmarks.acquire [--layers 8 32]
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.processes import model_and_input


def thunder_seconds(layers: int) -> float:
    """Return the CPU seconds of the first trace in this process."""
    import torch

    from thunder_core.frontend.acquire.acquire import acquire

    model, tokens = model_and_input(layers)
    with torch.no_grad():
        model(tokens)
        start = time.process_time()
        acquire(model, (tokens,), {})
    return time.process_time() - start


def dynamo_seconds(layers: int) -> float:
    """Return the CPU seconds of the first call under torch.compile(backend="eager"), minus an eager call."""
    import torch
    import torch._dynamo

    model, tokens = model_and_input(layers)
    with torch.no_grad():
        model(tokens)
        start = time.process_time()
        model(tokens)
        eager = time.process_time() - start
        start = time.process_time()
        torch.compile(model, backend="eager")(tokens)
    return time.process_time() - start - eager


CONTENDERS = {"thunder": thunder_seconds, "dynamo": dynamo_seconds}


def measure_first_calls(who: str, layers: int, runs: int) -> list[float]:
    """Return measurements, each made in a separate process."""
    command = [sys.executable, "-m", "benchmarks.acquire", "--one", who, "--layers", str(layers)]
    outputs = [subprocess.run(command, check=True, capture_output=True, text=True).stdout for _ in range(runs)]
    return [float(output.split()[-1]) for output in outputs]


def main() -> None:
    """Print the table, and write it as JSON if requested."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, nargs="+", default=[8, 32])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--one", choices=CONTENDERS)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.one:
        print(CONTENDERS[options.one](options.layers[0]))
        return
    rows = []
    print(f"{'layers':>6} {'thunder s':>10} {'dynamo s':>10} {'ratio':>7}   (CPU seconds, median of {options.runs})")
    for layers in options.layers:
        ours, theirs = (statistics.median(measure_first_calls(who, layers, options.runs)) for who in CONTENDERS)
        rows.append({"layers": layers, "thunder": ours, "dynamo": theirs, "ratio": ours / theirs})
        print(f"{layers:>6} {ours:>10.3f} {theirs:>10.3f} {ours / theirs:>7.3f}")
    if options.out:
        options.out.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
