"""Llamas of several sizes, and measurements in separate processes, for all benchmarks."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

WIDTHS = {8: 512}
USUAL = 256


def model_and_input(layers: int, dtype: str = "float32") -> tuple[Any, Any]:
    """Return a Llama with random weights (width 512 with 8 layers, otherwise 256), and ids of shape [1, 128]."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    torch.set_num_threads(1)
    width = WIDTHS.get(layers, USUAL)
    config = LlamaConfig(
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=layers,
        num_attention_heads=8,
        num_key_value_heads=4,
        vocab_size=1000,
    )
    model = LlamaForCausalLM(config).eval().to(getattr(torch, dtype))
    return model, torch.randint(0, 1000, (1, 128))


def cpu_seconds() -> float:
    """Return the CPU time of this process and of the compilers that it has run."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


def peak_bytes() -> int:
    """Return the peak memory of this process or of any compiler that it ran."""
    return 1024 * max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


def forget_peak() -> int:
    """Reset `resident_peak` (on Linux); return the current memory of this process in bytes."""
    Path("/proc/self/clear_refs").write_text("5")
    return resident_peak()


def resident_peak() -> int:
    """Return the peak memory of this process since `forget_peak` in bytes, including mapped files."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))


def run_module(module: str, *arguments: str, **environment: str) -> dict[str, Any]:
    """Return the data that `python -m module --one ...` prints on its last line, in a fresh process."""
    command = [sys.executable, "-m", module, "--one", *arguments]
    variables = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=variables).stdout
    data: dict[str, Any] = json.loads(output.splitlines()[-1])
    return data
