"""Predict training steps on 8 to 512 ranks from the traces of the recipes ddp and fsdp, measured in one process.

The module `benchmarks.timeline` states the assumptions. The process needs a group of one rank, which this script makes.
The batch of each rank is constant (weak scaling). The loss and the optimizer are not included.
Usage: python -m benchmarks.simulate_ranks [--layers N] [--width N] [--rows N] [--bandwidth GB_PER_SECOND]
[--latency MICROSECONDS] [--speedup FACTOR] [--ranks N ...] [--out FILE]
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import thunder_core
from benchmarks.distributed import Model
from benchmarks.timeline import Event, Network, Prediction, claimed_traces, events_of, predict

RANKS = (8, 16, 32, 64, 128, 256, 512)
RECIPES: dict[str, tuple[str, dict[str, Any]]] = {
    "ddp": ("ddp", {}),
    "fsdp (ZeRO-3)": ("fsdp", {}),
    "fsdp (ZeRO-2)": ("fsdp", {"reshard_after_forward": False}),
}


def measure_step(name: str, arguments: argparse.Namespace) -> list[Event]:
    """Return the measured lines of a forward and backward of a recipe."""
    recipe, options = RECIPES[name]
    model = thunder_core.compile(Model(arguments.layers, arguments.width), recipe, **options)
    model(torch.randn(arguments.rows, arguments.width)).pow(2).mean().backward()
    return events_of(claimed_traces(model), arguments.rounds)


def main() -> None:
    """Measure, predict, print a table, and write a file if `--out` is set."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("layers", 8), ("width", 512), ("rows", 512), ("rounds", 7)):
        parser.add_argument(f"--{name}", type=int, default=default)
    for name, number in (("bandwidth", 1.25), ("latency", 20.0), ("speedup", 1.0)):
        parser.add_argument(f"--{name}", type=float, default=number)
    parser.add_argument("--ranks", type=int, nargs="*", default=RANKS)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    predictions: dict[str, dict[int, Prediction]] = {}
    for name in RECIPES:
        events = measure_step(name, arguments)
        for ranks in arguments.ranks:
            network = Network(ranks, arguments.bandwidth * 1e9, arguments.latency * 1e-6)
            predictions.setdefault(name, {})[ranks] = predict(events, network, arguments.speedup)
    dist.destroy_process_group()
    for name, by_ranks in predictions.items():
        for ranks, prediction in by_ranks.items():
            print(
                f"{name:16} {ranks:4} ranks  step {1000 * prediction.step:8.1f} ms  "
                f"computation {1000 * prediction.computation:8.1f} ms  "
                f"communication {1000 * prediction.communication:8.1f} ms  hidden {prediction.hidden:4.0%}"
            )
    if arguments.out:
        options = {name: value for name, value in vars(arguments).items() if name not in ("out", "ranks")}
        seconds = {
            name: {ranks: asdict(prediction) for ranks, prediction in of.items()} for name, of in predictions.items()
        }
        arguments.out.write_text(
            json.dumps({"options": options, "torch": torch.__version__, "seconds": seconds}, indent=1)
        )


if __name__ == "__main__":
    main()
