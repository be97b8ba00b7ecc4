"""Random programs over sizes and numbers: `python -m tests.symbolic.random_programs 5000` tries that many.

A program is a list of steps over growing lists of tensors and of numbers; each step is a row of a table and the places
of its operands, or a branch or a loop over further steps. It is called with tensors of several shapes, layouts and
types, whose dimensions share sizes, and with several numbers, in all the ways in which numbers come in.
"""

from __future__ import annotations

import faulthandler
import gc
import linecache
import random
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

import thunder_core as thunder
from tests.symbolic.metadata import wrong_metadata
from tests.symbolic.outcomes import Outcome, difference, outcome
from tests.symbolic.steps_of_memory import MADE, SHAPES, WRITTEN
from tests.symbolic.steps_of_numbers import NUMBERS, Number, Row
from tests.symbolic.steps_of_tensors import COMPUTED
from thunder_core.foundation.errors import SymbolicAttemptWarning
from thunder_core.tracing.library.objects import UnexpectedValue

SIZES = (0, *(1, 2, 3, 4, 5, 6) * 2, 7, 8, 17)
CALLS = 3
PROBES = 6  # further calls, for which no program is compiled
TURNS = 3  # the most turns of a `while` loop
TABLE: tuple[Row, ...] = (*NUMBERS, *SHAPES, *MADE, *COMPUTED, *COMPUTED, *WRITTEN)


@dataclass
class Memory:
    """The present tensors and numbers of a program, and the results of its steps."""

    tensors: list[Tensor]
    numbers: list[Number]
    results: list[Any] = field(default_factory=list)

    def operands(self, places: tuple[int, ...]) -> tuple[Tensor, Tensor, Number, Number]:
        """Return two tensors and two numbers."""
        first, second, one, other = places
        known, counted = self.tensors, self.numbers
        return (
            known[first % len(known)],
            known[second % len(known)],
            counted[one % len(counted)],
            counted[other % len(counted)],
        )

    def keep(self, result: Any) -> None:
        """Record the result of a step, for later steps and for the caller."""
        self.results.append(result)
        for item in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(item, Tensor):
                self.tensors.append(item)
            elif isinstance(item, (int, float)):
                self.numbers.append(item)


@dataclass(frozen=True)
class Step:
    """A row of the table, and the positions of its operands."""

    row: int
    places: tuple[int, ...]

    def __call__(self, memory: Memory) -> None:
        """Run the step."""
        memory.keep(TABLE[self.row](*memory.operands(self.places)))


CONDITIONS: tuple[Row, ...] = (
    lambda x, y, n, m: n > m,
    lambda x, y, n, m: n == m,
    lambda x, y, n, m: x.shape[0] > n,
    lambda x, y, n, m: x.shape[0] == y.shape[0],
    lambda x, y, n, m: x.shape[-1] % 2 == 0,
    lambda x, y, n, m: x.shape[0] >= y.shape[-1],
    lambda x, y, n, m: x.numel() < 10,
    lambda x, y, n, m: x.shape == y.shape,
    lambda x, y, n, m: n % 2 and x.shape[0] // 2 > 1,
    lambda x, y, n, m: bool(n),
    lambda x, y, n, m: x.is_contiguous(),
    lambda x, y, n, m: min(x.shape) > 1,
)
RANGES: tuple[Row, ...] = (
    lambda x, y, n, m: range(min(x.shape[0], 3)),
    lambda x, y, n, m: range(n, min(m, n + 3)),
    lambda x, y, n, m: range(x.shape[0], 0, -2),
    lambda x, y, n, m: range(0, x.shape[-1], 4),
)


@dataclass(frozen=True)
class Branch:
    """Steps that run if a condition holds, and steps that run otherwise."""

    row: int
    places: tuple[int, ...]
    body: tuple[Any, ...]
    otherwise: tuple[Any, ...]

    def __call__(self, memory: Memory) -> None:
        """Run one of the two bodies."""
        if CONDITIONS[self.row](*memory.operands(self.places)):
            run(self.body, memory)
        else:
            run(self.otherwise, memory)


@dataclass(frozen=True)
class Turns:
    """Steps that run while a condition holds for the present values, for at most a few iterations."""

    row: int
    places: tuple[int, ...]
    body: tuple[Any, ...]

    def __call__(self, memory: Memory) -> None:
        """Run the loop."""
        turns = 0
        while turns < TURNS and CONDITIONS[self.row](*memory.operands(self.places)):
            turns += 1
            memory.numbers.insert(0, turns)
            run(self.body, memory)


@dataclass(frozen=True)
class Counted:
    """Steps that run for each number of a range."""

    row: int
    places: tuple[int, ...]
    body: tuple[Any, ...]

    def __call__(self, memory: Memory) -> None:
        """Run the loop, for a few turns at most."""
        for turn, number in enumerate(RANGES[self.row](*memory.operands(self.places))):
            if turn == TURNS:
                break
            memory.keep(number)
            run(self.body, memory)


def run(steps: tuple[Any, ...], memory: Memory) -> None:
    """Run the steps in order."""
    for step in steps:
        step(memory)


@dataclass(frozen=True)
class Program:
    """Steps over tensors and numbers; the steps work on copies of tensors that require gradients.

    `outside` holds the numbers that are not arguments.
    """

    steps: tuple[Any, ...]
    copies: bool
    outside: SimpleNamespace = field(default_factory=SimpleNamespace, repr=False, compare=False)

    def __call__(self, *given: Any, **named: Any) -> list[Any]:
        """Run the program on tensors and numbers, and return all computed values."""
        leaves: list[Any] = []
        for value in (*given, *named.values(), *vars(self.outside).values()):
            leaves.extend(value.values() if isinstance(value, dict) else value if isinstance(value, list) else [value])
        tensors = [x * 1 if self.copies else x for x in leaves if isinstance(x, Tensor)]
        memory = Memory(tensors, [x for x in leaves if not isinstance(x, Tensor)])
        run(self.steps, memory)
        return memory.results


def strided(draw: Callable[..., Tensor], shape: tuple[int, ...]) -> Tensor:
    return draw((*shape[:-1], shape[-1] * 2))[..., ::2]


def turned(draw: Callable[..., Tensor], shape: tuple[int, ...]) -> Tensor:
    return draw(shape[::-1]).permute(*reversed(range(len(shape))))


def expanded(draw: Callable[..., Tensor], shape: tuple[int, ...]) -> Tensor:
    return draw((1, *shape[1:])).expand(shape)


def partial(draw: Callable[..., Tensor], shape: tuple[int, ...]) -> Tensor:
    return draw((shape[0] + 2, *shape[1:]))[1:-1]


def in_columns(draw: Callable[..., Tensor], shape: tuple[int, ...]) -> Tensor:
    return draw((*shape[:-1], shape[-1] + 3))[..., : shape[-1]]


LAYOUTS: tuple[Callable[..., Tensor], ...] = (
    *[lambda draw, shape: draw(shape)] * 20,  # type: ignore[list-item]
    *(strided, turned, turned, expanded, partial, in_columns),
)
DTYPES = (*[torch.float32] * 12, torch.float64, torch.int64, torch.bool)
WAYS = ("argument", "keyword", "item", "entry", "outside")


def neighbouring_numbers(values: Tensor, seed: int) -> Tensor:
    """Return neighbouring numbers, above or below the values, chosen by a seed."""
    above = torch.rand(values.shape, generator=torch.Generator().manual_seed(seed)) < 0.5
    return values.nextafter(torch.where(above, torch.inf, -torch.inf).to(values.dtype))


@dataclass(frozen=True)
class Given:
    """The layout and type of a tensor of each call, or the index of an earlier tensor that is passed again."""

    layout: int
    dtype: torch.dtype
    again: int | None = None

    def tensor(self, call: Call, shape: tuple[int, ...], generator: torch.Generator, grad: bool) -> Tensor:
        """Return a new tensor of a shape for a call."""

        def draw(size: tuple[int, ...]) -> Tensor:
            values = (torch.randn(size, generator=generator) * 2).to(self.dtype)
            return (
                values
                if call.nudge is None or not self.dtype.is_floating_point
                else neighbouring_numbers(values, call.nudge)
            )

        return LAYOUTS[self.layout](draw, shape).requires_grad_(grad and self.dtype.is_floating_point)


@dataclass(frozen=True)
class Call:
    """The shapes and the numbers of a call, and the seed of the tensors' values.

    With a `nudge`, another seed, the tensors hold neighbouring numbers.
    """

    shapes: tuple[tuple[int, ...], ...]
    numbers: tuple[Number, ...]
    seed: int
    nudge: int | None = None


@dataclass(frozen=True)
class Case:
    """A program, its calls in order, and whether its gradients are compared.

    No program is compiled for `probes`: the existing programs have to be right for them, or refuse them.
    """

    program: Program
    calls: tuple[Call, ...]
    probes: tuple[Call, ...]
    given: tuple[Given, ...]
    ways: tuple[str, ...]
    grad: bool
    options: tuple[tuple[str, Any], ...] = ()

    def arguments(self, call: Call) -> tuple[list[Tensor], tuple[Any, ...], dict[str, Any]]:
        """Return new tensors for a call, and its arguments; numbers from outside are stored outside."""
        generator = torch.Generator().manual_seed(call.seed)
        pairs = zip(self.given, call.shapes, strict=True)
        tensors: list[Tensor] = []
        for given, shape in pairs:
            new = given.tensor(call, shape, generator, self.grad)
            tensors.append(new if given.again is None else tensors[given.again])
        by_way: dict[str, list[Number]] = {way: [] for way in WAYS}
        for way, number in zip(self.ways, call.numbers, strict=True):
            by_way[way].append(number)
        vars(self.program.outside).update({f"outside{at}": one for at, one in enumerate(by_way["outside"])})
        containers: list[Any] = [by_way["item"]] if by_way["item"] else []
        containers += [{f"key{at}": one for at, one in enumerate(by_way["entry"])}] if by_way["entry"] else []
        named = {f"name{at}": one for at, one in enumerate(by_way["keyword"])}
        return tensors, (*tensors, *by_way["argument"], *containers), named

    def outcome(self, function: Callable[..., Any], call: Call) -> Outcome:
        """Return the outcome of a function for new arguments of a call."""
        tensors, args, kwargs = self.arguments(call)
        return outcome(function, tensors, args, kwargs, self.grad)

    def difference(self, call: Call, expected: Outcome, found: Outcome, *, message: bool = True) -> str:
        """Describe how a compiled call differs from eager PyTorch; empty if it differs by rounding only."""

        def eager(nudge: int) -> Outcome:
            return self.outcome(self.program, replace(call, nudge=nudge))

        return difference(expected, found, message=message, nudged=eager)


def case(draw: random.Random, rows: int = 6) -> Case:
    """Return a random program with its calls; most steps that eager PyTorch refuses at the first call are dropped."""
    grad = draw.random() < 0.4
    calls, given, ways = random_calls(draw)
    program = Program((), copies=grad)
    tried = Case(program, calls[:CALLS], calls[CALLS:], given, ways, grad, random_options(draw))
    for _ in range(draw.randint(1, rows)):
        longer = with_steps(tried, (*tried.program.steps, random_step(draw)))
        if draw.random() < 0.03 or longer.outcome(longer.program, calls[0]).error is None:
            tried = longer
    return tried


def random_options(draw: random.Random) -> tuple[tuple[str, Any], ...]:
    """Return options of `jit`; few programs are compiled with Inductor, which is slow."""
    cache = "symbolic values" if draw.random() < 0.92 else "constant values"
    executors = ("inductor", "torch") if draw.random() < 0.002 else ("torch",)
    return ("cache", cache), ("executors", executors)


def with_steps(tried: Case, steps: tuple[Any, ...]) -> Case:
    """Return a case with other steps."""
    return replace(tried, program=replace(tried.program, steps=steps))


def random_step(draw: random.Random, depth: int = 0) -> Any:
    """Return a row of the table, or sometimes a branch or a loop."""
    places = tuple(draw.randrange(8) for _ in range(4))
    kind = draw.random()
    if depth > 1 or kind < 0.85:
        return Step(draw.randrange(len(TABLE)), places)
    body, otherwise = (tuple(random_step(draw, depth + 1) for _ in range(draw.randint(1, 2))) for _ in range(2))
    if kind < 0.93:
        return Branch(draw.randrange(len(CONDITIONS)), places, body, otherwise)
    if kind < 0.96:
        return Turns(draw.randrange(len(CONDITIONS)), places, body)
    return Counted(draw.randrange(len(RANGES)), places, body)


def random_calls(draw: random.Random) -> tuple[tuple[Call, ...], tuple[Given, ...], tuple[str, ...]]:
    """Return calls with tensors of the same ranks; some dimensions have equal or related sizes in each call."""
    dimensions = [tuple(draw.randrange(7) for _ in range(draw.randint(1, 3))) for _ in range(draw.randint(1, 3))]
    kinds = [draw.choice((*[int, int, float] * 6, bool)) for _ in range(draw.randint(1, 3))]
    given = [Given(draw.randrange(len(LAYOUTS)), draw.choice(DTYPES)) for _ in dimensions]
    if len(dimensions) > 1 and draw.random() < 0.1:
        dimensions[-1], given[-1] = dimensions[0], replace(given[0], again=0)
    among = WAYS if draw.random() < 0.15 else WAYS[:2]
    ways = tuple(draw.choice(among) for _ in kinds)
    calls = []
    for seed in range(CALLS + PROBES):
        sizes = [draw.choice(SIZES) for _ in range(3)]
        sizes += [sizes[0] if draw.random() < 0.5 else draw.choice(SIZES), 4]
        sizes += [sizes[0] + 1, sizes[1] * 2]
        shapes = tuple(tuple(sizes[place] for place in places) for places in dimensions)
        calls.append(Call(shapes, tuple(random_number(draw, kind) for kind in kinds), seed))
    return tuple(calls), tuple(given), ways


def random_number(draw: random.Random, kind: type) -> Number:
    """Return a number of a kind; zero, one and negative numbers occur."""
    if kind is bool:
        return draw.random() < 0.5
    return draw.choice((0.5, 1.0, -2.5, 3.25, 0.0, 2.0)) if kind is float else draw.randint(-3, 9)


def differences(tried: Case, **options: Any) -> tuple[str, int]:
    """Return the first difference between a compiled program and eager PyTorch, if any, and the number of programs.

    All calls are made in order. Then each resulting program is checked with each call, and with further calls: it has
    to be right for all calls that its guards accept.
    """
    compiled = thunder.jit(tried.program, **{**dict(tried.options), **options})
    calls = (*tried.calls, *tried.probes)
    every = [(call, tried.outcome(tried.program, call)) for call in calls]
    wanted = [(call, expected) for call, expected in every if not (expected.is_large or expected.is_malformed)]
    message = ""
    for number, (call, expected) in enumerate(pair for pair in wanted if pair[0] not in tried.probes):
        if text := tried.difference(call, expected, tried.outcome(compiled, call)):
            message = f"call {number}, {call.shapes} {call.numbers}: {text}"
            break
    return message or wrongly_served(tried, compiled, wanted), thunder.cache_misses(compiled)


class Refused(Exception):
    """The guards of a program refuse a call."""


def wrongly_served(tried: Case, compiled: Any, wanted: list[tuple[Call, Outcome]]) -> str:
    """Describe the first call that the guards of a program accept and whose result is wrong."""
    for number, program in enumerate(compiled._thunder.programs):

        def once(*args: Any, program: Any = program, **kwargs: Any) -> Any:
            try:
                inputs, outside = program.prepare(tried.program, args, kwargs)
            except Exception:
                raise Refused from None
            try:
                return program.run(inputs, outside)
            except UnexpectedValue:
                raise Refused from None

        for call, expected in wanted:
            found = tried.outcome(once, call)
            if isinstance(found.error, Refused):
                continue
            text = tried.difference(call, expected, found, message=False) or metadata_of(tried, program, call)
            if text:
                return f"program {number} takes {call.shapes} {call.numbers}: {text}"
    return ""


def metadata_of(tried: Case, program: Any, call: Call) -> str:
    """Describe the first tensor of a program whose metadata in the trace is wrong in a call; empty if there is none."""
    _, args, kwargs = tried.arguments(call)
    with torch.set_grad_enabled(tried.grad):
        inputs, _ = program.prepare(tried.program, args, kwargs)
    torch.manual_seed(0)  # as in `outcome`: random numbers may decide the number of elements
    return wrong_metadata(program, inputs)


def reduce_case(tried: Case, **options: Any) -> Case:
    """Return a case with fewer steps and calls that still differs."""
    shrunk = True
    while shrunk:
        shrunk = False
        for smaller in (*without_a_step(tried), *without_a_call(tried)):
            if differences(smaller, **options)[0]:
                tried, shrunk = smaller, True
                break
    return tried


def without_a_step(tried: Case) -> Iterator[Case]:
    """Yield cases with one step less, or with the body of a branch or a loop in place of the branch or loop."""
    steps = tried.program.steps
    for index, step in enumerate(steps):
        bodies = [getattr(step, name, ()) for name in ("body", "otherwise")]
        for between in ((), *filter(None, bodies)):
            yield with_steps(tried, (*steps[:index], *between, *steps[index + 1 :]))


def without_a_call(tried: Case) -> Iterator[Case]:
    """Yield cases with one call or one probe less."""
    calls, probes = tried.calls, tried.probes
    yield from (replace(tried, calls=(*calls[:at], *calls[at + 1 :])) for at in range(len(calls)) if calls[1:])
    yield from (replace(tried, probes=(*probes[:at], *probes[at + 1 :])) for at in range(len(probes)))


def main(count: int, first: int = 0) -> int:
    """Run this number of programs, and return the number of differences.

    The last line on stderr is the current seed, so that it is known if the process dies in C++.
    """
    failed = programs = 0
    faulthandler.enable()
    warnings.simplefilter("ignore")
    warnings.simplefilter("error", SymbolicAttemptWarning)
    gc.freeze()  # do not scan imported objects again at each garbage collection
    for seed in range(first, first + count):
        print(f"program {seed}", end="\r", file=sys.stderr, flush=True)
        tried = case(random.Random(seed))
        message, misses = differences(tried)
        programs += misses
        if message:
            failed += 1
            small = reduce_case(tried)
            message = differences(small)[0] or message
            rows = [described(step) for step in small.program.steps]
            print(f"program {seed}, grad={tried.grad}: {message}\n  {rows}\n  {small}", flush=True)
    print(f"{count} programs from {first}, {failed} differ, {programs} compiled", flush=True)
    return failed


def described(step: Any) -> str:
    """Return the source line of a step's row, and of the rows of its body."""
    table = TABLE if isinstance(step, Step) else RANGES if isinstance(step, Counted) else CONDITIONS
    code = table[step.row].__code__
    line = linecache.getline(code.co_filename, code.co_firstlineno).strip().removeprefix("lambda x, y, n, m: ")
    inner = [described(one) for name in ("body", "otherwise") for one in getattr(step, name, ())]
    return f"{type(step).__name__} {line} {step.places}" + (f" {inner}" if inner else "")


if __name__ == "__main__":
    sys.exit(bool(main(*map(int, sys.argv[1:]))))
