"""The modes by which PyTorch hands over its functions, and the aten operations beneath them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode, _pop_mode, _pop_mode_temporarily, _push_mode
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    _disable_current_modes,
    _get_current_dispatch_mode_stack,
)

pop_mode: Callable[[], Any] = _pop_mode
push_mode: Callable[[Any], None] = _push_mode
Handler = Callable[..., Any]


class FunctionMode(TorchFunctionMode):
    """Hands each torch function of the program to a handler.

    It gets the function, its arguments, its keywords and the subclasses of Tensor among them that have a say in it.
    """

    def __init__(self, handle: Handler) -> None:
        super().__init__()
        self.handle = handle

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.handle(func, args, kwargs or {}, types)


class OperatorMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Hands each aten operation beneath to a handler: the operation, its arguments, its keywords.

    What the handler does itself is nobody's torch function: some operations come from no function that a mode sees
    (those of the legacy constructors, such as `torch.IntTensor`).
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Dynamo takes no part here; its guard around each dispatch would cost an import and 20 us a call."""
        return False

    def __init__(self, handle: Handler) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.handle = handle

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C.DisableTorchFunction():
            return self.handle(func, args, kwargs or {})


def is_recording() -> bool:
    """Whether the torch functions of this thread, or the operations beneath them, are handed over to a handler."""
    count = torch._C._len_torch_function_stack()
    functions = (torch._C._get_function_stack_at(place) for place in range(count))
    return any(isinstance(mode, FunctionMode) for mode in functions) or any(
        isinstance(mode, OperatorMode) for mode in _get_current_dispatch_mode_stack()
    )


@contextmanager
def without_functions() -> Iterator[None]:
    """While this lasts, torch functions are not seen, but the operations beneath them are."""
    with ExitStack() as stack:
        for _ in range(torch._C._len_torch_function_stack()):
            stack.enter_context(_pop_mode_temporarily())
        yield


@contextmanager
def without_our_functions() -> Iterator[None]:
    """While this lasts, torch functions are not handed over; the user's own modes for them stay as they are."""
    stack = [pop_mode() for _ in range(torch._C._len_torch_function_stack())][::-1]
    users = [mode for mode in stack if not isinstance(mode, FunctionMode)]
    for mode in users:
        push_mode(mode)
    try:
        yield
    finally:
        for _ in users:
            pop_mode()
        for mode in stack:
            push_mode(mode)


@contextmanager
def without_recording() -> Iterator[None]:
    """While this lasts, nothing is recorded, and another recording can begin."""
    with without_our_functions(), _disable_current_modes(), torch._C._EnableTorchFunction():
        yield
