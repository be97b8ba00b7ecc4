"""Symbolic scalar probes: operations of numbers that a trace does not know, run twice, with values in their place."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from thunder_core.tracing.capture.call import RecordedCall
from thunder_core.tracing.capture.constants import constants_set_aside, forget_constants
from thunder_core.tracing.capture.symbolic.numbers import SymbolicInteger, SymbolicNumber, to_proxies
from thunder_core.tracing.capture.symbolic.probed_floats import Named
from thunder_core.tracing.capture.torch_facts.symbols import symbol_of
from thunder_core.tracing.ir.proxy import NumberProxy, Proxy
from thunder_core.tracing.ir.symbol import BoundSymbol
from thunder_core.tracing.ir.tree import leaves, replace_leaves

# Floats between a quarter and a half, so that they are probabilities, rates and exponents, and integers that no tensor
# has for a size; nobody writes either of them.
_floats = (0.25 + (step * 0.6180339887498949) % 0.25 for step in itertools.count(7))
_integers = itertools.count((1 << 40) + 1_000_003, 2_002)
FACTOR = 10
_DIFFERS = Proxy("")
# Whose numbers decide how many elements there are, which two values need not show: they may be of one proportion.
COUNTING = frozenset({"aten::arange", "aten::range"})
COUNTS: frozenset[Callable[..., Any]] = frozenset({torch.arange, torch.range})
ARITHMETIC = ("Tensor", "number", "float", "Optional[number]", "Optional[float]", "Optional[Tensor]", "List[number]")


class HiddenNumbers(BaseException):
    """The program differentiates through operations that hide numbers: it has to be recorded with their values."""


Pairs = Mapping[tuple[Any, Any], Proxy]


BackwardOf = Callable[[BoundSymbol, frozenset[str]], Sequence[BoundSymbol] | None]
ProbeValues = dict[Any, SymbolicNumber]  # the symbolic numbers, by the values that a probe had for them


def run_on_numbers(
    function: Callable[..., Any],
    run: Callable[[Any], tuple[Any, RecordedCall]],
    arguments: Any,
    numbers: Sequence[SymbolicNumber],
) -> tuple[Any, RecordedCall, ProbeValues]:
    """Run a call of the function with values that stand in for its numbers; its aten operations get the numbers' names.

    It runs twice, with other values: what differs is a number, or hangs on one. Where a value became something else on
    the way, the call is known at its own level only. Raises `ValueError` where the result looks different, or where an
    integer may be a size or a place: what such a one does depends on what it is.
    """
    one = {id(number): next(_integers if isinstance(number, SymbolicInteger) else _floats) for number in numbers}
    other = {key: value * FACTOR for key, value in one.items()}
    output, call, twin = run_twice(run, arguments, one, other)
    names = {(one[id(number)], other[id(number)]): number.proxy for number in numbers}
    parts = None if call.opaque else named(call.subsymbols, twin.subsymbols, names)
    if any(isinstance(number, SymbolicInteger) for number in numbers):
        integer_names = {number.proxy.name for number in numbers if isinstance(number, SymbolicInteger)}
        itself = BoundSymbol(symbol_of(function), to_proxies(arguments[0]), to_proxies(arguments[1]), None)
        if parts is None or not integer_names <= _arithmetic(parts or [itself]):
            raise ValueError("an integer may be a size")
    call.opaque, call.subsymbols = parts is None, parts or []
    return output, call, {one[id(number)]: number for number in numbers}


def run_on_floats(
    run: Callable[[Any], tuple[Any, RecordedCall]],
    arguments: Any,
    stand_ins: Mapping[int, tuple[float, float]],
    names: Pairs,
) -> tuple[Any, RecordedCall]:
    """Run a call with values that stand in for floats, by their identities; its aten operations get the names of these.

    Where they cannot be told, the call is known at its own level only. Raises `ValueError` where the result looks
    different for other values.
    """
    one, other = ({key: pair[place] for key, pair in stand_ins.items()} for place in (0, 1))
    output, call, twin = run_twice(run, arguments, one, other)
    parts = None if call.opaque else named(call.subsymbols, twin.subsymbols, names)
    call.opaque, call.subsymbols = parts is None, parts or []
    return output, call


def run_twice(
    run: Callable[[Any], tuple[Any, RecordedCall]], arguments: Any, one: Mapping[int, Any], other: Mapping[int, Any]
) -> tuple[Any, RecordedCall, RecordedCall]:
    """Run a call with values that stand in for numbers, and with others; the first result, its call, and the other one.

    Raises `ValueError` where the results look different, or others might.
    """
    with constants_set_aside(arguments):
        like, twin = run(with_stand_ins(arguments, other))
        output, call = run(with_stand_ins(arguments, one))
    forget_constants(arguments, output, call.written)
    if any(map(counts, call.subsymbols)) or appearance(like) != appearance(output):
        raise ValueError("the structure of the result depends on the values of numbers")
    return output, call, twin


def backward_reads_numbers(
    bsym: BoundSymbol, requires_grad_names: frozenset[str], probes: ProbeValues, backward_of: BackwardOf
) -> bool:
    """Whether the backward of a bound symbol computes with its numbers as they are, and not with what it made of them.

    `backward_of(bsym, followed)` gives the operations of its backward, None where it has none that can be had.
    """
    names = {(value, value * FACTOR): number.proxy for value, number in probes.items()}
    one, other = ({proxy.name: pair[place] for pair, proxy in names.items()} for place in (0, 1))
    with torch._C.DisableTorchFunction(), _disable_current_modes():
        first, second = (backward_of(with_values(bsym, values), requires_grad_names) for values in (one, other))
    return first is not None and second is not None and named(first, second, names) is not None


def with_values(bsym: BoundSymbol, values: Mapping[str, Any]) -> BoundSymbol:
    """The bound symbol with these values for its numbers, known at its own level only."""

    def value(leaf: Any) -> Any:
        return values.get(leaf.name, leaf) if isinstance(leaf, Proxy) else leaf

    args, kwargs = replace_leaves((bsym.args, dict(bsym.kwargs)), value)
    return replace(bsym, args=args, kwargs=kwargs, subsymbols=())


def appearance(output: Any) -> list[Any]:
    """All that a program can see of a result before it runs."""
    return [
        (leaf.shape, leaf.stride(), leaf.dtype, leaf.device, leaf.is_conj(), leaf.is_neg())
        if isinstance(leaf, torch.Tensor)
        else repr(leaf)
        for leaf in leaves(output)
    ]


def with_stand_ins(tree: Any, values: Mapping[int, Any]) -> Any:
    """Nested arguments with values in place of symbolic numbers, by the identities of these."""
    return replace_leaves(tree, lambda leaf: values[id(leaf)] if isinstance(leaf, SymbolicNumber) else leaf)


def counts(operation: BoundSymbol) -> bool:
    """Whether the numbers that an operation takes decide how many elements its result has."""
    target = operation.symbol.target
    return isinstance(target, torch._ops.OpOverload) and target._schema.name in COUNTING


def _arithmetic(parts: Sequence[BoundSymbol]) -> set[str]:
    """The names of numbers that operations take as operands, and nowhere as anything else."""
    operands: set[str] = set()
    others: set[str] = set()
    for part in parts:
        target = part.symbol.target
        if not isinstance(target, torch._ops.OpOverload):
            return set()
        for place, argument in enumerate(target._schema.arguments):
            value = part.args[place] if place < len(part.args) else part.kwargs.get(argument.name)
            names = {leaf.name for leaf in leaves(value) if type(leaf) is Proxy}
            (operands if str(argument.type) in ARITHMETIC else others).update(names)
    return operands - others


def named(parts: Sequence[BoundSymbol], twins: Sequence[BoundSymbol], names: Pairs) -> list[BoundSymbol] | None:
    """The operations of a call with the names of numbers in place of values; None where they cannot be told."""
    if [part.symbol for part in parts] != [twin.symbol for twin in twins]:
        return None
    found_parts = []
    for part, twin in zip(parts, twins, strict=True):
        arguments = (part.args, dict(part.kwargs))
        ours, others = list(leaves(arguments)), list(leaves((twin.args, dict(twin.kwargs))))
        pairs = [_common(*pair, names) for pair in zip(ours, others, strict=False)]
        if len(ours) != len(others) or _DIFFERS in pairs:
            return None
        args, kwargs = _filled(arguments, iter(pairs))
        found_parts.append(replace(part, args=args, kwargs=kwargs))
    return found_parts


def _filled(tree: Any, values: Iterator[Any]) -> Any:
    return replace_leaves(tree, lambda leaf: next(values))


def _common(one: Any, other: Any, names: Pairs) -> Any:
    """The common value at one place in both runs."""
    if type(one) is type(other) and type(one) in (int, float) and (one, other) in names:
        return names[one, other]
    if isinstance(one, NumberProxy) and isinstance(other, NumberProxy):
        common = names.common(one, other) if isinstance(names, Named) else None
        return one if one.value.node.expr == other.value.node.expr else common or _DIFFERS
    return one if isinstance(one, Proxy) or repr(one) == repr(other) else _DIFFERS
