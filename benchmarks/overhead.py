"""The cost of a call: `a + b` on 2x2 tensors, and a module of 300 parameters, compared with eager and torch.compile.

For a function of 60 programs: calls that the latest program accepts, and calls that another program accepts each time.
All contenders are built first and then timed in turn, for many rounds, in one process and one thread, by CPU time, so
that other load on the machine counts less; the figures are medians over the rounds. `F.linear` is the lower limit for
the module: its calls in a plain loop. The prologues of three programs are also timed alone.

Usage: python -m benchmarks.overhead [--out FILE]
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import thunder_core
from benchmarks.processes import model_and_input
from thunder_core.compilation.compiler import last_program

PARAMETERS = 300
PROGRAMS = 60
WIDTH = 2


def add() -> tuple[dict[str, Callable[..., Any]], tuple[torch.Tensor, ...]]:
    """Return `a + b` by each contender, and its arguments."""

    def plus(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a + b

    arguments = (torch.ones(2, 2), torch.ones(2, 2))
    return {"eager": plus, "thunder": thunder_core.jit(plus), "torch.compile": torch.compile(plus)}, arguments


def linears() -> tuple[dict[str, Callable[..., Any]], tuple[torch.Tensor, ...]]:
    """Return a chain of linear layers with 300 parameters by each contender, and its arguments."""
    net = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(PARAMETERS // 2)))
    pairs = [(layer.weight, layer.bias) for layer in net]

    def loop(x: torch.Tensor) -> torch.Tensor:
        for weight, bias in pairs:
            x = torch.nn.functional.linear(x, weight, bias)
        return x

    contenders = {"eager": net, "thunder": thunder_core.jit(net), "torch.compile": torch.compile(net), "F.linear": loop}
    return contenders, (torch.ones(2, WIDTH),)


def many(programs: int, rounds: int) -> dict[str, float]:
    """Return the time of a call of a function with many programs: of the latest, and of each in mixed order."""

    def first(x: torch.Tensor, count: int) -> torch.Tensor:
        return x[:count]

    compiled, x = thunder_core.jit(first), torch.ones(programs)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", thunder_core.RecompileWarning)
        for count in (*range(programs), *range(programs)):
            compiled(x, count)
    order = random.Random(0).sample(range(programs), programs)

    def mixed() -> None:
        for count in order:
            compiled(x, count)

    last = [microseconds(compiled, (x, 7), 100) for _ in range(rounds)]
    another = [microseconds(mixed, (), 2) / programs for _ in range(rounds)]
    return {"last": statistics.median(last), "another": statistics.median(another)}


def prologue(subject: Callable[..., Any], arguments: tuple[torch.Tensor, ...], rounds: int) -> dict[str, float]:
    """Return the number of guards of a program, and the median time of its prologue."""
    compiled = thunder_core.jit(subject)
    for _ in range(2):
        compiled(*arguments)
    program = last_program(compiled)
    times = [microseconds(program.prepare, (subject, arguments, {}), 100) for _ in range(rounds)]
    return {"guards": len(program.guards), "us": statistics.median(times)}


def prologues(rounds: int) -> dict[str, dict[str, float]]:
    """Return the prologues of `a + b`, of the module and of a Llama of 8 layers."""
    sums, numbers = add()
    net, inputs = linears()
    model, tokens = model_and_input(8)
    return {
        "a + b": prologue(sums["eager"], numbers, rounds),
        "module": prologue(net["eager"], inputs, rounds),
        "Llama of 8 layers": prologue(model, (tokens,), rounds),
    }


CASES = {"a + b on 2x2": (add, 2000), f"module of {PARAMETERS} parameters": (linears, 20)}


def microseconds(function: Callable[..., Any], arguments: tuple[Any, ...], calls: int) -> float:
    """Return the mean time of a call, in microseconds."""
    start = time.process_time()
    for _ in range(calls):
        function(*arguments)
    return (time.process_time() - start) / calls * 1e6


def measure(case: str, rounds: int) -> dict[str, float]:
    """Return the median time of a call of each contender, measured in turn."""
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
    """Print the table, and write it as JSON if requested."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    results: dict[str, Any] = {}
    with torch.no_grad():
        for case in CASES:
            results[case] = measure(case, options.rounds)
            times = "  ".join(f"{name} {value:.1f} us" for name, value in results[case].items())
            ratio = results[case]["thunder"] / results[case]["torch.compile"]
            print(f"{case}: {times}  (thunder over torch.compile: {ratio:.2f})")
        results["programs"] = figures = many(PROGRAMS, options.rounds)
        ratio = figures["another"] / figures["last"]
        times = "  ".join(f"{name} {value:.1f} us" for name, value in figures.items())
        print(f"one of {PROGRAMS} programs: {times}  (another over the last: {ratio:.2f})")
        results["prologues"] = prologues(options.rounds)
    for name, figures in results["prologues"].items():
        print(f"prologue of {name}: {figures['guards']} guards, {figures['us']:.1f} us")
    if options.out:
        options.out.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
