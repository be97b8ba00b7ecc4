"""The start of commands: CPU seconds compared with `python -c "import torch"`, and the time to the first output.

Every command is a separate process; all commands run in turn, for several rounds in one run, and the medians are
reported. CPU seconds include all child processes. The first output is timed with the wall clock, in a pipe.

Usage: python -m benchmarks.cli [--rounds N] [--out FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

OPTIMIZE_OPTIONS = ("--recipe", "hf-bert", "--seq", "8", "--runs", "2", "--warmup", "0")
FLOOR = 'python -c "import torch"'
# An artifact whose programs return tuples, which need no class of transformers.
RETURNS_TUPLES = {
    "model_type": "bert",
    "architectures": ["BertForMaskedLM"],
    "return_dict": False,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "vocab_size": 512,
    "max_position_embeddings": 256,
}
WEIGHT_OPTIONS = ("--random-weights", "--include-weights")
LOAD = "import torch, thunder_core; model = thunder_core.load('{plain}')"
CALL = "; ids = torch.ones(1, 8, dtype=torch.int64); torch.set_grad_enabled(False); "
CALL += "model(input_ids=ids, attention_mask=ids)"
# Programs that use an artifact with its weights.
PROGRAMS = {
    "thunder_core.load(TUPLES)": LOAD,
    "thunder_core.load(TUPLES)(...)": LOAD + CALL,
    "thunder_core.load(TUPLES).config": LOAD + "; model.config",
}
# In the order of the rows; ARTIFACT is an artifact that is made before the first round.
COMMANDS: dict[str, Sequence[str]] = {
    "thunder --help": ("--help",),
    "thunder recipes": ("recipes",),
    "thunder explain TH0201": ("explain", "TH0201"),
    "thunder optimize --batch 0": ("optimize", "--batch", "0"),
    "thunder optimize --recipe hf-lama": ("optimize", "--recipe", "hf-lama"),
    "thunder optimize --set unknown=1": ("optimize", "--set", "unknown=1"),
    "thunder optimize --out ARTIFACT": ("optimize", "--out", "ARTIFACT"),
    "thunder optimize ./none": ("optimize", "./none"),
    "thunder inspect-trace ARTIFACT --list": ("inspect-trace", "ARTIFACT", "--list"),
    "thunder inspect-trace ARTIFACT": ("inspect-trace", "ARTIFACT"),
    "thunder executors --of ARTIFACT": ("executors", "--of", "ARTIFACT"),
    "thunder executors": ("executors",),
    "thunder recipes show hf-bert": ("recipes", "show", "hf-bert"),
    "thunder doctor": ("doctor",),
    "thunder optimize --dry-run": ("optimize", *OPTIMIZE_OPTIONS, "--dry-run"),
    "thunder validate ARTIFACT": ("validate", "ARTIFACT"),
}


def run(command: Sequence[str]) -> dict[str, float]:
    """Return the CPU seconds of a command, and the seconds until its first output."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment())
    assert process.stdout is not None
    first = process.stdout.read(1)
    word = time.perf_counter() - began
    process.stdout.read()
    process.wait()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"cpu": cpu, **({"first word": word} if first else {})}


def environment() -> dict[str, str]:
    """Return the environment of this process, with one thread and no network."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "COLUMNS": "120"}


def measure_commands(rounds: int, artifact: Path, plain: Path) -> dict[str, dict[str, float]]:
    """Return the medians of each command and program."""
    thunder = (sys.executable, "-m", "thunder_cli.main")
    commands = {FLOOR: (sys.executable, "-c", "import torch")}
    for name, arguments in COMMANDS.items():
        commands[name] = (*thunder, *(str(artifact) if argument == "ARTIFACT" else argument for argument in arguments))
    for name, program in PROGRAMS.items():
        commands[name] = (sys.executable, "-c", program.format(plain=plain))
    results: dict[str, list[dict[str, float]]] = {name: [] for name in commands}
    for _ in range(rounds):
        for name, command in commands.items():
            results[name].append(run(command))
    return {
        name: {key: round(statistics.median(row[key] for row in rows), 3) for key in rows[0]}
        for name, rows in results.items()
    }


def make(*arguments: str) -> None:
    """Make an artifact."""
    command = [sys.executable, "-m", "thunder_cli.main", "optimize", *arguments, "--quiet"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment())


def main() -> None:
    """Make the artifacts, measure, print and write the results."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        artifact = Path(folder) / "bert.thunder"
        plain, model = Path(folder) / "plain.thunder", Path(folder) / "model"
        model.mkdir()
        (model / "config.json").write_text(json.dumps(RETURNS_TUPLES))
        make(*OPTIMIZE_OPTIONS, "--out", str(artifact))
        make(str(model), *OPTIMIZE_OPTIONS, *WEIGHT_OPTIONS, "--out", str(plain))
        results = measure_commands(options.rounds, artifact, plain)
    for name, row in results.items():
        print(f"{name:40} {row['cpu']:6.2f} s of CPU  {row.get('first word', float('nan')):6.2f} s to the first word")
    if options.out is not None:
        options.out.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
