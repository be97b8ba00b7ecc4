"""Symbolic sizes compared with torch.compile: the cost of compiling for 20 lengths, and the cost of a call.

Each compilation is a separate process with an empty cache folder, in which a Llama is called with every length, twice.
Its cost is the CPU seconds of the first calls, minus those of the second calls. torch.compile runs in its default mode,
which compiles for all sizes at the second size, and with `dynamic=True`. The steady state compares the program for all
sizes with the program for the sizes of the call, called alternately in one process and one thread; their prologues are
compared the same way.

Usage: python -m benchmarks.dynamic [--layers 8] [--lengths 20] [--rows 2] [--rounds 60] [--out FILE]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.processes import cpu_seconds, model_and_input, run_module
from benchmarks.steady import in_turn

MODULE = "benchmarks.dynamic"
STEP = 16  # tokens, from one length to the next
EXECUTORS = ("inductor", "torch")
PREPARATIONS = 20  # runs of the prologue in one measurement


def _thunder(model: Any) -> Any:
    import thunder_core

    return thunder_core.jit(model, executors=EXECUTORS, cache="symbolic values")


def _torch_compile(model: Any) -> Any:
    import torch

    return torch.compile(model)


def _torch_compile_dynamic(model: Any) -> Any:
    import torch

    return torch.compile(model, dynamic=True)


COMPILERS: dict[str, Callable[[Any], Any]] = {
    "thunder": _thunder,
    "torch.compile": _torch_compile,
    "torch.compile(dynamic=True)": _torch_compile_dynamic,
}


def inputs(count: int, rows: int) -> Iterator[Any]:
    """Yield tokens of this number of lengths, with this number of rows each."""
    import torch

    generator = torch.Generator().manual_seed(0)
    for length in range(STEP, STEP * (count + 1), STEP):
        yield torch.randint(0, 1000, (rows, length), generator=generator)


def compilation(who: str, layers: int, lengths: int, rows: int) -> dict[str, float]:
    """Return the CPU seconds of compiling a model for this number of lengths, and the number of programs."""
    import torch

    model, _ = model_and_input(layers)
    compiled = COMPILERS[who](model)
    seconds = []
    with torch.no_grad():
        expected = [model(tokens, use_cache=False).logits for tokens in inputs(lengths, rows)]
        for _ in range(2):
            start = cpu_seconds()
            logits = [compiled(tokens, use_cache=False).logits for tokens in inputs(lengths, rows)]
            seconds.append(cpu_seconds() - start)
    torch.testing.assert_close(logits, expected)
    return {"seconds": seconds[0] - seconds[1], "programs": programs(who, compiled)}


def programs(who: str, compiled: Any) -> int:
    """Return the number of compiled programs."""
    import thunder_core

    if who == "thunder":
        return int(thunder_core.cache_misses(compiled))
    from torch._dynamo.utils import counters

    return int(counters["stats"]["unique_graphs"])


def steady(layers: int, rounds: int) -> dict[str, float]:
    """Return the CPU milliseconds of a call and the microseconds of its prologue, with constant and symbolic sizes."""
    import torch

    import thunder_core
    from thunder_core.compilation.compiler import last_program

    model, tokens = model_and_input(layers)
    static = thunder_core.jit(model, executors=EXECUTORS)
    symbolic = _thunder(model)
    with torch.no_grad():
        symbolic(tokens[:, :7].clone(), use_cache=False)
        contenders = {"static": static, "symbolic": symbolic}
        calls = {name: lambda model=contender: model(tokens, use_cache=False) for name, contender in contenders.items()}
        milliseconds = in_turn(calls, rounds)
        prologues = {name: _prologue(last_program(contender), model, tokens) for name, contender in contenders.items()}
        prepared = in_turn(prologues, rounds)
    prepared = {f"{name} prologue": 1e3 * value / PREPARATIONS for name, value in prepared.items()}
    ratios = {
        "ratio": milliseconds["symbolic"] / milliseconds["static"],
        "prologue ratio": prepared["symbolic prologue"] / prepared["static prologue"],
    }
    return {**milliseconds, **prepared, **ratios, "programs": thunder_core.cache_misses(symbolic)}


def _prologue(program: Any, model: Any, tokens: Any) -> Callable[[], None]:
    """Return a function that runs the prologue of a program `PREPARATIONS` times."""

    def prepare() -> None:
        for _ in range(PREPARATIONS):
            program.prepare(model, (tokens,), {"use_cache": False})

    return prepare


def measure_lengths(layers: int, lengths: int, rows: int, runs: int) -> dict[str, Any]:
    """Measure the compilation by each compiler: medians of processes, and the ratio to the better competitor."""
    seconds: dict[str, list[float]] = {who: [] for who in COMPILERS}
    counts: dict[str, int] = {}
    for _ in range(runs):
        for who, seconds_of_contender in seconds.items():
            with tempfile.TemporaryDirectory() as folder:
                environment = {
                    "THUNDER_CACHE_DIR": f"{folder}/thunder",
                    "TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor",
                }
                one = run_module(MODULE, "compilation", who, str(layers), str(lengths), str(rows), **environment)
            seconds_of_contender.append(one["seconds"])
            counts[who] = one["programs"]
    medians = {who: statistics.median(seconds_of_contender) for who, seconds_of_contender in seconds.items()}
    ours, *theirs = medians.values()
    return {
        "layers": layers,
        "lengths": lengths,
        "rows": rows,
        "seconds": medians,
        "programs": counts,
        "ratio": ours / min(theirs),
    }


def main() -> None:
    """Print the table, and write it as JSON if requested."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--lengths", type=int, default=20)
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--rows", type=int, default=2)
    parser.add_argument("--one", nargs="+", metavar="WHAT, WHO, LAYERS, COUNT, ROWS")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.one:
        what, who, *numbers = options.one
        one = compilation(who, *map(int, numbers)) if what == "compilation" else steady(*map(int, numbers))
        print(json.dumps(one))
        return
    row = measure_lengths(options.layers, options.lengths, options.rows, options.runs)
    for who, value in row["seconds"].items():
        print(f"{who:<28}{value:>8.1f} s  {row['programs'][who]} programs")
    print(f"thunder / the better one    {row['ratio']:>8.2f}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        row["steady"] = run_module(
            MODULE, "steady", "thunder", str(options.layers), str(options.rounds), THUNDER_CACHE_DIR=folder
        )
    print("  ".join(f"{name} {value:.3g}" for name, value in row["steady"].items()))
    if options.out:
        options.out.write_text(json.dumps([row], indent=2) + "\n")


if __name__ == "__main__":
    sys.exit(main())
