"""The cost of a call: `a + b` on 2x2 tensors, and a module of 300 parameters, beside eager and torch.compile.

All contenders are built first and then timed in turn, many rounds, in one process and one thread; the figures are
medians over the rounds, and ratios come from the same round. Usage: python -m benchmarks.overhead [--out FILE]
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import thunder_core

PARAMETERS = 300
WIDTH = 2


def add() -> tuple[dict[str, Callable[..., Any]], tuple[torch.Tensor, ...]]:
    """`a + b` by each contender, and its arguments."""

    def plus(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a + b

    arguments = (torch.ones(2, 2), torch.ones(2, 2))
    return {"eager": plus, "thunder": thunder_core.jit(plus), "torch.compile": torch.compile(plus)}, arguments


def linears() -> tuple[dict[str, Callable[..., Any]], tuple[torch.Tensor, ...]]:
    """A chain of linears with 300 parameters by each contender, and its arguments."""
    net = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(PARAMETERS // 2)))
    return {"eager": net, "thunder": thunder_core.jit(net), "torch.compile": torch.compile(net)}, (
        torch.ones(2, WIDTH),
    )


CASES = {"a + b on 2x2": (add, 2000), f"module of {PARAMETERS} parameters": (linears, 20)}


def microseconds(function: Callable[..., Any], arguments: tuple[torch.Tensor, ...], calls: int) -> float:
    """The mean time of a call, in microseconds."""
    start = time.perf_counter()
    for _ in range(calls):
        function(*arguments)
    return (time.perf_counter() - start) / calls * 1e6


def measure(case: str, rounds: int) -> dict[str, float]:
    """The median time of a call of each contender, taken in turn."""
    make, calls = CASES[case]
    contenders, arguments = make()
    for function in contenders.values():
        for _ in range(5):
            function(*arguments)
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, function in contenders.items():
            times[name].append(microseconds(function, arguments, calls))
    return {name: statistics.median(values) for name, values in times.items()}


def main() -> None:
    """Print the table; write it as JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    results = {}
    with torch.no_grad():
        for case in CASES:
            results[case] = measure(case, options.rounds)
            told = "  ".join(f"{name} {value:.1f} us" for name, value in results[case].items())
            ratio = results[case]["thunder"] / results[case]["torch.compile"]
            print(f"{case}: {told}  (thunder over torch.compile: {ratio:.2f})")
    if options.out:
        options.out.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
