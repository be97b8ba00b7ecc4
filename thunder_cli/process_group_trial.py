"""A trial of a process group: new processes create a group of `torch.distributed`, and sum a tensor over it.

`python -m thunder_cli.process_group_trial RANK SIZE BACKEND STORE TIME_LIMIT` is one process of the group.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

MODULE = "thunder_cli.process_group_trial"
TIME_LIMIT = 60.0  # for the start of all processes and the collective
TIMED_OUT = -1  # the result of `first_failure` if the time limit was reached
ELEMENTS = 1024  # elements of the tensor


def problem_of_group(backend: str, size: int, seconds: float = TIME_LIMIT) -> str | None:
    """Return the reason why a group of processes on this machine does not work, or None."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        arguments = [str(size), backend, str(Path(folder) / "store"), str(seconds)]
        logs = [Path(folder) / f"{rank}.log" for rank in range(size)]
        processes: list[subprocess.Popen[bytes]] = []
        for rank, log in enumerate(logs):
            command = [sys.executable, "-m", MODULE, str(rank), *arguments]
            log_file = stack.enter_context(log.open("wb"))
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=log_file)  # noqa: S603 - our own module
            stack.callback(end, process)
            processes.append(process)
        failed = first_failure(processes, seconds)
        if failed == TIMED_OUT:
            return f"no answer within {seconds:.0f} seconds"
        return (
            None if failed is None else last_line(logs[failed]) or f"ended with status {processes[failed].returncode}"
        )


def first_failure(processes: Sequence[subprocess.Popen[bytes]], seconds: float) -> int | None:
    """Wait until a process has failed, and return its number; None if all processes have succeeded.

    Return `TIMED_OUT` if neither happens in time.
    """
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        states = [process.poll() for process in processes]
        if any(states):
            return next(number for number, state in enumerate(states) if state)
        if None not in states:
            return None
        time.sleep(0.02)
    return TIMED_OUT


def end(process: subprocess.Popen[bytes]) -> None:
    """Kill a process if it still runs, and wait for its end."""
    process.kill()
    process.wait()


def last_line(log: Path) -> str:
    """Return the last line of a log, which is the message of an error; empty for an empty log."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1] if lines else ""


def join_group(rank: int, size: int, backend: str, store: str, seconds: float) -> None:
    """Create the group as one of its processes, and check the sum of all ranks; raise `RuntimeError` if it is wrong."""
    device = torch.device("cpu" if backend == "gloo" else f"cuda:{rank}")
    dist.init_process_group(
        backend, init_method=f"file://{store}", rank=rank, world_size=size, timeout=timedelta(seconds=seconds)
    )
    tensor = torch.full((ELEMENTS,), rank + 1.0, device=device)
    dist.all_reduce(tensor)
    expected = size * (size + 1) / 2
    if not bool((tensor == expected).all()):
        raise RuntimeError(f"the sum over {size} processes is {tensor[0].item()} instead of {expected}")
    dist.destroy_process_group()


if __name__ == "__main__":
    _, own_rank, group_size, name, path, limit = sys.argv
    join_group(int(own_rank), int(group_size), name, path, float(limit))
