"""Artifacts compared with the engines ONNX Runtime and OpenVINO, each of which loads its own file in a new process.

The process that measures does not import transformers, as a server would not: the artifact has the weights, and its
calls run without the model's class. Eager PyTorch, which needs the class, runs alternately in a second process. Each
contender takes one thread; the unit is the CPU time of a call.

Usage: python -m benchmarks.artifact_peers [--models llama-1x128 mobilenet ...] [--rounds 40] [--out FILE]
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

WARM_UP = 5
ROUNDS = 40
RECIPE = "freeze"
TUNING = 10.0  # seconds for measurements of kernels
EAGER = "eager"
ARTIFACT, ONNX, INPUTS = "artifact.thunder", "model.onnx", "inputs.safetensors"
# The argument that takes the input, for each model of `benchmarks.cpu_models` that its config alone defines.
ARGUMENTS = {
    "minilm-1x16": "input_ids",
    "minilm-8x64": "input_ids",
    "minilm-8x256": "input_ids",
    "bert-1x128": "input_ids",
    "llama-1x128": "input_ids",
    "llama-1x512": "input_ids",
    "vit-small": "pixel_values",
    "resnet18": "pixel_values",
    "mobilenet": "pixel_values",
}
Calls = dict[str, Callable[[], Any]]


def seeded_model(name: str) -> tuple[Any, Any]:
    """Return a model, built from its config within the module that selects its result, and its input."""
    import torch

    from benchmarks.cpu_models import MODELS

    torch.manual_seed(0)
    torch.set_num_threads(1)
    wrapper, (value,) = MODELS[name]()
    wrapper.model = type(wrapper.model)(wrapper.model.config)
    return wrapper.eval(), value


def options_of(name: str) -> dict[str, bool]:
    """Return the options of a call that make the model return a tuple of tensors."""
    return {"return_dict": False, **({"use_cache": False} if name.startswith("llama") else {})}


def write_files(name: str, folder: Path) -> None:
    """Write the artifact, which has the weights and returns tuples of tensors, the input, and the ONNX file."""
    import torch
    from safetensors.torch import save_file

    import thunder_core
    from benchmarks.engines import export
    from thunder_core.backend.claiming.tuning import tuning

    wrapper, value = seeded_model(name)
    save_file({ARGUMENTS[name]: value}, folder / INPUTS)
    with torch.no_grad(), tuning(TUNING):
        (folder / ONNX).write_bytes(export(wrapper, (value,)))
        compiled = thunder_core.compile(wrapper.model, RECIPE)
        compiled(**{ARGUMENTS[name]: value}, **options_of(name))
    thunder_core.save(compiled, folder / ARTIFACT, include_weights=True)


def contenders(name: str, folder: Path) -> Calls:
    """Return the calls of the artifact and of the engines that are installed."""
    import torch
    from safetensors.torch import load_file

    import thunder_core
    from benchmarks.engines import installed_engines

    torch.set_num_threads(1)
    inputs, options = load_file(folder / INPUTS), options_of(name)
    model = thunder_core.load(folder / ARTIFACT)

    def call() -> Any:
        with torch.no_grad():
            return model(**inputs, **options)

    call()
    content = (folder / ONNX).read_bytes()
    engines = {engine: make(content, tuple(inputs.values()), 1) for engine, make in installed_engines().items()}
    return {"artifact": call, **engines}


def serve_eager(name: str) -> None:
    """For each line of the standard input, print the CPU seconds of an eager call."""
    import torch

    wrapper, value = seeded_model(name)
    with torch.no_grad():
        for _ in sys.stdin:
            start = time.process_time()
            wrapper(value)
            print(time.process_time() - start, flush=True)


def seconds_of(call: Callable[[], Any]) -> float:
    """Return the CPU seconds of a call in this process."""
    start = time.process_time()
    call()
    return time.process_time() - start


def eager_seconds(process: subprocess.Popen[str]) -> float:
    """Return the CPU seconds of a call in the process of eager PyTorch."""
    requests, answers = streams(process)
    requests.write("\n")
    requests.flush()
    return float(answers.readline())


def streams(process: subprocess.Popen[str]) -> tuple[IO[str], IO[str]]:
    """Return the standard input and output of a process."""
    assert process.stdin is not None and process.stdout is not None
    return process.stdin, process.stdout


def measure(name: str, folder: Path, rounds: int) -> None:
    """Print the median milliseconds of each contender, measured in turn, as JSON."""
    command = [sys.executable, "-m", "benchmarks.artifact_peers", "--serve-eager", name]
    calls = contenders(name, folder)
    times: dict[str, list[float]] = {EAGER: [], **{who: [] for who in calls}}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as eager:
        for number in range(WARM_UP + rounds):
            seconds = {EAGER: eager_seconds(eager), **{who: seconds_of(call) for who, call in calls.items()}}
            if number >= WARM_UP:
                for who, value in seconds.items():
                    times[who].append(value)
        streams(eager)[0].close()
    if "transformers" in sys.modules:
        raise SystemExit("a contender has imported transformers: the artifact has built its model")
    print(json.dumps({who: 1e3 * statistics.median(values) for who, values in times.items()}))


def measure_model(name: str, rounds: int) -> dict[str, Any]:
    """Return a row: the milliseconds of each contender, and their quotients by eager's."""
    with tempfile.TemporaryDirectory() as folder:
        write_files(name, Path(folder))
        command = [sys.executable, "-m", "benchmarks.artifact_peers", "--measure", folder, "--models", name]
        command += ["--rounds", str(rounds)]
        output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    milliseconds = json.loads(output.splitlines()[-1])
    ratios = {who: value / milliseconds[EAGER] for who, value in milliseconds.items()}
    return {"model": name, "milliseconds": milliseconds, "over eager": ratios}


def main() -> None:
    """Print the table, and write it as JSON if requested."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=ARGUMENTS, default=list(ARGUMENTS))
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--serve-eager", help=argparse.SUPPRESS)
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve_eager:
        return serve_eager(options.serve_eager)
    if options.measure:
        return measure(options.models[0], options.measure, options.rounds)
    rows = []
    for name in options.models:
        rows.append(row := measure_model(name, options.rounds))
        print(name, *(f"{who} {value:.3f}" for who, value in row["over eager"].items()), flush=True)
    if options.out:
        options.out.write_text(json.dumps({"rows": rows}, indent=2) + "\n")
    return None


if __name__ == "__main__":
    sys.exit(main())
