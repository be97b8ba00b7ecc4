"""The steady state compared with eager and torch.compile: one forward pass after another, in turn, in one process.

Llama of 8 layers of width 512, batch 1 x 128, inference, one thread. CPU time, medians of rounds that run each
contender once.

Usage: python -m benchmarks.steady [--dtypes float32 bfloat16] [--rounds 60] [--out FILE]
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.processes import model_and_input

LAYERS = 8
WARM_UP = 5


def in_turn(
    calls: dict[str, Callable[[], Any]],
    rounds: int,
    clock: Callable[[], float] = time.process_time,
    *,
    shuffled: bool = False,
) -> dict[str, float]:
    """Return the median milliseconds of each call; with `shuffled`, the order is random in each round."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    order = list(calls)
    for number in range(WARM_UP + rounds):
        if shuffled:
            random.shuffle(order)
        for name in order:
            start = clock()
            calls[name]()
            if number >= WARM_UP:
                times[name].append(clock() - start)
    return {name: 1e3 * statistics.median(values) for name, values in times.items()}


def measure_dtype(dtype: str, rounds: int, layers: int) -> dict[str, Any]:
    """Measure eager, Thunder and torch.compile on the same model."""
    import torch

    import thunder_core

    model, tokens = model_and_input(layers, dtype)
    thunder = thunder_core.jit(model, executors=("inductor", "torch"))
    compiled = torch.compile(model)
    calls = {"eager": model, "thunder": thunder, "torch.compile": compiled}
    with torch.no_grad():
        milliseconds = in_turn(
            {name: lambda model=call: model(tokens, use_cache=False) for name, call in calls.items()}, rounds
        )
    ratios = {f"thunder / {name}": milliseconds["thunder"] / milliseconds[name] for name in ("eager", "torch.compile")}
    return {"dtype": dtype, **milliseconds, **ratios}


def main() -> None:
    """Print the table, and write it as JSON if requested."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--layers", type=int, default=LAYERS)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows = [measure_dtype(dtype, options.rounds, options.layers) for dtype in options.dtypes]
    for row in rows:
        print("  ".join(f"{name} {value if isinstance(value, str) else f'{value:.3g}'}" for name, value in row.items()))
    if options.out:
        options.out.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    sys.exit(main())
