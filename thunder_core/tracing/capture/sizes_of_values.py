"""Sizes that operations compute from tensor values: the result of `repeat_interleave`, the classes of `one_hot`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from thunder_core.tracing.capture.symbolic.tensors_as_numbers import INTEGERS
from thunder_core.tracing.ir.sizes import hint_of

Call = tuple[Callable[..., Any], Sequence[Any], Mapping[str, Any]]
REPEATED = ("input", "repeats", "dim")  # the parameters of `repeat_interleave` by position
MIN_ELEMENTS_TO_SUM = 2  # a single element of `repeats` is the number of repetitions of all elements


@dataclass(frozen=True)
class SizesOfValues:
    """Adds sizes to calls.

    `record(function, args, kwargs)` runs a function, `item(tensor)` returns the symbolic number that is the value of a
    tensor, and `fake(tensor)` returns the fake of a tensor.
    """

    record: Callable[..., Any]
    item: Callable[[torch.Tensor], Any]
    fake: Callable[[torch.Tensor], torch.Tensor]

    def with_size(self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Call | None:
        """Return the call with an explicit argument for the size that tensor values determine; None for other calls."""
        rule = RULES.get(function)
        return None if rule is None else rule(self, function, args, kwargs)

    def _with_repeated_size(
        self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Call | None:
        """Return `repeat_interleave(x, repeats)` with the sum of `repeats` as `output_size`, or None."""
        arguments = dict(zip(REPEATED, args, strict=False)) | dict(kwargs)
        repeats = arguments.get("repeats", arguments.get("input"))
        is_short = isinstance(repeats, torch.Tensor) and (
            repeats.dim() != 1 or hint_of(self.fake(repeats).shape[0]) < MIN_ELEMENTS_TO_SUM
        )
        if not isinstance(repeats, torch.Tensor) or is_short or repeats.dtype not in INTEGERS:
            return None
        if arguments.get("output_size") is not None:
            return None
        total = self.item(self.record(torch.Tensor.sum, (repeats,), {}))
        return function, args, {**kwargs, "output_size": total}

    def _one_hot(self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Call | None:
        """Return `one_hot(x)` with the maximum of `x` plus 1 as the number of classes, or None."""
        if len(args) != 1 or kwargs.get("num_classes", -1) != -1 or args[0].dtype is not torch.int64:
            return None
        if not all(map(hint_of, self.fake(args[0]).shape)):
            return None
        classes = self.item(self.record(torch.Tensor.max, (args[0],), {})) + 1
        return function, (args[0], classes), {}


RULES: Mapping[Callable[..., Any], Callable[..., Call | None]] = {
    **dict.fromkeys((torch.repeat_interleave, torch.Tensor.repeat_interleave), SizesOfValues._with_repeated_size),
    torch._C._nn.one_hot: SizesOfValues._one_hot,
}
