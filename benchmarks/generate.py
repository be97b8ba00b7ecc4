"""Generation: eager PyTorch, torch.compile and Thunder, prompt by prompt, with dynamic and static caches.

Each contender is a separate process with an empty cache folder, in which a Llama generates tokens greedily for prompts
of several lengths, round after round. The figures are the CPU seconds of each call. The tokens are compared with those
of eager PyTorch. The first call includes the compilation; the last two rounds are the steady state. The matrix products
of the model, which read each weight once for each token, are a lower limit. A Llama of 16 layers of width 8 shows the
overhead of a token outside of kernels, and of a call of the model for one token, in eager PyTorch and Thunder.
Finally, the start of an artifact that generates is measured in fresh processes (`benchmarks/generate_artifact.py`).

Usage: python -m benchmarks.generate [--layers 8] [--tokens 48] [--prompts 32 57 5] [--rounds 4] [--out FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks import generate_artifact
from benchmarks.processes import cpu_seconds, model_and_input, run_module
from benchmarks.steady import in_turn

MODULE = "benchmarks.generate"
TOKENS = 48
PROMPTS = (32, 57, 5)
OVERHEAD = "overhead"
PRODUCTS = "products"
OVERHEAD_ROUNDS = 15
CALLS = 300


def _eager(model: Any) -> Any:
    return model


def _thunder(model: Any) -> Any:
    import thunder_core

    return thunder_core.compile(model, "hf-llama")


def _torch_compile_dynamic(model: Any) -> Any:
    import torch

    model.forward = torch.compile(model.forward, dynamic=True)
    return model


def _thunder_static(model: Any) -> Any:
    import thunder_core

    return thunder_core.compile(model, "hf-generate")


def _torch_compile_static(model: Any) -> Any:
    from transformers import CompileConfig

    config = CompileConfig(mode="default")
    vars(config)["_compile_all_devices"] = True  # by default, transformers compiles only on GPUs
    model.generation_config.cache_implementation, model.generation_config.compile_config = "static", config
    return model


CONTENDERS: dict[str, Callable[[Any], Any]] = {
    "eager": _eager,
    "thunder": _thunder,
    "thunder, static cache": _thunder_static,
    "torch.compile(dynamic=True)": _torch_compile_dynamic,
    "torch.compile, static cache": _torch_compile_static,
}


def generation(who: str, layers: int, tokens: int, rounds: int, lengths: Sequence[int]) -> dict[str, Any]:
    """Return the CPU seconds of each call, round by round, the number of programs, and the generated tokens."""
    import torch

    model, _ = model_and_input(layers)
    model.generation_config.eos_token_id = None
    compiled = CONTENDERS[who](model)
    generator = torch.Generator().manual_seed(0)
    prompts = [torch.randint(0, 1000, (1, length), generator=generator) for length in lengths]
    seconds, generated = [], []
    for _ in range(rounds):
        for prompt in prompts:
            start = cpu_seconds()
            generated.append(greedy(compiled, prompt, tokens))
            seconds.append(cpu_seconds() - start)
    return {
        "seconds": seconds,
        "programs": programs(who, compiled),
        "tokens": [output.tolist() for output in generated],
    }


def greedy(model: Any, prompt: Any, tokens: int) -> Any:
    """Return the prompt with this number of greedily generated tokens."""
    import torch

    mask = torch.ones_like(prompt)
    return model.generate(prompt, attention_mask=mask, max_new_tokens=tokens, do_sample=False, pad_token_id=0)


def programs(who: str, compiled: Any) -> int:
    """Return the number of compiled programs."""
    import thunder_core

    if who.startswith("thunder"):
        return int(thunder_core.cache_misses(compiled))
    if who == "eager":
        return 0
    from torch._dynamo.utils import counters

    return int(counters["stats"]["unique_graphs"])


def products(layers: int, tokens: int) -> dict[str, float]:
    """Return the CPU milliseconds of the products of the tokens: a row times the weight of each linear layer."""
    import torch

    model, _ = model_and_input(layers)
    weights = [module.weight for module in model.modules() if isinstance(module, torch.nn.Linear)]
    rows = {size: torch.randn(1, size) for size in {weight.shape[1] for weight in weights}}

    def run() -> None:
        for _ in range(tokens):
            for weight in weights:
                torch.nn.functional.linear(rows[weight.shape[1]], weight)

    with torch.no_grad():
        return in_turn({PRODUCTS: run}, OVERHEAD_ROUNDS)


def overhead(tokens: int, rounds: int) -> dict[str, float]:
    """Return the CPU milliseconds for each token of a model whose kernels have almost no work."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    torch.set_num_threads(1)
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_attention_heads": 2, "num_key_value_heads": 1}
    model = LlamaForCausalLM(LlamaConfig(num_hidden_layers=16, vocab_size=16, **sizes)).eval()
    model.generation_config.eos_token_id = None
    prompt = torch.randint(3, 16, (1, 7))
    contenders = {"eager": model, "thunder": _thunder(model)}
    milliseconds = in_turn(
        {name: lambda model=contender: greedy(model, prompt, tokens) for name, contender in contenders.items()}, rounds
    )
    each = {name: value / tokens for name, value in milliseconds.items()}
    with torch.no_grad():
        calls = in_turn({name: _token(contender, model, prompt) for name, contender in contenders.items()}, CALLS)
    ratios = {"ratio": each["thunder"] / each["eager"], "ratio of a call": calls["thunder"] / calls["eager"]}
    return {**each, **{f"call, {name}": value for name, value in calls.items()}, **ratios}


def _token(called: Any, model: Any, prompt: Any) -> Callable[[], Any]:
    """Return a repeatable call of a model, as `generate` makes it for the token after a prompt."""
    import torch
    from transformers import DynamicCache

    cache = DynamicCache(config=model.config)
    model(prompt, past_key_values=cache)
    layers = [(layer.keys, layer.values) for layer in cache.layers]
    inputs = {"input_ids": prompt[:, -1:].clone(), "past_key_values": cache, "position_ids": torch.tensor([[7]])}
    flags = {"logits_to_keep": 1, "use_cache": True, "return_dict": True}

    def call() -> Any:
        for layer, (keys, values) in zip(cache.layers, layers, strict=True):
            layer.keys, layer.values = keys, values
        return called(**inputs, **flags)

    return call


def measure_contenders(options: argparse.Namespace) -> dict[str, Any]:
    """Measure all contenders: the first call, the median of the last two rounds, and the ratio to eager."""
    lengths = [str(length) for length in options.prompts]
    rows: dict[str, dict[str, Any]] = {}
    for who in options.contenders:
        with tempfile.TemporaryDirectory() as folder:
            environment = {"THUNDER_CACHE_DIR": f"{folder}/thunder", "TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor"}
            arguments = (who, str(options.layers), str(options.tokens), str(options.rounds), *lengths)
            rows[who] = run_module(MODULE, *arguments, **environment)
    texts = {who: row.pop("tokens") for who, row in rows.items()}
    for who, row in rows.items():
        row["equal"] = texts[who] == texts["eager"]
        row["first"] = row["seconds"][0]
        row["later"] = statistics.median(row["seconds"][-2 * len(lengths) :])
        row["later / eager"] = row["later"] / rows["eager"]["later"]
    limit = (
        run_module(MODULE, PRODUCTS, "--layers", str(options.layers), "--tokens", str(options.tokens))[PRODUCTS] / 1e3
    )
    rows[PRODUCTS] = {"later": limit, "later / eager": limit / rows["eager"]["later"]}
    return {"layers": options.layers, "tokens": options.tokens, "prompts": options.prompts, "contenders": rows}


def line_of(who: str, figures: dict[str, Any]) -> str:
    """Return the line of a contender in the table."""
    if who == PRODUCTS:
        return f"{'products alone':<28}{figures['later']:.3f} s  / eager {figures['later / eager']:.2f}"
    return (
        f"{who:<28}first {figures['first']:.2f} s  later {figures['later']:.3f} s  "
        f"/ eager {figures['later / eager']:.2f}  {figures['programs']} programs  "
        f"tokens {'equal' if figures['equal'] else 'differ'}"
    )


def measurement_of(options: argparse.Namespace) -> dict[str, Any]:
    """Return the measurement that the options of this process name."""
    who, *numbers = options.one
    if who == OVERHEAD:
        return overhead(options.tokens, OVERHEAD_ROUNDS)
    if who == PRODUCTS:
        return products(options.layers, options.tokens)
    layers, tokens, rounds, *lengths = map(int, numbers)
    return generation(who, layers, tokens, rounds, lengths)


def main() -> None:
    """Print the table, and write it as JSON if requested."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=TOKENS)
    parser.add_argument("--prompts", type=int, nargs="+", default=PROMPTS)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--contenders", nargs="+", choices=CONTENDERS, default=tuple(CONTENDERS))
    parser.add_argument("--one", nargs="+", metavar="WHO LAYERS TOKENS ROUNDS LENGTH")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measurement_of(options)))
        return
    before = os.getloadavg()[0]
    row = measure_contenders(options)
    for who, figures in row["contenders"].items():
        print(line_of(who, figures), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        row["overhead"] = run_module(MODULE, OVERHEAD, THUNDER_CACHE_DIR=folder)
    row["load before"], row["load after"] = before, os.getloadavg()[0]
    print(
        "a token outside of kernels, ms:", "  ".join(f"{name} {value:.3g}" for name, value in row["overhead"].items())
    )
    start = generate_artifact.measure_start(
        options.layers, max(options.prompts), options.tokens, generate_artifact.ROUNDS
    )
    row["artifact"] = start
    print(generate_artifact.summary(start))
    print(f"load of the machine: {row['load before']:.1f} before, {row['load after']:.1f} after")
    if options.out:
        options.out.write_text(json.dumps([row], indent=2) + "\n")


if __name__ == "__main__":
    sys.exit(main())
