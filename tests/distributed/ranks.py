"""A pair of processes with a gloo group: one pair runs many cases, each a function of `tests.distributed`."""

from __future__ import annotations

import importlib
import tempfile
import traceback
import warnings
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from tests.distributed.preload import fork_server

WORLD_SIZE = 2
TIMEOUT = 120.0  # seconds that a case may take
FAILED = "failed"


def serve(rank: int, size: int, store: str, connection: Connection) -> None:
    """Run the cases that the parent names, in a process that is one rank of a group."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=size, timeout=timedelta(seconds=60)
    )
    while (asked := received(connection)) is not None:
        module, name, args = asked
        try:
            function = getattr(importlib.import_module(module), name)
            connection.send(("done", function(*args)))
        except BaseException:
            connection.send((FAILED, traceback.format_exc()))
    dist.destroy_process_group()


def received(connection: Connection) -> Any:
    """The request of the parent process; None if the parent has ended."""
    try:
        return connection.recv()
    except EOFError:
        return None


@dataclass
class Ranks:
    """The processes of a group, which are started when the first case runs and again after one that hangs."""

    size: int = WORLD_SIZE
    processes: list[Any] = field(default_factory=list)
    connections: list[Connection] = field(default_factory=list)

    def start(self) -> None:
        """Start the processes; a fork server has imported all that they need."""
        context = fork_server()
        store = str(Path(tempfile.mkdtemp()) / "store")
        for rank in range(self.size):
            ours, theirs = context.Pipe()
            process = context.Process(target=serve, args=(rank, self.size, store, theirs), daemon=True)
            process.start()
            theirs.close()
            self.processes.append(process)
            self.connections.append(ours)

    def run(self, module: str, name: str, *args: Any) -> list[Any]:
        """What a function returns on each rank; raises `AssertionError` with the trace of each rank that failed."""
        if not self.processes:
            self.start()
        try:
            for connection in self.connections:
                connection.send((module, name, args))
            answers = [self._answer(connection) for connection in self.connections]
        except BrokenPipeError:
            answers = [(FAILED, "a process ended")]
        failures = [f"rank {rank}: {text}" for rank, (state, text) in enumerate(answers) if state == FAILED]
        if failures:
            self.stop()
            raise AssertionError("\n".join(failures))
        return [value for _, value in answers]

    def _answer(self, connection: Connection) -> tuple[str, Any]:
        try:
            return connection.recv() if connection.poll(TIMEOUT) else (FAILED, f"hung for {TIMEOUT:.0f} seconds")
        except EOFError:
            return FAILED, "a process ended"

    def stop(self) -> None:
        """End the processes."""
        for connection in self.connections:
            with suppress(OSError):
                connection.close()
        for process in self.processes:
            process.kill()
            process.join()
        self.processes, self.connections = [], []
