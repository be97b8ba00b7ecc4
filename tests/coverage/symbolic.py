"""One operator of PyTorch's database with symbolic sizes: its samples, each in two sizes, with one program."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch

from tests.coverage.finding import Finding
from tests.coverage.operators import FAMILIES, OPERATORS, UNDEFINED, caller
from tests.coverage.outcome import Outcome, difference, gradients, outcome, seed, tensors_of
from thunder_core import cache_misses, jit, recompile_reasons
from thunder_core.compilation.compiler import last_program

SAMPLES = {"forward": 1, "backward": 1}
LOOKED_AT = 24  # number of samples that are considered; samples run if their sizes can be changed
LEAST = 3  # smaller sizes are not changed: a size of one rightly has another program


@dataclass(frozen=True)
class Given:
    """The arguments of a call."""

    input: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def mapped(self, change: Callable[[torch.Tensor], torch.Tensor]) -> Given:
        """Return the arguments with other tensors."""
        found = map_tensors((self.input, tuple(self.args), dict(self.kwargs)), change)
        return Given(*found)

    @property
    def tensors(self) -> list[torch.Tensor]:
        """All tensors among the arguments."""
        return list(tensors_of((self.input, self.args, self.kwargs)))


def map_tensors(tree: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Return nested arguments with other tensors."""
    if isinstance(tree, torch.Tensor):
        return change(tree)
    if isinstance(tree, dict):
        return {key: map_tensors(value, change) for key, value in tree.items()}
    return type(tree)([map_tensors(item, change) for item in tree]) if type(tree) in (tuple, list) else tree


def copy_strided(tensor: torch.Tensor) -> torch.Tensor:
    """Return a new tensor with the same values and strides."""
    return tensor.detach().clone().requires_grad_(tensor.requires_grad)


def smaller(sizes: frozenset[int]) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return a change that drops the last element of each dimension of one of these sizes."""

    def change(tensor: torch.Tensor) -> torch.Tensor:
        part = tensor.detach()
        for dim, size in enumerate(tensor.shape):
            part = part.narrow(dim, 0, size - 1) if size in sizes else part
        if tensor.dtype == torch.int64:  # possible indices: out of bounds, PyTorch may read any memory
            part = torch.where(torch.isin(part, torch.tensor([size - 1 for size in sizes])), part - 1, part)
        layout = torch.contiguous_format if tensor.is_contiguous() else torch.preserve_format
        return part.clone(memory_format=layout).requires_grad_(tensor.requires_grad)

    return change


def in_other_sizes(given: Given, run: Callable[[Given], Outcome]) -> Given | None:
    """Return the call with tensors of other sizes that eager PyTorch accepts too, or None."""
    if any(tensor.layout is not torch.strided or tensor.is_nested or not tensor.numel() for tensor in given.tensors):
        return None
    sizes = sorted({size for tensor in given.tensors for size in tensor.shape if size >= LEAST}, reverse=True)
    for some in (frozenset(sizes), *(frozenset({size}) for size in sizes)) if sizes else ():
        other = given.mapped(smaller(some))
        if run(other.mapped(copy_strided)).raised is None:
            return other
    return None


def samples(op: Any, dtype: torch.dtype, requires_grad: bool) -> Iterator[Given]:
    """Yield the samples of the database."""
    seed()
    for sample in islice(op.sample_inputs("cpu", dtype, requires_grad=requires_grad), LOOKED_AT):
        yield Given(sample.input, sample.args, sample.kwargs)


def examine(name: str) -> Iterator[Finding]:
    """Yield the findings on an operator's samples in two sizes, forward and backward."""
    op = OPERATORS[name]
    backward = op.supported_backward_dtypes("cpu") if op.supports_autograd else ()
    supported = {"forward": op.supported_dtypes("cpu"), "backward": backward}
    for direction, dtypes in supported.items():
        dtype = next((one for family in FAMILIES.values() for one in family if one in dtypes), None)
        if dtype is not None:
            yield from islice(in_two_sizes(op, dtype, direction), SAMPLES[direction])


def in_two_sizes(op: Any, dtype: torch.dtype, direction: str) -> Iterator[Finding]:
    """Yield the findings on samples that also exist in other sizes; each is compiled once and called with both."""
    program = caller(op.op)
    for number, given in enumerate(samples(op, dtype, direction == "backward")):
        other = in_other_sizes(given, lambda one: called(program, one, direction))
        if other is not None and called(program, given.mapped(copy_strided), direction).raised is None:
            yield compared(op, program, (given, other), Finding(direction, str(dtype), "function", number, None))


def called(function: Any, given: Given, direction: str) -> Outcome:
    """Return the results of a call, or the gradients of all its tensors."""

    def run() -> Any:
        output = function(given.input, *given.args, **given.kwargs)
        return output if direction == "forward" else gradients(output, given.tensors)

    return outcome(run)


def compared(op: Any, program: Any, calls: tuple[Given, Given], found: Finding) -> Finding:
    """Return the finding on a program that is called with one sample and then with the other."""
    compiled = jit(program, cache="symbolic values")
    defined, exact = not op.name.startswith(UNDEFINED), found.direction == "forward"
    failure = constant = None
    for given in calls:
        eager = called(program, given.mapped(copy_strided), found.direction)
        other = called(compiled, given.mapped(copy_strided), found.direction)
        failure = failure or difference(eager, other, exact=exact, defined=defined)
        constant = constant or (last_program(compiled).constant_because if cache_misses(compiled) else "")
    reasons = recompile_reasons(compiled)
    reason = constant or (reasons[-1] if cache_misses(compiled) > 1 and reasons else "")
    return Finding(found.direction, found.dtype, found.variant, found.sample, failure, specialized=reason)
