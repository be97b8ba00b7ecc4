"""Quantization: time, tokens per second, bytes, memory and quality of Thunder's recipes, beside torchao's layers.

Time: a Llama of 8 layers of width 512, one thread; the CPU milliseconds of a call of 1 x 128 tokens and of `generate`
of some tokens behind a prompt, for eager PyTorch, Thunder's recipes, and torchao's quantized models under
torch.compile, each contender called in turn with all others, so that what else the machine does is the same for all.
Those of torchao are left out where it is not installed (`pip install thunder-optimize[quantize]`).

Artifacts: of the same model, made by `thunder optimize` in float32, float16 and each recipe: the bytes of the weights
and of the whole folder, and the most memory that a fresh process has beyond PyTorch's when it has loaded the artifact,
called it, and asked it for its parameters, which builds the model.
Quality: what `thunder optimize` reports of each recipe: error of the outputs, divergence of the logits, top-1. The
weights are random, so that logits are nearly equal and the most probable token changes most easily.

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
from benchmarks.processes import asked, forget_peak, model_and_input, resident_peak
from benchmarks.steady import in_turn

MODULE = "benchmarks.quantization"
LAYERS, PROMPT = 8, 32
RECIPES = ("int8-dynamic", "int8-weight-only", "int4-weight-only", "bf16", "fp8")
LOADED = "loaded"
GENERATE_ROUNDS = 7


def thunder(recipe: str) -> Callable[[Any], Any]:
    """A contender: the model compiled by `hf-llama` and a recipe that quantizes, if one is named."""

    def made(model: Any) -> Any:
        import thunder_core

        return thunder_core.compile(model, ["hf-llama", recipe] if recipe else "hf-llama")

    return made


def torchao(config: str, *, dtype: str = "float32", **options: Any) -> Callable[[Any], Any]:
    """A contender: a copy of the model with torchao's layers of that configuration, under torch.compile."""

    def made(model: Any) -> Any:
        import copy

        import torch
        from torchao import quantization

        changed = copy.deepcopy(model).to(getattr(torch, dtype))
        quantization.quantize_(changed, getattr(quantization, config)(**options))
        changed.forward = torch.compile(changed.forward, dynamic=True)
        return changed

    return made


def contenders() -> dict[str, Callable[[Any], Any]]:
    """The functions that make each contender of the float model, by their names."""
    ours = {f"thunder, {recipe}": thunder(recipe) for recipe in RECIPES}
    found = {"eager, float32": lambda model: model, "thunder, float32": thunder(""), **ours}
    if importlib.util.find_spec("torchao") is not None:
        found["torchao int8 dynamic, torch.compile"] = torchao("Int8DynamicActivationInt8WeightConfig")
        found["torchao int8 dynamic, bfloat16, torch.compile"] = torchao(
            "Int8DynamicActivationInt8WeightConfig", dtype="bfloat16"
        )
        found["torchao int8 weight only, torch.compile"] = torchao("Int8WeightOnlyConfig")
        found["torchao int8 weight only, bfloat16, torch.compile"] = torchao("Int8WeightOnlyConfig", dtype="bfloat16")
    return found


def times(rounds: int, tokens: int) -> dict[str, Any]:
    """The CPU milliseconds of a call and of `generate`, by contender."""
    import torch

    model, ids = model_and_input(LAYERS)
    model.generation_config.eos_token_id = None
    made, failed = {}, {}
    prompt = ids[:, :PROMPT]
    for name, make in contenders().items():
        try:
            one = make(model)
            with torch.no_grad():
                one(ids, use_cache=False)
                greedy(one, prompt, tokens)
                one(ids, use_cache=False)
        except Exception as error:
            failed[name] = f"{type(error).__name__}: {str(error).splitlines()[0][:160]}"
            continue
        made[name] = one
    with torch.no_grad():
        calls = in_turn({name: lambda one=one: one(ids, use_cache=False) for name, one in made.items()}, rounds)
    generated = in_turn(
        {name: lambda one=one: greedy(one, prompt, tokens) for name, one in made.items()}, GENERATE_ROUNDS
    )
    return {"call": calls, "tokens per second": {n: 1e3 * tokens / t for n, t in generated.items()}, "failed": failed}


def artifacts() -> dict[str, Any]:
    """Bytes, memory and quality of artifacts of the model, by recipe."""
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
            found = optimize(request).report.quantization
            quality = {} if found is None else {"error": found.error, "kl": found.kl, "top1": found.top1}
            sizes = {"weights": sum(f.stat().st_size for f in (out / "weights").rglob("*") if f.is_file())}
            sizes["folder"] = sum(file.stat().st_size for file in out.rglob("*") if file.is_file())
            rows[name] = {**sizes, **asked(MODULE, LOADED, "--folder", str(out)), **quality}
            print(f"{name:<20}", "  ".join(f"{key} {value:,.4g}" for key, value in rows[name].items()))
    return rows


def loaded(folder: Path) -> dict[str, int]:
    """The most memory beyond what this process has before an artifact is loaded: until then, called, and built.

    A call that a program takes reads the weights; asking for the model's parameters builds the model as well.
    """
    import torch
    import transformers.models.llama.modeling_llama  # noqa: F401 (what a call returns is a class of it)

    import thunder_core

    torch.set_num_threads(1)
    ids = torch.randint(0, 1000, (1, 128))
    with torch.no_grad():  # what is imported and kept for good at the first call is not counted
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
    """Print the tables; write them as JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--parts", nargs="+", choices=("time", "artifacts"), default=("time", "artifacts"))
    parser.add_argument("--one", nargs="+", metavar="WHAT")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.one == [LOADED]:
        print(json.dumps(loaded(options.folder)))
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
