"""Random loops over a symbolic size: `python -m tests.symbolic.random_loops 500` compares that many with eager PyTorch.

A program is the source of a function with one loop of random statements: assignments and updates in place of several
carried tensors, rows that are appended or written, branches on constants, and calls of functions and modules.
"""

from __future__ import annotations

import linecache
import random
import sys
import textwrap
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import thunder_core as thunder
from tests.symbolic.outcomes import Outcome, difference, outcome
from tests.symbolic.random_programs import neighbouring_numbers

WIDTH = 4
LENGTHS = (4, 3)
EXTREMES = (0, 1, 2, 7)
WRITTEN_LATER = "a += 1  # after the loop"
# Headers of loops: the source, whether there is an index, the offsets that it can have, and whether there is an item.
HEADERS: tuple[tuple[str, tuple[int, ...], bool], ...] = (
    ("for i in range(x.shape[1]):", (0,), False),
    ("for i in range(1, n):", (0, -1), False),
    ("for i in range(n - 1):", (0, 1), False),
    ("for i in reversed(range(n)):", (0,), False),
    ("for i in range(n - 1, -1, -1):", (0,), False),
    ("for t in x.unbind(1):", (), True),
    ("for t in reversed(x.unbind(1)):", (), True),
    ("for i, t in enumerate(torch.unbind(x, 1)):", (0,), True),
)
CARRIED = ("a", "b", "c")
INITIAL = (
    *("torch.zeros(x.shape[0], 4, dtype=x.dtype)", "x.mean(1)", "h * 1", "h", "x.new_ones(x.shape[0], 4) * w[0]"),
    *("x[:, 0] * 0", "torch.tanh(h)", "h[:, :4] * 2", "a", "h.detach() * 0.5", "x[:, 0]"),
)
UNARY = (
    *("torch.tanh({})", "{}.sin()", "({}).relu()", "({}) * 0.5", "({}) @ w", "linear({})", "norm({})", "-({})"),
    *("scaled({}, w)", "switched({})", "({}).detach()", "torch.cat([({})[:, 1:], ({})[:, :1]], -1)", "updated({})"),
    *("({}).exp().clamp(max=2)", "({}).softmax(-1)", "({}).sigmoid()", "({}).to(x.dtype)", "({}).float()"),
    *("torch.where(({}) > 0, {}, {})", "({}).cumsum(-1) * 0.3", "dropout({})", "({})[:, :1]", "written({})"),
)
BINARY = ("({}) + ({})", "({}) * ({})", "({}) - ({}) * 0.3", "torch.maximum({}, {})", "joined({}, {})", "cell({}, {})")
CONDITIONS = ("flag", "not flag", "bias is not None", "w.dim() == 2 and flag", "x.dtype == torch.float32", "scale > 1")
PRELUDE = """
import torch

def program(x, w, h, y, flag=True, bias=None, scale=1.5):
    n = x.shape[1]
    outs, more = [], []
    out = {buffer}
"""


class Written(nn.Module):
    """A module that writes to its own result, which its derivative needs."""

    def forward(self, tensor: Tensor) -> Tensor:
        """Return a result after an update in place."""
        result = tensor.exp().clamp(max=2)
        result *= 0.5
        return result


def scaled(tensor: Tensor, weight: Tensor, *, by: float = 0.5) -> Tensor:
    return torch.tanh(tensor @ weight) * by


def switched(tensor: Tensor) -> Tensor:
    with torch.no_grad():
        factor = tensor.mean(-1, keepdim=True).cos()
    return tensor * factor


def updated(tensor: Tensor) -> Tensor:
    result = tensor * 2
    result += 1
    result.mul_(0.5)
    return result


def joined(first: Tensor, second: Tensor) -> Tensor:
    if first.shape != second.shape:
        raise ValueError("shapes differ")
    return first * second.sigmoid() if first.dim() == 2 else first


def modules(dtype: torch.dtype) -> dict[str, Any]:
    """Return the functions and modules that programs call."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        made = {"linear": nn.Linear(WIDTH, WIDTH), "norm": nn.LayerNorm(WIDTH), "cell": nn.GRUCell(WIDTH, WIDTH)}
    made |= {"dropout": nn.Dropout(0.3), "written": Written()}
    functions = {"scaled": scaled, "switched": switched, "updated": updated, "joined": joined}
    return {name: module.to(dtype) for name, module in made.items()} | functions


class Writer:
    """Writes the statements of a loop at random."""

    def __init__(self, draw: random.Random) -> None:
        self.draw = draw
        self.header, offsets, has_item = draw.choice(HEADERS)
        self.slices = [f"x[:, i{offset:+}]" if offset else "x[:, i]" for offset in offsets]
        self.slices += ["y[i]", "x[:, i, :]", "x[:, i].cos()"] if 0 in offsets else []
        self.slices += ["t", "t"] if has_item else []
        self.has_index = 0 in offsets
        self.carried = CARRIED[: draw.randint(1, 3)]
        # A variable is mostly either assigned or updated in place, as loops that are recorded have it.
        self.updated = [name for name in self.carried if draw.random() < 0.4]
        self.assigned = [name for name in self.carried if name not in self.updated] or [*self.carried]
        self.local: list[str] = []
        self.lists: set[str] = set()

    def expression(self, depth: int = 2) -> str:
        """Return a random expression of carried tensors, slices and local variables."""
        kind = self.draw.random()
        if depth == 0 or kind < 0.15:
            return self.draw.choice((*self.slices, *self.slices, *self.carried, *self.local))
        table = UNARY if kind < 0.6 else BINARY
        text = self.draw.choice(table)
        if table is UNARY:
            return text.replace("{}", self.expression(depth - 1))
        return text.format(self.expression(depth - 1), self.expression(depth - 1))

    def statements(self, count: int, depth: int = 0) -> list[str]:
        """Return random statements."""
        return [line for _ in range(count) for line in self.statement(depth)]

    def statement(self, depth: int) -> list[str]:
        """Return a random statement, of several lines for a branch."""
        kind, name, value = self.draw.random(), self.draw.choice(self.assigned), self.expression()
        if kind < 0.3:
            return [f"{name} = {value}" if self.draw.random() < 0.1 else f"{name} = torch.tanh({name} + {value})"]
        if kind < 0.45:
            target = self.draw.choice([*(self.updated or self.local or self.carried), *self.local])
            return [f"{target} {self.draw.choice(('+=', '+=', '*=', '-='))} {value}"]
        if kind < 0.6:
            made = f"v{len(self.local)}"
            lines = [f"{made} = {value}"]
            self.local.append(made)
            return lines
        if kind < 0.75:
            rows = self.draw.choice(("outs", "outs", "more"))
            self.lists.add(rows)
            return [f"{rows}.append({value})"]
        if kind < 0.82 and self.has_index:
            return [f"out[:, i] = {value}"]
        if kind < 0.9 and len(self.assigned) > 1:
            first, second = self.assigned[:2]
            return [f"{first}, {second} = {second} * 0.5 + {value}, {first} + {self.expression()}"]
        return self.branch() if depth == 0 else [f"{name} = ({name}) * 0.5 + {value}"]

    def branch(self) -> list[str]:
        """Return a branch on a constant of the loop."""
        before = list(self.local)
        body = self.statements(1, 1)
        self.local = list(before)
        orelse = self.statements(1, 1) if self.draw.random() < 0.5 else []
        self.local = before
        lines = [f"if {self.draw.choice(CONDITIONS)}:", *indented(body)]
        return [*lines, "else:", *indented(orelse)] if orelse else lines


def indented(lines: list[str]) -> list[str]:
    return textwrap.indent("\n".join(lines), "    ").splitlines()


def source(draw: random.Random) -> str:
    """Return the source of a random program."""
    writer = Writer(draw)
    text = PRELUDE.format(buffer=draw.choice(("torch.zeros_like(x)", "x * 1", "torch.sin(x)")))
    initial = [f"{name} = {draw.choice(INITIAL if name != 'a' else INITIAL[:8])}" for name in writer.carried]
    saved = [f"z = {draw.choice(writer.carried)}.sin()"] if draw.random() < 0.15 else []
    loop = [writer.header, *indented(writer.statements(draw.randint(1, 3)))]
    after = [WRITTEN_LATER] if draw.random() < 0.15 else []
    results = [*writer.carried, "out"]
    results += [draw.choice((f"torch.stack({name}, 1)", f"torch.cat({name}, -1)")) for name in sorted(writer.lists)]
    results += ["z * 2"] if saved else []
    return text + "\n".join(indented([*initial, *saved, *loop, *after, f"return {', '.join(results)}"])) + "\n"


@dataclass(frozen=True)
class Loop:
    """A program with a loop, the dtype of its tensors, whether its gradients are compared, and its lengths."""

    text: str
    dtype: torch.dtype
    grad: bool
    lengths: tuple[int, ...]

    def function(self) -> Callable[..., Any]:
        """Return the program; its source is in `linecache`, as if a file had it."""
        name = f"<loop {hash(self) & 0xFFFFFFFF:x}>"
        linecache.cache[name] = (len(self.text), None, self.text.splitlines(keepends=True), name)
        names = modules(self.dtype)
        exec(compile(self.text, name, "exec", dont_inherit=True), names)
        made: Callable[..., Any] = names["program"]
        return made

    def outcome(self, function: Callable[..., Any], length: int, nudge: int | None = None) -> Outcome:
        """Return the outcome of a call with new tensors."""
        generator = torch.Generator().manual_seed(length)
        shapes = ((2, length, WIDTH), (WIDTH, WIDTH), (2, WIDTH), (length, 2, WIDTH))
        tensors = [torch.randn(shape, generator=generator).to(self.dtype) * 0.7 for shape in shapes]
        tensors = [tensor if nudge is None else neighbouring_numbers(tensor, nudge) for tensor in tensors]
        leaves = [tensor.requires_grad_(self.grad) for tensor in tensors]
        return outcome(function, leaves, [leaf * 1 for leaf in leaves] if self.grad else leaves, {}, self.grad)


def loop(draw: random.Random) -> Loop:
    """Return a random loop that eager PyTorch runs at the first length; most of them can be differentiated.

    A recorded loop copies what its derivative needs, so a write after the loop leaves it differentiable.
    """
    while True:
        dtype, grad = draw.choice((torch.float32, torch.float64)), draw.random() < 0.6
        made = Loop(source(draw), dtype, grad, (*LENGTHS, draw.choice(EXTREMES)))
        error = made.outcome(made.function(), LENGTHS[0]).error
        is_written = "modified by an inplace" in str(error) and WRITTEN_LATER not in made.text
        if error is None or (draw.random() < 0.2 and is_written):
            return made


def differences(tried: Loop) -> tuple[str, int]:
    """Return the first difference between a compiled loop and eager PyTorch, if any, and the number of programs."""
    function = tried.function()
    compiled = thunder.jit(tried.function(), cache="symbolic values")
    for length in tried.lengths:
        expected = tried.outcome(function, length)
        found = tried.outcome(compiled, length)

        def eager(nudge: int, length: int = length) -> Outcome:
            return tried.outcome(function, length, nudge)

        if text := difference(expected, found, message=False, nudged=eager):
            return f"length {length}: {text}", thunder.cache_misses(compiled)
    return "", thunder.cache_misses(compiled)


def main(count: int, first: int = 0) -> Iterator[str]:
    """Yield the seeds and programs of all loops that differ from eager PyTorch."""
    rolled = 0
    for seed in range(first, first + count):
        tried = loop(random.Random(seed))
        message, programs = differences(tried)
        rolled += programs < 3
        if message:
            yield f"seed {seed}: {message}\n{tried.dtype} {tried.grad}{tried.text}"
    yield f"{rolled} of {count} loops have one or two programs for all lengths"


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    for report in main(*map(int, sys.argv[1:])):
        print(report, flush=True)
