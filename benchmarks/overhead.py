"""The cost of a call: `a + b` on 2x2 tensors, and a module of 300 parameters, compared with eager and torch.compile.

A function with 60 programs is timed for calls that the program of the last call accepts, and for calls that each need
another program. All contenders are built first and then timed alternately, for many rounds, in one process and one
thread, by CPU time, so that other load on the machine counts less; the figures are medians over the rounds. `F.linear`
in a plain loop is the lower limit for the module. Prologues are also timed alone.

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
OTHER_BYTES = 2**26  # memory that is written before a cold prologue: more than the processor's caches have


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
    """Return the time of a call of a function with many programs, for one program and for programs in random order."""

    def first(x: torch.Tensor, count: int) -> torch.Tensor:
        return x[:count]

    compiled, x = thunder_core.jit(first), torch.ones(programs)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", thunder_core.RecompileWarning)
        for count in (*range(programs), *range(programs)):
            compiled(x, count)
    order = random.Random(0).sample(range(programs), programs)

    def call_in_order() -> None:
        for count in order:
            compiled(x, count)

    last = [microseconds(compiled, (x, 7), 100) for _ in range(rounds)]
    another = [microseconds(call_in_order, (), 2) / programs for _ in range(rounds)]
    return {"last": statistics.median(last), "another": statistics.median(another)}


def prologue(subject: Callable[..., Any], arguments: tuple[torch.Tensor, ...], rounds: int) -> dict[str, float]:
    """Return the number of guards of a program, and median times of its whole and its quick prologue.

    A cold prologue runs after other memory has been written, as by the kernels of a call.
    """
    compiled = thunder_core.jit(subject)
    for _ in range(3):
        compiled(*arguments)
    program = last_program(compiled)
    contenders = {"whole": program.build_function("prologue"), "quick": program.prepare}
    other_memory = torch.zeros(OTHER_BYTES // 4)
    times: dict[str, list[float]] = {f"{kind} {state}": [] for kind in contenders for state in ("warm", "cold")}
    call = (subject, arguments, {})
    for _ in range(rounds):
        for kind, prepare in contenders.items():
            prepare(*call)
            times[f"{kind} warm"].append(microseconds(prepare, call, 10))
            other_memory.add_(1)
            times[f"{kind} cold"].append(microseconds(prepare, call, 1, clock=time.perf_counter))
    return {"guards": len(program.guards), **{name: statistics.median(values) for name, values in times.items()}}


def prologues(rounds: int) -> dict[str, dict[str, float]]:
    """Return the prologues of `a + b`, of the module, and of models of transformers with random weights."""
    from transformers import BertConfig, BertModel, MobileNetV2Config, MobileNetV2Model

    sums, numbers = add()
    net, inputs = linears()
    model, tokens = model_and_input(8)
    bert = BertModel(BertConfig(hidden_size=128, intermediate_size=256, num_attention_heads=4)).eval()
    image = torch.zeros(1, 3, 224, 224)
    return {
        "a + b": prologue(sums["eager"], numbers, rounds),
        "module": prologue(net["eager"], inputs, rounds),
        "Llama of 8 layers": prologue(model, (tokens,), rounds),
        "BERT of 12 layers": prologue(bert, (tokens[:, :16],), rounds),
        "MobileNet V2": prologue(MobileNetV2Model(MobileNetV2Config()).eval(), (image,), rounds),
    }


CASES = {"a + b on 2x2": (add, 2000), f"module of {PARAMETERS} parameters": (linears, 20)}


def microseconds(
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
    calls: int,
    clock: Callable[[], float] = time.process_time,
) -> float:
    """Return the mean time of a call, in microseconds."""
    start = clock()
    for _ in range(calls):
        function(*arguments)
    return (clock() - start) / calls * 1e6


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
        times = "  ".join(f"{kind} {value:.1f} us" for kind, value in figures.items() if kind != "guards")
        print(f"prologue of {name}: {figures['guards']} guards  {times}")
    if options.out:
        options.out.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
