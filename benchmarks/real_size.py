"""Models of realistic sizes: the memory and the seconds of each stage, compared with eager PyTorch.

A checkpoint of random weights is written as a stream, and each run is a separate process: eager PyTorch, `optimize` for
inference, generation, quantized recipes and training, and then the loading, running and debugging of the results. The
figures are the peak resident memory of each stage, including mapped files, as a multiple of the weights, and the
resident memory at the end; those of validation are also given for each of its parts. A process that exceeds the memory
limit is killed.

Usage: python -m benchmarks.real_size [--sizes 0.1,0.3,1.1] [--dtype float32] [--runs eager,inference,...] [--limit GB]
       [--out FILE]
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.processes import forget_peak, resident_peak
from benchmarks.random_checkpoint import SIZES, write_checkpoint

MODULE = "benchmarks.real_size"
GIB = 1 << 30
LIMIT = 16.0  # GiB
INTERVAL = 0.1  # seconds between two checks of a process
SEQ = 128
LENGTHS = {"batch": 1, "prompt_length": 64, "new_tokens": 32}
LARGEST_TRAINED = "0.3"
LOOSE = {"error": 1.0, "kl": 1.0}  # random weights of this width amplify the rounding of codes

# The parts of a validation of single calls: each ends with a report of progress, and the last with the stage.
COMPARED = ("validate: eager", "validate: optimized", "validate: reference")
CHECKED = "validate: internal check"

EXTRA_FIGURES = {"tokens per second": ", {:.2f} tokens/s", "faults": ", {:.0f} wrong lines"}


@dataclass
class Watch:
    """The seconds and the peak resident memory of each stage, in order, and of the parts of validation."""

    stages: dict[str, dict[str, float]] = field(default_factory=dict)
    began: float = 0.0
    stage: str = ""
    has_parts: bool = False

    def begin(self, stage: str) -> None:
        """Begin a stage."""
        forget_peak()
        self.stage, self.began = stage, time.perf_counter()

    def advance(self, done: int, total: int) -> None:  # noqa: ARG002
        """End a part of the validation; ignore the progress of other stages."""
        if self.has_parts and self.stage == "validate":
            self.add(COMPARED[(done - 1) % len(COMPARED)], time.perf_counter() - self.began)
            self.begin(self.stage)

    def end(self, stage: str, seconds: float) -> None:
        """Add the figures of a stage, or of the last part of the validation."""
        if self.has_parts and stage == "validate":
            self.add(CHECKED, time.perf_counter() - self.began)
            parts = [self.stages[part]["peak"] for part in (*COMPARED, CHECKED) if part in self.stages]
            self.add(stage, seconds)
            self.stages[stage]["peak"] = max(parts)
            return
        self.add(stage, seconds)

    def add(self, stage: str, seconds: float) -> None:
        """Add the figures of a stage to the figures of earlier stages with its name."""
        figures = self.stages.setdefault(stage, {"seconds": 0.0, "peak": 0})
        figures["seconds"] += seconds
        figures["peak"] = max(figures["peak"], resident_peak())
        figures["kept"], figures["mapped"] = status_bytes("VmRSS"), status_bytes("RssFile")

    def run(self, stage: str, function: Callable[[], Any]) -> Any:
        """Run a function as a stage."""
        self.begin(stage)
        result = function()
        self.end(stage, time.perf_counter() - self.began)
        return result


def eager(watch: Watch, folder: Path) -> object:
    """Run eager PyTorch: load, call twice, generate."""
    import torch
    from transformers import AutoModelForCausalLM

    model: Any = watch.run("load", lambda: AutoModelForCausalLM.from_pretrained(folder / "model").eval())
    ids = torch.randint(0, model.config.vocab_size, (1, SEQ))
    with torch.no_grad():
        watch.run("first call", lambda: model(ids))
        watch.run("call", lambda: model(ids))
        length = LENGTHS["new_tokens"]
        options = {"max_new_tokens": length, "min_new_tokens": length, "do_sample": False}
        watch.run("generate", lambda: model.generate(ids[:, : LENGTHS["prompt_length"]], **options))
    return model


def optimize_model(watch: Watch, folder: Path, name: str, recipe: str | tuple[str, ...], **settings: Any) -> object:
    """Optimize the checkpoint by a recipe; the artifact stays in the folder."""
    from thunder_core.workflow.models.request.request import ModelRequest
    from thunder_core.workflow.pipeline import Request, optimize

    loading = {name: settings.pop(name) for name in ("task", "random_weights") if name in settings}
    source = ModelRequest(str(folder / "model"), device="cpu", **loading)
    watch.has_parts = "task" not in loading
    return optimize(Request(recipe, source, out=folder / name, force=True, **settings), watch)


def load_artifact(watch: Watch, folder: Path) -> object:
    """Load the artifact of inference, and call it."""
    import torch

    import thunder_core

    model: Any = watch.run("load", lambda: thunder_core.load(folder / "inference"))
    ids = torch.randint(0, 1000, (1, SEQ))
    with torch.no_grad():
        inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        watch.run("first call", lambda: model(**inputs))
        watch.run("call", lambda: model(**inputs))
    return model


def run_artifact(watch: Watch, folder: Path) -> object:
    """Continue a prompt with the artifact of generation, like `thunder run`."""
    from thunder_core.workflow.artifact.trust.consent import Consent
    from thunder_core.workflow.pipeline.generation.artifact_generation import open_generator
    from thunder_core.workflow.pipeline.request.run_request import Sampling

    generator = watch.run("load", lambda: open_generator(folder / "generate", Consent()))
    prompt, count = list(range(1, 1 + LENGTHS["prompt_length"])), LENGTHS["new_tokens"]
    tokens: list[Any] = []
    watch.run("generate", lambda: generator.generate(prompt, count, Sampling(), tokens.append))
    rest = [token.seconds for token in tokens[1:]]
    watch.stages["generate"]["tokens per second"] = len(rest) / sum(rest)
    return generator


def debug_artifact(watch: Watch, folder: Path, recipe: str | tuple[str, ...] = "default") -> object:
    """Examine the program of inference like `thunder debug`, and record the number of wrong lines."""
    from thunder_core.workflow.models.request.request import ModelRequest
    from thunder_core.workflow.pipeline.debug import debug_model
    from thunder_core.workflow.pipeline.request.debug_request import DebugRequest
    from thunder_core.workflow.pipeline.request.request import Request

    request = Request(recipe, ModelRequest(str(folder / "model"), device="cpu"), force_slow=True)
    diagnosis = debug_model(request, DebugRequest(), watch)
    watch.stages["examine"]["faults"] = len(diagnosis.faults)
    return diagnosis


RUNS: Mapping[str, Callable[[Watch, Path], object]] = {
    "eager": eager,
    "inference": lambda watch, folder: optimize_model(watch, folder, "inference", "default"),
    "random": lambda watch, folder: optimize_model(watch, folder, "random", "default", random_weights=True),
    "generate": lambda watch, folder: optimize_model(
        watch, folder, "generate", "hf-llama", task="generate", include_weights=True, **LENGTHS
    ),
    "int8-weight-only": lambda watch, folder: optimize_model(
        watch, folder, "int8", ("hf-llama", "int8-weight-only"), options=LOOSE
    ),
    "int4-weight-only": lambda watch, folder: optimize_model(
        watch, folder, "int4", ("hf-llama", "int4-weight-only"), options=LOOSE
    ),
    "train": lambda watch, folder: optimize_model(
        watch, folder, "train", ("hf-llama", "max-memory-saving"), train=True, benchmark=False
    ),
    "load": load_artifact,
    "run": run_artifact,
    "debug": debug_artifact,
    "debug-int8-dynamic": lambda watch, folder: debug_artifact(watch, folder, ("default", "int8-dynamic")),
}


def run_once(run: str, folder: Path) -> dict[str, Any]:
    """Run `RUNS[run]` in this process, and return its figures."""
    from transformers import AutoModelForCausalLM, LlamaForCausalLM  # noqa: F401 - imports belong to no stage

    from thunder_core.workflow.pipeline import optimize  # noqa: F401

    watch = Watch()
    imported = forget_peak()
    began = time.perf_counter()
    results = RUNS[run](watch, folder)
    seconds = time.perf_counter() - began
    gc.collect()
    end = forget_peak()
    del results
    return {"stages": watch.stages, "imported": imported, "end": end, "seconds": seconds}


def run_in_process(run: str, folder: Path, limit: float) -> dict[str, Any]:
    """Return the figures of one run in a separate process, which is killed if it exceeds the memory limit."""
    command = [sys.executable, "-m", MODULE, "--one", run, "--folder", str(folder)]
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(command, stdout=output, stderr=errors, text=True)
        peak = 0
        while process.poll() is None:
            peak = max(peak, status_bytes("VmRSS", process.pid))
            if peak > limit * GIB:
                process.kill()
            time.sleep(INTERVAL)
        output.seek(0)
        errors.seek(0)
        lines = output.read().splitlines()
        if process.returncode:
            reason = f"ended at {peak / GIB:.1f} GiB" if peak > limit * GIB else errors.read()[-2000:]
            return {"failed": reason, "peak": peak}
    figures: dict[str, Any] = json.loads(lines[-1])
    return {**figures, "peak": peak}


def status_bytes(field_name: str, pid: int | str = "self") -> int:
    """Return a field of a process's status in bytes, such as its resident memory; 0 for a process that has ended."""
    with suppress(OSError, StopIteration):
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(f"{field_name}:"))
    return 0


def print_figures(run: str, figures: Mapping[str, Any], weights: int) -> None:
    """Print the figures of a run, with memory as a multiple of the weights."""
    if "failed" in figures:
        print(f"  {run:18} FAILED at {figures['peak'] / GIB:.2f} GiB: {figures['failed']}", flush=True)
        return
    over = figures["peak"] - figures["imported"]
    print(
        f"  {run:18} {figures['seconds']:7.1f} s, peak {figures['peak'] / GIB:5.2f} GiB "
        f"({over / weights:.2f} x weights and imports of {figures['imported'] / GIB:.2f}), "
        f"end {figures['end'] / GIB:5.2f} GiB",
        flush=True,
    )
    for stage, stage_figures in figures["stages"].items():
        more = "".join(
            words.format(stage_figures[name]) for name, words in EXTRA_FIGURES.items() if name in stage_figures
        )
        sizes = ", ".join(f"{name} {stage_figures[name] / GIB:.2f}" for name in ("peak", "kept", "mapped"))
        print(f"    {stage:18} {stage_figures['seconds']:7.1f} s  {sizes} GiB{more}", flush=True)


def main() -> None:
    """Write the checkpoints, execute the runs, and print and write the figures."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--sizes", default="0.3,1.1")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--runs", default=",".join(RUNS))
    parser.add_argument("--limit", type=float, default=LIMIT)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--one")
    options = parser.parse_args()
    if options.one:
        print(json.dumps(run_once(options.one, options.folder)))
        return
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as temporary:
        for size in options.sizes.split(","):
            folder = (options.folder or Path(temporary)) / f"{size}-{options.dtype}"
            figures[size] = measure_size(size, options.dtype, folder, options.runs.split(","), options.limit)
    if options.out is not None:
        options.out.write_text(json.dumps(figures, indent=2) + "\n")


def measure_size(size: str, dtype: str, folder: Path, runs: list[str], limit: float) -> dict[str, Any]:
    """Return the figures of all runs of a size; its checkpoint is written if it does not exist."""
    if not (folder / "model" / "config.json").exists():
        write_checkpoint(folder / "model", SIZES[size], dtype)
    weights = sum(file.stat().st_size for file in (folder / "model").glob("*.safetensors"))
    print(f"{size} billion in {dtype}, weights of {weights / GIB:.2f} GiB, pid {os.getpid()}", flush=True)
    rows: dict[str, Any] = {"weights": weights}
    for run in runs:
        if run == "train" and float(size) > float(LARGEST_TRAINED):
            continue
        rows[run] = run_in_process(run, folder, limit)
        print_figures(run, rows[run], weights)
    return rows


if __name__ == "__main__":
    main()
