"""Training steps on gloo ranks: the recipes ddp and fsdp beside DistributedDataParallel, FSDP2 and torch.compile.

The contenders of a run are built first and then take turns, round by round, in the same pair of processes; the figures
are medians over the rounds, of the slowest rank. With `--memory`, each contender also gets processes of its own, and
the figures are how much the resident memory of a rank has grown at its peak, from before the model is built (with what
is imported and compiled) and from before the steps that are measured.
Usage: python -m benchmarks.distributed [--ranks N] [--rounds N] [--layers N] [--width N] [--memory] [--only NAME ...]
[--out FILE]
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import thunder_core

WARM_UP = 2
CLEAR_PEAK = "5"  # what Linux takes in `clear_refs` to begin the peak of the resident memory anew


class Block(torch.nn.Module):
    """A residual layer with two linear layers."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(width)
        self.up = torch.nn.Linear(width, 4 * width)
        self.down = torch.nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The input with what the layers add to it."""
        result: torch.Tensor = x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))
        return result


class Model(torch.nn.Module):
    """A stack of blocks."""

    def __init__(self, layers: int, width: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.ModuleList(Block(width) for _ in range(layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The output of the last block."""
        for layer in self.layers:
            x = layer(x)
        return x


def fsdp2(model: Model) -> Any:
    """The model under `fully_shard`, layer by layer."""
    for layer in model.layers:
        fully_shard(layer)
    return fully_shard(model)


CONTENDERS: dict[str, Callable[[Model], Any]] = {
    "DDP": DistributedDataParallel,
    "torch.compile of DDP": lambda model: torch.compile(DistributedDataParallel(model)),
    "recipe ddp": lambda model: thunder_core.compile(model, "ddp"),
    "recipe ddp, eager operations": lambda model: thunder_core.compile(model, "ddp", without=["inductor"]),
    "FSDP2": fsdp2,
    "torch.compile of FSDP2": lambda model: torch.compile(fsdp2(model)),
    "recipe fsdp": lambda model: thunder_core.compile(model, "fsdp"),
    "recipe fsdp, eager operations": lambda model: thunder_core.compile(model, "fsdp", without=["inductor"]),
}


def step_of(name: str, asked: argparse.Namespace) -> Callable[[], None]:
    """A training step of a contender."""
    model = CONTENDERS[name](Model(asked.layers, asked.width))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    x = torch.randn(asked.rows, asked.width)

    def step() -> None:
        model(x).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    for _ in range(WARM_UP):
        step()
    return step


def seconds_of(step: Callable[[], None]) -> float:
    """The seconds of a step on the slowest rank."""
    dist.barrier()
    before = time.perf_counter()
    step()
    seconds = torch.tensor(time.perf_counter() - before)
    dist.all_reduce(seconds, dist.ReduceOp.MAX)
    return float(seconds)


def measure(rank: int, store: str, names: list[str], asked: argparse.Namespace, answer: Any) -> None:
    """Measure contenders on one rank; the first rank answers."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=asked.ranks)
    before = resident_memory("VmRSS")
    steps = {name: step_of(name, asked) for name in names}
    built = resident_memory("VmRSS")
    Path("/proc/self/clear_refs").write_text(CLEAR_PEAK)
    rounds: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(asked.rounds):
        for name, step in steps.items():
            rounds[name].append(seconds_of(step))
    peak = resident_memory("VmHWM")
    if rank == 0:
        medians = {name: statistics.median(values) for name, values in rounds.items()}
        answer.put((medians, ((peak - before) / 1024, (peak - built) / 1024)))
    dist.barrier()
    dist.destroy_process_group()


def resident_memory(name: str) -> int:
    """The KiB of resident memory now (`VmRSS`) or at its peak (`VmHWM`)."""
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith(f"{name}:"))


Measured = tuple[dict[str, float], tuple[float, float]]


def run(names: list[str], asked: argparse.Namespace) -> Measured:
    """The median seconds of contenders in the same processes, and by how many MiB the memory of a rank has grown.

    The memory is counted from before the models are built, and from before the measured steps.
    """
    context = mp.get_context("spawn")
    answer = context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        arguments = [(rank, f"{folder}/store", names, asked, answer) for rank in range(asked.ranks)]
        processes = [context.Process(target=measure, args=one) for one in arguments]
        for process in processes:
            process.start()
        result: Measured = answer.get(timeout=asked.timeout)
        for process in processes:
            process.join()
    return result


def main() -> None:
    """Measure, and print a table or write a file."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (
        ("ranks", 2),
        ("rounds", 20),
        ("layers", 4),
        ("width", 256),
        ("rows", 256),
        ("timeout", 1200),
    ):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--only", nargs="*", choices=CONTENDERS, default=list(CONTENDERS))
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    times, _ = run(asked.only, asked)
    memory = {name: run([name], asked)[1] for name in asked.only} if asked.memory else {}
    for name, seconds in times.items():
        told = "  {:8.0f} MiB, {:8.0f} MiB in steps".format(*memory[name]) if name in memory else ""
        print(f"{name:32} {1000 * seconds:8.1f} ms{told}")
    if asked.out:
        asked.out.write_text(
            json.dumps({"ranks": asked.ranks, "seconds": times, "MiB": memory, "torch": torch.__version__}, indent=1)
        )


if __name__ == "__main__":
    main()
