"""Random programs over tensors in all layouts: `python -m tests.layouts.fuzz 5000` runs 5000 programs.

A program is a chain of steps from a table, each with weights for the shape of its input; inputs, weights and the
incoming gradients are permuted, channels last, sliced, expanded or have odd strides in sizes of one. The results,
their strides and all gradients are compared with eager PyTorch, and each tensor with its recorded metadata.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import thunder_core as thunder
from tests.fusion.test_fuse import Replays
from tests.layouts.steps import TABLE, Apply, laid_out
from thunder_core.workflow.validation.layouts import check_layouts

SHAPES = ((1, 16, 8), (2, 4, 6), (1, 8, 4, 4), (2, 4, 5, 6), (2, 1, 4, 4), (1, 4, 3, 4, 4), (2, 3, 1, 1), (1, 2, 4, 1))
LARGEST = 4000
TOLERANCES = {torch.float64: 1e-9, torch.float32: 2e-4}
WAYS: dict[str, Callable[[], dict[str, Any]]] = {
    "torch": dict,
    "regions": lambda: {"executors": (Replays(), "torch")},
    "inductor": lambda: {"executors": ("inductor", "torch")},
}


@dataclass(frozen=True)
class Program:
    """The names of the steps, their functions with their numbers of weights, the input tensors, and a gradient."""

    steps: tuple[tuple[str, Apply, int], ...]
    given: tuple[Tensor, ...]
    gradient: Tensor

    @property
    def names(self) -> str:
        """The names of the steps."""
        return " -> ".join(name for name, _, _ in self.steps)

    def __call__(self, *given: Tensor) -> Tensor:
        """Run the program."""
        x, rest = given[0], list(given[1:])
        for _, apply, count in self.steps:
            x, rest = apply(x, *rest[:count]), rest[count:]
        return x


def program(seed: int, longest: int = 8) -> Program:
    """Return the program with that number."""
    draw = random.Random(seed)
    dtype = torch.float64 if draw.random() < 0.7 else torch.float32
    torch.manual_seed(seed)
    x = given = laid_out(torch.randn(draw.choice(SHAPES), dtype=dtype), draw)
    steps: list[tuple[str, Apply, int]] = []
    weights: list[Tensor] = []
    with torch.no_grad():
        for _ in range(draw.randint(3, longest)):
            name = draw.choice(list(TABLE))
            found = tried(name, x, draw)
            if found is not None:
                x, apply, ws = found
                steps.append((name, apply, len(ws)))
                weights += ws
    return Program(tuple(steps), (given, *weights), laid_out(torch.randn(x.shape, dtype=dtype), draw))


def tried(name: str, x: Tensor, draw: random.Random) -> tuple[Tensor, Apply, list[Tensor]] | None:
    """Return a step with its result, or None if eager PyTorch refuses it or its result is not usable."""
    try:
        apply, weights = TABLE[name](x, draw)
        result = apply(x, *weights)
    except Exception:
        return None
    sensible = 0 < result.numel() <= LARGEST and 2 < result.dim() < 6 and bool(result.isfinite().all())
    return (result, apply, weights) if sensible and result.abs().max() < 1e3 else None


def used(run: Callable[..., Tensor], candidate: Program, *, plainly: bool = False) -> list[Tensor | None]:
    """Return the result of a call, and the gradients of all its inputs.

    With `plainly`, the gradient has the layout of the result: if batch norm's own backward gets another layout than
    its input has, PyTorch's numbers may be wrong.
    """
    given = [tensor.detach().requires_grad_() for tensor in candidate.given]
    torch.manual_seed(0)
    result = run(*given)
    gradient = torch.empty_like(result).copy_(candidate.gradient) if plainly else candidate.gradient
    return [result.detach(), *torch.autograd.grad(result, given, gradient, allow_unused=True)]


def differences(candidate: Program, way: str) -> Iterator[str]:
    """Describe how a compiled program differs from eager, and which tensors differ from their recorded metadata."""
    try:
        eager = used(candidate, candidate, plainly=True)
    except RuntimeError:
        return  # PyTorch lacks a backward for some layouts of the gradient
    compiled = thunder.jit(lambda *given: candidate(*given), **WAYS[way]())
    with check_layouts(exactly=True) as watch:
        ours = used(compiled, candidate)
    yield from map(str, watch.mismatches)
    if ours[0].shape == eager[0].shape and not same_strides(ours[0], eager[0]):
        yield f"the result has strides {ours[0].stride()} instead of {eager[0].stride()}"
    noise = rounding(eager) if way == "inductor" else 0.0
    for number, (actual, expected) in enumerate(zip(ours, eager, strict=True)):
        what = f"the gradient of input {number - 1}" if number else "the result"
        if actual is None or expected is None:
            if actual is not expected:
                yield f"{what} is {'there' if expected is None else 'missing'}"
        elif not close(actual, expected, noise):
            off = float((actual - expected).abs().max() / expected.abs().max())
            yield f"{what}, {list(expected.shape)}, is off by {off:.2g} of the largest"


def same_strides(one: Tensor, other: Tensor) -> bool:
    """Whether strides are equal in dimensions with more than one element."""
    return all(size < 2 or a == b for size, a, b in zip(one.shape, one.stride(), other.stride(), strict=True))


def close(one: Tensor, other: Tensor, noise: float) -> bool:
    """Whether tensors are equal except for rounding."""
    largest = float(other.abs().max())
    tolerance = TOLERANCES[other.dtype]
    return torch.allclose(one, other, rtol=tolerance, atol=tolerance * largest + noise, equal_nan=True)


def rounding(results: list[Tensor | None]) -> float:
    """Return the error that a different order of summation may cause if terms cancel."""
    there = [tensor for tensor in results if tensor is not None]
    return 500 * torch.finfo(there[0].dtype).eps * max(float(tensor.abs().max()) for tensor in there)


def main(count: int, first: int = 0, *ways: str) -> int:
    """Run this number of programs; return the number of differences."""
    failed = 0
    for seed in range(first, first + count):
        candidate = program(seed)
        for way in ways or ("torch", "regions"):
            try:
                found = list(differences(candidate, way))
            except Exception as error:
                found = [f"{type(error).__name__}: {error}"]
            if found:
                failed += 1
                print(f"program {seed}, {way}, {candidate.names}: {len(found)}, {found[0]:.600}", flush=True)
    return failed


if __name__ == "__main__":
    count, first, *ways = sys.argv[1:] + ["0"] * (len(sys.argv) < 3)
    sys.exit(bool(main(int(count), int(first), *ways)))
