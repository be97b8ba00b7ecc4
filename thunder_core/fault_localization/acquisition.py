"""The acquired computation beside eager PyTorch: the calls that the program really makes, and those of the trace."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from thunder_core.claiming.comparison import Difference
from thunder_core.fault_localization.line_faults import line_fault, of_result
from thunder_core.fault_localization.recording import Recording
from thunder_core.fault_localization.rounding import rounding_difference
from thunder_core.ir.symbol import BoundSymbol
from thunder_core.ir.trace import Trace
from thunder_core.ir.tree import leaves
from thunder_core.validation.inside import Fault

WITHIN = 64  # calls of the program that the trace may leave out between two of its own


@dataclass(frozen=True)
class EagerCall:
    """A call of PyTorch that a program made: the function, and copies of the tensors that it returned."""

    function: Callable[..., Any]
    results: tuple[torch.Tensor, ...]


class RecordCalls(TorchFunctionMode):
    """Record the calls of PyTorch beneath it, with copies of what they return."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[EagerCall] = []

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Call the function, and record the call."""
        result = func(*args, **(kwargs or {}))
        tensors = tuple(one.detach().clone() for one in leaves(result) if is_dense(one))
        if tensors:
            self.calls.append(EagerCall(func, tensors))
        return result


def is_dense(value: object) -> bool:
    """Whether a value is a tensor with strides."""
    return isinstance(value, torch.Tensor) and value.layout is torch.strided


def first_wrong_call(trace: Trace, recording: Recording, calls: list[EagerCall]) -> Fault | None:
    """The first line of an acquired trace whose result is not that of the same call of the program.

    Both make their calls in one order; a call that has no counterpart is passed over.
    """
    place = 0
    for bsym in trace.bound_symbols:
        match = next((n for n in range(place, min(place + WITHIN, len(calls))) if is_counterpart(bsym, calls[n])), None)
        if match is None:
            continue
        place = match + 1
        for proxy, theirs in zip(bsym.tensors, calls[match].results, strict=True):
            difference = difference_of(recording.values.get(proxy.name), theirs)
            if difference is not None:
                told = of_result(proxy.name, difference)
                return line_fault("acquisition", trace.made_by, trace.name, bsym, proxy.name, told)
    return None


def is_counterpart(bsym: BoundSymbol, call: EagerCall) -> bool:
    """Whether a call of the program is of the function of a bound symbol, and returns as many tensors."""
    name = getattr(call.function, "__name__", "")
    same = bsym.symbol.target is call.function or bsym.symbol.short_name == name
    return same and len(bsym.tensors) == len(call.results)


def difference_of(ours: object, theirs: torch.Tensor) -> Difference | None:
    """The difference of two results of one call."""
    if not isinstance(ours, torch.Tensor):
        return None
    if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
        return Difference(f"is {ours.dtype}{list(ours.shape)}, and {theirs.dtype}{list(theirs.shape)} in eager PyTorch")
    return rounding_difference(ours, theirs, lambda perturbed=False: None).difference
