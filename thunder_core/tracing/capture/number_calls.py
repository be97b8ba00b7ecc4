"""Calls of torch functions with symbolic numbers: numbers from outside, and values of tensors."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch

from thunder_core.foundation.errors import ThunderError
from thunder_core.tracing.capture.binding import Binding
from thunder_core.tracing.capture.call import RecordedCall
from thunder_core.tracing.capture.counts import Counts
from thunder_core.tracing.capture.fakes.tensors import Tensors, tensors_in
from thunder_core.tracing.capture.symbolic.expectations import expectation_of
from thunder_core.tracing.capture.symbolic.numbers import SymbolicNumber, concrete, numbers_in
from thunder_core.tracing.capture.symbolic.probed_floats import (
    FloatProxies,
    FloatValueRead,
    may_be_symbol,
    restrict,
    stand_ins,
)
from thunder_core.tracing.capture.symbolic.recorded_numbers import Numbers
from thunder_core.tracing.capture.symbolic.shape_env import number_of
from thunder_core.tracing.capture.symbolic_probe import (
    COUNTS,
    BackwardOf,
    ProbeValues,
    backward_reads_numbers,
    run_on_floats,
    run_on_numbers,
)
from thunder_core.tracing.capture.torch_facts.symbols import is_ordered
from thunder_core.tracing.capture.torch_facts.writes import may_write
from thunder_core.tracing.ir.proxy import NumberProxy, Proxy
from thunder_core.tracing.ir.symbol import BoundSymbol
from thunder_core.tracing.ir.tree import replace_leaves

# Functions whose integer arguments are indices or sizes. Their results would have wrong metadata for stand-in values.
INDEX_AND_SIZE_FUNCTIONS = frozenset(
    {
        *(torch.Tensor.__getitem__, torch.Tensor.__setitem__, torch.Tensor.narrow, torch.Tensor.split),
        *(torch.Tensor.repeat, torch.Tensor.expand, torch.Tensor.view, torch.Tensor.reshape, torch.narrow, torch.split),
    }
)
ARITHMETIC = (operator.add, operator.sub, operator.mul, operator.neg)


class NumberRecorder(Protocol):
    """The part of the recorder that `NumberCalls` uses.

    `derivatives_in_progress` is the number of derivatives that are being computed from the recorded operations.
    `backward_of` returns the backward of a bound symbol for the names that require a gradient.
    """

    failure: ThunderError | None
    bound_symbols: list[BoundSymbol]
    counts: Counts
    derivatives_read_numbers: bool
    derivatives_in_progress: int
    backward_of: BackwardOf

    def function(self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Run one torch function and record it."""

    def with_fakes(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments with fakes for real tensors."""

    def run(self, function: Callable[..., Any], args: object, kwargs: object, call: RecordedCall) -> Any:
        """Run a function on fakes, and record its effects in `call`."""

    def reset_failure(self, failure: ThunderError | None) -> None:
        """Restore the failure that was stored before an attempt."""

    def append(self, bsym: BoundSymbol) -> None:
        """Append a bound symbol."""

    def emit(self, bsym: BoundSymbol) -> None:
        """Append a bound symbol that changes a state."""


class NumberCalls:
    """The execution of torch functions on stand-in values, for numbers that are unknown at tracing.

    `has_hidden` is True if autograd has recorded a call with stand-in values, as if these were constants.
    `probe_values` maps stand-in values to numbers, for calls whose backward computes with the numbers.
    """

    def __init__(self, recording: NumberRecorder, binding: Binding, tensors: Tensors, numbers: Numbers) -> None:
        self._recording = recording
        self._tensors = tensors
        self._numbers = numbers
        self._binding = binding
        self._checked: set[str] = set()
        self.has_hidden = False
        self.probe_values: ProbeValues = {}

    def run(self, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Run a function on stand-in values for the numbers that are unknown at tracing.

        The real values are read instead if the metadata of the result depends on them. They are also read if autograd
        would treat the stand-in values as constants, in two cases: the numbers come from outside, or the program
        differentiates itself and a backward uses a value that is computed from a number. (PyTorch's autograd records
        other programs when they run.)
        """
        numbers = numbers_in((args, kwargs))
        args, kwargs = self._recording.with_fakes(args, kwargs)
        requires_grad = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors_in((args, kwargs)))
        if self._may_be_symbols(function, numbers):
            return self._with_float_symbols(function, (args, kwargs), numbers, requires_grad=requires_grad)
        if (
            not numbers
            or (function in INDEX_AND_SIZE_FUNCTIONS and any(number.kind is int for number in numbers))
            or self._recording.derivatives_in_progress
            or (requires_grad and self._hides_numbers(function, kwargs, numbers))
        ):
            return self._with_values(function, args, kwargs)
        before = self._recording.failure
        try:
            output, call, probe_values = run_on_numbers(
                function, self._returning_call(function), (args, kwargs), numbers
            )
        except Exception:  # stand-in values may not work where the real values do
            self._recording.reset_failure(before)
            return self._with_values(function, args, kwargs)
        bsym = self._binding.bind(function, args, kwargs, output, call)
        if requires_grad and self._recording.derivatives_read_numbers and bsym is not None:
            if not self._backward_reads_numbers(bsym, (args, kwargs), probe_values):
                return self._with_values(function, args, kwargs)
            self.probe_values |= probe_values
        self.has_hidden |= requires_grad and not self._recording.derivatives_read_numbers
        if bsym is not None:
            self._recording.append(bsym)
        return self._tensors.to_real(output)

    def without_stand_ins(self, tree: object) -> Any:
        """Return nested values with the stand-ins of symbolic numbers replaced by the numbers."""
        values = self.probe_values
        return replace_leaves(tree, lambda leaf: values.get(leaf, leaf) if type(leaf) in (int, float) else leaf)

    def _with_values(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a function with the values of its numbers, or with their symbols if they have any."""
        arguments = replace_leaves((args, kwargs), self._with_symbol)
        return self._recording.function(function, *concrete(arguments))

    def _with_symbol(self, leaf: object) -> Any:
        """Return the symbolic value of an integer that is computed from tensor values, or another leaf unchanged."""
        if not isinstance(leaf, SymbolicNumber) or leaf.kind is not int or leaf.source is not None:
            return leaf
        size = self._size(leaf.proxy)
        return leaf if size is None else size

    def _size(self, number: object) -> Any:
        """Return a number as an expression of symbols for tensor values; None if a value has no symbol."""
        if not isinstance(number, Proxy):
            return number if type(number) is int else None
        if isinstance(number, NumberProxy):
            return number.value
        makers = (bsym for bsym in reversed(self._recording.bound_symbols) if number in bsym.outputs)
        maker = next(makers, None)
        if maker is None:
            return None
        if maker.symbol.target in ARITHMETIC:
            operands = [self._size(operand) for operand in maker.args]
            if all(operand is not None for operand in operands):
                return maker.symbol.target(*operands)
        symbol = self._recording.counts.symbol_of_result(maker)
        if symbol is not None and number.name not in self._checked:
            self._checked.add(number.name)
            self._recording.emit(expectation_of(maker, number, number_of(symbol)))
        return symbol

    def _returning_call(self, function: Callable[..., Any]) -> Callable[[Any], tuple[Any, RecordedCall]]:
        """Return a function that runs `function` on arguments, and returns its result and its recorded call."""

        def run(arguments: Any) -> tuple[Any, RecordedCall]:
            call = RecordedCall()
            return self._recording.run(function, arguments[0], arguments[1], call), call

        return run

    def _hides_numbers(
        self, function: Callable[..., Any], kwargs: dict[str, Any], numbers: Sequence[SymbolicNumber]
    ) -> bool:
        """Whether autograd would record the stand-in values of a call's numbers as constants."""
        outside = any(number.proxy.name in self._numbers.outside_values and not number.drawn for number in numbers)
        return outside or (self._recording.derivatives_read_numbers and may_write(function, kwargs))

    def _backward_reads_numbers(self, bsym: BoundSymbol, arguments: object, probe_values: ProbeValues) -> bool:
        """Whether the backward of a bound symbol uses its numbers unchanged, and not values computed from them."""
        tensors = [tensor for tensor in tensors_in(arguments) if tensor.requires_grad]
        requires_grad_names = frozenset(self._tensors.proxy(tensor).name for tensor in tensors)
        return backward_reads_numbers(bsym, requires_grad_names, probe_values, self._recording.backward_of)

    def _with_float_symbols(
        self, function: Callable[..., Any], arguments: Any, numbers: Sequence[SymbolicNumber], *, requires_grad: bool
    ) -> Any:
        """Run a function with symbols for floats from outside; a backward may compute with the symbols.

        If the C++ code of the function accepts only plain floats, the function runs on stand-in values. If that fails
        too, the function reads the real values, which are guarded.
        """
        sizes = self._numbers.sizes
        assert sizes is not None
        symbols = sizes.with_float_symbols(arguments, self._numbers.outside_values)
        try:
            with sizes.environment.withholding_floats():
                return self._recording.function(function, *symbols)
        except FloatValueRead:
            pass
        before = self._recording.failure
        values = [self._numbers.outside_values[number.proxy.name] for number in numbers]
        floats = [sizes.float_symbol(*pair) for pair in zip(numbers, values, strict=True)]
        pairs = stand_ins(floats)
        if pairs is None:
            return self._recording.function(function, *symbols)
        keys = {id(number): pair for number, pair in zip(numbers, pairs, strict=True)}
        try:
            names = FloatProxies(list(zip(floats, pairs, strict=True)), number_of)
            output, call = run_on_floats(self._returning_call(function), arguments, keys, names)
        except Exception:  # stand-in values may not work where the real values do
            self._recording.reset_failure(before)
            return self._recording.function(function, *symbols)
        restrict(floats)
        self.has_hidden |= requires_grad
        bsym = self._binding.bind(function, symbols[0], symbols[1], output, call)
        if bsym is not None:
            (self._recording.emit if is_ordered(bsym.symbol) else self._recording.append)(bsym)
        return self._tensors.to_real(output)

    def _may_be_symbols(self, function: Callable[..., Any], numbers: Sequence[SymbolicNumber]) -> bool:
        """Whether all numbers are floats from outside that affect a size, or that autograd would treat as constants."""
        if self._numbers.sizes is None or not all(
            number.kind is float and number.source is not None and not number.drawn for number in numbers
        ):
            return False
        finite = all(may_be_symbol(self._numbers.outside_values[number.proxy.name]) for number in numbers)
        recording = self._recording
        recorded = (
            torch.is_grad_enabled() and not recording.derivatives_read_numbers and not recording.derivatives_in_progress
        )
        return bool(numbers) and finite and (recorded or function in COUNTS)
