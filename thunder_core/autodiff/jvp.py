"""What a line does to tangents (forward mode): PyTorch's own forward AD, or the derivative of its backward."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch.autograd import forward_ad

from thunder_core.autodiff.rules import is_ruled
from thunder_core.autodiff.tape import Tape, Underivable, first_line, paired
from thunder_core.autodiff.vjp import derive, run_line
from thunder_core.capture.fake import empty, new_mode
from thunder_core.capture.symbols import symbol_of
from thunder_core.ir.proxy import TensorProxy
from thunder_core.ir.symbol import BoundSymbol


@dataclass(frozen=True)
class Push:
    """What becomes of the tangents `given` of inputs: `lines` compute the `tangents` of results, all by their names.

    They read what the line reads and returns. With `whole`, they stand for the line too; else they follow it.
    """

    given: Mapping[str, TensorProxy]
    lines: tuple[BoundSymbol, ...]
    tangents: Mapping[str, TensorProxy]
    whole: bool


def push(line: BoundSymbol, tangents: Mapping[str, TensorProxy]) -> Push:
    """The tangents of a line's results, for tangents of its inputs with this metadata.

    Raises `Underivable` for a line that writes to what has a tangent, or that PyTorch has no formula for.
    """
    if any(name in tangents for name in line.mutates):
        raise Underivable("it writes to a tensor that has a tangent")
    if is_ruled(line) or not all(map(_is_own, line.at_level("aten"))):
        return _by_backward(line, tangents)
    found = _apart(line, tangents)
    if isinstance(found, Push):
        return found
    try:
        return _by_backward(line, tangents)
    except Underivable as second:
        raise Underivable(found) from second


def _is_own(operation: BoundSymbol) -> bool:
    """Whether an operation is PyTorch's; tangents get lost in others that have a backward alone."""
    return operation.symbol.name.startswith("torch.ops.aten.")


def _apart(line: BoundSymbol, tangents: Mapping[str, TensorProxy]) -> Push | str:
    """By dual numbers, or why not, in a thread of its own.

    Where one of PyTorch's formulas fails, the thread's dispatcher keeps leaving out autograd.
    """
    answers: list[Push | str] = []

    def run() -> None:
        try:
            answers.append(_by_dual_numbers(line, tangents))
        except Exception as error:  # PyTorch's formulas raise what they raise
            answers.append(first_line(error))

    with _quiet():
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
    return answers[0]


def _by_dual_numbers(line: BoundSymbol, tangents: Mapping[str, TensorProxy]) -> Push:
    mode, tape = new_mode(), Tape("%s")
    with mode:
        inputs = {proxy.name: empty(proxy) for proxy in line.inputs if isinstance(proxy, TensorProxy)}
        moving = {name: empty(proxy) for name, proxy in tangents.items() if name in inputs}
    for proxy in line.inputs:
        if isinstance(proxy, TensorProxy):
            tape.bind(inputs[proxy.name], proxy)
    given = {name: tape.name(fake) for name, fake in moving.items()}
    found: dict[str, TensorProxy] = {}
    with _dual_level() as level:
        with mode, tape:
            duals = {name: torch._VF._make_dual(inputs[name], fake, level=level) for name, fake in moving.items()}
        inputs |= duals
        output = run_line(line, inputs, mode, tape)
        for proxy, tensor in paired(line.output, output):
            tape.settle(tensor, proxy)
            with mode, tape:
                tangent = torch._VF._unpack_dual(tensor, level=level)[1]
            if tangent is not None:
                found[proxy.name] = tape.proxy(tangent)
    return _pruned(line, given, tape.unwritten(), found)


def _by_backward(line: BoundSymbol, tangents: Mapping[str, TensorProxy]) -> Push:
    """The backward is linear in the gradient that it is given: its own derivative by that takes a tangent forward."""
    derivation = derive(line, frozenset(tangents))
    if derivation is None:
        return Push({}, (), {}, whole=False)
    tape, mode = derivation.tape.continued(), derivation.mode
    with mode:
        moving = [empty(tangents[proxy.name]) for proxy in derivation.wanted]
        dummies = [torch.empty_like(output, requires_grad=True) for output in derivation.outputs]
    given = {proxy.name: tape.name(fake) for proxy, fake in zip(derivation.wanted, moving, strict=True)}
    zeros = [tape.name(dummy) for dummy in dummies]
    try:
        with torch.enable_grad(), mode, tape:
            gradients = torch.autograd.grad(
                derivation.outputs, derivation.inputs, dummies, create_graph=True, allow_unused=True
            )
            pairs = [(one, tangent) for one, tangent in zip(gradients, moving, strict=True) if one is not None]
            results = torch.autograd.grad(
                [one for one, _ in pairs], dummies, [tangent for _, tangent in pairs], allow_unused=True
            )
    except Underivable:
        raise
    except Exception as error:
        raise Underivable(f"its backward has no derivative: {type(error).__name__}: {first_line(error)}") from error
    made = zip(derivation.results, results, strict=True)
    found = {proxy.name: tape.proxy(one) for proxy, one in made if one is not None}
    filled = [_zeros(name, proxy) for name, proxy in zip(zeros, derivation.results, strict=True)]
    return _pruned(line, given, [*derivation.lines, *filled, *tape.unwritten()], found)


def _zeros(name: TensorProxy, like: TensorProxy) -> BoundSymbol:
    return BoundSymbol(symbol_of(torch.ops.aten.zeros_like.default), (like,), {}, name)


def _pruned(
    line: BoundSymbol, given: Mapping[str, TensorProxy], lines: Sequence[BoundSymbol], found: Mapping[str, TensorProxy]
) -> Push:
    """The lines that the tangents come from; with those of the results, if some make what only the line would have."""
    results = {proxy.name for proxy in line.outputs}
    kept = list(_reaching(lines, {proxy.name for proxy in found.values()}, results))
    if any(one.has_effect or any(proxy.name in results for proxy in one.defines) for one in kept):
        kept = list(_reaching(lines, {proxy.name for proxy in found.values()} | results))
        return Push(given, tuple(kept), found, whole=True)
    return Push(given, tuple(kept), found, whole=False)


def _reaching(lines: Sequence[BoundSymbol], wanted: Iterable[str], known: Iterable[str] = ()) -> Iterator[BoundSymbol]:
    """Of some lines those that lead to what is wanted, or have an effect on it, in order; what is known needs none."""
    read, kept, there = set(wanted) - set(known), [], set(known)
    for line in reversed(lines):
        names = {proxy.name for proxy in line.outputs} | set(line.mutates)
        if names & read:
            kept.append(line)
            read |= {proxy.name for proxy in line.inputs} - there
    return reversed(kept)


@contextmanager
def _dual_level() -> Iterator[int]:
    """A level of dual numbers, of which PyTorch has one.

    Past `forward_ad.make_dual`, which would load TorchScript's derivatives of some operations first, for a second.
    """
    level: int = forward_ad.enter_dual_level()  # type: ignore[no-untyped-call]
    try:
        yield level
    finally:
        forward_ad.exit_dual_level(level=level)  # type: ignore[no-untyped-call]


@contextmanager
def _quiet() -> Iterator[None]:
    """What fails on the way is not logged: there is another way."""
    complaints = logging.getLogger("torch._subclasses.fake_tensor")
    before, complaints.disabled = complaints.disabled, True
    try:
        yield
    finally:
        complaints.disabled = before
