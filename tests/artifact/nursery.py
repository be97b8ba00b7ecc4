"""A process that imports everything once and forks a child that optimizes for each line of stdin.

Run `python -m tests.artifact.nursery`, then write lines of JSON: `out`, `cache`, `log` and `die`, the function before
whose first call the child kills itself. The process answers with the child's process number. The child writes its
stages to the log, and `done` at the end.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import traceback
from pathlib import Path

import torch

from thunder_core.workflow.models.request.request import ModelRequest, SampleModel
from thunder_core.workflow.pipeline import Request, optimize

torch.set_num_threads(1)
importlib.import_module("thunder_executors.inductor.build")
SIZES = {"vocab_size": 32, "hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 2}
MODEL = ModelRequest(sample=SampleModel("LlamaForCausalLM", {**SIZES, "num_hidden_layers": 2}))


class Told:
    """A watcher that logs each stage when it begins."""

    def begin(self, stage: str) -> None:
        print(f"begin {stage}", flush=True)

    def advance(self, done: int, total: int) -> None:
        pass

    def end(self, stage: str, seconds: float) -> None:
        pass


def die_before(path: str) -> None:
    """Kill this process before its first call of the function `module:name`."""
    module, _, name = path.partition(":")

    def die(*args: object, **kwargs: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(importlib.import_module(module), name, die)


def child(out: str, cache: str, log: str, die: str = "") -> None:
    """Optimize the model once, in a separate process group so that the compilers can be killed with the child."""
    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.environ["THUNDER_CACHE_DIR"] = cache
    try:
        if die:
            die_before(die)
        asked = {"recipe": "hf-llama", "model": MODEL, "seq": 8, "validate": False, "benchmark": False}
        optimize(Request(**asked, out=Path(out), force=True, include_weights=True), Told())
        print("done", flush=True)
    except BaseException:
        traceback.print_exc()
    os._exit(0)


if __name__ == "__main__":
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the parent does not wait for children
    print("ready", flush=True)
    for line in sys.stdin:
        number = os.fork()
        if not number:
            child(**json.loads(line))
        print(number, flush=True)
