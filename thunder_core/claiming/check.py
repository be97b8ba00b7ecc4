"""Checks of bound symbols: each runs what an executor claimed and what eager PyTorch does in its place."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from thunder_core.claiming.comparison import Difference, metadata_difference, value_difference
from thunder_core.errors import WrongResult
from thunder_core.ir.evaluate import bindings, evaluate
from thunder_core.ir.proxy import Proxy
from thunder_core.ir.symbol import BoundSymbol
from thunder_core.ir.tree import leaves

UNINITIALIZED = "it makes memory that nothing is written to"
FIX = "leave the executor {0!r} out, or its claim to this operation, and report it to its author"
Values = dict[str, Any]


@dataclass(eq=False)
class Check:
    """A callable in the place of what an executor claimed, `claimed`, which `reference` is in eager PyTorch.

    It counts the calls that were `compared` and the largest difference of values among those that were right. A check
    that is `left_out`, with its reason, calls what was claimed and compares nothing.
    """

    claimed: BoundSymbol
    reference: tuple[BoundSymbol, ...]
    left_out: str = ""
    compared: int = 0
    largest: float = field(default=0.0)

    @property
    def __name__(self) -> str:
        """The name by which a trace prints it."""
        operation = self.reference[0] if len(self.reference) == 1 else self.claimed
        return f"checked_{operation.symbol.short_name}"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run what was claimed; raises `WrongResult` where it is not what eager PyTorch gives."""
        target = self.claimed.symbol.target
        if self.left_out:
            return target(*args, **kwargs)
        given = list(leaves((args, kwargs)))
        names = list(leaves((self.claimed.args, dict(self.claimed.kwargs))))
        inputs = {proxy.name: value for proxy, value in zip(names, given, strict=True) if isinstance(proxy, Proxy)}
        return self._checked(inputs, lambda: target(*args, **kwargs))

    def _checked(self, inputs: Values, run: Callable[[], Any]) -> Any:
        if (reason := next(filter(None, map(not_copied, inputs.values())), None)) is not None:
            self.left_out = reason
            return run()
        before = copied(inputs)
        states = RandomStates.now(inputs)
        result = run()
        with torch.no_grad():
            self._compare(result, inputs, before, states)
        return result

    def _compare(self, result: Any, inputs: Values, before: Values, states: RandomStates) -> None:
        """Compare the results, the inputs and the random numbers drawn with those of the reference."""
        drawn = RandomStates.now(inputs)
        expected = self._evaluated(copied(before), states)
        same_draws = drawn.equal(RandomStates.now(inputs))
        drawn.restore()
        if not same_draws:
            self._refuse("the random numbers", Difference("drawn are others, or more or fewer, than in eager PyTorch"))

        def exact(name: str) -> torch.Tensor | None:
            return self._exact(name, before, states, drawn)

        try:
            outputs = {proxy.name: value for proxy, value in bindings(self._output(), result)}
        except ValueError as error:
            self._refuse("the result", Difference(f"has another structure: {error}"))
        for name, value in {**inputs, **outputs}.items():
            is_result = name in outputs or name in self.claimed.mutates
            self._require_same(name, value, expected[name], is_result, exact)
        for name, value in outputs.items():
            self._require_memory_of_its_own(name, value, inputs, expected)
        self.compared += 1

    def _output(self) -> Any:
        return self.claimed.output

    def _evaluated(self, values: Values, states: RandomStates) -> Values:
        states.restore()
        evaluate(self.reference, values)
        return values

    def _exact(self, name: str, before: Values, states: RandomStates, drawn: RandomStates) -> torch.Tensor | None:
        """A value of the reference computed in float64, or None where that cannot be done."""
        values = {key: in_float64(value) for key, value in copied(before).items()}
        try:
            result = self._evaluated(values, states)[name]
        except (RuntimeError, TypeError, ValueError):
            return None  # an operation that takes no float64, or tensors that are no longer of one dtype
        finally:
            drawn.restore()
        return result if isinstance(result, torch.Tensor) else None

    def _require_same(
        self, name: str, actual: Any, expected: Any, is_result: bool, exact: Callable[[str], torch.Tensor | None]
    ) -> None:
        what = f"`{name}`" if is_result else f"the input `{name}`, which eager PyTorch does not write to,"
        if (difference := metadata_difference(actual, expected)) is not None:
            self._refuse(what, difference)
        if isinstance(expected, torch.Tensor):
            found, largest = value_difference(actual, expected, lambda: exact(name) if is_result else None)
            if found is not None or (largest and not is_result):
                self._refuse(what, found or Difference("is another than before", largest))
            self.largest = max(self.largest, largest)

    def _require_memory_of_its_own(self, name: str, actual: Any, inputs: Values, expected: Values) -> None:
        """Refuse a result that lies in the memory of an input where eager PyTorch's does not."""
        for other, value in inputs.items():
            if shares_memory(actual, value) and not shares_memory(expected[name], expected[other]):
                self._refuse(f"`{name}`", Difference(f"lies in the memory of the input `{other}`"))

    def _refuse(self, what: str, difference: Difference) -> None:
        largest = f", the largest difference is {difference.largest:.3g}" if difference.largest else ""
        operations = ", ".join(dict.fromkeys(one.symbol.name for one in self.reference))
        module = f" in `{self.claimed.module}`" if self.claimed.module else ""
        raise WrongResult(
            f"the executor {self.claimed.executor} computes {operations:.200}{module} wrongly: "
            f"{what} {difference.what}".rstrip()
            + largest,
            fix=FIX.format(self.claimed.executor),
            where=self.claimed.source,
        )


@dataclass(eq=False)
class LaterCheck(Check):
    """A check behind several bound symbols, `claimed` being the last of them, that an executor's function consists of.

    Called with what the reference reads and then with what they have computed, it compares these with the reference.
    An `effect` that they have and the reference has not is wrong in any case.
    """

    results: tuple[Proxy, ...] = ()
    effect: str = ""

    def _output(self) -> Any:
        return self.results

    def __call__(self, *args: Any) -> Any:
        """Compare; raises `WrongResult` where the results are not what eager PyTorch gives."""
        if self.left_out:
            return
        if self.effect:
            self._refuse(self.effect, Difference(""))
        read = tuple({proxy.name: proxy for part in self.reference for proxy in part.inputs}.values())
        inputs = {proxy.name: value for proxy, value in zip(read, args, strict=False)}
        if (reason := next(filter(None, map(not_copied, inputs.values())), None)) is not None:
            self.left_out = reason
            return
        with torch.no_grad():
            self._compare(args[len(read) :], inputs, copied(inputs), RandomStates.now(inputs))


@dataclass(frozen=True)
class RandomStates:
    """The states of the generators of random numbers of the CPU and of the GPUs that tensors are on."""

    states: Mapping[torch.device, torch.Tensor]

    @classmethod
    def now(cls, values: Values) -> RandomStates:
        """The states as they are."""
        tensors = (value for value in values.values() if isinstance(value, torch.Tensor))
        devices = {tensor.device for tensor in tensors if tensor.device.type == "cuda"}
        states = {device: torch.cuda.get_rng_state(device) for device in devices}
        return cls({torch.device("cpu"): torch.get_rng_state(), **states})

    def restore(self) -> None:
        """Set the generators back to these states."""
        for device, state in self.states.items():
            torch.set_rng_state(state) if device.type == "cpu" else torch.cuda.set_rng_state(state, device)

    def equal(self, other: RandomStates) -> bool:
        """Whether the states are equal."""
        return all(torch.equal(state, other.states[device]) for device, state in self.states.items())


def not_copied(value: Any) -> str | None:
    """The reason why what an input is cannot be copied for a second computation; None for all others."""
    if isinstance(value, torch.Generator):
        return "it takes a generator of random numbers"
    if isinstance(value, torch.Tensor):
        kind = type(value)
        if kind not in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer):
            return f"it takes a {kind.__name__}"
        if value.layout is not torch.strided or value.is_quantized:
            return f"it takes a tensor of layout {value.layout}"
    return None


def copied(values: Values) -> Values:
    """Copies of tensors, which share memory with each other as the tensors do; other values as they are."""
    storages: dict[int, torch.UntypedStorage] = {}
    return {name: _copy(value, storages) for name, value in values.items()}


def _copy(value: Any, storages: dict[int, torch.UntypedStorage]) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    value = value.detach()
    storage = value.untyped_storage()
    if storage._cdata not in storages:
        storages[storage._cdata] = storage.clone()
    copy = torch.empty(0, dtype=value.dtype, device=value.device)
    copy.set_(storages[storage._cdata], value.storage_offset(), value.shape, value.stride())
    copy = copy.conj() if value.is_conj() else copy
    return copy._neg_view() if value.is_neg() else copy


def in_float64(value: Any) -> Any:
    """A floating-point tensor in float64; other values as they are."""
    return value.to(torch.float64) if isinstance(value, torch.Tensor) and value.is_floating_point() else value


def shares_memory(one: Any, other: Any) -> bool:
    """Whether two values are tensors that lie in one storage."""
    if not (isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor)):
        return False
    return bool(one.numel() and one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr())


def checks_of(bsyms: Sequence[BoundSymbol]) -> Iterator[Check]:
    """The checks among bound symbols."""
    for bsym in bsyms:
        if isinstance(bsym.symbol.target, Check):
            yield bsym.symbol.target
