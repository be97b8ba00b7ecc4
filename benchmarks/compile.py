"""Compilation compared with torch.compile: cold, from a stored result in a fresh process, and memory; in one run.

Each measurement is a separate process with an empty cache folder: the model is built and runs in eager PyTorch first,
then the first compiled call is timed. The unit is CPU seconds of the process and of the compilers that it runs. The
second half is a fresh process with a stored result: Thunder has an artifact, an empty cache and no compiler, and
torch.compile has its warm cache. Its time also begins after the call in eager PyTorch, and includes the imports of
Thunder or Dynamo.

Thunder compiles with the executors `inductor` and `torch`, with the recipe `default`, and with this recipe without
measurements of kernels (`--tune 0s`). The ratios are to torch.compile.

Usage: python -m benchmarks.compile [--layers 8 32 64] [--out FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.processes import cpu_seconds, model_and_input, peak_bytes, run_module

MODULE = "benchmarks.compile"
RUNS = 3


def cold(who: str, layers: int, folder: str) -> dict[str, float]:
    """Return the CPU seconds of the first call of a compiled model, and the peak memory that it added."""
    import torch

    model, tokens = model_and_input(layers)
    with torch.no_grad():
        expected = model(tokens, use_cache=False).logits
        memory, start = peak_bytes(), cpu_seconds()
        compiled = COMPILERS[who](model)
        result = compiled(tokens, use_cache=False).logits
        seconds, more = cpu_seconds() - start, peak_bytes() - memory
    torch.testing.assert_close(result, expected)
    if who != TORCH and folder:
        import thunder_core

        thunder_core.save(compiled, folder)
    return {"seconds": seconds, "bytes": more}


def _thunder(model: Any) -> Any:
    import thunder_core

    return thunder_core.jit(model, executors=("inductor", "torch"))


def _default(model: Any) -> Any:
    import thunder_core

    return thunder_core.compile(model, "default")


def _torch_compile(model: Any) -> Any:
    import torch

    return torch.compile(model)


TORCH = "torch.compile"
COMPILERS: dict[str, Callable[[Any], Any]] = {
    "thunder": _thunder,
    "default": _default,
    "default --tune 0s": _default,
    TORCH: _torch_compile,
}
TUNE = "THUNDER_TUNE"
VARIABLES = {"default --tune 0s": {TUNE: "0s"}}  # environment variables of contenders


def warm(who: str, layers: int, folder: str) -> dict[str, float]:
    """Return the CPU seconds of the first call in a fresh process with a stored result, with the compiler's imports."""
    import torch

    model, tokens = model_and_input(layers)
    with torch.no_grad():
        model(tokens, use_cache=False)
        start = cpu_seconds()
        if who == TORCH:
            torch.compile(model)(tokens, use_cache=False)
        else:
            import thunder_core

            thunder_core.load(folder, model, strict=True)(tokens, use_cache=False)
    return {"seconds": cpu_seconds() - start}


def measure_layers(layers: int, runs: int) -> dict[str, Any]:
    """Measure all compilers, cold and warm, on a Llama with this number of layers."""
    results: dict[str, dict[str, list[float]]] = {who: {"cold": [], "warm": [], "bytes": []} for who in COMPILERS}
    for _ in range(runs):
        for who in COMPILERS:
            with tempfile.TemporaryDirectory() as folder:
                environment = {
                    "THUNDER_CACHE_DIR": f"{folder}/thunder",
                    "TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor",
                    **VARIABLES.get(who, {}),
                }
                first = run_module(MODULE, "cold", who, str(layers), f"{folder}/artifact", **environment)
                environment |= {
                    "THUNDER_CACHE_DIR": f"{folder}/empty",
                    "CXX": "g++" if who == TORCH else "/bin/false",
                }
                again = run_module(MODULE, "warm", who, str(layers), f"{folder}/artifact", **environment)
            results[who]["cold"].append(first["seconds"])
            results[who]["bytes"].append(first["bytes"])
            results[who]["warm"].append(again["seconds"])
    medians = {who: {key: statistics.median(values) for key, values in row.items()} for who, row in results.items()}
    ratios = {who: {key: row[key] / medians[TORCH][key] for key in row} for who, row in medians.items()}
    return {"layers": layers, **medians, "ratios": ratios}


def main() -> None:
    """Print the table, and write it as JSON if requested."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, nargs="+", default=[8, 32, 64])
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument("--one", nargs=4, metavar=("WHAT", "WHO", "LAYERS", "FOLDER"))
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.one:
        what, who, layers, folder = options.one
        print(json.dumps({"cold": cold, "warm": warm}[what](who, int(layers), folder)))
        return
    os.environ.pop(TUNE, None)  # the recipe `default` has its usual time for measurements
    rows = []
    print(
        f"{'layers':>6}  {'':<20}{'cold s':>8} {'ratio':>6} {'warm s':>8} {'ratio':>6} {'MiB':>8} {'ratio':>6}", end=""
    )
    print(f"   (median of {options.runs})")
    for layers in options.layers:
        row = measure_layers(layers, options.runs)
        rows.append(row)
        for who, ratios in row["ratios"].items():
            columns = [
                f"{row[who][key] / unit:>8.2f} {ratios[key]:>6.3f}"
                for key, unit in (("cold", 1), ("warm", 1), ("bytes", 2**20))
            ]
            print(f"{layers:>6}  {who:<20}{' '.join(columns)}", flush=True)
    if options.out:
        options.out.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    sys.exit(main())
