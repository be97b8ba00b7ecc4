"""One operator of PyTorch's database under one and two levels of `torch.vmap`, compiled, compared with eager vmap."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from tests.coverage.compiled import Compiled
from tests.coverage.finding import Finding
from tests.coverage.operators import FAMILIES, OPERATORS, UNDEFINED, some
from tests.coverage.outcome import SEED, difference, outcome, seed
from tests.coverage.symbolic import Given, copy_strided
from thunder_core.foundation.errors import SharpEdgeWarning

SAMPLES = 2
LEVELS = {"one level": (3,), "two levels": (3, 2)}  # the levels of vmap with the batch sizes, the outermost first
FACTORS = (1.0, 0.75, 0.5)  # the dtype of the elements of a batch
InDims = tuple[int | None, ...]


@dataclass(frozen=True)
class Batched:
    """A sample with batched tensors by level, the outermost first; `in_dims` has an entry for each tensor."""

    given: Given
    in_dims: tuple[InDims, ...]

    def calling(self, target: Callable[..., Any]) -> Callable[..., Any]:
        """Return a program that calls the target within this many vmaps, on the tensors of the sample."""

        def element(*tensors: torch.Tensor) -> Any:
            left = iter(tensors)
            given = self.given.mapped(lambda _: next(left))
            return target(given.input, *given.args, **given.kwargs)

        function: Callable[..., Any] = element
        for dims in reversed(self.in_dims):
            function = torch.vmap(function, in_dims=dims, randomness="different")
        return function


def batched(given: Given, sizes: tuple[int, ...], choose: random.Random) -> Batched:
    """Return the sample with batches of these sizes, in random dimensions of one or more of its tensors."""
    tensors, in_dims = given.tensors, []
    for size in reversed(sizes):
        chosen = [choose.random() < 0.7 for _ in tensors]
        chosen[choose.randrange(len(tensors))] = True
        dims = [
            choose.randrange(-1, tensor.dim() + 1) if is_batched else None
            for tensor, is_batched in zip(tensors, chosen, strict=True)
        ]
        tensors = [
            tensor if dim is None else stacked(tensor, size, dim) for tensor, dim in zip(tensors, dims, strict=True)
        ]
        in_dims.insert(0, tuple(dims))
    left = iter(tensors)
    return Batched(given.mapped(lambda _: next(left)), tuple(in_dims))


def stacked(tensor: torch.Tensor, size: int, dim: int) -> torch.Tensor:
    """Return a batch of a tensor and its multiples; indices are repeated."""
    multiplies = tensor.is_floating_point() or tensor.is_complex()
    return torch.stack([tensor * FACTORS[n % len(FACTORS)] if multiplies else tensor for n in range(size)], dim)


def examine(name: str) -> Iterator[Finding]:
    """Yield the findings on an operator's samples within one and two vmaps; skip samples that eager vmap refuses."""
    op = OPERATORS[name]
    dtype = next((one for family in FAMILIES.values() for one in family if one in op.supported_dtypes("cpu")), None)
    if dtype is None:
        return
    seed()
    samples = [Given(sample.input, sample.args, sample.kwargs) for sample in op.sample_inputs("cpu", dtype)]
    fitting = [
        item for item in samples if item.tensors and all(tensor.layout is torch.strided for tensor in item.tensors)
    ]
    for level, sizes in LEVELS.items():
        choose = random.Random(SEED)
        for number, (given, _) in enumerate(some([(entry, entry) for entry in fitting], "function", SAMPLES)):
            finding = compared(op, batched(given, sizes, choose), Finding(level, str(dtype), "function", number, None))
            if finding is not None:
                yield finding


def compared(op: Any, sample: Batched, found: Finding) -> Finding | None:
    """Return the finding on a sample, or None if eager PyTorch refuses it."""
    program = sample.calling(op.op)
    eager = outcome(program, *(copy_strided(tensor) for tensor in sample.given.tensors))
    if eager.raised is not None:
        return None
    compiled = Compiled(program)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "(?s).*nothing was compiled", SharpEdgeWarning)  # and the result matches eager
        other = outcome(compiled, *(copy_strided(tensor) for tensor in sample.given.tensors))
    failure = difference(eager, other, defined=not op.name.startswith(UNDEFINED))
    return Finding(found.direction, found.dtype, found.variant, found.sample, failure, compiled.guarded)
