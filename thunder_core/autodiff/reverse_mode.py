"""Differentiation: a computation becomes a forward that also returns what is saved, and a backward that reads it.

Each line's derivative is PyTorch's own, derived once for a signature; a reverse sweep over the lines composes them.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from thunder_core.analysis.grad_mode import grad_modes, sets_grad_mode
from thunder_core.autodiff.memory_budget import within
from thunder_core.autodiff.recompute_units import block_of
from thunder_core.autodiff.refusals import require_no_leaf, require_plain, require_unwritten, underivable
from thunder_core.autodiff.rematerialization import Rematerialized, recomputing, rematerialize
from thunder_core.autodiff.rules import is_ruled
from thunder_core.autodiff.step import Step, matched, recomputed, same_derivative
from thunder_core.autodiff.tape import Underivable
from thunder_core.autodiff.vjp import Derivation, added, derive
from thunder_core.ir.proxy import Proxy, TensorProxy
from thunder_core.ir.symbol import BoundSymbol
from thunder_core.ir.trace import Trace

MADE_BY = "differentiate"
REQUIRE_GRAD = ("torch.Tensor.requires_grad_", "torch.Tensor.requires_grad.__set__")


@dataclass(frozen=True, eq=False)
class Differentiated:
    """A computation and its derivative.

    `followed` are the inputs that gradients are for, and `results` the outputs that gradients come in for, each by
    its place. `forward` returns the outputs and then `saved`; `backward` makes the trace for the results that a
    gradient is given for.
    """

    followed: tuple[int, ...]
    results: tuple[int, ...]
    done: Rematerialized = field(repr=False)
    whole: Trace = field(repr=False)
    sweep: Sweep = field(repr=False)

    @property
    def forward(self) -> Trace:
        """The computation, which also returns what is saved."""
        return self.done.forward

    @property
    def saved(self) -> tuple[TensorProxy, ...]:
        """What the backward takes besides the gradients of the results."""
        return self.done.saved

    def backward(self, given: Sequence[bool]) -> Trace:
        """The trace from what was saved, and the gradients of those results that are `given`, to the gradients of
        the inputs; it returns one for each of `followed`, None where there is none.

        Raises `Underivable` if it would read what was not saved.
        """
        swept = self.whole if all(given) else self.sweep.backward(given)
        taking = swept.having(
            swept.bound_symbols,
            made_by=MADE_BY,
            inputs=(*self.saved, *swept.inputs),
            origins={**self.forward.origins, **swept.origins},
        )
        trace = recomputing(taking, self.done)
        unsaved = _unknown(trace)
        if unsaved:
            raise Underivable(f"the backward for some results alone reads {', '.join(sorted(unsaved))}")
        return trace

    def reached(self, given: Sequence[bool]) -> list[bool]:
        """Which of the gradients that go out depend on those that come in."""
        starts = (proxy.name for proxy, taken in zip(self.whole.inputs, given, strict=True) if taken)
        known = computed_from(starts, self.whole)
        return [proxy is not None and proxy.name in known for proxy in self.whole.output]


def differentiate(trace: Trace, *, recompute: bool = False, budget: float = 1.0) -> Differentiated:
    """The forward and the backward of a trace whose results autograd would follow.

    With `recompute`, the backward computes once more what is cheap to compute, rather than have it saved. A `budget`
    below 1.0 bounds what is saved: it is that part of what would be, or, as an integer, bytes.
    Raises `Underivable` where a line has no derivative that can be written down, or where what eager PyTorch would
    notice could not be noticed any more.
    """
    sweep = Sweep.of(trace)
    if not sweep.results:
        raise Underivable("no result depends on a tensor that requires a gradient")
    whole = sweep.backward([True] * len(sweep.results))
    read = {p.name: p for line in whole.bound_symbols for p in line.inputs if isinstance(p, TensorProxy)}
    made = {p.name for line in whole.bound_symbols for p in line.defines} | {p.name for p in whole.inputs}
    saved = tuple(proxy for name, proxy in read.items() if name not in made)
    require_unwritten(sweep.steps, {proxy.name for proxy in saved})
    forward, results = sweep.forward(saved), len(trace.output)
    done = rematerialize(forward, saved, results, cheap=recompute)
    return Differentiated(
        followed=tuple(place for place, proxy in enumerate(trace.inputs) if proxy.name in sweep.followed),
        results=tuple(place for place, proxy in enumerate(trace.output) if proxy.name in sweep.followed),
        done=done if budget == 1.0 else within(budget, done, forward, saved, results, cheap=recompute),
        whole=whole,
        sweep=sweep,
    )


@dataclass(eq=False)
class Sweep:
    """The lines of a trace with their derivations, forward and backward."""

    trace: Trace
    steps: list[Step]
    followed: set[str]
    _names: Iterator[str]

    @classmethod
    def of(cls, trace: Trace, names: Iterator[str] | None = None) -> Sweep:
        """Derive each line that autograd would follow; equal lines share a derivation.

        `names` are for what is made on the way, where the trace is a part of something that has names of its own.
        """
        sweep = cls(trace, [], set(), names or free_names(trace))
        sweep.followed |= {p.name for p in trace.inputs if isinstance(p, TensorProxy) and p.requires_grad}
        if any(getattr(value, "requires_grad", False) for value in trace.constants.values()):
            raise Underivable("a tensor that no path leads to requires a gradient")
        derivations: dict[Hashable, Derivation | None] = {}
        enabled = True
        modes = grad_modes(trace.bound_symbols, enabled)
        for line, enabled in zip(trace.bound_symbols, modes, strict=True):
            if not sets_grad_mode(line):
                sweep._add(line, enabled, derivations)
        if not enabled:
            raise Underivable("the program leaves autograd switched off")
        return sweep

    @property
    def results(self) -> list[TensorProxy]:
        """The outputs of the trace that gradients come in for."""
        return [proxy for proxy in self.trace.output if proxy.name in self.followed]

    def _add(self, line: BoundSymbol, enabled: bool, derivations: dict[Hashable, Derivation | None]) -> None:
        if self._follows(line):
            return
        require_plain(line, self.followed)
        step = Step(line)
        self.steps.append(step)
        if not any(proxy.name in self.followed for proxy in line.inputs):
            return
        if not enabled:
            require_no_leaf(line, self.followed)
            return
        key = same_derivative(line, self.followed)
        if key not in derivations:
            derivations[key] = _derived(line, self.followed)
        step.derivation = derivations[key]
        if step.derivation is not None:
            step.names = matched(step.derivation.line, line)
            for part in step.derivation.lines:
                self._name(part, step.names, step.names)
            self.followed |= {proxy.name for proxy in step.results}

    def _follows(self, line: BoundSymbol) -> bool:
        """Take in a `requires_grad_()` that nobody sees from outside: of what is followed, or made and not returned."""
        if line.symbol.name not in REQUIRE_GRAD or not all((*line.args[1:], *line.kwargs.values())):
            return False
        outside = {proxy.name for proxy in (*self.trace.inputs, *self.trace.outputs)} | self.trace.constants.keys()
        names = {proxy.name for proxy in line.inputs}
        if names & outside - self.followed:
            return False
        self.followed |= names
        return True

    def _name(self, line: BoundSymbol, names: dict[str, Proxy], known: Mapping[str, Proxy]) -> None:
        """Give what an operation makes a name in the trace."""
        for proxy in line.defines:
            if proxy.name not in known:
                new = next(self._names)
                names[proxy.name] = proxy.named(new) if isinstance(proxy, TensorProxy) else Proxy(new)

    # ---- backward -------------------------------------------------------------------------------------------

    def backward(self, given: Sequence[bool]) -> Trace:
        """The reverse sweep, from the gradients of the results that are given; what it reads else is yet to come."""
        chosen = [proxy for proxy, taken in zip(self.results, given, strict=True) if taken]
        inputs = {proxy.name: gradient_of(proxy) for proxy in chosen}
        lines, gradients = self.pulled(inputs)
        followed = [proxy for proxy in self.trace.inputs if proxy.name in self.followed]
        wanted = [gradients.get(proxy.name) for proxy in followed]
        origins = _told([*inputs.items(), *((p.name, grad) for p, grad in zip(followed, wanted, strict=True))])
        return Trace("backward", tuple(inputs.values()), tuple(lines), tuple(wanted), MADE_BY, origins)

    def pulled(self, given: Mapping[str, TensorProxy]) -> tuple[list[BoundSymbol], dict[str, TensorProxy]]:
        """The lines that lead from the gradients of results, by the names of these, to those of what is followed."""
        gradients = dict(given)
        lines: list[BoundSymbol] = []
        for step in reversed(self.steps):
            if step.derivation is not None and any(proxy.name in gradients for proxy in step.results):
                self._pull(step, gradients, lines)
        return lines, gradients

    def _pull(self, step: Step, gradients: dict[str, TensorProxy], lines: list[BoundSymbol]) -> None:
        assert step.derivation is not None
        incoming = [gradients.pop(proxy.name, None) for proxy in step.results]
        try:
            pull = step.derivation.pull(incoming)
        except Underivable as error:
            raise underivable(step.line, str(error), error.lacking and step.line) from error
        names = dict(step.names)
        for old, new in zip(pull.given, incoming, strict=True):
            if old is not None and new is not None:
                names[old.name] = new
        again: dict[str, Proxy] = {}
        for line in (*recomputed(step.derivation, pull), *pull.lines):
            self._name(line, again, {p.name: p for p in line.inputs})
            names |= again
            lines.append(step.placed(line, names, step.line))
            step.reads |= {proxy.name for proxy in lines[-1].inputs}
        for proxy, gradient in zip(step.wanted, pull.gradients, strict=True):
            if gradient is not None:
                found: Any = names[gradient.name]
                self._accumulate(proxy.name, found, gradients, step, lines)

    def _accumulate(
        self, name: str, new: TensorProxy, gradients: dict[str, TensorProxy], step: Step, lines: list[BoundSymbol]
    ) -> None:
        """Add to the gradient that is there, as autograd does: the one that was there first stands first."""
        old = gradients.get(name)
        if old is None:
            gradients[name] = new
            return
        line = added(old, new, next(self._names))
        lines.append(step.placed(line, {}, step.line))
        gradients[name] = line.output

    # ---- forward --------------------------------------------------------------------------------------------

    def forward(self, saved: Sequence[TensorProxy]) -> Trace:
        """The lines of the trace, without the modes of autograd, returning what is saved behind the outputs."""
        kept = {id(step.line) for step in self.steps}
        dropped = {id(line) for line in self.trace.bound_symbols} - kept
        lines = [line for line in self.exposing({proxy.name for proxy in saved}) if id(line) not in dropped]
        blocks = dict(self.trace.blocks)
        for step in self.steps:
            block = block_of(step.line, blocks)
            if block >= 0 and step.derivation is not None:
                blocks |= dict.fromkeys((p.name for line in step.lines for p in line.defines), block)
        return self.trace.having(lines, made_by=MADE_BY, output=(*self.trace.output, *saved), blocks=blocks)

    def exposing(self, wanted: Set[str]) -> Iterator[BoundSymbol]:
        """The lines of the trace; one that makes something wanted which it does not return, as its aten operations."""
        steps = {id(step.line): step for step in self.steps if step.derivation is not None}
        for line in self.trace.bound_symbols:
            parts = steps[id(line)].lines if id(line) in steps else ()
            inner = {proxy.name for part in parts for proxy in part.defines} - {proxy.name for proxy in line.outputs}
            if not wanted & inner:
                yield line
            elif is_ruled(line):  # its derivative is not that of its operations: they stand beside it
                yield line
                again = {proxy.name: replace(proxy, name=next(self._names)) for proxy in line.defines}
                yield from (part.renamed(again) for part in parts)
            else:
                yield from parts


def computed_from(names: Iterable[str], trace: Trace) -> set[str]:
    """These names, and those of all that the lines of a trace compute from them."""
    known = set(names)
    for line in trace.bound_symbols:
        if any(proxy.name in known for proxy in line.inputs):
            known |= {proxy.name for proxy in line.outputs}
    return known


def free_names(trace: Trace) -> Iterator[str]:
    """Names that nothing in a trace has."""
    taken = {p.name for line in trace.bound_symbols for p in line.outputs} | {p.name for p in trace.inputs}
    taken |= {p.name for line in trace.at_level("aten") for p in line.outputs}
    return (name for number in itertools.count() if (name := f"v{number}") not in taken)


def gradient_of(proxy: TensorProxy) -> TensorProxy:
    """The proxy of a tensor's gradient as it comes in: dense, in the order of dimensions that the tensor has."""
    if len(proxy.stride) != len(proxy.shape):
        raise Underivable(f"the gradient of {proxy.name} is sparse")
    with torch.no_grad():
        like = torch.empty_strided(proxy.shape, proxy.stride, dtype=proxy.dtype, device="meta")
        stride = tuple(torch.empty_like(like, memory_format=torch.preserve_format).stride())
    return TensorProxy(f"grad_{proxy.name}", proxy.shape, stride, proxy.dtype, proxy.device)


def _told(gradients: Iterable[tuple[str, Proxy | None]]) -> dict[str, str]:
    """What each gradient is the gradient of."""
    told: dict[str, str] = {}
    for name, gradient in gradients:
        if gradient is not None:
            told[gradient.name] = f"{told[gradient.name]}, {name}" if gradient.name in told else f"gradient of {name}"
    return told


def _derived(line: BoundSymbol, followed: set[str]) -> Derivation | None:
    try:
        return derive(line, frozenset(followed))
    except Underivable as error:
        raise underivable(line, str(error), error.lacking and line) from error


def _unknown(trace: Trace) -> set[str]:
    defined = {proxy.name for proxy in trace.inputs}
    unknown: set[str] = set()
    for line in trace.bound_symbols:
        unknown |= {proxy.name for proxy in line.inputs} - defined
        defined |= {proxy.name for proxy in line.defines}
    return unknown
