"""Quantization: time, tokens per second, bytes, memory and quality of Thunder's recipes, compared with torchao.

Time: a Llama of 8 layers of width 512, one thread; the CPU milliseconds of a call of 1 x 128 tokens and of `generate`
of some tokens after a prompt, for eager PyTorch, Thunder's recipes, and torchao's quantized models under torch.compile.
All contenders are called in turn, so that other load of the machine affects all equally. The torchao contenders are
left out if torchao is not installed (`pip install thunder-optimize[quantize]`).

Artifacts: `thunder optimize` makes artifacts of the same model in float32, float16 and by each recipe. The figures are
the bytes of the weights and of the whole folder, and the peak memory of a fresh process, beyond PyTorch's, after it has
loaded the artifact, called it, and accessed its parameters, which builds the model.

Quality: the report of `thunder optimize` for each recipe: error of the outputs, divergence of the logits, top-1
agreement. The weights are random, so logits are nearly equal and the most probable token changes most easily.

Usage: python -m benchmarks.quantization [--rounds 30] [--tokens 48] [--parts time artifacts] [--out FILE]
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import importlib.util
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.generate import greedy
from benchmarks.processes import forget_peak, model_and_input, resident_peak, run_module
from benchmarks.steady import in_turn

MODULE = "benchmarks.quantization"
LAYERS, PROMPT = 8, 32
RECIPES = ("int8-dynamic", "int8-weight-only", "int4-weight-only", "bf16", "fp8")
LOADED = "loaded"
GENERATE_ROUNDS = 7


def thunder(recipe: str) -> Callable[[Any], Any]:
    """Return a contender: the model compiled by `hf-llama` and by a quantization recipe, if it is given."""

    def make(model: Any) -> Any:
        import thunder_core

        return thunder_core.compile(model, ["hf-llama", recipe] if recipe else "hf-llama")

    return make


def torchao(config: str, *, dtype: str = "float32", **options: Any) -> Callable[[Any], Any]:
    """Return a contender: a copy of the model with torchao's layers of a configuration, under torch.compile."""

    def make(model: Any) -> Any:
        import copy

        import torch
        from torchao import quantization

        changed = copy.deepcopy(model).to(getattr(torch, dtype))
        quantization.quantize_(changed, getattr(quantization, config)(**options))
        changed.forward = torch.compile(changed.forward, dynamic=True)
        return changed

    return make


def contenders() -> dict[str, Callable[[Any], Any]]:
    """Return the functions that make each contender of the float model, by name."""
    ours = {f"thunder, {recipe}": thunder(recipe) for recipe in RECIPES}
    makers = {"eager, float32": lambda model: model, "thunder, float32": thunder(""), **ours}
    if importlib.util.find_spec("torchao") is not None:
        makers["torchao int8 dynamic, torch.compile"] = torchao("Int8DynamicActivationInt8WeightConfig")
        makers["torchao int8 dynamic, bfloat16, torch.compile"] = torchao(
            "Int8DynamicActivationInt8WeightConfig", dtype="bfloat16"
        )
        makers["torchao int8 weight only, torch.compile"] = torchao("Int8WeightOnlyConfig")
        makers["torchao int8 weight only, bfloat16, torch.compile"] = torchao("Int8WeightOnlyConfig", dtype="bfloat16")
    return makers


def times(rounds: int, tokens: int) -> dict[str, Any]:
    """Return the CPU milliseconds of a call and of `generate`, by contender."""
    import torch

    model, ids = model_and_input(LAYERS)
    model.generation_config.eos_token_id = None
    models, failed = {}, {}
    prompt = ids[:, :PROMPT]
    for name, make in contenders().items():
        try:
            contender = make(model)
            with torch.no_grad():
                contender(ids, use_cache=False)
                greedy(contender, prompt, tokens)
                contender(ids, use_cache=False)
        except Exception as error:
            failed[name] = f"{type(error).__name__}: {str(error).splitlines()[0][:160]}"
            continue
        models[name] = contender
    with torch.no_grad():
        calls = in_turn(
            {name: lambda model=contender: model(ids, use_cache=False) for name, contender in models.items()}, rounds
        )
    generated = in_turn(
        {name: lambda model=contender: greedy(model, prompt, tokens) for name, contender in models.items()},
        GENERATE_ROUNDS,
    )
    return {"call": calls, "tokens per second": {n: 1e3 * tokens / t for n, t in generated.items()}, "failed": failed}


def artifacts() -> dict[str, Any]:
    """Return bytes, memory and quality of artifacts of the model, by recipe."""
    from thunder_core.workflow.models.request.request import ModelRequest
    from thunder_core.workflow.pipeline import Request, optimize

    model, _ = model_and_input(LAYERS)
    rows = {}
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(Path(folder) / "model")
        for name in ("float32", "float16", *RECIPES):
            dtype = name if name.startswith("float") else None
            recipe = "hf-llama" if dtype else ("hf-llama", name)
            out = Path(folder) / name
            request = Request(
                recipe,
                ModelRequest(str(Path(folder) / "model"), dtype=dtype),
                out=out,
                include_weights=True,
                benchmark=False,
            )
            quantization = optimize(request).report.quantization
            quality = (
                {}
                if quantization is None
                else {"error": quantization.error, "kl": quantization.kl, "top1": quantization.top1}
            )
            sizes = {"weights": sum(f.stat().st_size for f in (out / "weights").rglob("*") if f.is_file())}
            sizes["folder"] = sum(file.stat().st_size for file in out.rglob("*") if file.is_file())
            rows[name] = {**sizes, **run_module(MODULE, LOADED, "--folder", str(out)), **quality}
            print(f"{name:<20}", "  ".join(f"{key} {value:,.4g}" for key, value in rows[name].items()))
    return rows


def measure_load(folder: Path) -> dict[str, int]:
    """Return the peak memory beyond the memory before an artifact is loaded: after the load, a call, and the build.

    A call of a program reads the weights; access to the model's parameters also builds the model.
    """
    import torch
    import transformers.models.llama.modeling_llama  # noqa: F401 (a call returns an object of one of its classes)

    import thunder_core

    torch.set_num_threads(1)
    ids = torch.randint(0, 1000, (1, 128))
    with torch.no_grad():  # permanent allocations of the first call are not counted
        thunder_core.load(folder, strict=True)(input_ids=ids, attention_mask=torch.ones_like(ids))
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    before = forget_peak()
    model = thunder_core.load(folder, strict=True)
    peaks = {"loaded": resident_peak() - before}
    with torch.no_grad():
        model(input_ids=ids, attention_mask=torch.ones_like(ids))
    peaks["called"] = resident_peak() - before
    list(model.parameters())
    return {**peaks, "built": resident_peak() - before}


def main() -> None:
    """Print the tables, and write them as JSON if requested."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--parts", nargs="+", choices=("time", "artifacts"), default=("time", "artifacts"))
    parser.add_argument("--one", nargs="+", metavar="WHAT")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.one == [LOADED]:
        print(json.dumps(measure_load(options.folder)))
        return
    row: dict[str, Any] = {}
    if "time" in options.parts:
        row |= times(options.rounds, options.tokens)
        base = {part: row[part]["eager, float32"] for part in ("call", "tokens per second")}
        for name, call in row["call"].items():
            speed = row["tokens per second"][name]
            print(
                f"{name:<50}call {call:7.2f} ms  / eager {call / base['call']:.2f}  "
                f"tokens/s {speed:7.1f}  x eager {speed / base['tokens per second']:.2f}"
            )
        for name, why in row["failed"].items():
            print(f"{name:<50}{why}")
    if "artifacts" in options.parts:
        row["artifacts"] = artifacts()
    if options.out:
        options.out.write_text(json.dumps([row], indent=2) + "\n")


if __name__ == "__main__":
    sys.exit(main())
