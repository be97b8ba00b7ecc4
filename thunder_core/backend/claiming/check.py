"""Checks of bound symbols: each check runs an executor's function and the same operations in eager PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from thunder_core.backend.claiming.comparison import (
    Difference,
    Float64Computation,
    ValueComparison,
    metadata_difference,
    value_difference,
)
from thunder_core.backend.claiming.copies import Values, reason_not_copied, shares_memory
from thunder_core.backend.claiming.deferred_tensor import defer
from thunder_core.backend.claiming.double_precision import evaluate_in_double, in_float64
from thunder_core.backend.claiming.input_snapshot import InputSnapshot, private_values
from thunder_core.foundation.errors import WrongResult
from thunder_core.tracing.extension.authorship import is_ours, line_of
from thunder_core.tracing.ir.evaluate import bindings, evaluate
from thunder_core.tracing.ir.proxy import Proxy
from thunder_core.tracing.ir.symbol import BoundSymbol
from thunder_core.tracing.ir.tree import leaves

READ_ONLY_INPUT = "the input `{}`, which eager PyTorch does not write to,"
CHANGED = "has changed"
UNINITIALIZED = "it returns uninitialized memory"
FIX = "leave out the executor {0!r}, or its claim to this operation, and report the error to its author"


class Judge:
    """Handles the results of checks. This class raises `WrongResult` at the first wrong result."""

    def is_due(self, check: Check) -> bool:  # noqa: ARG002
        """Whether a check compares this call with eager PyTorch."""
        return True

    def measure(self, actual: torch.Tensor, expected: torch.Tensor, exact: Float64Computation) -> ValueComparison:
        """Return the difference in values between a result and eager PyTorch's result, if it exceeds rounding."""
        return value_difference(actual, expected, exact)

    def accept(self, check: Check, name: str, measured: ValueComparison) -> None:
        """Record a correct result."""

    def refuse(self, check: Check, what: str, difference: Difference, name: str = "") -> None:  # noqa: ARG002
        """Raise `WrongResult` for a wrong result; `what` names it in the message, and `name` is its proxy's name."""
        raise wrong_result(check, what, difference)


@dataclass(eq=False)
class Check:
    """A callable in place of the bound symbol that an executor `claimed`.

    `reference` are the operations of the bound symbol in eager PyTorch. `compared` counts the compared calls, and
    `largest` is the largest difference of values among correct results. If `left_out` has a reason, the check calls the
    executor's function and compares nothing. Results that are `uninitialized` memory are compared by metadata only. The
    `judge` decides which results are wrong, and handles them.
    """

    claimed: BoundSymbol
    reference: tuple[BoundSymbol, ...]
    left_out: str = ""
    uninitialized: frozenset[str] = frozenset()
    compared: int = 0
    largest: float = field(default=0.0)
    judge: Judge = field(default_factory=Judge)

    @property
    def __name__(self) -> str:
        """The name by which a trace prints the check."""
        operation = self.reference[0] if len(self.reference) == 1 else self.claimed
        return f"checked_{operation.symbol.short_name}"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the executor's function; raise `WrongResult` if its result differs from eager PyTorch's."""
        target = self.claimed.symbol.target
        if self.left_out or not self.judge.is_due(self):
            return target(*args, **kwargs)
        arguments = list(leaves((args, kwargs)))
        names = list(leaves((self.claimed.args, dict(self.claimed.kwargs))))
        inputs = {proxy.name: value for proxy, value in zip(names, arguments, strict=True) if isinstance(proxy, Proxy)}
        return self._check(inputs, lambda: target(*args, **kwargs))

    def _check(self, inputs: Values, run: Callable[[], Any]) -> Any:
        if (reason := next(filter(None, map(reason_not_copied, inputs.values())), None)) is not None:
            self.left_out = reason
            return run()
        before = InputSnapshot.of(inputs, (self.claimed, *self.reference))
        states = RandomStates.now(inputs)
        result = run()
        with torch.no_grad():
            self._compare(result, inputs, before, states)
        return result

    def _compare(self, result: object, inputs: Values, before: InputSnapshot, states: RandomStates) -> None:
        """Compare results, inputs and drawn random numbers with the reference."""
        random_states = RandomStates.now(inputs)
        expected = self._evaluate(private_values(before.values, (self.claimed, *self.reference)), states)
        same_draws = random_states.equal(RandomStates.now(inputs))
        random_states.restore()
        if not same_draws:
            text = "drawn differ from eager PyTorch"
            self.judge.refuse(self, "the random numbers", Difference(text))
        try:
            outputs = {proxy.name: value for proxy, value in bindings(self._output(), result)}
        except ValueError as error:
            self.judge.refuse(self, "the result", Difference(f"has another structure: {error}"))
            return
        exact = ExactValues(self.claimed, self.reference, before.values, states, random_states)
        for name, value in {**inputs, **outputs}.items():
            is_result = name in outputs or name in self.claimed.mutates
            if name in before.fingerprints and not is_result:
                self._require_unchanged(name, value, before)
            else:
                self._require_same(name, value, expected[name], is_result, exact)
        for name, value in outputs.items():
            self._require_memory_of_its_own(name, value, inputs, expected)
        self.compared += 1

    def _output(self) -> Any:
        return self.claimed.output

    def _evaluate(self, values: Values, states: RandomStates) -> Values:
        states.restore()
        evaluate(self.reference, values)
        return values

    def _require_same(self, name: str, actual: Any, expected: Any, is_result: bool, exact: ExactValues) -> None:
        what = f"`{name}`" if is_result else READ_ONLY_INPUT.format(name)
        if (difference := metadata_difference(actual, expected)) is not None:
            self.judge.refuse(self, what, difference, name)
        elif isinstance(expected, torch.Tensor) and name not in self.uninitialized:
            self._require_same_values(name, what, actual, expected, exact if is_result else None)

    def _require_unchanged(self, name: str, value: torch.Tensor, before: InputSnapshot) -> None:
        if not before.is_unchanged(name, value):
            self.judge.refuse(self, READ_ONLY_INPUT.format(name), Difference(CHANGED), name)

    def _require_same_values(
        self, name: str, what: str, actual: torch.Tensor, expected: torch.Tensor, exact: ExactValues | None
    ) -> None:
        if exact is None and torch.equal(actual, expected):
            return
        measured = self.judge.measure(actual, expected, exact.of(name) if exact is not None else no_exact_value)
        difference = measured.difference
        if exact is None and measured.largest:
            difference = difference or Difference(CHANGED, measured.largest)
        self.largest = max(self.largest, measured.largest)
        if difference is not None:
            self.judge.refuse(self, what, difference, name)
        elif exact is not None:
            self.judge.accept(self, name, measured)

    def _require_memory_of_its_own(self, name: str, actual: object, inputs: Values, expected: Values) -> None:
        """Refuse a result that shares memory with an input although eager PyTorch's result does not."""
        for input_name, value in inputs.items():
            if shares_memory(actual, value) and not shares_memory(expected[name], expected[input_name]):
                self.judge.refuse(self, f"`{name}`", Difference(f"shares memory with the input `{input_name}`"), name)


@dataclass(eq=False)
class ExactValues:
    """The values that a reference computes in float64, computed at the first request.

    `states` and `drawn` are the states of the generators before and after the executor's function has run. If they
    differ, the function draws random numbers, and there are no values in float64.
    """

    claimed: BoundSymbol
    reference: tuple[BoundSymbol, ...]
    before: Values
    states: RandomStates
    drawn: RandomStates
    _values: dict[bool, Values | None] = field(default_factory=dict)

    def of(self, name: str) -> Float64Computation:
        """Return a function that returns a value in float64, or None if that is impossible.

        With `perturbed`, the function returns the value for inputs that are changed in the last place.
        """
        return lambda perturbed=False: self._value(name, perturbed=perturbed)

    def _value(self, name: str, *, perturbed: bool) -> torch.Tensor | None:
        if perturbed not in self._values:
            self._values[perturbed] = self._compute(perturbed=perturbed)
        result = (self._values[perturbed] or {}).get(name)
        return result if isinstance(result, torch.Tensor) else None

    def _compute(self, *, perturbed: bool) -> Values | None:
        if not self.states.equal(self.drawn):
            return None  # float64 gets different random numbers
        change = perturb if perturbed else in_float64
        written = any(bsym.mutates for bsym in (self.claimed, *self.reference))
        widen = change if written else partial(defer, compute=change)
        values = {
            key: widen(value) for key, value in private_values(self.before, (self.claimed, *self.reference)).items()
        }
        try:
            self.states.restore()
            evaluate_in_double(self.reference, values)
        except (RuntimeError, TypeError, ValueError):
            return None  # an operation does not support float64, or its operands no longer have one dtype
        finally:
            self.drawn.restore()
        return values


def no_exact_value(perturbed: bool = False) -> None:
    """Return None in place of a value in float64."""


def perturb(value: object) -> Any:
    """Return a floating-point tensor in float64 with each element changed by one unit in the last place.

    Elements are increased and decreased alternately. Other values are returned unchanged.
    """
    if not (isinstance(value, torch.Tensor) and value.is_floating_point()):
        return value
    unit = torch.finfo(value.dtype).eps
    if value.is_contiguous():
        changed = value.detach().to(torch.float64, copy=True)
        changed.view(-1)[0::2].mul_(1 - unit)
        changed.view(-1)[1::2].mul_(1 + unit)
        return changed
    signs = (torch.arange(value.numel(), device=value.device) % 2 * 2 - 1).view(value.shape)
    return in_float64(value) * (1 + signs * unit)


def sentence_on_function(function: Callable[..., Any]) -> str:
    """Return the end of a sentence that names the source line of an executor's function; empty for Thunder's own."""
    line = None if is_ours(function) else line_of(function)
    return "" if line is None else f"; its function is {line}"


def wrong_result(check: Check, what: str, difference: Difference) -> WrongResult:
    """Return the error that reports a wrong result of a check."""
    largest = f", the largest difference is {difference.largest:.3g}" if difference.largest else ""
    operations = ", ".join(dict.fromkeys(bsym.symbol.name for bsym in check.reference))
    module = f" in `{check.claimed.module}`" if check.claimed.module else ""
    return WrongResult(
        f"the executor {check.claimed.executor} computes a wrong result for {operations:.200}{module}: "
        f"{what} {difference.what}".rstrip()
        + largest
        + sentence_on_function(check.claimed.symbol.target),
        fix=FIX.format(check.claimed.executor),
        where=check.claimed.source,
    )


@dataclass(eq=False)
class LaterCheck(Check):
    """A check that follows the bound symbols of an executor's function; `claimed` is the last of these bound symbols.

    The check is called with the inputs of the reference and then the computed results, and compares the results with
    the reference. `effect` describes an effect that the bound symbols have and the reference does not have: any such
    effect is wrong.
    """

    results: tuple[Proxy, ...] = ()
    effect: str = ""

    def _output(self) -> Any:
        return self.results

    def __call__(self, *args: Any) -> Any:
        """Compare the results; raise `WrongResult` if they differ from eager PyTorch's."""
        if self.left_out or not self.judge.is_due(self):
            return
        if self.effect:
            self.judge.refuse(self, self.effect, Difference(""))
        read = tuple({proxy.name: proxy for bsym in self.reference for proxy in bsym.inputs}.values())
        inputs = {proxy.name: value for proxy, value in zip(read, args, strict=False)}
        if (reason := next(filter(None, map(reason_not_copied, inputs.values())), None)) is not None:
            self.left_out = reason
            return
        with torch.no_grad():
            self._compare(args[len(read) :], inputs, InputSnapshot.of(inputs, self.reference), RandomStates.now(inputs))


@dataclass(frozen=True)
class RandomStates:
    """The states of the random number generators of the CPU and of the GPUs that tensors are on."""

    states: Mapping[torch.device, torch.Tensor]

    @classmethod
    def now(cls, values: Values) -> RandomStates:
        """Return the current states, for the devices of the values."""
        tensors = (value for value in values.values() if isinstance(value, torch.Tensor))
        devices = {tensor.device for tensor in tensors if tensor.device.type == "cuda"}
        states = {device: torch.cuda.get_rng_state(device) for device in devices}
        return cls({torch.device("cpu"): torch.get_rng_state(), **states})

    def current_states(self) -> RandomStates:
        """Return the current states of the same generators."""
        gpus = [device for device in self.states if device.type == "cuda"]
        states = {device: torch.cuda.get_rng_state(device) for device in gpus}
        return RandomStates({torch.device("cpu"): torch.get_rng_state(), **states})

    def restore(self) -> None:
        """Restore the generators to these states."""
        for device, state in self.states.items():
            torch.set_rng_state(state) if device.type == "cpu" else torch.cuda.set_rng_state(state, device)

    def equal(self, other: RandomStates) -> bool:
        """Whether the states are equal."""
        return all(torch.equal(state, other.states[device]) for device, state in self.states.items())


def checks_of(bsyms: Sequence[BoundSymbol]) -> Iterator[Check]:
    """Yield the checks among bound symbols."""
    for bsym in bsyms:
        if isinstance(bsym.symbol.target, Check):
            yield bsym.symbol.target
