"""The start of an artifact that generates: a fresh process that loads it, beside one that imports what eager needs.

An artifact of a Llama is made by `optimize` with the task `generate`, and the model is saved into a folder. Processes
take turns: each imports, loads, and continues one prompt greedily, by the folder with transformers alone or by the
artifact with its own programs; the CPU seconds from the start of the process on. Medians of several processes.

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

from benchmarks.processes import asked, cpu_seconds, model_and_input

MODULE = "benchmarks.generate_artifact"
ROUNDS = 5
MAKE = "make"


def make(folder: Path, layers: int, prompt: int, tokens: int) -> dict[str, Any]:
    """Save a model, and make an artifact of it with its weights; the CPU seconds of that."""
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
    """Two functions: the one imports PyTorch and transformers, the other loads the model from its folder."""

    def imports() -> None:
        import torch  # noqa: F401
        from transformers import AutoModelForCausalLM  # noqa: F401

    def load() -> Any:
        from transformers import AutoModelForCausalLM

        return AutoModelForCausalLM.from_pretrained(folder / "model").eval()

    return imports, load


def artifact(folder: Path) -> tuple[Callable[[], None], Callable[[], Any]]:
    """Two functions: the one imports Thunder, the other loads the artifact, whose programs are all that runs."""

    def imports() -> None:
        import thunder_core  # noqa: F401

    def load() -> Any:
        import thunder_core

        return thunder_core.load(folder / "artifact", strict=True)

    return imports, load


CONTENDERS = {"eager": eager, "artifact": artifact}


def start(who: str, folder: Path, prompt: int, tokens: int) -> dict[str, Any]:
    """The CPU seconds of this process until its imports are done, its model is loaded, and a first prompt continued."""
    imports, load = CONTENDERS[who](folder)
    imports()
    found: dict[str, Any] = {"imported": cpu_seconds()}
    model = load()
    found["loaded"] = cpu_seconds()
    import torch

    torch.set_num_threads(1)
    ids = torch.randint(0, 1000, (1, prompt), generator=torch.Generator().manual_seed(0))
    usual = {"do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    for call in ("first", "second"):
        before = cpu_seconds()
        text = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens, **usual)
        found[call] = cpu_seconds() - before
    return {**found, "tokens": text.tolist()}


def measured(layers: int, prompt: int, tokens: int, rounds: int) -> dict[str, Any]:
    """Both contenders in turn, with the medians of their seconds, and how much later the artifact is ready."""
    runs: dict[str, list[dict[str, Any]]] = {who: [] for who in CONTENDERS}
    sizes = (str(layers), str(prompt), str(tokens))
    with tempfile.TemporaryDirectory() as folder:
        made = asked(MODULE, MAKE, folder, *sizes, THUNDER_CACHE_DIR=f"{folder}/cache")
        for _ in range(rounds):
            for who, found in runs.items():
                found.append(asked(MODULE, who, folder, *sizes, THUNDER_CACHE_DIR=f"{folder}/other"))
    texts = [run.pop("tokens") for found in runs.values() for run in found]
    rows = {
        who: {name: statistics.median(run[name] for run in found) for name in found[0]} for who, found in runs.items()
    }
    return {
        "layers": layers,
        "prompt": prompt,
        "tokens": tokens,
        "rounds": rounds,
        "made in": made["seconds"],
        "contenders": rows,
        "equal": all(text == texts[0] for text in texts),
        "ready later by": rows["artifact"]["loaded"] - rows["eager"]["loaded"],
        "first prompt done later by": sum(rows["artifact"][name] - rows["eager"][name] for name in ("loaded", "first")),
    }


def told(row: dict[str, Any]) -> str:
    """The measurement in words."""
    lines = [
        f"{who:<10}imported {one['imported']:.2f}  loaded {one['loaded']:.2f}  then a prompt {one['first']:.2f}, "
        f"another {one['second']:.2f} s"
        for who, one in row["contenders"].items()
    ]
    later = f"ready {row['ready later by']:+.2f} s, first prompt done {row['first prompt done later by']:+.2f} s"
    return "\n".join([*lines, f"the artifact is {later}; tokens {'equal' if row['equal'] else 'differ'}"])


def main() -> None:
    """Print the seconds of each, as text or, in a process of its own, as JSON."""
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
        made = make(Path(folder), layers, prompt, tokens) if who == MAKE else start(who, Path(folder), prompt, tokens)
        print(json.dumps(made))
        return
    print(told(measured(options.layers, options.prompt, options.tokens, options.rounds)))


if __name__ == "__main__":
    sys.exit(main())
