"""Random programs over sizes and numbers: `python -m tests.symbolic.random_programs 5000` tries that many.

A program is a list of steps over growing lists of tensors and of numbers; each step is a row of a table and the places
of its operands. It is called with tensors of several shapes, whose dimensions share sizes, and with several numbers.
"""

from __future__ import annotations

import linecache
import operator
import random
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils._pytree import tree_leaves

import thunder_core as thunder

Number = Any  # an integer or a float, as the program computes them
Step = tuple[int, int, int, int, int]
SIZES = (0, 1, 1, 2, 2, 3, 4, 5, 6, 8, 17)
CALLS = 5
LARGEST = 20_000  # elements of a tensor, and numbers


def grown(x: Tensor, n: Number) -> Tensor:
    turns = 0
    while x.shape[0] < n and turns < 3:
        x = torch.cat([x, x])
        turns += 1
    return x


def summed_rows(x: Tensor, n: Number) -> Tensor:
    total = x.sum(0)
    for row in range(min(x.shape[0], n, 3)):
        total = total + x[row] * row
    return total


def written_rows(x: Tensor, y: Tensor, n: Number) -> Tensor:
    z = x.clone()
    z[: n + 1] = y.sum()
    z[..., -1:] *= 2
    return z


def written_view(x: Tensor, n: Number) -> Tensor:
    z = x.clone()
    z.view(-1)[n:].add_(1)
    return z


def written_in_place(x: Tensor, y: Tensor, n: Number) -> Tensor:
    x.add_(n)
    x[:1] = 0
    return x


def written_copy(x: Tensor, y: Tensor, n: Number) -> tuple[Tensor, Tensor]:
    z = x.clone()
    z.transpose(0, -1).contiguous().add_(1)
    z.reshape(-1).mul_(2)
    return z, z.transpose(0, -1)


def compared(x: Tensor, y: Tensor) -> Tensor:
    if x.shape == y.shape:
        return x - y
    return x * 2 if x.numel() > y.numel() else x.neg()


NUMBERS: tuple[Callable[[Tensor, Tensor, Number, Number], Any], ...] = (
    lambda x, y, n, m: x.shape[n % x.dim()],
    lambda x, y, n, m: x.size(-1),
    lambda x, y, n, m: x.numel(),
    lambda x, y, n, m: len(x),
    lambda x, y, n, m: x.stride(0),
    lambda x, y, n, m: x.shape[0] - y.shape[-1],
    lambda x, y, n, m: n + m,
    lambda x, y, n, m: n - m,
    lambda x, y, n, m: n * m,
    lambda x, y, n, m: n // m,
    lambda x, y, n, m: n % m,
    lambda x, y, n, m: n / m,
    lambda x, y, n, m: divmod(n, 3),
    lambda x, y, n, m: n ** (m % 3),
    lambda x, y, n, m: n**2,
    lambda x, y, n, m: 2 ** (n % 5),
    lambda x, y, n, m: abs(n),
    lambda x, y, n, m: -n,
    lambda x, y, n, m: min(n, m),
    lambda x, y, n, m: max(n, m, 1),
    lambda x, y, n, m: min(x.shape),
    lambda x, y, n, m: sum(x.shape),
    lambda x, y, n, m: n if n > m else m + 1,
    lambda x, y, n, m: n == m,
    lambda x, y, n, m: not n,
    lambda x, y, n, m: n and m,
    lambda x, y, n, m: 0 < n <= m,
    lambda x, y, n, m: (n + 7) // 8 * 8,
    lambda x, y, n, m: -n // 4,
    lambda x, y, n, m: n % -3,
    lambda x, y, n, m: int(n / 2),
    lambda x, y, n, m: round(n * 0.3, 1),
    lambda x, y, n, m: float(n),
    lambda x, y, n, m: n >> 1,
    lambda x, y, n, m: n & 3,
    lambda x, y, n, m: n ^ m,
    lambda x, y, n, m: math_of(n),
    lambda x, y, n, m: f"{n}-{m}",
    lambda x, y, n, m: operator.index(n),
    lambda x, y, n, m: n in (1, 2, 3),
    lambda x, y, n, m: x.stride(),
    lambda x, y, n, m: x.shape,
    lambda x, y, n, m: bool(n) + 1,
)


def math_of(n: Number) -> Number:
    return n.bit_length() if isinstance(n, int) else n.is_integer()


SHAPES: tuple[Callable[[Tensor, Tensor, Number, Number], Any], ...] = (
    lambda x, y, n, m: x[n:],
    lambda x, y, n, m: x[:n],
    lambda x, y, n, m: x[n : n + m],
    lambda x, y, n, m: x[..., n:m],
    lambda x, y, n, m: x[:: max(n, 1)],
    lambda x, y, n, m: x[:, -n:],
    lambda x, y, n, m: x[n],
    lambda x, y, n, m: x[..., n % 3],
    lambda x, y, n, m: x[None],
    lambda x, y, n, m: x.reshape(-1),
    lambda x, y, n, m: x.reshape(x.shape[0], -1),
    lambda x, y, n, m: x.view(-1, 2),
    lambda x, y, n, m: x.view(*x.shape[:-1], x.shape[-1] // 2, 2),
    lambda x, y, n, m: x.reshape(n, -1),
    lambda x, y, n, m: x.reshape(x.shape[::-1]),
    lambda x, y, n, m: x.reshape(y.shape),
    lambda x, y, n, m: x.view(x.numel()),
    lambda x, y, n, m: x.view(1, *x.shape),
    lambda x, y, n, m: x.flatten(),
    lambda x, y, n, m: x.flatten(0, 1),
    lambda x, y, n, m: x.unflatten(0, (2, -1)),
    lambda x, y, n, m: x.squeeze(),
    lambda x, y, n, m: x.squeeze(0),
    lambda x, y, n, m: x.unsqueeze(n % 2),
    lambda x, y, n, m: x.transpose(0, -1),
    lambda x, y, n, m: x.transpose(0, -1).contiguous(),
    lambda x, y, n, m: x.contiguous(),
    lambda x, y, n, m: x.movedim(0, -1),
    lambda x, y, n, m: x.expand(2, *x.shape),
    lambda x, y, n, m: x.expand_as(y),
    lambda x, y, n, m: x[:1].expand(n, *x.shape[1:]),
    lambda x, y, n, m: x.chunk(2),
    lambda x, y, n, m: x.chunk(3, -1)[0],
    lambda x, y, n, m: x.split(2),
    lambda x, y, n, m: x.split(max(n, 1))[-1],
    lambda x, y, n, m: x.split([n, x.shape[0] - n]),
    lambda x, y, n, m: x.tensor_split(2, -1),
    lambda x, y, n, m: x.unbind(-1)[0],
    lambda x, y, n, m: x.narrow(0, n, m),
    lambda x, y, n, m: x.select(0, -1),
    lambda x, y, n, m: x.diagonal(),
    lambda x, y, n, m: x.unfold(0, 2, 1),
    lambda x, y, n, m: torch.broadcast_tensors(x, y),
    lambda x, y, n, m: x.as_strided((n, 2), (1, 0)),
    lambda x, y, n, m: x.detach(),
)
MADE: tuple[Callable[[Tensor, Tensor, Number, Number], Any], ...] = (
    lambda x, y, n, m: torch.arange(n),
    lambda x, y, n, m: torch.arange(n, m),
    lambda x, y, n, m: torch.arange(x.shape[0] * 2, dtype=torch.float32),
    lambda x, y, n, m: torch.zeros(n, 2),
    lambda x, y, n, m: torch.ones(x.shape),
    lambda x, y, n, m: torch.full((2, x.shape[-1]), n),
    lambda x, y, n, m: torch.full(x.shape, m, dtype=torch.float32),
    lambda x, y, n, m: x.new_zeros(x.shape[0] + 1),
    lambda x, y, n, m: torch.zeros_like(x),
    lambda x, y, n, m: torch.eye(x.shape[-1]),
    lambda x, y, n, m: torch.linspace(0, 1, x.shape[0]),
    lambda x, y, n, m: torch.tensor(n),
    lambda x, y, n, m: torch.tensor([n, m]),
    lambda x, y, n, m: torch.empty(n).fill_(m),
    lambda x, y, n, m: torch.ones(x.shape[0], x.shape[0]).tril(),
)
COMPUTED: tuple[Callable[[Tensor, Tensor, Number, Number], Any], ...] = (
    lambda x, y, n, m: x + y,
    lambda x, y, n, m: x * y,
    lambda x, y, n, m: x + n,
    lambda x, y, n, m: n - x,
    lambda x, y, n, m: x / n,
    lambda x, y, n, m: x * n**2,
    lambda x, y, n, m: x / x.shape[-1] ** 0.5,
    lambda x, y, n, m: x.add(y, alpha=n),
    lambda x, y, n, m: x.clamp(n, m),
    lambda x, y, n, m: torch.where(x > n, x, m),
    lambda x, y, n, m: x.masked_fill(x > 0, n),
    lambda x, y, n, m: x.pow(2),
    lambda x, y, n, m: x.tanh(),
    lambda x, y, n, m: torch.cat([x, y]),
    lambda x, y, n, m: torch.cat([x, x], -1),
    lambda x, y, n, m: torch.cat([x, y[: n % 4]]),
    lambda x, y, n, m: torch.stack([x, y]),
    lambda x, y, n, m: torch.stack([x, x], -1),
    lambda x, y, n, m: functional.pad(x, (n, 1)),
    lambda x, y, n, m: functional.pad(x, (0, y.shape[0])),
    lambda x, y, n, m: x.repeat(2, *([1] * (x.dim() - 1))),
    lambda x, y, n, m: x.repeat(abs(n), *([1] * (x.dim() - 1))),
    lambda x, y, n, m: x.repeat_interleave(2, 0),
    lambda x, y, n, m: x.tile(2),
    lambda x, y, n, m: x.roll(n, 0),
    lambda x, y, n, m: x.flip(0),
    lambda x, y, n, m: x.gather(0, torch.zeros_like(x, dtype=torch.int64)),
    lambda x, y, n, m: x.index_select(0, torch.arange(x.shape[0] - 1, -1, -1)),
    lambda x, y, n, m: x[torch.arange(x.shape[0])],
    lambda x, y, n, m: x[torch.arange(n)],
    lambda x, y, n, m: x.sum(),
    lambda x, y, n, m: x.sum(0),
    lambda x, y, n, m: x.sum(-1, keepdim=True),
    lambda x, y, n, m: x.mean(0),
    lambda x, y, n, m: x.mean(),
    lambda x, y, n, m: x.amax(-1),
    lambda x, y, n, m: x.max(),
    lambda x, y, n, m: x.max(0)[0],
    lambda x, y, n, m: x.softmax(-1),
    lambda x, y, n, m: x.cumsum(0),
    lambda x, y, n, m: x.var(0),
    lambda x, y, n, m: x.argmax(0),
    lambda x, y, n, m: x.prod(0),
    lambda x, y, n, m: x.norm(),
    lambda x, y, n, m: x.sort(0)[0],
    lambda x, y, n, m: x.topk(2, 0)[0],
    lambda x, y, n, m: x.all(),
    lambda x, y, n, m: x @ y,
    lambda x, y, n, m: x @ x.mT,
    lambda x, y, n, m: x.flatten() @ x.flatten(),
    lambda x, y, n, m: torch.einsum("i...,i...->i", x, x),
    lambda x, y, n, m: torch.outer(x.flatten(), y.flatten()[:2]),
    lambda x, y, n, m: functional.layer_norm(x, x.shape[-1:]),
    lambda x, y, n, m: functional.mse_loss(x, y),
    lambda x, y, n, m: functional.gelu(x),
    lambda x, y, n, m: x.tril() if x.dim() > 1 else x,
    lambda x, y, n, m: x.to(torch.float64) if n > 3 else x,
    lambda x, y, n, m: x * 2 if n > m else x + 1,
    lambda x, y, n, m: x - 1 if x.shape[0] > 4 else x,
    lambda x, y, n, m: x - 1 if x.shape[0] % 2 else x * 3,
    lambda x, y, n, m: x[: x.shape[0] // 2] + x[(x.shape[0] + 1) // 2 :],
    lambda x, y, n, m: x[: min(x.shape[0], y.shape[0])],
    lambda x, y, n, m: compared(x, y),
    lambda x, y, n, m: grown(x, n),
    lambda x, y, n, m: summed_rows(x, n),
    lambda x, y, n, m: functional.interpolate(x[None, None].flatten(2), scale_factor=2),
    lambda x, y, n, m: functional.one_hot(torch.arange(x.shape[0]), max(x.shape[0], 1)),
)
WRITTEN: tuple[Callable[[Tensor, Tensor, Number, Number], Any], ...] = (
    lambda x, y, n, m: written_rows(x, y, n),
    lambda x, y, n, m: written_view(x, n),
    lambda x, y, n, m: written_in_place(x, y, n),
    lambda x, y, n, m: written_copy(x, y, n),
    lambda x, y, n, m: x.mul_(y),
    lambda x, y, n, m: x[n % 3 :].zero_(),
    lambda x, y, n, m: x.t().add_(1),
)
TABLE = (*NUMBERS, *SHAPES, *MADE, *COMPUTED, *COMPUTED, *WRITTEN)


@dataclass(frozen=True)
class Program:
    """Steps over tensors and numbers, which begin with copies of the tensors where these require gradients."""

    steps: tuple[Step, ...]
    copies: bool

    def __call__(self, *given: Any) -> list[Any]:
        """Run it on tensors and numbers, and return all that it computed."""
        known = [x * 1 if self.copies else x for x in given if isinstance(x, Tensor)]
        counted = [x for x in given if not isinstance(x, Tensor)]
        results = []
        for row, first, second, one, other in self.steps:
            x, y = known[first % len(known)], known[second % len(known)]
            result = TABLE[row](x, y, counted[one % len(counted)], counted[other % len(counted)])
            results.append(result)
            for item in result if isinstance(result, (tuple, list)) else (result,):
                if isinstance(item, Tensor):
                    known.append(item)
                elif not isinstance(item, str):
                    counted.append(item)
        return results


@dataclass(frozen=True)
class Call:
    """The shapes and the numbers of a call, and the seed of what the tensors hold."""

    shapes: tuple[tuple[int, ...], ...]
    numbers: tuple[Number, ...]
    seed: int

    def tensors(self, *, grad: bool) -> list[Tensor]:
        """New tensors of these shapes."""
        generator = torch.Generator().manual_seed(self.seed)
        return [torch.randn(shape, generator=generator).requires_grad_(grad) for shape in self.shapes]


@dataclass(frozen=True)
class Case:
    """A program, the calls of it in their order, and whether its gradients are compared as well."""

    program: Program
    calls: tuple[Call, ...]
    grad: bool


def case(draw: random.Random, rows: int = 6) -> Case:
    """A random program with its calls; steps that eager PyTorch refuses at the first call are left out of most."""
    grad = draw.random() < 0.4
    calls = random_calls(draw)
    steps: list[Step] = []
    for _ in range(draw.randint(1, rows)):
        places = (draw.randrange(8), draw.randrange(8), draw.randrange(8), draw.randrange(8))
        step = (draw.randrange(len(TABLE)), *places)
        attempt = Case(Program((*steps, step), copies=grad), calls[:1], grad)
        if draw.random() < 0.03 or not isinstance(outcome(attempt.program, calls[0], grad), Exception):
            steps.append(step)
    return Case(Program(tuple(steps), copies=grad), calls, grad)


def random_calls(draw: random.Random) -> tuple[Call, ...]:
    """Calls with tensors of the same dimensions, of which some have the same size in each call."""
    dimensions = [tuple(draw.randrange(5) for _ in range(draw.randint(1, 3))) for _ in range(draw.randint(1, 3))]
    counted = [draw.random() < 0.3 for _ in range(draw.randint(1, 3))]
    calls = []
    for seed in range(CALLS):
        sizes = [draw.choice(SIZES) for _ in range(3)]
        sizes += [sizes[0] if draw.random() < 0.5 else draw.choice(SIZES), 4]
        numbers = [draw.choice((0.5, 1.0, -2.5, 3.25)) if floats else draw.randint(-3, 9) for floats in counted]
        shapes = tuple(tuple(sizes[place] for place in places) for places in dimensions)
        calls.append(Call(shapes, tuple(numbers), seed))
    return tuple(calls)


def outcome(function: Callable[..., Any], call: Call, grad: bool) -> Any:
    """What a call gives: its results, what became of its tensors, and gradients; or its exception."""
    tensors = call.tensors(grad=grad)
    try:
        with torch.set_grad_enabled(grad):
            results = function(*tensors, *call.numbers)
        leaves = tree_leaves(results)
        gradients: Any = ()
        ends = [leaf for leaf in leaves if isinstance(leaf, Tensor) and leaf.requires_grad]
        if ends:
            total = sum((end.double().square().mean() for end in ends), start=torch.zeros(()))
            gradients = torch.autograd.grad(total, tensors, allow_unused=True)
    except Exception as error:
        return error
    if any(is_large(leaf) for leaf in leaves):
        return OverflowError()
    values = [None if gradient is None else gradient.nan_to_num(0, 0, 0).contiguous() for gradient in gradients]
    return [type(result) for result in results], leaves, tensors, values


def is_large(leaf: Any) -> bool:
    return leaf.numel() > LARGEST if isinstance(leaf, Tensor) else not isinstance(leaf, str) and abs(leaf) > LARGEST


def difference(expected: Any, found: Any) -> str:
    """Where a call of the compiled program gave something else; empty where it did not."""
    if isinstance(expected, Exception) or isinstance(found, Exception):
        return "" if type(expected) is type(found) else f"{expected!r:.150} became {found!r:.600}"
    if expected[0] != found[0]:
        return f"classes {expected[0]} became {found[0]}"
    for place, (one, other) in enumerate(zip(tree_leaves(expected[1:]), tree_leaves(found[1:]), strict=True)):
        if told := differs(one, other):
            return f"result {place}: {told}"
    return ""


def differs(one: Any, other: Any) -> str:
    if type(one) is not type(other):
        return f"{type(one)} became {type(other)}"
    if not isinstance(one, Tensor):
        return "" if one == other or one != one else f"{one} became {other}"
    if (one.dtype, laid_out(one), one.requires_grad) != (other.dtype, laid_out(other), other.requires_grad):
        return f"{one.dtype}, {laid_out(one)} became {other.dtype}, {laid_out(other)}"
    same = torch.allclose(one.detach(), other.detach(), rtol=1e-4, atol=1e-5, equal_nan=True)
    return "" if same else f"{one} became {other}"


def laid_out(tensor: Tensor) -> tuple[Any, ...]:
    """The shape, and the strides that tell elements apart."""
    if not tensor.numel():
        return tuple(tensor.shape), ()
    return tuple(tensor.shape), tuple(
        step for size, step in zip(tensor.shape, tensor.stride(), strict=True) if size > 1
    )


def differences(tried: Case, **options: Any) -> tuple[str, int]:
    """The first difference between a compiled program and eager PyTorch, if any, and how many programs there were."""
    compiled = thunder.jit(lambda *given: tried.program(*given), cache="symbolic values", **options)
    told = ""
    for number, call in enumerate(tried.calls):
        expected = outcome(tried.program, call, tried.grad)
        if isinstance(expected, OverflowError):
            continue
        told = difference(expected, outcome(compiled, call, tried.grad))
        if told:
            told = f"call {number}, {call.shapes} {call.numbers}: {told}"
            break
    return told, thunder.cache_misses(compiled)


def reduced(tried: Case, **options: Any) -> Case:
    """A case with fewer steps and calls that differs still."""
    shrunk = True
    while shrunk:
        shrunk = False
        for smaller in (*without_a_step(tried), *without_a_call(tried)):
            if differences(smaller, **options)[0]:
                tried, shrunk = smaller, True
                break
    return tried


def without_a_step(tried: Case) -> list[Case]:
    steps = tried.program.steps
    fewer = [(*steps[:place], *steps[place + 1 :]) for place in range(len(steps))]
    return [replace(tried, program=replace(tried.program, steps=left)) for left in fewer]


def without_a_call(tried: Case) -> list[Case]:
    calls = tried.calls
    return [replace(tried, calls=(*calls[:place], *calls[place + 1 :])) for place in range(len(calls)) if calls[1:]]


def main(count: int, first: int = 0) -> int:
    """Try so many programs; the number of those that differ."""
    failed = programs = 0
    warnings.simplefilter("ignore")
    for seed in range(first, first + count):
        tried = case(random.Random(seed))
        told, misses = differences(tried)
        programs += misses
        if told:
            failed += 1
            small = reduced(tried)
            rows = [described(row) for row, *_ in small.program.steps]
            print(
                f"program {seed}, grad={tried.grad}: {differences(small)[0] or told}\n  {rows}\n  {small}", flush=True
            )
    print(f"{count} programs, {failed} differ, {programs} compiled")
    return failed


def described(row: int) -> str:
    """The line of a row of the table."""
    code = TABLE[row].__code__
    return linecache.getline(code.co_filename, code.co_firstlineno).strip()


if __name__ == "__main__":
    sys.exit(bool(main(*map(int, sys.argv[1:]))))
