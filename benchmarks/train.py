"""Compare Thunder's training step with eager PyTorch and torch.compile: CPU time, memory, and cold compilation.

- `steady`: forward, backward and gradients set to None, for a Llama of 8 layers of width 512, with batch 1 x 128 on one
  thread. The result is the median CPU time of rounds that run each contender in turn in one process.
- `whole step`: forward, backward and the step of AdamW, compiled as one function, in float32, with each of PyTorch's
  implementations (a loop over parameters, `foreach`, `fused`). `torch.compile` splits the function at `backward()`, and
  compiles the step of AdamW separately.
- `memory`: the peak bytes that PyTorch's allocator holds during a step, beyond those before the step. Each contender
  runs in its own process.
- `cold`: CPU seconds of the first step of a Llama of 32 layers of width 256. Each contender runs in its own process
  with an empty cache folder. The time includes the processes of compilers.

Usage: python -m benchmarks.train [--layers 8] [--dtypes float32 bfloat16] [--rounds 40] [--cold 32] [--out FILE]
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.processes import cpu_seconds, model_and_input, run_module
from benchmarks.steady import in_turn

MODULE = "benchmarks.train"
LAYERS = 8
WARM_UP = 4  # steps before the step whose memory is measured
UNITS = {"memory": "MiB", "cold": "s"}  # of the figures of a row; milliseconds for other rows
Step = Callable[[], Any]


def steps(dtype: str, layers: int, names: list[str]) -> dict[str, Step]:
    """Return a training step of each named contender, without an optimizer; all share one model."""
    model, tokens = model_and_input(layers, dtype)
    model.train()

    def step_of(run: Any) -> Step:
        def step() -> Any:
            model.zero_grad(set_to_none=True)
            loss = run(tokens, labels=tokens, use_cache=False).loss
            loss.backward()
            return loss

        return step

    return {name: step_of(CONTENDERS[name](model)) for name in names}


def _eager(model: Any) -> Any:
    return model


def _thunder(model: Any) -> Any:
    import thunder_core

    return thunder_core.jit(model, executors=("inductor", "torch"))


def _torch_compile(model: Any) -> Any:
    import torch

    return torch.compile(model)


CONTENDERS: dict[str, Callable[[Any], Any]] = {"eager": _eager, "thunder": _thunder, "torch.compile": _torch_compile}


OPTIMIZERS: dict[str, dict[str, bool]] = {
    "loop": {"foreach": False},
    "foreach": {"foreach": True},
    "fused": {"fused": True},
}


def whole_steps(dtype: str, layers: int, optimizer: str) -> dict[str, Step]:
    """Return for each contender a step that runs forward, backward and the optimizer; each has its own model."""
    return {name: _whole_step(name, dtype, layers, optimizer) for name in CONTENDERS}


def _whole_step(who: str, dtype: str, layers: int, optimizer: str) -> Step:
    import torch

    model, tokens = model_and_input(layers, dtype)
    model.train()
    adamw = torch.optim.AdamW(model.parameters(), lr=1e-4, **OPTIMIZERS[optimizer])

    def step(tokens: Any) -> Any:
        adamw.zero_grad()
        loss = model(tokens, labels=tokens, use_cache=False).loss
        loss.backward()
        adamw.step()
        return loss.detach()

    compiled = CONTENDERS[who](step)
    return lambda: compiled(tokens)


def measure_whole_step(dtype: str, layers: int, optimizer: str, rounds: int) -> dict[str, float]:
    """Return the median CPU milliseconds of a whole step of each contender; all must reach the same loss."""
    import torch

    calls = whole_steps(dtype, layers, optimizer)
    milliseconds = in_turn(calls, rounds)
    losses = [call() for call in calls.values()]
    for loss in losses[1:]:
        torch.testing.assert_close(loss, losses[0], rtol=1e-3, atol=1e-3)
    return milliseconds


def steady(dtype: str, layers: int, rounds: int) -> dict[str, float]:
    """Return the median CPU milliseconds of a step of each contender."""
    calls = steps(dtype, layers, list(CONTENDERS))
    return in_turn(calls, rounds)


def memory(who: str, dtype: str, layers: int) -> dict[str, float]:
    """Return the peak bytes that PyTorch's allocator has allocated during a step, beyond those before the step."""
    from thunder_core.workflow.benchmark.allocations import peak_allocated

    step = steps(dtype, layers, [who])[who]
    for _ in range(WARM_UP):
        step()
    return {"bytes": peak_allocated(step)}


def cold(who: str, dtype: str, layers: int) -> dict[str, float]:
    """Return the CPU seconds of the first step; its loss must equal eager's."""
    import torch

    calls = steps(dtype, layers, ["eager", who])
    expected = calls["eager"]()
    start = cpu_seconds()
    loss = calls[who]()
    seconds = cpu_seconds() - start
    torch.testing.assert_close(loss, expected)
    return {"seconds": seconds}


def measure_in_process(what: str, who: str, dtype: str, layers: int) -> float:
    """Return the measurement of one process that has its own caches."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {"THUNDER_CACHE_DIR": f"{folder}/thunder", "TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor"}
        (value,) = run_module(MODULE, what, who, dtype, str(layers), **environment).values()
    return float(value)


def row(what: str, dtype: str, layers: int, figures: dict[str, float]) -> dict[str, Any]:
    """Print a line of the table, with the figure of each contender in the unit of the row; return the line."""
    ratios = {f"thunder / {name}": figures["thunder"] / value for name, value in figures.items() if name != "thunder"}
    unit = UNITS.get(what, "ms")
    text = "  ".join(f"{name} {value:.4g}" for name, value in (figures | ratios).items())
    print(f"{what:<19} {layers:>3} layers  {dtype:<9} {unit:<3} {text}", flush=True)
    return {"what": what, "layers": layers, "dtype": dtype, "unit": unit, **figures, **ratios}


def main() -> None:
    """Print the table, and write it as JSON if requested."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--layers", type=int, default=LAYERS)
    parser.add_argument(
        "--cold", type=int, default=32, help="layers of the model that is compiled cold; 0 leaves it out"
    )
    parser.add_argument(
        "--one", nargs=4, metavar=("WHAT", "WHO", "DTYPE", "LAYERS"), help="run one `memory` or `cold` measurement here"
    )
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.one:
        what, who, dtype, layers = options.one
        print(json.dumps({"memory": memory, "cold": cold}[what](who, dtype, int(layers))))
        return
    rows = []
    for dtype in options.dtypes:
        rows.append(row("steady", dtype, options.layers, steady(dtype, options.layers, options.rounds)))
        if dtype == "float32":
            for name in OPTIMIZERS:
                figures = measure_whole_step(dtype, options.layers, name, options.rounds)
                rows.append(row(f"whole step, {name}", dtype, options.layers, figures))
        figures = {who: measure_in_process("memory", who, dtype, options.layers) / 2**20 for who in CONTENDERS}
        rows.append(row("memory", dtype, options.layers, figures))
    if options.cold:
        figures = {
            who: measure_in_process("cold", who, "float32", options.cold) for who in ("thunder", "torch.compile")
        }
        rows.append(row("cold", "float32", options.cold, figures))
    if options.out:
        options.out.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    sys.exit(main())
