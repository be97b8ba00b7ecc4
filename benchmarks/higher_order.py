"""Higher-order operators compared with eager and torch.compile: the cost of compilation, and the cost of a call.

There are four programs: `scan` (a linear recurrence over time), `cond` on a tensor's value, `flex_attention` (causal,
with the distance of positions in its score function), and per-sample gradients (`vmap` of `grad`). They run without
recording gradients, on one CPU thread. Compilation is the CPU time of the first call in a separate process with empty
cache folders, minus the second call; the steady state is the CPU time of alternating calls in one process, as medians
of rounds. A program that a contender refuses is reported with its error.

Usage: python -m benchmarks.higher_order [--programs scan cond ...] [--rounds 60] [--out FILE]
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.processes import cpu_seconds, run_module
from benchmarks.steady import in_turn

MODULE = "benchmarks.higher_order"
CONTENDERS = ("eager", "torch.compile", "thunder")
STEPS, WIDTH = 64, 64  # of the recurrence
LENGTH, HEADS, HEAD_SIZE = 512, 8, 64  # of attention
SAMPLES, FEATURES = 64, 128


def scan_program() -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Return a recurrence with a gate for each step, as in Mamba, and its arguments."""
    import torch
    from torch._higher_order_ops.scan import scan

    def combine(state: Any, step: tuple[Any, Any]) -> tuple[Any, Any]:
        gate, value = step
        state = torch.sigmoid(gate) * state + value
        return state, torch.tanh(state)

    def program(start: Any, gates: Any, values: Any) -> Any:
        return scan(combine, start, (gates, values), dim=0)[1]

    return program, (torch.zeros(8, WIDTH), torch.randn(STEPS, 8, WIDTH), torch.randn(STEPS, 8, WIDTH))


def cond_program() -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Return two branches of a few operations each, chosen by a sum, and the arguments."""
    import torch

    def program(x: Any, weight: Any) -> Any:
        def wide(x: Any, weight: Any) -> Any:
            return torch.nn.functional.gelu(x @ weight).sin() + x

        def narrow(x: Any, weight: Any) -> Any:
            return torch.tanh(x * weight[0]).cos() - x

        return torch.cond(x.sum() > 0, wide, narrow, (x, weight))

    return program, (torch.rand(256, 256), torch.randn(256, 256))


def flex_program() -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Return causal attention with a score function, with a block mask made outside, and its arguments."""
    import torch
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, LENGTH, LENGTH, "cpu")

    def program(query: Any, key: Any, value: Any) -> Any:
        return flex_attention(query, key, value, lambda s, b, h, i, j: s + (j - i) * 0.01, mask)

    return program, tuple(torch.randn(1, HEADS, LENGTH, HEAD_SIZE) for _ in range(3))


def gradients_program() -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Return the gradients of a small network's loss for each sample of a batch, and the arguments."""
    import torch

    def loss(weights: tuple[Any, Any], x: Any, label: Any) -> Any:
        hidden = torch.nn.functional.gelu(x @ weights[0])
        return torch.nn.functional.mse_loss(hidden @ weights[1], label)

    def program(weights: Any, x: Any, labels: Any) -> Any:
        return torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))(weights, x, labels)

    weights = (torch.randn(FEATURES, FEATURES) * 0.1, torch.randn(FEATURES, 8) * 0.1)
    return program, (weights, torch.randn(SAMPLES, FEATURES), torch.randn(SAMPLES, 8))


PROGRAMS = {
    "scan": scan_program,
    "cond": cond_program,
    "flex_attention": flex_program,
    "vmap(grad)": gradients_program,
}


def compile_program(program: Callable[..., Any], who: str) -> Callable[..., Any]:
    """Return the program as a contender runs it."""
    import torch

    import thunder_core

    if who == "thunder":
        compiled: Callable[..., Any] = thunder_core.jit(program, executors=("inductor", "torch"))
        return compiled
    return torch.compile(program) if who == "torch.compile" else program


def program_and_arguments(name: str) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Return a program and its arguments, which are the same in every process."""
    import torch

    torch.manual_seed(0)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    return PROGRAMS[name]()


def compilation(name: str, who: str) -> dict[str, Any]:
    """Return the CPU seconds of the first call minus the second call, or the error."""
    import torch

    program, args = program_and_arguments(name)
    run = compile_program(program, who)
    seconds = []
    try:
        with torch.no_grad():
            for _ in range(2):
                start = cpu_seconds()
                run(*args)
                seconds.append(cpu_seconds() - start)
    except Exception as error:
        return {"refused": refusal(error)}
    return {"seconds": seconds[0] - seconds[1]}


def steady(name: str, rounds: int) -> dict[str, Any]:
    """Return the CPU milliseconds of a call by each contender; all results must be equal."""
    import torch

    program, args = program_and_arguments(name)
    figures: dict[str, Any] = {"milliseconds": {}, "refused": {}}
    calls: dict[str, Callable[[], Any]] = {}
    results: dict[str, Any] = {}
    with torch.no_grad():
        for who in CONTENDERS:
            run = compile_program(program, who)
            try:
                results[who] = run(*args)
            except Exception as error:
                figures["refused"][who] = refusal(error)
                continue
            calls[who] = lambda run=run: run(*args)
        for result in results.values():
            torch.testing.assert_close(result, results["eager"], rtol=1e-3, atol=1e-4)
        figures["milliseconds"] = in_turn(calls, rounds)
    return figures


def refusal(error: Exception) -> str:
    """Return the class of an error and the first line of its message."""
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0]}"[:200]


def measure_operator(name: str, rounds: int) -> dict[str, Any]:
    """Return a row of the table: compilation and steady state of a program."""
    row: dict[str, Any] = {"program": name, "seconds": {}, "refused": {}}
    with tempfile.TemporaryDirectory() as folder:
        for who in CONTENDERS:
            environment = {
                "THUNDER_CACHE_DIR": f"{folder}/{who}",
                "TORCHINDUCTOR_CACHE_DIR": f"{folder}/{who}-inductor",
            }
            answer = run_module(MODULE, "compilation", name, who, **environment)
            row["refused" if "refused" in answer else "seconds"][who] = answer.get("refused", answer.get("seconds"))
        environment = {"THUNDER_CACHE_DIR": f"{folder}/steady", "TORCHINDUCTOR_CACHE_DIR": f"{folder}/steady-inductor"}
        answer = run_module(MODULE, "steady", name, str(rounds), **environment)
    times = row["milliseconds"] = answer["milliseconds"]
    row["refused"] |= answer["refused"]
    if "thunder" in times:
        row["ratios"] = {f"thunder / {who}": times["thunder"] / times[who] for who in times if who != "thunder"}
    return row


def summary(row: dict[str, Any]) -> str:
    """Return a row as text: a line for each contender."""
    lines = [row["program"]]
    for who in CONTENDERS:
        if who in row["refused"]:
            lines.append(f"  {who:<14} refused: {row['refused'][who]}")
        else:
            lines.append(
                f"  {who:<14}{row['seconds'][who]:>8.2f} s to compile{row['milliseconds'][who]:>10.3f} ms a call"
            )
    lines += [f"  {name} {value:.2f}" for name, value in row.get("ratios", {}).items()]
    return "\n".join(lines)


def main() -> None:
    """Print the table, and write it as JSON if requested."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", nargs="+", choices=PROGRAMS, default=list(PROGRAMS))
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--one", nargs=3, metavar=("WHAT", "PROGRAM", "WHO"))
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.one:
        what, name, last = options.one
        print(json.dumps(compilation(name, last) if what == "compilation" else steady(name, int(last))))
        return
    rows = []
    for name in options.programs:
        rows.append(measure_operator(name, options.rounds))
        print(summary(rows[-1]), flush=True)
    if options.out:
        options.out.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    sys.exit(main())
