"""Small programs for each kind of constraint: a traced call, and a call for which the program would be wrong."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

import thunder_core as thunder
from tests.fusion.test_fuse import Replays
from tests.symbolic.outcomes import Outcome, difference, outcome
from thunder_core.backend.claiming.executor import OperatorExecutor
from thunder_core.backend.fusion.fuse import Fused, Refusal
from thunder_core.backend.fusion.region import Region
from thunder_core.backend.runtime.program import Program, Stage
from thunder_core.compilation.compiler import last_program
from thunder_core.tracing.ir.guard import check_of
from thunder_core.tracing.library.objects import CHECK_NAMES, UnexpectedValue

LIMIT = 8  # the executors below are correct up to this number of elements
Shape = tuple[int, ...]


def limited(x: Tensor) -> Tensor:
    """Return the exponential of short tensors, and a wrong result for longer tensors."""
    return x.exp() if x.shape[0] <= LIMIT else x


SHORT = OperatorExecutor("short")
SHORT.implements(torch.Tensor.exp, supports=lambda bsym: bool(bsym.args[0].shape[0] <= LIMIT))(limited)


class ShortRegions(Replays):
    """Runs regions whose kernels are only correct for short tensors."""

    symbolic_sizes: ClassVar[bool] = True

    def compile(self, regions: Sequence[Region]) -> Sequence[Fused | Refusal]:
        """Return fused regions with the condition under which they are correct."""
        return [Fused(self.short(region), conditions=(f"s0 <= {LIMIT}",)) for region in regions]

    def short(self, region: Region) -> Callable[..., Any]:
        """Return the region with a wrong result for long tensors."""

        def named(name: str) -> Callable[..., Any]:
            run, count = self.runner(region)(name), len(region.inputs) + len(region.numbers)

            def limited_run(*given: Any) -> Any:
                result = run(*given[:count])
                return result if result.shape[0] <= LIMIT else result * 0

            limited_run.__name__ = limited_run.__qualname__ = name
            return limited_run

        return named


@dataclass(frozen=True)
class Example:
    """A function, a call that is traced, and another call, which the check named `text` refuses.

    Without that check, the result of the program for the other call differs from eager PyTorch. Arguments are shapes
    of tensors, tensors and numbers.
    """

    text: str
    function: Callable[..., Any]
    traced: tuple[Any, ...]
    other: tuple[Any, ...]
    grad: bool = False
    executors: tuple[Any, ...] = ("torch",)

    def arguments(self, given: tuple[Any, ...]) -> list[Any]:
        """Return new arguments for a call."""
        generator = torch.Generator().manual_seed(0)
        args = [torch.randn(value, generator=generator) + 2 if isinstance(value, tuple) else value for value in given]
        args = [argument() if callable(argument) else argument for argument in args]
        return [item.requires_grad_(self.grad) if isinstance(item, Tensor) else item for item in args]

    def outcome(self, function: Callable[..., Any], given: tuple[Any, ...]) -> Outcome:
        """Return the outcome of a function for new arguments."""
        args = self.arguments(given)
        return outcome(function, [argument for argument in args if isinstance(argument, Tensor)], args, {}, self.grad)

    def program(self) -> Program:
        """Return the program of the traced call; raise `AssertionError` if the program is wrong for that call."""
        compiled = thunder.jit(self.function, cache="symbolic values", executors=self.executors)
        expected = self.outcome(self.function, self.traced)
        assert difference(expected, self.outcome(compiled, self.traced)) == ""
        return last_program(compiled)

    def is_served_wrongly(self, program: Program) -> bool | None:
        """Whether a program accepts the other call with a wrong result; None if the program refuses the call.

        The program serves the traced call first, so that its prologue recognizes the tensors.
        """

        def run(*args: Any) -> Any:
            return program.run(*program.prepare(self.function, args, {}))

        assert difference(self.outcome(self.function, self.traced), self.outcome(run, self.traced)) == ""
        try:
            with torch.set_grad_enabled(self.grad):
                program.prepare(self.function, tuple(self.arguments(self.other)), {})
        except Exception:  # any error of a guard refuses the call
            return None
        found = self.outcome(run, self.other)
        if isinstance(found.error, UnexpectedValue):
            return None
        return bool(difference(self.outcome(self.function, self.other), found, message=False))


def without_check(program: Program, number: int) -> Program:
    """Return the program without the check of that number in its prologue."""
    stages = []
    for stage in program.stages:
        checks = {bsym: check_of(bsym) for bsym in stage.trace.bound_symbols}
        kept = [bsym for bsym, check in checks.items() if check is None or check.number != number]
        is_prologue = stage.trace.name == "prologue"
        stages.append(Stage(stage.trace.having(kept, made_by="drop a check"), 0.0) if is_prologue else stage)
    return replace(program, stages=tuple(stages))


def without_expectations(program: Program) -> Program:
    """Return the program without the checks of tensor values in its computation."""
    stages = []
    for stage in program.stages:
        kept = [bsym for bsym in stage.trace.bound_symbols if bsym.symbol.name not in CHECK_NAMES]
        stages.append(replace(stage, trace=stage.trace.having(kept, made_by="drop expectations")))
    return replace(program, stages=tuple(stages))


def with_zero() -> Tensor:
    return torch.tensor([0.0, 1.0, -2.0, 3.0])


def kinds(x: Tensor) -> Tensor:
    return x + x.repeat_interleave(x[:1].long()).shape[0]


def sum_of_rows(x: Tensor) -> Tensor:
    return sum((x[row] * row for row in range(x.shape[0])), start=torch.zeros(()))


def tail(x: Tensor) -> torch.Size:
    return x[-1:].shape


MANY = {1.5 + number: number for number in range(40)}  # more keys than a lookup guards
EXAMPLES: dict[str, Example] = {
    "a lower bound": Example(
        "args[0].size(0): required 5 <= s0", lambda x: x + 1 if x.shape[0] > 4 else x - 1, ((6,),), ((3,),)
    ),
    "an upper bound": Example(
        "args[0].size(0): required 1 <= s0 <= 4", lambda x: x + 1 if x.shape[0] > 4 else x - 1, ((3,),), ((6,),)
    ),
    "a bound on a number": Example(
        "args[1]: required s0 <= 5", lambda x, n: x + 1 if n > 5 else x - 1, ((3,), 2), ((3,), 7)
    ),
    "an excluded value": Example(
        "args[0].size(0): required s0 != 5", lambda x: x + 1 if x.shape[0] != 5 else x - 1, ((6,),), ((5,),)
    ),
    "a value that is asked for": Example(
        "args[0].size(0): required s0 == 3", lambda x: f"{x.shape[0]}".upper(), ((3,),), ((4,),)
    ),
    "the turns of a loop": Example("args[0].size(0): required s0 == 3", sum_of_rows, ((3, 2),), ((4, 2),)),
    "a value that C code takes": Example(
        "args[1]: required s0 == 4", lambda x, n: math.gcd(n, 6), ((3,), 4), ((3,), 6)
    ),
    "a divisor": Example("args[1]: required s0 != 0", lambda x, n: x + n // n, ((3,), 4), ((3,), 0)),
    "divisible": Example(
        "args[0].size(0): required (s0 % 2) == 0", lambda x: x + 1 if x.shape[0] % 2 == 0 else x - 1, ((4,),), ((5,),)
    ),
    "not divisible": Example(
        "args[0].size(0): required (s0 % 2) != 0", lambda x: x + 1 if x.shape[0] % 2 == 0 else x - 1, ((5,),), ((4,),)
    ),
    "divisible by another size": Example(
        "args[0].size(0): required (s0 % s1) == 0 with s1 = args[1].size(0)",
        lambda x, y: x + 1 if x.shape[0] % y.shape[0] == 0 else x - 1,
        ((6,), (3,)),
        ((7,), (3,)),
    ),
    "equal sizes of two tensors": Example(
        "args[0].size(0): required s0 == s1 with s1 = args[1].size(0)",
        lambda x, y: x + 1 if x.shape[0] == y.shape[0] else x - 1,
        ((6,), (6,)),
        ((6,), (5,)),
    ),
    "sizes that are not equal": Example(
        "args[0].size(0): required s0 != s1 with s1 = args[1].size(0)",
        lambda x, y: x + 1 if x.shape[0] == y.shape[0] else x - 1,
        ((6,), (5,)),
        ((6,), (6,)),
    ),
    "a smaller size": Example(
        "args[0].size(0): required s0 < s1 with s1 = args[1].size(0)",
        lambda x, y: x + 1 if x.shape[0] < y.shape[0] else x - 1,
        ((5,), (6,)),
        ((6,), (6,)),
    ),
    "a size and a number": Example(
        "args[1]: required s1 < s0 with s1 = args[0].size(0)",
        lambda x, n: x + 1 if x.shape[0] < n else x - 1,
        ((5,), 7),
        ((5,), 5),
    ),
    "what PyTorch decides": Example(
        "args[0].size(0): required s0 == s1 with s1 = args[1].size(0)",
        lambda x, y: (x + y).shape[0],
        ((3,), (3,)),
        ((1,), (3,)),
    ),
    "no size is zero": Example("args[0].size(0): required 1 <= s0", tail, ((3,),), ((0,),)),
    "the strides of a layout": Example(
        "args[0]: had the strides (s1, 1)",
        lambda x: x + 1 if x.is_contiguous() else x - 1,
        ((3, 4),),
        (lambda: torch.ones(3, 5)[:, :4],),
    ),
    "contiguous only with a size of one": Example(
        "args[0].size(0): required 2 <= s0",
        lambda x: x + 1 if x.is_contiguous() else x - 1,
        (lambda: torch.ones(4, 3).t(),),
        (lambda: torch.ones(4, 1).t(),),
    ),
    "a float that decides": Example(
        "args[1] > 0.5: was True", lambda x, rate: x + 1 if rate > 0.5 else x - 1, ((3,), 0.7), ((3,), 0.2)
    ),
    "a float that is asked for": Example(
        "args[1]: was 0.7", lambda x, rate: f"{rate}".upper(), ((3,), 0.7), ((3,), 0.2)
    ),
    "floats in their order": Example(
        "args[1] < args[2]: was True",
        lambda x, low, high: x * low if low < high else x * high,
        ((3,), 0.2, 0.7),
        ((3,), 0.7, 0.2),
        grad=True,
    ),
    "floats that are equal": Example(
        "args[1] == args[2]: was True",
        lambda x, one, other: x * one + 1 if one == other else x * other,
        ((3,), 0.5, 0.5),
        ((3,), 0.7, 0.2),
        grad=True,
    ),
    "a float below a landmark of a derivative": Example(
        "args[1]: required zf1 < 2.0000000000000000",
        torch.linalg.vector_norm,
        (with_zero, 1.5),
        (with_zero, math.inf),
        grad=True,
    ),
    "a float as a key, with gradients": Example(
        "args[1]: was 1.5", lambda x, rate: x + MANY.get(rate, 0), ((3,), 1.5), ((3,), 2.5), grad=True
    ),
    "a bound on a negative number": Example(
        "args[1]: required -3 <= s0", lambda x, n: x + 1 if n >= -3 else x - 1, ((3,), -2), ((3,), -5)
    ),
    "twice another size": Example(
        "args[0].size(0): required (2*s0) == s1 with s1 = args[1].size(0)",
        lambda x, y: x + 1 if x.shape[0] * 2 == y.shape[0] else x - 1,
        ((3,), (6,)),
        ((3,), (7,)),
    ),
    "where a tensor begins": Example(
        "args[0]: storage_offset() was 2",
        lambda x: x + x.storage_offset(),
        (lambda: torch.arange(9.0)[2:5],),
        (lambda: torch.arange(9.0)[3:6],),
    ),
    "a stride": Example(
        "args[0]: had the strides (s1, 1)",
        lambda x: x.as_strided((2,), (x.stride(0),)),
        (lambda: torch.arange(20.0).view(4, 5),),
        (lambda: torch.arange(20.0).view(4, 5)[:, :4],),
    ),
    "the type of a number": Example(
        "args[1]: was an object of class int", lambda x, n: type(n).__name__, ((3,), 3), ((3,), 3.0)
    ),
    "a flag": Example("args[1]: was True", lambda x, flag: x + 1 if flag else x - 1, ((3,), True), ((3,), False)),
    "the type of a tensor": Example(
        "args[0]: was f32[s0]", lambda x: str(x.dtype), ((3,),), (lambda: torch.ones(3, dtype=torch.float64),)
    ),
    "a derivative": Example(
        "args[0].size(0): required s0 == 3", lambda x: (x + 0j).cumprod(0).real, ((3, 4),), ((5, 4),), grad=True
    ),
    "an executor": Example(
        f"args[0].size(0): required 1 <= s0 <= {LIMIT}", lambda x: x.exp(), ((3,),), ((9,),), executors=(SHORT, "torch")
    ),
    "a compiled region": Example(
        f"args[0].size(0): required 1 <= s0 <= {LIMIT}",
        lambda x: x.exp() * 2 + 1,
        ((3,),),
        ((9,),),
        executors=(ShortRegions(), "torch"),
    ),
}

# Calls for which only a check of tensor values in the computation refuses the program.
UNBACKED: dict[str, Example] = {
    "a size by values": Example(
        "", kinds, (lambda: torch.tensor([0.0, 1.0, 1.0]),), (lambda: torch.tensor([2.0, 0.0, 1.0]),)
    ),
    "an array that gives a size": Example(
        "",
        lambda x: torch.ones(len(x.numpy().nonzero()[0])),
        (lambda: torch.tensor([0.0, 1.0, 1.0]),),
        (lambda: torch.tensor([0.0, 0.0, 1.0]),),
    ),
    "a branch on a value": Example(
        "", lambda x, rate: x * 2 if (x * rate).sum() > 6 else x, (with_zero, 4.0), (with_zero, 2.0), grad=True
    ),
    "floats of tensors that count": Example(
        "",
        lambda x: x * torch.arange(0, x.max().item(), 2.0).shape[0],
        (lambda: torch.tensor([0.0, 3.0]),),
        (lambda: torch.tensor([0.0, 5.0]),),
    ),
}
