"""Random programs that compute, query, write and draw random numbers.

`python -m tests.mutation.fuzz 5000` runs that many programs. A program is a list of steps over a growing list of
tensors. Each step is a row of a table and the numbers of its operands. Errors of eager PyTorch must be raised with the
same class.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

import thunder_core as thunder
from tests.fusion.test_fuse import Replays
from tests.mutation.outcome import outcome
from tests.mutation.programs import ALIASED, Make, inner, leaf, leaf_and_plain, one, two
from tests.mutation.test_functionalize import without_autograd
from thunder_core.passes.transforms.functionalize import Functionalize

Operands = tuple[Tensor, Tensor, int]


def set_row(x: Tensor, y: Tensor, number: int) -> Tensor:
    x[number % 4] = y.sum() * 0.1
    return x


def set_slice(x: Tensor, y: Tensor, number: int) -> Tensor:
    x[..., : 1 + number % 3] = float(number)
    return x


def add_to_row(x: Tensor, y: Tensor, number: int) -> Tensor:
    x[number % 4] += y.mean()
    return x


def set_where_positive(x: Tensor, y: Tensor, number: int) -> Tensor:
    x[y > 0] = float(number) if number % 2 else x.detach().mean()
    return x


def swap_rows(x: Tensor, y: Tensor, number: int) -> Tensor:
    x[[0, 1]] = x[[1, number % 4]]
    return x


def write_without_autograd(x: Tensor, y: Tensor, number: int) -> Tensor:
    with torch.no_grad():
        return x.mul_(0.5) if number % 2 else x.copy_(y)


def write_to_row_without_autograd(x: Tensor, y: Tensor, number: int) -> Tensor:
    with torch.no_grad():
        x[number % 4] = y.mean()
    return x


def without_gradient(x: Tensor, y: Tensor, number: int) -> Tensor:
    with torch.no_grad():
        return x * number


COMPUTE: tuple[Callable[[Tensor, Tensor, int], Tensor], ...] = (
    lambda x, y, n: x + y,
    lambda x, y, n: (x * 2 - n).tanh(),
    lambda x, y, n: x.clone(),
    lambda x, y, n: x.sum(),
    lambda x, y, n: torch.zeros_like(x),
    lambda x, y, n: torch.where(x > 0, x, y),
    lambda x, y, n: x.detach() * 0.5,
    without_gradient,
)
LOOK: tuple[Callable[[Tensor, Tensor, int], Tensor], ...] = (
    lambda x, y, n: x[n % 4],
    lambda x, y, n: x.t(),
    lambda x, y, n: x[..., n % 4],
    lambda x, y, n: x[1:3],
    lambda x, y, n: x.view(-1),
    lambda x, y, n: x.reshape(2, -1),
    lambda x, y, n: x.chunk(2)[n % 2],
    lambda x, y, n: x.diagonal(),
    lambda x, y, n: x.unsqueeze(0),
    lambda x, y, n: x.detach(),
    lambda x, y, n: x.expand(2, *x.shape),
    lambda x, y, n: x.unbind()[n % 4],
)
WRITE: tuple[Callable[[Tensor, Tensor, int], Tensor], ...] = (
    lambda x, y, n: x.add_(n),
    lambda x, y, n: x.mul_(y),
    lambda x, y, n: x.copy_(y),
    lambda x, y, n: x.zero_(),
    lambda x, y, n: x.sin_(),
    lambda x, y, n: x.sub_(y, alpha=0.5),
    lambda x, y, n: x.masked_fill_(y > 0, 0.5),
    lambda x, y, n: x.index_fill_(0, torch.tensor([n % 4]), 0.3),
    lambda x, y, n: x.lerp_(y, 0.3),
    lambda x, y, n: functional.relu(x, inplace=True),
    lambda x, y, n: torch.add(y, y, out=x),
    set_row,
    set_slice,
    add_to_row,
    set_where_positive,
    swap_rows,
    write_without_autograd,
    write_to_row_without_autograd,
)
DRAW: tuple[Callable[[Tensor, Tensor, int], Tensor], ...] = (
    lambda x, y, n: functional.dropout(x, 0.5),
    lambda x, y, n: torch.rand_like(x),
    lambda x, y, n: x.uniform_(),
)
TABLE = (*COMPUTE, *LOOK, *LOOK, *WRITE, *WRITE, *DRAW)
MAKERS: tuple[Make, ...] = (one, two, leaf, inner, leaf_and_plain, *ALIASED)


@dataclass(frozen=True)
class Program:
    """The steps, their initial tensors, and the indices of the returned tensors."""

    make: Make
    steps: tuple[tuple[int, int, int, int], ...]
    returned: tuple[int, ...]
    grad: bool

    def __call__(self, *tensors: Tensor) -> list[Tensor]:
        """Run the program."""
        known = list(tensors)
        for row, first, second, number in self.steps:
            known.append(TABLE[row](known[first % len(known)], known[second % len(known)], number))
        return [known[place % len(known)] for place in self.returned]


def program(seed: int) -> Program:
    """The program with the given number. Most programs have no steps that eager PyTorch refuses."""
    draw = random.Random(seed)
    make, grad = draw.choice(MAKERS), draw.random() < 0.5
    steps: list[tuple[int, int, int, int]] = []
    for _ in range(draw.randint(2, 12)):
        step = (draw.randrange(len(TABLE)), draw.randrange(16), draw.randrange(16), draw.randrange(8))
        if runs(Program(make, (*steps, step), (), grad)) or draw.random() < 0.02:
            steps.append(step)
    return Program(make, tuple(steps), tuple(draw.randrange(16) for _ in range(3)), grad)


def runs(candidate: Program) -> bool:
    """Whether eager PyTorch runs the program without an error."""
    with torch.set_grad_enabled(candidate.grad), torch.random.fork_rng():
        try:
            candidate(*candidate.make())
        except Exception:
            return False
    return True


WAYS: dict[str, Callable[[], dict[str, Any]]] = {
    "torch": dict,
    "regions": lambda: {"executors": (Replays(), "torch")},
    "updates": lambda: {"executors": (Replays(updates=True), "torch")},
    "functional": lambda: {"executors": (Replays(), "torch"), "transforms": (Functionalize(),)},
}


def differences(candidate: Program, way: str) -> Sequence[str]:
    """The differences of the compiled program from eager, at its first and at its second call."""
    compiled = thunder.jit(lambda *tensors: candidate(*tensors), **WAYS[way]())
    with torch.set_grad_enabled(candidate.grad):
        for _ in range(2):
            eager, ours = (without_autograd(outcome(run, candidate.make())) for run in (candidate, compiled))
            if "error" not in eager.facts:
                found = eager.differences(ours)
            elif way == "functional" or "inplace operation" in eager.facts["error"][1]:
                return []  # a tensor that is not written to is unmodified when the backward reads it
            else:
                kinds = eager.facts["error"][0], ours.facts.get("error", ["none"])[0]
                found = [] if kinds[0] == kinds[1] else [f"error: {kinds}"]
            if found:
                return found
    return []


def main(count: int, first: int = 0) -> int:
    """Run the given number of programs, and return how many differ."""
    failed = 0
    for seed in range(first, first + count):
        candidate = program(seed)
        for way in WAYS:
            found = differences(candidate, way)
            if found:
                failed += 1
                print(f"program {seed}, {way}, {candidate.make.__name__}, grad={candidate.grad}: {found[0]:.300}")
    return failed


if __name__ == "__main__":
    sys.exit(bool(main(*map(int, sys.argv[1:]))))
