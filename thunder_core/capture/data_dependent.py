"""Values of tensors that a program asks for: what they are in this call, and the checks that they still are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from thunder_core.capture.call import Call
from thunder_core.capture.expectations import foreseen
from thunder_core.capture.graph import memory_of
from thunder_core.capture.values import Evaluation, Unknowable
from thunder_core.errors import ThunderError
from thunder_core.ir.proxy import Proxy
from thunder_core.ir.symbol import BoundSymbol


@dataclass
class DataDependentValues:
    """Values that the program asks for, where that is `allowed`; `asking` are the bound symbols that gave it values.

    `bsyms` are the bound symbols of the recording so far; `emit(bsym)` writes one down, and `fail(function, error)`
    gives the error for an operation whose value cannot be had.
    """

    evaluation: Evaluation
    bsyms: Sequence[BoundSymbol]
    emit: Callable[[BoundSymbol], None]
    fail: Callable[[Callable[..., Any], Exception | None], ThunderError]
    allowed: bool
    asking: list[BoundSymbol] = field(default_factory=list)

    def number(self, proxy: Proxy) -> Any:
        """The value of a number, or the outcome of a condition."""
        self._require_repeatable(torch.Tensor.item)
        bsym = next(bsym for bsym in reversed(self.bsyms) if proxy in bsym.outputs)
        value = self.evaluate(torch.Tensor.item, lambda: self.evaluation.value(proxy))
        self.asking.append(bsym)
        self.emit(foreseen(bsym, proxy, value))
        return value

    def result(self, function: Callable[..., Any], args: Any, kwargs: Any, call: Call) -> Any:
        """The result of a function on the values of this call's inputs."""
        self._require_repeatable(function)
        call.valued = True
        result, written = self.evaluate(function, lambda: self.evaluation.call(function, args, kwargs))
        call.written.update(map(memory_of, written))
        return result

    def _require_repeatable(self, function: Callable[..., Any]) -> None:
        """Refuse a check behind a call whose effects could not be taken back where it does not hold."""
        before = self.evaluation.first_effect()
        if before is not None:
            raise self.fail(function, Unknowable(f"`{before}`, whose effects cannot be taken back, is called before"))

    def evaluate(self, function: Callable[..., Any], compute: Callable[[], Any]) -> Any:
        """The result of evaluating bound symbols of the recording, where that is allowed and possible."""
        if not self.allowed:
            raise self.fail(function, None)
        try:
            return compute()
        except Unknowable as reason:
            raise self.fail(function, reason) from reason
