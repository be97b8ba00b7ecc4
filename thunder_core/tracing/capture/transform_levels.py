"""Tensors inside PyTorch's function transforms (`torch.vmap`, `torch.func.grad`, `jvp`): what they wrap is recorded.

A transform enters a level of functorch's: inside it a tensor that is batched, or differentiated, wraps a fake or
another wrapper. Operations on it are PyTorch's to take apart, by batching rules and by derivatives; those that come
out beneath all levels are recorded, on whole batches and with the derivatives among them.
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
from thunder_core.tracing.capture.symbolic.numbers import Numbers, concrete
from thunder_core.tracing.capture.torch_facts.symbols import SET_GRAD, symbol_of
from thunder_core.tracing.ir.tree import leaves, replace_leaves

TEXTS = frozenset({torch.Tensor.__repr__, torch.Tensor.__format__})  # what a tensor without data has none of
# PyTorch's own indexing within score and mask functions, whose derivative is that of indexing.
INDEXING = ("torch._dynamo._trace_wrapped_higher_order_op", "ModIndex")
functorch: Any = torch._C._functorch
is_wrapped: Callable[[torch.Tensor], bool] = functorch.is_functorch_wrapped_tensor


def wrapped_in(tree: Any) -> list[torch.Tensor]:
    """The tensors among the arguments or results of a call that a level of a function transform wraps."""
    return [leaf for leaf in leaves(tree) if isinstance(leaf, torch.Tensor) and is_wrapped(leaf)]


def is_indexing(function: Callable[..., Any], args: Sequence[Any]) -> bool:
    """Whether a call indexes a tensor in a score or mask function, where indices are tensors without dimensions."""
    return function is custom_function_call and (args[0].__module__, args[0].__qualname__) == INDEXING


class NativeContext:
    """A context manager that runs natively: `enter()` gives what `with` binds, and `leave()` ends it."""

    def __init__(self, enter: Callable[[], Any], leave: Callable[[], Any]) -> None:
        self._enter = enter
        self._leave = leave

    def __enter__(self) -> Any:
        return self._enter()

    def __exit__(self, *_: object) -> None:
        self._leave()


@dataclass(frozen=True)
class Level:
    """A level that a program is in: its number, how it is left, and the batch size of one that batches (`vmap`)."""

    number: int
    decrement: Callable[[], Any]
    differentiates: bool
    batch_size: Any


class TransformLevels:
    """The levels of function transforms that a program which is recorded is in.

    `refuse` gives the error for what is not traced; `switch(enabled)` writes down that autograd is on or off now.
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
        self._levels: list[Level] = []  # the outermost first
        self._grad_mode = False  # what the trace has set, beneath all levels
        self._were_entered = False
        self._follows_grad_mode = True

    @property
    def depth(self) -> int:
        """The number of levels that the program is in."""
        return len(self._levels)

    @property
    def batches(self) -> tuple[Level, ...] | None:
        """The levels, the outermost first, where all of them batch; None where one differentiates."""
        return None if any(level.differentiates for level in self._levels) else tuple(self._levels)

    def enter(
        self, increment: Callable[..., int], args: Sequence[Any], decrement: Callable[[], Any], *, differentiates: bool
    ) -> int:
        """Enter a level, which `decrement` leaves; gives its number."""
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
        self.follow_grad_mode()
        self._levels.pop()
        return number

    def leave_all(self) -> None:
        """Leave the levels that a program which failed has not left."""
        while self._levels:
            self._levels.pop().decrement()

    def require_none(self, what: str, fix: str) -> None:
        """Raise `OperationFailed` inside a level, for what is one bound symbol, or several, of tensors of no level."""
        if self._levels:
            raise self._refuse(f"{what} inside a function transform (torch.vmap, torch.func.grad, ...)", fix)

    def follow_grad_mode(self) -> None:
        """Write down whether autograd is on beneath all levels, where that is not as it was."""
        if not (self._levels and self._follows_grad_mode):
            return
        enabled = torch.is_grad_enabled()
        if enabled != self._grad_mode:
            self._grad_mode = enabled
            self._switch(enabled)

    def take(self, function: Callable[..., Any], args: Any, kwargs: Any) -> bool:
        """Whether a call is a transform's to take apart: inside derivatives all are.

        Outside of all levels it may be one on what `torch.func.vjp` gave.
        """
        if not self._were_entered:
            return False
        differentiates = any(level.differentiates for level in self._levels)
        inside = differentiates or (function is SET_GRAD and bool(self._levels))
        is_inside = inside and functorch.peek_interpreter_stack() is not None
        return is_inside or is_indexing(function, args) or bool(wrapped_in((args, kwargs)))

    def call(self, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Run a function of functorch's that the program calls, which no torch function mode sees."""
        sizes = self._tensors.sizes
        if sizes is None:
            return self.run(function, args, kwargs)
        args, kwargs = sizes.to_symints((tuple(args), dict(kwargs)))
        return sizes.to_program(self.run(function, args, kwargs), self._numbers)

    def run(self, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Run a function on tensors of which some are wrapped, or one that makes such tensors."""
        args, kwargs = concrete((tuple(args), dict(kwargs))) if self._numbers.any_symbolic else (args, kwargs)
        args, kwargs = replace_leaves((tuple(args), dict(kwargs)), self._faked)
        if has_own_derivative(function) or function in TEXTS:
            raise self._refuse(
                f"`{symbol_of(function).name}` is called inside a function transform, where only its "
                "inner operations can be traced",
                "call it outside the transform, or pass the batch explicitly",
            )
        with torch._C.DisableTorchFunction(), self._in_grad_mode() if is_indexing(function, args) else nullcontext():
            return self._tensors.to_real(function(*args, **kwargs))

    @contextmanager
    def _in_grad_mode(self) -> Iterator[None]:
        """Leave the mode as it is: what runs in a `torch.autograd.Function` has the derivatives of its operations."""
        before, self._follows_grad_mode = self._follows_grad_mode, False
        try:
            yield
        finally:
            self._follows_grad_mode = before

    def _faked(self, leaf: Any) -> Any:
        return self._tensors.fake(leaf) if isinstance(leaf, torch.Tensor) and not is_wrapped(leaf) else leaf
