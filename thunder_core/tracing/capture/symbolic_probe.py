"""Probes of symbolic numbers: operations on numbers that are unknown at tracing run twice with stand-in values."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from thunder_core.tracing.capture.call import RecordedCall
from thunder_core.tracing.capture.constants import forget_constants, without_constants
from thunder_core.tracing.capture.symbolic.numbers import SymbolicInteger, SymbolicNumber, to_proxies
from thunder_core.tracing.capture.symbolic.probed_floats import FloatProxies
from thunder_core.tracing.capture.torch_facts.symbols import symbol_of
from thunder_core.tracing.ir.proxy import NumberProxy, Proxy
from thunder_core.tracing.ir.symbol import BoundSymbol
from thunder_core.tracing.ir.tree import leaves, replace_leaves

# Stand-in values that no program contains itself: floats between 1/4 and 1/2, which are valid probabilities, rates and
# exponents, and integers that are too large to be sizes of tensors.
_floats = (0.25 + (step * 0.6180339887498949) % 0.25 for step in itertools.count(7))
_integers = itertools.count((1 << 40) + 1_000_003, 2_002)
FACTOR = 10
_DIFFERS = Proxy("")
# Operations whose numbers determine the number of elements. Two runs may return equal numbers of elements by chance:
# `arange(0, a, b)` has as many elements as `arange(0, FACTOR * a, FACTOR * b)`.
COUNTING = frozenset({"aten::arange", "aten::range"})
COUNTS: frozenset[Callable[..., Any]] = frozenset({torch.arange, torch.range})
ARITHMETIC = ("Tensor", "number", "float", "Optional[number]", "Optional[float]", "Optional[Tensor]", "List[number]")


Pairs = Mapping[tuple[Any, Any], Proxy]


BackwardOf = Callable[[BoundSymbol, frozenset[str]], Sequence[BoundSymbol] | None]
ProbeValues = dict[Any, SymbolicNumber]  # symbolic numbers by their stand-in values


def run_on_numbers(
    function: Callable[..., Any],
    run: Callable[[Any], tuple[Any, RecordedCall]],
    arguments: Any,
    numbers: Sequence[SymbolicNumber],
) -> tuple[Any, RecordedCall, ProbeValues]:
    """Run a call with stand-in values for its numbers, and rename the values in its aten operations to the numbers.

    The call runs twice, with different values: a value that differs between the runs is a number or depends on one. If
    a value that differs is not one of the numbers, the call is recorded without subsymbols. Raises `ValueError` if the
    results of the runs have different metadata, or if an integer may be a size or an index, because the effect of such
    an integer depends on its value.
    """
    first_values = {
        id(number): next(_integers if isinstance(number, SymbolicInteger) else _floats) for number in numbers
    }
    second_values = {key: value * FACTOR for key, value in first_values.items()}
    output, call, twin = run_twice(run, arguments, first_values, second_values)
    names = {(first_values[id(number)], second_values[id(number)]): number.proxy for number in numbers}
    parts = None if call.opaque else with_names(call.subsymbols, twin.subsymbols, names)
    if any(isinstance(number, SymbolicInteger) for number in numbers):
        integer_names = {number.proxy.name for number in numbers if isinstance(number, SymbolicInteger)}
        itself = BoundSymbol(symbol_of(function), to_proxies(arguments[0]), to_proxies(arguments[1]), None)
        if parts is None or not integer_names <= _names_of_operands(parts or [itself]):
            raise ValueError("an integer may be a size")
    call.opaque, call.subsymbols = parts is None, parts or []
    return output, call, {first_values[id(number)]: number for number in numbers}


def run_on_floats(
    run: Callable[[Any], tuple[Any, RecordedCall]],
    arguments: object,
    stand_ins: Mapping[int, tuple[float, float]],
    names: Pairs,
) -> tuple[Any, RecordedCall]:
    """Run a call with stand-in values for floats, by identity, and rename the values in its aten operations.

    If the values cannot be identified, the call is recorded without subsymbols. Raises `ValueError` if the results of
    the two runs have different metadata.
    """
    first_values, second_values = ({key: pair[index] for key, pair in stand_ins.items()} for index in (0, 1))
    output, call, twin = run_twice(run, arguments, first_values, second_values)
    parts = None if call.opaque else with_names(call.subsymbols, twin.subsymbols, names)
    call.opaque, call.subsymbols = parts is None, parts or []
    return output, call


def run_twice(
    run: Callable[[Any], tuple[Any, RecordedCall]],
    arguments: object,
    first_values: Mapping[int, Any],
    second_values: Mapping[int, Any],
) -> tuple[Any, RecordedCall, RecordedCall]:
    """Run a call with two sets of stand-in values; return the first result with its call, and the second call.

    Raises `ValueError` if the results have different metadata, or if an operation's numbers determine the number of its
    elements.
    """
    with without_constants(arguments):
        second_output, twin = run(with_stand_ins(arguments, second_values))
        output, call = run(with_stand_ins(arguments, first_values))
    forget_constants(arguments, output, call.written)
    if any(map(counts_elements, call.subsymbols)) or appearance(second_output) != appearance(output):
        raise ValueError("the structure of the result depends on the values of numbers")
    return output, call, twin


def backward_reads_numbers(
    bsym: BoundSymbol, requires_grad_names: frozenset[str], probes: ProbeValues, backward_of: BackwardOf
) -> bool:
    """Whether the backward of a bound symbol uses its numbers unchanged, and not values computed from them.

    `backward_of(bsym, tracked)` returns the operations of its backward, or None if it cannot be derived.
    """
    names = {(value, value * FACTOR): number.proxy for value, number in probes.items()}
    first_values, second_values = ({proxy.name: pair[index] for pair, proxy in names.items()} for index in (0, 1))
    with torch._C.DisableTorchFunction(), _disable_current_modes():
        first, second = (
            backward_of(with_values(bsym, values), requires_grad_names) for values in (first_values, second_values)
        )
    return first is not None and second is not None and with_names(first, second, names) is not None


def with_values(bsym: BoundSymbol, values: Mapping[str, Any]) -> BoundSymbol:
    """Return the bound symbol with these values for its numbers, without subsymbols."""

    def value(leaf: object) -> Any:
        return values.get(leaf.name, leaf) if isinstance(leaf, Proxy) else leaf

    args, kwargs = replace_leaves((bsym.args, dict(bsym.kwargs)), value)
    return replace(bsym, args=args, kwargs=kwargs, subsymbols=())


def appearance(output: object) -> list[Any]:
    """Return the properties of a result that a program can read at tracing: metadata of tensors, and other values."""
    return [
        (leaf.shape, leaf.stride(), leaf.dtype, leaf.device, leaf.is_conj(), leaf.is_neg())
        if isinstance(leaf, torch.Tensor)
        else repr(leaf)
        for leaf in leaves(output)
    ]


def with_stand_ins(tree: object, values: Mapping[int, Any]) -> Any:
    """Return nested arguments with symbolic numbers replaced by values, by the identities of the numbers."""
    return replace_leaves(tree, lambda leaf: values[id(leaf)] if isinstance(leaf, SymbolicNumber) else leaf)


def counts_elements(operation: BoundSymbol) -> bool:
    """Whether the numbers of an operation determine how many elements its result has."""
    target = operation.symbol.target
    return isinstance(target, torch._ops.OpOverload) and target._schema.name in COUNTING


def _names_of_operands(parts: Sequence[BoundSymbol]) -> set[str]:
    """Return the names of numbers that operations take only as arithmetic operands."""
    operands: set[str] = set()
    others: set[str] = set()
    for part in parts:
        target = part.symbol.target
        if not isinstance(target, torch._ops.OpOverload):
            return set()
        for index, argument in enumerate(target._schema.arguments):
            value = part.args[index] if index < len(part.args) else part.kwargs.get(argument.name)
            names = {leaf.name for leaf in leaves(value) if type(leaf) is Proxy}
            (operands if str(argument.type) in ARITHMETIC else others).update(names)
    return operands - others


def with_names(parts: Sequence[BoundSymbol], twins: Sequence[BoundSymbol], names: Pairs) -> list[BoundSymbol] | None:
    """Return the operations with stand-in values replaced by names; None if the values cannot be identified."""
    if [part.symbol for part in parts] != [twin.symbol for twin in twins]:
        return None
    renamed_parts = []
    for part, twin in zip(parts, twins, strict=True):
        arguments = (part.args, dict(part.kwargs))
        ours, others = list(leaves(arguments)), list(leaves((twin.args, dict(twin.kwargs))))
        pairs = [_common(*pair, names) for pair in zip(ours, others, strict=False)]
        if len(ours) != len(others) or _DIFFERS in pairs:
            return None
        args, kwargs = _fill(arguments, iter(pairs))
        renamed_parts.append(replace(part, args=args, kwargs=kwargs))
    return renamed_parts


def _fill(tree: object, values: Iterator[Any]) -> Any:
    return replace_leaves(tree, lambda leaf: next(values))


def _common(first: object, second: object, names: Pairs) -> Any:
    """Return the common value at one position of both runs, or `_DIFFERS`."""
    if type(first) is type(second) and type(first) in (int, float) and (first, second) in names:
        return names[first, second]
    if isinstance(first, NumberProxy) and isinstance(second, NumberProxy):
        common = names.common(first, second) if isinstance(names, FloatProxies) else None
        return first if first.value.node.expr == second.value.node.expr else common or _DIFFERS
    return first if isinstance(first, Proxy) or repr(first) == repr(second) else _DIFFERS
