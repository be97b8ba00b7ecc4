"""The interface between a recorder and the program that it records: names of inputs, the current line, callbacks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import torch

from thunder_core.tracing.capture.gradients import OutsideFacts
from thunder_core.tracing.capture.location import Location
from thunder_core.tracing.capture.quantities import Quantity
from thunder_core.tracing.capture.symbolic.numbers import Sources
from thunder_core.tracing.ir.proxy import Proxy
from thunder_core.tracing.ir.symbol import BoundSymbol


class RecordedProgram(ABC):
    """A program that runs under a recorder.

    The methods that are not abstract have defaults for a program whose inputs are all fakes. A program that reads the
    user's objects overrides them.
    """

    outside_numbers: Sources | None = None  # the sources of numbers from outside
    outside_gradients: OutsideFacts = OutsideFacts()

    @abstractmethod
    def name_input(self, value: Any) -> str:
        """Return the name of a real tensor or generator that an operation uses for the first time."""

    @abstractmethod
    def location(self) -> Location:
        """Return the line of the program that runs now, and the path of its module."""

    def device_of(self, tensor: torch.Tensor) -> torch.device:
        """Return the device that the trace assumes for a real tensor."""
        return tensor.device

    def on_query(self, tensor: torch.Tensor, query: str, answer: object) -> None:  # noqa: B027
        """Receive a query of a real tensor, and its answer."""

    def on_storage(self, tensor: torch.Tensor) -> None:  # noqa: B027
        """Receive a tensor whose storage the program has read."""

    def on_wrapper(self, tensor: torch.Tensor) -> None:  # noqa: B027
        """Receive a real tensor of a wrapper subclass, before its inner tensors are used."""

    def call_torch_function(self, method: Callable[..., Any], *args: Any) -> Any:
        """Call the `__torch_function__` of a subclass of Tensor."""
        return method(*args)

    def combine_numbers(self, function: Callable[..., Any], operands: tuple[Any, ...]) -> Any:  # noqa: ARG002
        """Return an operator's result for a number and a value of another library, or `NotImplemented`."""
        return NotImplemented

    def catches_errors(self) -> bool:
        """Return whether the program would catch an error that depends on the values of tensors."""
        return False

    def is_check(self) -> bool:
        """Return whether the program uses a value only in a check that raises an error, such as an `assert`."""
        return False

    def count_source(
        self, quantity: Quantity, bsyms: Sequence[BoundSymbol], tensor: Proxy, value: int  # noqa: ARG002
    ) -> Any:  # fmt: skip
        """Return the source of an integer that the values of a tensor determine, or None for a constant.

        The bound symbols compute the tensor from inputs.
        """
        return None

    def backward_of(
        self, bsym: BoundSymbol, requires_grad_names: frozenset[str]  # noqa: ARG002
    ) -> Sequence[BoundSymbol] | None:  # fmt: skip
        """Return the backward of a bound symbol for the names that require a gradient; None if there is none."""
        return None
