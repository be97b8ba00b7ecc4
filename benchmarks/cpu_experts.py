"""A mixture of experts on the CPU: eager, the recipes `default` and `hf-moe`, and `hf-moe` without each CPU kernel.

The model is a Mixtral with 4 layers of width 512, 8 experts of 1376 and 2 experts for each token, with random weights
in float32. All contenders run in turn in one process, on one thread. The order is random in each round, because a call
may find the weights of the previous call in a cache. The figures are CPU time: the median, and its quotient by eager's
median.

Usage: python -m benchmarks.cpu_experts [--tokens 1 128] [--rounds 30]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial

import torch
from transformers import MixtralConfig, MixtralForCausalLM

import thunder_core
from benchmarks.steady import in_turn
from thunder_core.backend.claiming.tuning import tuning

TUNING = 20.0  # seconds for measurements of kernels in each program
VOCABULARY = 8192
KERNELS = ("packed-experts", "packed-linear", "packed-attention")


def mixtral() -> torch.nn.Module:
    config = MixtralConfig(
        vocab_size=VOCABULARY, hidden_size=512, intermediate_size=1376, num_hidden_layers=4, num_attention_heads=8,
        num_key_value_heads=4, num_local_experts=8, num_experts_per_tok=2,
    )  # fmt: skip
    return MixtralForCausalLM(config).eval()


def contenders(tokens: int) -> dict[str, Callable[[], object]]:
    """Return the call of each contender, by name; all have the same weights and tokens."""
    model, ids = mixtral(), torch.randint(0, VOCABULARY, (1, tokens))
    compile_model = partial(thunder_core.compile, model, symbolic=())
    modules = {"eager": model, "default": compile_model("default"), "hf-moe": compile_model("hf-moe")}
    modules |= {f"hf-moe without {name}": compile_model("hf-moe", without=(name,)) for name in KERNELS}
    return {name: partial(module, input_ids=ids, use_cache=False) for name, module in modules.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, nargs="+", default=[1, 128])
    parser.add_argument("--rounds", type=int, default=30)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for tokens in arguments.tokens:
        torch.manual_seed(0)
        with torch.no_grad(), tuning(TUNING):
            medians = in_turn(contenders(tokens), arguments.rounds, time.thread_time, shuffled=True)
        for name, milliseconds in medians.items():
            ratio = milliseconds / medians["eager"]
            print(f"{tokens} tokens  {name:32} {milliseconds:8.2f} ms  {ratio:.2f}", flush=True)


if __name__ == "__main__":
    main()
