"""Measure training steps on gloo ranks: the recipes ddp and fsdp, DistributedDataParallel, FSDP2 and torch.compile.

All contenders of a run are built first. Then they take turns, round by round, in the same processes. The times are
medians over the rounds, of the slowest rank. With `--memory`, each contender also runs in separate processes. The
memory is the growth of the peak resident memory of a rank, first from before the model is built (including imports and
compilation), then from before the measured steps.
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
CLEAR_PEAK = "5"  # Linux resets the peak of the resident memory if this is written to `clear_refs`


class Block(torch.nn.Module):
    """A residual layer with two linear layers."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(width)
        self.up = torch.nn.Linear(width, 4 * width)
        self.down = torch.nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the input plus the output of the layers."""
        result: torch.Tensor = x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))
        return result


class Model(torch.nn.Module):
    """A stack of blocks."""

    def __init__(self, layers: int, width: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.ModuleList(Block(width) for _ in range(layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the output of the last block."""
        for layer in self.layers:
            x = layer(x)
        return x


def fsdp2(model: Model) -> Any:
    """Apply `fully_shard` to each layer and to the model."""
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


def step_of(name: str, arguments: argparse.Namespace) -> Callable[[], None]:
    """Return a training step of a contender, after warm-up steps."""
    model = CONTENDERS[name](Model(arguments.layers, arguments.width))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    x = torch.randn(arguments.rows, arguments.width)

    def step() -> None:
        model(x).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    for _ in range(WARM_UP):
        step()
    return step


def seconds_of(step: Callable[[], None]) -> float:
    """Return the seconds of a step on the slowest rank."""
    dist.barrier()
    before = time.perf_counter()
    step()
    seconds = torch.tensor(time.perf_counter() - before)
    dist.all_reduce(seconds, dist.ReduceOp.MAX)
    return float(seconds)


def measure(rank: int, store: str, names: list[str], arguments: argparse.Namespace, answer: Any) -> None:
    """Measure contenders on one rank; the first rank puts the results into the queue `answer`."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=arguments.ranks)
    before = resident_memory("VmRSS")
    steps = {name: step_of(name, arguments) for name in names}
    built = resident_memory("VmRSS")
    Path("/proc/self/clear_refs").write_text(CLEAR_PEAK)
    rounds: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(arguments.rounds):
        for name, step in steps.items():
            rounds[name].append(seconds_of(step))
    peak = resident_memory("VmHWM")
    if rank == 0:
        medians = {name: statistics.median(values) for name, values in rounds.items()}
        answer.put((medians, ((peak - before) / 1024, (peak - built) / 1024)))
    dist.barrier()
    dist.destroy_process_group()


def resident_memory(name: str) -> int:
    """Return the KiB of resident memory now (`VmRSS`) or at its peak (`VmHWM`)."""
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith(f"{name}:"))


Measured = tuple[dict[str, float], tuple[float, float]]


def run(names: list[str], arguments: argparse.Namespace) -> Measured:
    """Run contenders in the same processes; return their median seconds and the growth of a rank's memory in MiB.

    The growth is counted from before the models are built, and from before the measured steps.
    """
    context = mp.get_context("spawn")
    answer = context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        inputs = [(rank, f"{folder}/store", names, arguments, answer) for rank in range(arguments.ranks)]
        processes = [context.Process(target=measure, args=values) for values in inputs]
        for process in processes:
            process.start()
        result: Measured = answer.get(timeout=arguments.timeout)
        for process in processes:
            process.join()
    return result


def main() -> None:
    """Measure the contenders, print a table, and write a file if `--out` is set."""
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
    arguments = parser.parse_args()
    times, _ = run(arguments.only, arguments)
    memory = {name: run([name], arguments)[1] for name in arguments.only} if arguments.memory else {}
    for name, seconds in times.items():
        growth = "  {:8.0f} MiB, {:8.0f} MiB in steps".format(*memory[name]) if name in memory else ""
        print(f"{name:32} {1000 * seconds:8.1f} ms{growth}")
    if arguments.out:
        arguments.out.write_text(
            json.dumps(
                {"ranks": arguments.ranks, "seconds": times, "MiB": memory, "torch": torch.__version__}, indent=1
            )
        )


if __name__ == "__main__":
    main()
