"""A kernel as an operation of PyTorch: one symbol in a trace, with metadata, a derivative and a reference."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any

import torch

from thunder_executors.triton.launch import Launch, dropped_launches, is_recording, recorded_launches

NAMESPACE = "thunder"


@dataclass(frozen=True)
class Operator:
    """An operation `torch.ops.thunder.<name>`.

    A call goes through PyTorch's dispatcher: it works on fake tensors, and autograd records it if it has a derivative.
    `launcher` is the underlying function without gradients, which allocates the outputs and launches the kernels.
    `reference` computes the same by PyTorch's functions.
    """

    name: str
    launcher: Callable[..., Any]
    reference: Callable[..., Any]
    operation: Any

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the operation through PyTorch; while launches are recorded, call only the launcher."""
        return self.launcher(*args, **kwargs) if is_recording() else self.operation(*args, **kwargs)

    def launches(self, *args: Any, **kwargs: Any) -> tuple[Launch, ...]:
        """Return the launches of a call with these arguments, which may be fake tensors, in order."""
        with recorded_launches() as launches:
            self.launcher(*args, **kwargs)
        return tuple(launch for launch in launches if 0 not in launch.grid)

    def differentiate(self, save: Callable[..., None], backward: Callable[..., Any]) -> None:
        """Register a derivative, as `torch.library.register_autograd` takes it."""
        self.operation.register_autograd(backward, setup_context=save)


OPERATORS: dict[str, Operator] = {}


def operator(
    reference: Callable[..., Any], *, metadata: Callable[..., Any] | None = None, mutates: tuple[str, ...] = ()
) -> Callable[[Callable[..., Any]], Operator]:
    """Register a launcher as an operation of the same name; `mutates` has the names of arguments that it writes to.

    For fake tensors, the operation returns the launcher's allocations, or the result of `metadata` if that is cheaper.
    """

    def register(launcher: Callable[..., Any]) -> Operator:
        name = launcher.__name__
        operation = torch.library.custom_op(f"{NAMESPACE}::{name}", launcher, mutates_args=mutates)
        operation.register_fake(metadata or without_launching(launcher))
        OPERATORS[name] = Operator(name, launcher, reference, operation)
        return OPERATORS[name]

    return register


def without_launching(launcher: Callable[..., Any]) -> Callable[..., Any]:
    """Return the launcher without its launches: it returns outputs of the right metadata, without values."""

    @wraps(launcher)
    def allocate(*args: Any, **kwargs: Any) -> Any:
        with dropped_launches():
            return launcher(*args, **kwargs)

    return allocate
