"""Generation with transformers' default cache: eager PyTorch, torch.compile and Thunder, prompt by prompt.

Each contender is a process of its own with an empty cache folder, in which a Llama generates so many tokens, greedily,
for prompts of several lengths, round after round: the CPU seconds of each call. The tokens are compared with those of
eager PyTorch. The first call has the compilation; the last round is the steady state.

Usage: python -m benchmarks.generate [--layers 8] [--tokens 48] [--prompts 32 57 5] [--rounds 4] [--out FILE]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.processes import asked, cpu_seconds, model_and_input

MODULE = "benchmarks.generate"
EXECUTORS = ("inductor", "torch")
TOKENS = 48
PROMPTS = (32, 57, 5)


def _eager(model: Any) -> Any:
    return model


def _thunder(model: Any) -> Any:
    import thunder_core

    return thunder_core.jit(model, executors=EXECUTORS)


def _thunder_torch(model: Any) -> Any:
    import thunder_core

    return thunder_core.jit(model)


def _torch_compile_dynamic(model: Any) -> Any:
    import torch

    model.forward = torch.compile(model.forward, dynamic=True)
    return model


CONTENDERS: dict[str, Callable[[Any], Any]] = {
    "eager": _eager,
    "thunder": _thunder,
    "thunder, executor torch": _thunder_torch,
    "torch.compile(dynamic=True)": _torch_compile_dynamic,
}


def generation(who: str, layers: int, tokens: int, rounds: int, lengths: Sequence[int]) -> dict[str, Any]:
    """The CPU seconds of each call, round by round, with the number of programs and what was generated."""
    import torch

    model, _ = model_and_input(layers)
    model.generation_config.eos_token_id = None
    compiled = CONTENDERS[who](model)
    generator = torch.Generator().manual_seed(0)
    prompts = [torch.randint(0, 1000, (1, length), generator=generator) for length in lengths]
    seconds, found = [], []
    for _ in range(rounds):
        for prompt in prompts:
            start = cpu_seconds()
            found.append(greedy(compiled, prompt, tokens))
            seconds.append(cpu_seconds() - start)
    return {"seconds": seconds, "programs": programs(who, compiled), "tokens": [one.tolist() for one in found]}


def greedy(model: Any, prompt: Any, tokens: int) -> Any:
    """The prompt with so many tokens that a model continues it with."""
    import torch

    mask = torch.ones_like(prompt)
    return model.generate(prompt, attention_mask=mask, max_new_tokens=tokens, do_sample=False, pad_token_id=0)


def programs(who: str, compiled: Any) -> int:
    """The number of programs that were compiled."""
    import thunder_core

    if who.startswith("thunder"):
        return int(thunder_core.cache_misses(compiled))
    if who == "eager":
        return 0
    from torch._dynamo.utils import counters

    return int(counters["stats"]["unique_graphs"])


def measured(options: argparse.Namespace) -> dict[str, Any]:
    """All contenders, each with its first call and the median of its last two rounds, beside eager's."""
    lengths = [str(length) for length in options.prompts]
    rows: dict[str, dict[str, Any]] = {}
    for who in options.contenders:
        with tempfile.TemporaryDirectory() as folder:
            places = {"THUNDER_CACHE_DIR": f"{folder}/thunder", "TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor"}
            given = (who, str(options.layers), str(options.tokens), str(options.rounds), *lengths)
            rows[who] = asked(MODULE, *given, **places)
    texts = {who: row.pop("tokens") for who, row in rows.items()}
    for who, row in rows.items():
        row["equal"] = texts[who] == texts["eager"]
        row["first"] = row["seconds"][0]
        row["later"] = statistics.median(row["seconds"][-2 * len(lengths) :])
        row["later / eager"] = row["later"] / rows["eager"]["later"]
    return {"layers": options.layers, "tokens": options.tokens, "prompts": options.prompts, "contenders": rows}


def main() -> None:
    """Print the table; write it as JSON where asked."""
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
        who, *numbers = options.one
        layers, tokens, rounds, *lengths = map(int, numbers)
        print(json.dumps(generation(who, layers, tokens, rounds, lengths)))
        return
    row = measured(options)
    for who, one in row["contenders"].items():
        told = (
            f"first {one['first']:.2f} s  later {one['later']:.3f} s  / eager {one['later / eager']:.2f}  "
            f"{one['programs']} programs  tokens {'equal' if one['equal'] else 'differ'}"
        )
        print(f"{who:<28}{told}", flush=True)
    if options.out:
        options.out.write_text(json.dumps([row], indent=2) + "\n")


if __name__ == "__main__":
    sys.exit(main())
