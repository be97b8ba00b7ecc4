"""Measure training steps on gloo ranks: recipes for several ranks, and PyTorch's wrappers, eager and compiled.

All contenders of a run are built first. Then they take turns, round by round, in the same processes. The times are
medians over the rounds, of the slowest rank. With `--memory`, each contender also runs in separate processes, and its
memory is measured in four ways:

- imports: the growth of a rank's resident memory by a small model of the contender. It contains the modules that the
  contender imports, and the compiler's one-time state.
- model: the growth of the peak resident memory after that, by the real model: its parameters, the optimizer's state,
  compilation, and the steps.
- step: the peak of the bytes that PyTorch's CPU allocator allocates during one step, above those before the step.
- allocated: the peak of the bytes that this allocator allocates for the model, the wrapper, the optimizer's state and
  the steps together. It contains the buckets that DistributedDataParallel keeps between steps.

Usage: python -m benchmarks.distributed [--ranks N] [--rounds N] [--layers N] [--width N] [--memory] [--only NAME ...]
[--out FILE]
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import queue
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

import thunder_core
from thunder_core.workflow.benchmark.allocations import peak_allocated

WARM_UP = 2
END_SECONDS = 30.0  # seconds in which the processes end after the result
CLEAR_PEAK = "5"  # Linux resets the peak of the resident memory if this is written to `clear_refs`
MIB = 2**20
PLAN = {"layers.*.up": "colwise", "layers.*.down": "rowwise"}
STYLES = {"colwise": ColwiseParallel, "rowwise": RowwiseParallel}


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


def parallelize(model: Model) -> Any:
    """Apply `parallelize_module` to the linear layers of the model."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    return parallelize_module(model, mesh, {path: STYLES[style]() for path, style in PLAN.items()})


CONTENDERS: dict[str, Callable[[Model], Any]] = {
    "DDP": DistributedDataParallel,
    "torch.compile of DDP": lambda model: torch.compile(DistributedDataParallel(model)),
    "recipe ddp": lambda model: thunder_core.compile(model, "ddp"),
    "recipe ddp, eager operations": lambda model: thunder_core.compile(model, "ddp", without=["inductor"]),
    "FSDP2": fsdp2,
    "torch.compile of FSDP2": lambda model: torch.compile(fsdp2(model)),
    "recipe fsdp": lambda model: thunder_core.compile(model, "fsdp"),
    "recipe fsdp, eager operations": lambda model: thunder_core.compile(model, "fsdp", without=["inductor"]),
    "parallelize_module": parallelize,
    "torch.compile of parallelize_module": lambda model: torch.compile(parallelize(model)),
    "recipe tensor-parallel": lambda model: thunder_core.compile(model, "tensor-parallel", parallelize_plan=PLAN),
    "recipe tensor-parallel, eager operations": lambda model: thunder_core.compile(
        model, "tensor-parallel", parallelize_plan=PLAN, without=["inductor"]
    ),
}


def step_of(name: str, layers: int, width: int, rows: int) -> Callable[[], None]:
    """Return a training step of a contender, after warm-up steps."""
    model = CONTENDERS[name](Model(layers, width))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    x = torch.randn(rows, width)

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


class Memory(NamedTuple):
    """The memory of a contender on the first rank, in MiB."""

    imports: float
    model: float
    step: float
    allocated: float


def measure_times(names: list[str], arguments: argparse.Namespace) -> dict[str, float]:
    """Return the median seconds of contenders that take turns."""
    steps = {name: step_of(name, arguments.layers, arguments.width, arguments.rows) for name in names}
    rounds: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(arguments.rounds):
        for name, step in steps.items():
            rounds[name].append(seconds_of(step))
    return {name: statistics.median(values) for name, values in rounds.items()}


def measure_memory(names: list[str], arguments: argparse.Namespace) -> Memory:
    """Return the memory of one contender."""
    (name,) = names
    before = resident_memory()
    step_of(name, 2, 16, 8)
    imported = resident_memory()
    step = step_of(name, arguments.layers, arguments.width, arguments.rows)
    for _ in range(arguments.rounds):
        seconds_of(step)
    peak = status_of("VmHWM")
    allocated = peak_allocated(step)
    again: list[Callable[[], None]] = []
    total = peak_allocated(lambda: again.append(step_of(name, arguments.layers, arguments.width, arguments.rows)))
    return Memory((imported - before) / MIB, (peak - imported) / MIB, allocated / MIB, total / MIB)


def serve(rank: int, store: str, measure: Callable[..., Any], names: list[str], arguments: Any, answer: Any) -> None:
    """Measure contenders on one rank; the first rank puts the result into the queue `answer`."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=arguments.ranks)
    result = measure(names, arguments)
    if rank == 0:
        answer.put(result)
    dist.barrier()
    dist.destroy_process_group()


def status_of(name: str) -> int:
    """Return the bytes of resident memory now (`VmRSS`) or at its peak (`VmHWM`)."""
    status = Path("/proc/self/status").read_text()
    return 1024 * next(int(line.split()[1]) for line in status.splitlines() if line.startswith(f"{name}:"))


def resident_memory() -> int:
    """Return the bytes of resident memory, without what was freed, and reset the peak."""
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    Path("/proc/self/clear_refs").write_text(CLEAR_PEAK)
    return status_of("VmRSS")


def run(measure: Callable[..., Any], names: list[str], arguments: argparse.Namespace) -> Any:
    """Measure contenders in new processes, and return the result of the first rank."""
    context = mp.get_context("spawn")
    answer = context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        inputs = [(rank, f"{folder}/store", measure, names, arguments, answer) for rank in range(arguments.ranks)]
        processes = [context.Process(target=serve, args=values) for values in inputs]
        for process in processes:
            process.start()
        try:
            result = result_of(processes, answer, arguments.timeout)
        finally:
            for process in processes:
                process.join(END_SECONDS)
                process.kill()
    return result


def result_of(processes: list[Any], answer: Any, timeout: float) -> Any:
    """Return the result in a queue; raise `RuntimeError` if a process fails, or after `timeout` seconds."""
    end = time.monotonic() + timeout
    while time.monotonic() < end:
        with suppress(queue.Empty):
            return answer.get(timeout=1)
        if any(process.exitcode for process in processes):
            raise RuntimeError("a rank has failed; its error is above")
    raise RuntimeError(f"the ranks have not answered for {timeout:.0f} seconds")


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
    times: dict[str, float] = run(measure_times, arguments.only, arguments)
    memory = {name: run(measure_memory, [name], arguments) for name in arguments.only} if arguments.memory else {}
    for name, seconds in times.items():
        parts = (
            "".join(f"  {field} {value:6.1f} MiB" for field, value in memory[name]._asdict().items()) if memory else ""
        )
        print(f"{name:40} {1000 * seconds:8.1f} ms{parts}")
    if arguments.out:
        found = {"ranks": arguments.ranks, "rounds": arguments.rounds, "seconds": times}
        found |= {"MiB": {name: value._asdict() for name, value in memory.items()}, "torch": torch.__version__}
        arguments.out.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
