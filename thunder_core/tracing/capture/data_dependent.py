"""Evaluate the tensor values that a program reads, and record checks that the values stay the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from thunder_core.foundation.errors import ThunderError
from thunder_core.tracing.capture.call import RecordedCall
from thunder_core.tracing.capture.symbolic.expectations import expectation_of
from thunder_core.tracing.capture.torch_facts.graph import memory_of
from thunder_core.tracing.capture.values import TracedValues, Unknowable
from thunder_core.tracing.ir.proxy import Proxy
from thunder_core.tracing.ir.symbol import BoundSymbol


@dataclass
class DataDependentValues:
    """The evaluation of tensor values that the program reads; `allowed` is False if reading values is an error.

    `bsyms` are the bound symbols of the recording so far, and `emit(bsym)` appends a bound symbol. `fail(function,
    error)` returns the error for an operation whose value cannot be computed at tracing. `bsyms_read` are the bound
    symbols whose values were read. `are_constants(proxies)` returns whether the values of proxies depend on no input.
    `is_check()` returns whether the program uses a value only in a check that raises an error, such as an `assert`;
    this use is allowed even if `allowed` is False.
    """

    evaluation: TracedValues
    bsyms: Sequence[BoundSymbol]
    emit: Callable[[BoundSymbol], None]
    fail: Callable[[Callable[..., Any], Exception | None], ThunderError]
    are_constants: Callable[[Sequence[Proxy]], bool]
    is_check: Callable[[], bool]
    allowed: bool
    bsyms_read: list[BoundSymbol] = field(default_factory=list)

    def allows(self, function: Callable[..., Any]) -> bool:
        """Whether the program may read a value with a function; a condition of a check may always be read."""
        return self.allowed or (function is torch.Tensor.__bool__ and self.is_check())

    def number(self, proxy: Proxy) -> Any:
        """Return the value of a number or of a condition in this call, and record a check that it stays the same.

        A value that depends on no input is the same in each call and needs no check.
        """
        if self.are_constants([proxy]):
            return self.evaluation.value(proxy)
        self._require_repeatable(torch.Tensor.item)
        bsym = self.evaluation.maker_of(proxy)
        value = self.evaluate(torch.Tensor.item, lambda: self.evaluation.value(proxy))
        self.bsyms_read.append(bsym)
        self.emit(expectation_of(bsym, proxy, value))
        return value

    def result(self, function: Callable[..., Any], args: object, kwargs: object, call: RecordedCall) -> Any:
        """Return the result of a function on the values of its arguments in this call."""
        self._require_repeatable(function)
        call.depends_on_values = True
        result, written, draws = self._evaluate(function, lambda: self.evaluation.call(function, args, kwargs))
        call.written.update(map(memory_of, written))
        call.random |= draws
        return result

    def _require_repeatable(self, function: Callable[..., Any]) -> None:
        """Raise an error if an earlier call has effects that could not be undone when a later check fails."""
        before = self.evaluation.first_effect()
        if before is not None:
            raise self.fail(function, Unknowable(f"`{before}`, whose effects cannot be undone, is called before"))

    def evaluate(self, function: Callable[..., Any], compute: Callable[[], Any]) -> Any:
        """Return the result of `compute`; raise an error if reading values is not allowed, or if `compute` fails."""
        if not self.allowed and not self.is_check():
            raise self.fail(function, None)
        return self._evaluate(function, compute)

    def _evaluate(self, function: Callable[..., Any], compute: Callable[[], Any]) -> Any:
        """Return the result of `compute`, which evaluates bound symbols; raise the error of `fail` if it fails."""
        try:
            return compute()
        except Unknowable as reason:
            raise self.fail(function, reason) from reason
