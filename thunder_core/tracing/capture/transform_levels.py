"""Tensors inside PyTorch's function transforms (`torch.vmap`, `torch.func.grad`, `jvp`): inner tensors are recorded.

A transform enters a level of functorch. Inside it, a batched or differentiated tensor wraps a fake or another wrapper.
PyTorch decomposes operations on wrappers with batching rules and derivatives. The resulting operations beneath all
levels are recorded, on whole batches and including derivatives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch._functorch.autograd_function import custom_function_call

from thunder_core.foundation.errors import ThunderError
from thunder_core.tracing.analysis.own_derivatives import has_own_derivative
from thunder_core.tracing.capture.fakes.tensors import Tensors
from thunder_core.tracing.capture.symbolic.numbers import concrete
from thunder_core.tracing.capture.symbolic.recorded_numbers import Numbers
from thunder_core.tracing.capture.torch_facts.symbols import SET_GRAD, symbol_of
from thunder_core.tracing.ir.tree import leaves, replace_leaves

TEXTS = frozenset({torch.Tensor.__repr__, torch.Tensor.__format__})  # not available for fakes
# PyTorch's own indexing within score and mask functions, whose derivative is the derivative of indexing.
INDEXING = ("torch._dynamo._trace_wrapped_higher_order_op", "ModIndex")
functorch: Any = torch._C._functorch
is_wrapped: Callable[[torch.Tensor], bool] = functorch.is_functorch_wrapped_tensor


def wrapped_tensors(tree: object) -> list[torch.Tensor]:
    """Return the tensors among arguments or results that a level of a function transform wraps."""
    return [leaf for leaf in leaves(tree) if isinstance(leaf, torch.Tensor) and is_wrapped(leaf)]


def is_indexing(function: Callable[..., Any], args: Sequence[Any]) -> bool:
    """Whether a call indexes a tensor in a score or mask function, whose indices are tensors without dimensions."""
    return function is custom_function_call and (args[0].__module__, args[0].__qualname__) == INDEXING


class NativeContext:
    """A context manager that runs natively: `enter()` returns the value for `as`, and `leave()` ends it."""

    def __init__(self, enter: Callable[[], Any], leave: Callable[[], Any]) -> None:
        self._enter = enter
        self._leave = leave

    def __enter__(self) -> Any:
        return self._enter()

    def __exit__(self, *_: object) -> None:
        self._leave()


@dataclass(frozen=True)
class Level:
    """An active level: its number, the function that leaves it, and the batch size of a `vmap`."""

    number: int
    decrement: Callable[[], Any]
    differentiates: bool
    batch_size: Any


class TransformLevels:
    """The levels of function transforms that are active in a recorded program.

    `refuse` returns the error for something that is not traced. `switch(enabled)` records that autograd is on or off
    now.
    """

    def __init__(
        self,
        tensors: Tensors,
        numbers: Numbers,
        refuse: Callable[[str, str], ThunderError],
        switch: Callable[[bool], None],
    ) -> None:
        self._tensors = tensors
        self._numbers = numbers
        self._refuse = refuse
        self._switch = switch
        self._levels: list[Level] = []  # outermost first
        self._grad_mode = False  # the mode in the trace, beneath all levels
        self._were_entered = False
        self._follows_grad_mode = True

    @property
    def depth(self) -> int:
        """The number of active levels."""
        return len(self._levels)

    @property
    def batches(self) -> tuple[Level, ...] | None:
        """The levels, outermost first, if all of them batch; None if one differentiates."""
        return None if any(level.differentiates for level in self._levels) else tuple(self._levels)

    def enter(
        self, increment: Callable[..., int], args: Sequence[Any], decrement: Callable[[], Any], *, differentiates: bool
    ) -> int:
        """Enter a level, which `decrement` leaves, and return its number."""
        sizes = self._tensors.sizes
        number = increment(*(args if sizes is None else sizes.to_symints(tuple(args))))
        if not self._levels:
            self._grad_mode = torch.is_grad_enabled()
        self._levels.append(Level(number, decrement, differentiates, None if differentiates else args[0]))
        self._were_entered = True
        return number

    def leave(self) -> Any:
        """Leave the innermost level."""
        number = self._levels[-1].decrement()
        self.record_grad_mode_change()
        self._levels.pop()
        return number

    def leave_all(self) -> None:
        """Leave the levels that a failed program has not left."""
        while self._levels:
            self._levels.pop().decrement()

    def require_none(self, what: str, fix: str) -> None:
        """Raise `OperationFailed` inside a level, for something that is recorded only outside of levels."""
        if self._levels:
            raise self._refuse(f"{what} inside a function transform (torch.vmap, torch.func.grad, ...)", fix)

    def record_grad_mode_change(self) -> None:
        """Record the grad mode beneath all levels if it has changed."""
        if not (self._levels and self._follows_grad_mode):
            return
        enabled = torch.is_grad_enabled()
        if enabled != self._grad_mode:
            self._grad_mode = enabled
            self._switch(enabled)

    def runs_in_level(self, function: Callable[..., Any], args: Any, kwargs: Any) -> bool:
        """Whether a call runs inside a transform. All calls do so within a transform that differentiates.

        A call on wrapped tensors runs inside a transform, even if the program has left all levels: `torch.func.vjp`
        returns wrapped tensors.
        """
        if not self._were_entered:
            return False
        differentiates = any(level.differentiates for level in self._levels)
        inside = differentiates or (function is SET_GRAD and bool(self._levels))
        is_inside = inside and functorch.peek_interpreter_stack() is not None
        return is_inside or is_indexing(function, args) or bool(wrapped_tensors((args, kwargs)))

    def call(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a function of functorch that the program calls, which no torch function mode sees."""
        sizes = self._tensors.sizes
        if sizes is None:
            return self.run(function, args, kwargs)
        args, kwargs = sizes.to_symints((tuple(args), dict(kwargs)))
        return sizes.to_program(self.run(function, args, kwargs), self._numbers)

    def run(self, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Run a function on tensors of which some are wrapped, or a function that wraps tensors."""
        args, kwargs = concrete((tuple(args), dict(kwargs))) if self._numbers.has_symbolic else (args, kwargs)
        args, kwargs = replace_leaves((tuple(args), dict(kwargs)), self._with_fakes)
        if has_own_derivative(function) or function in TEXTS:
            raise self._refuse(
                f"`{symbol_of(function).name}` is called inside a function transform, where only its "
                "inner operations can be traced",
                "call it outside the transform, or pass the batch explicitly",
            )
        with (
            torch._C.DisableTorchFunction(),
            self._keeping_grad_mode() if is_indexing(function, args) else nullcontext(),
        ):
            return self._tensors.to_real(function(*args, **kwargs))

    @contextmanager
    def _keeping_grad_mode(self) -> Iterator[None]:
        """Record no change of the grad mode during the block, in which functorch differentiates a
        `torch.autograd.Function`.
        """
        before, self._follows_grad_mode = self._follows_grad_mode, False
        try:
            yield
        finally:
            self._follows_grad_mode = before

    def _with_fakes(self, leaf: object) -> Any:
        return self._tensors.fake(leaf) if isinstance(leaf, torch.Tensor) and not is_wrapped(leaf) else leaf
