"""The start of an artifact that generates: a fresh process that loads it, compared with a process in eager PyTorch.

`optimize` makes an artifact of a Llama with the task `generate`, and the model is saved into a folder. Processes take
turns: each imports, loads, and continues a prompt greedily, either from the folder with transformers or from the
artifact with its own programs. The unit is CPU seconds from the start of the process. The figures are medians of
several processes.

Usage: python -m benchmarks.generate_artifact [--layers 8] [--tokens 48] [--prompt 57] [--rounds 5]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.processes import cpu_seconds, model_and_input, run_module

MODULE = "benchmarks.generate_artifact"
ROUNDS = 5
MAKE = "make"


def make(folder: Path, layers: int, prompt: int, tokens: int) -> dict[str, Any]:
    """Save a model, and make an artifact of the model with its weights; return the CPU seconds for the artifact."""
    from thunder_core.workflow.models.request.request import ModelRequest
    from thunder_core.workflow.pipeline import Request, optimize

    model, _ = model_and_input(layers)
    model.generation_config.eos_token_id = None
    model.save_pretrained(folder / "model")
    lengths = {"prompt_length": prompt, "new_tokens": tokens, "batch": 1}
    source = ModelRequest(str(folder / "model"), task="generate")
    start = cpu_seconds()
    optimize(Request("hf-llama", source, out=folder / "artifact", include_weights=True, benchmark=False, **lengths))
    return {"seconds": cpu_seconds() - start}


def eager(folder: Path) -> tuple[Callable[[], None], Callable[[], Any]]:
    """Return two functions: one imports PyTorch and transformers, the other loads the model from its folder."""

    def imports() -> None:
        import torch  # noqa: F401
        from transformers import AutoModelForCausalLM  # noqa: F401

    def load() -> Any:
        from transformers import AutoModelForCausalLM

        return AutoModelForCausalLM.from_pretrained(folder / "model").eval()

    return imports, load


def artifact(folder: Path) -> tuple[Callable[[], None], Callable[[], Any]]:
    """Return two functions: one imports Thunder, the other loads the artifact, which compiles nothing."""

    def imports() -> None:
        import thunder_core  # noqa: F401

    def load() -> Any:
        import thunder_core

        return thunder_core.load(folder / "artifact", strict=True)

    return imports, load


CONTENDERS = {"eager": eager, "artifact": artifact}


def start(who: str, folder: Path, prompt: int, tokens: int) -> dict[str, Any]:
    """Return the CPU seconds of this process until its imports, its loaded model, and a first generated text."""
    imports, load = CONTENDERS[who](folder)
    imports()
    seconds: dict[str, Any] = {"imported": cpu_seconds()}
    model = load()
    seconds["loaded"] = cpu_seconds()
    import torch

    torch.set_num_threads(1)
    ids = torch.randint(0, 1000, (1, prompt), generator=torch.Generator().manual_seed(0))
    usual = {"do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    for call in ("first", "second"):
        before = cpu_seconds()
        text = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens, **usual)
        seconds[call] = cpu_seconds() - before
    return {**seconds, "tokens": text.tolist()}


def measure_start(layers: int, prompt: int, tokens: int, rounds: int) -> dict[str, Any]:
    """Measure both contenders in turn: the medians of their seconds, and how much later the artifact is ready."""
    runs: dict[str, list[dict[str, Any]]] = {who: [] for who in CONTENDERS}
    sizes = (str(layers), str(prompt), str(tokens))
    with tempfile.TemporaryDirectory() as folder:
        times = run_module(MODULE, MAKE, folder, *sizes, THUNDER_CACHE_DIR=f"{folder}/cache")
        for _ in range(rounds):
            for who, outputs in runs.items():
                outputs.append(run_module(MODULE, who, folder, *sizes, THUNDER_CACHE_DIR=f"{folder}/other"))
    texts = [run.pop("tokens") for outputs in runs.values() for run in outputs]
    rows = {
        who: {name: statistics.median(run[name] for run in outputs) for name in outputs[0]}
        for who, outputs in runs.items()
    }
    return {
        "layers": layers,
        "prompt": prompt,
        "tokens": tokens,
        "rounds": rounds,
        "made in": times["seconds"],
        "contenders": rows,
        "equal": all(text == texts[0] for text in texts),
        "ready later by": rows["artifact"]["loaded"] - rows["eager"]["loaded"],
        "first prompt done later by": sum(rows["artifact"][name] - rows["eager"][name] for name in ("loaded", "first")),
    }


def summary(row: dict[str, Any]) -> str:
    """Return the measurement as text."""
    lines = [
        f"{who:<10}imported {figures['imported']:.2f}  loaded {figures['loaded']:.2f}  "
        f"then a prompt {figures['first']:.2f}, another {figures['second']:.2f} s"
        for who, figures in row["contenders"].items()
    ]
    later = f"ready {row['ready later by']:+.2f} s, first prompt done {row['first prompt done later by']:+.2f} s"
    return "\n".join([*lines, f"the artifact is {later}; tokens {'equal' if row['equal'] else 'differ'}"])


def main() -> None:
    """Print the seconds of each contender as text, or, for one contender in this process, as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--prompt", type=int, default=57)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--one", nargs="+", metavar="WHO FOLDER LAYERS PROMPT TOKENS")
    options = parser.parse_args()
    if options.one:
        who, folder, *numbers = options.one
        layers, prompt, tokens = map(int, numbers)
        times = make(Path(folder), layers, prompt, tokens) if who == MAKE else start(who, Path(folder), prompt, tokens)
        print(json.dumps(times))
        return
    print(summary(measure_start(options.layers, options.prompt, options.tokens, options.rounds)))


if __name__ == "__main__":
    sys.exit(main())
