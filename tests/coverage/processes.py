"""Each operator and module runs in a separate process, forked after all imports, with a time limit."""

from __future__ import annotations

import gc
import multiprocessing
import multiprocessing.connection
import os
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tests.coverage import higher_order, modules, operators
from tests.coverage.finding import DIRECTIONS, Finding, verdicts
from thunder_core import jit

Examine = Callable[[str], Iterator[Finding]]


def everything() -> list[str]:
    """Return the names of all operators and modules; names of modules begin with `nn.` and a capital letter."""
    return [*operators.OPERATORS, *higher_order.HIGHER_ORDER, *modules.MODULES]


def examine(name: str) -> Iterator[Finding]:
    """Return all findings on one entry of the databases."""
    if name in higher_order.HIGHER_ORDER:
        return higher_order.examine(name)
    return operators.examine(name) if name in operators.OPERATORS else modules.examine(name)


@dataclass
class Child:
    """One entry during its examination."""

    name: str
    process: Any
    start: float

    def crashed(self, how: str) -> dict[str, Any]:
        """Return the verdicts of a process without an answer: everything failed."""
        return verdicts(Finding(direction, "", "", 0, how) for direction in DIRECTIONS)


def examine_all(
    names: Sequence[str], *, jobs: int = 1, limit: float = 120, examine: Examine = examine
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the verdicts on these entries as they finish; failures are printed on stderr."""
    warm_up()
    waiting, running = list(reversed(names)), dict[Any, Child]()
    while waiting or running:
        while waiting and len(running) < jobs:
            pipe, child = begun(waiting.pop(), examine)
            running[pipe] = child
        for pipe in multiprocessing.connection.wait(list(running), timeout=1):
            child = running.pop(pipe)
            yield child.name, received(pipe, child)
        for pipe, child in list(running.items()):
            if time.monotonic() - child.start > limit:
                child.process.kill()
                child.process.join()
                yield running.pop(pipe).name, child.crashed(f"took longer than {limit:.0f} seconds")


def warm_up() -> None:
    """Import all modules that are imported on first use."""
    program = jit(lambda tensor: torch.nn.functional.dropout(tensor * tensor).sum())
    for size in (2, 3):  # the second call has symbolic sizes
        leaf = torch.ones(size, requires_grad=True)
        (gradient,) = torch.autograd.grad(program(leaf), leaf, create_graph=True)
        gradient.sum().backward()
    gc.collect()
    gc.freeze()  # garbage collections in each process skip imported objects, which would be copied otherwise


def begun(name: str, examine: Examine) -> tuple[Any, Child]:
    """Start a process for the entry, and return the receiving end of its pipe."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=work, args=(theirs, name, examine))
    process.start()
    theirs.close()
    return ours, Child(name, process, time.monotonic())


def work(pipe: Any, name: str, examine: Examine) -> None:
    """Run the examination in the process."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    warnings.simplefilter("ignore")
    try:
        answer = verdicts(examine(name))
    except Exception:
        answer = verdicts(Finding(d, "", "the test itself", 0, traceback.format_exc()[-300:]) for d in DIRECTIONS)
    pipe.send(answer)


def received(pipe: Any, child: Child) -> dict[str, Any]:
    """Return the verdicts that a process sent before it ended."""
    try:
        answer: dict[str, Any] = pipe.recv()
    except EOFError:
        answer = child.crashed("the process died")
    child.process.join()
    for direction, finding in answer.items():
        if finding["failure"]:
            sys.stderr.write(
                f"{child.name} {direction}: {finding['failed']} of {finding['tried']}: {finding['failure']}\n"
            )
    return answer
