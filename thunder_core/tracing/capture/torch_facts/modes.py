"""The modes with which PyTorch passes its functions, and their aten operations, to handlers."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode, _pop_mode, _pop_mode_temporarily, _push_mode
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    _disable_current_modes,
    _get_current_dispatch_mode_stack,
)

from thunder_core.foundation.package import package_of
from thunder_core.tracing.capture.torch_facts.symbols import passing_operation

pop_mode: Callable[[], Any] = _pop_mode
push_mode: Callable[[Any], None] = _push_mode
Handler = Callable[..., Any]
PACKAGE = __name__.partition(".")[0]


class FunctionMode(TorchFunctionMode):
    """A mode that passes each torch function of the program to a handler.

    The handler receives the function, its arguments, its keywords, and the tensor subclasses that define
    `__torch_function__`.
    """

    def __init__(self, handle: Handler) -> None:
        super().__init__()
        self.handle = handle

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.handle(passing_operation(func, sys._getframe().f_back), args, kwargs or {}, types)


class OperatorMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A mode that passes each aten operation to a handler: the operation, its arguments, its keywords.

    The handler also receives operations that belong to no torch function: operations that the handler itself runs, and
    operations of legacy constructors such as `torch.IntTensor`, which PyTorch does not pass to function modes.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return False: Dynamo is not involved, and its guard around each dispatch would cost an import and 20 us."""
        return False

    def __init__(self, handle: Handler) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.handle = handle

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C.DisableTorchFunction():
            return self.handle(func, args, kwargs or {})


def is_recording() -> bool:
    """Whether a handler receives the torch functions of this thread, or their aten operations."""
    count = torch._C._len_torch_function_stack()
    functions = (torch._C._get_function_stack_at(index) for index in range(count))
    return any(isinstance(mode, FunctionMode) for mode in functions) or any(
        isinstance(mode, OperatorMode) for mode in _get_current_dispatch_mode_stack()
    )


def outer_function_mode() -> TorchFunctionMode | None:
    """Return a mode of the user that receives the torch functions of this thread, or None.

    A default device is a mode, too, which the guards describe. Thunder's own modes are not the user's.
    """
    count = torch._C._len_torch_function_stack()
    modes = (torch._C._get_function_stack_at(index) for index in range(count))
    return next((mode for mode in modes if not isinstance(mode, DeviceContext) and not is_own(mode)), None)


def is_own(mode: object) -> bool:
    """Whether a mode is Thunder's."""
    return package_of(type(mode).__module__) == PACKAGE


@contextmanager
def without_functions() -> Iterator[None]:
    """Hide torch functions from modes during the block; the aten operations are still visible."""
    with ExitStack() as stack:
        for _ in range(torch._C._len_torch_function_stack()):
            stack.enter_context(_pop_mode_temporarily())
        yield


@contextmanager
def without_our_functions() -> Iterator[None]:
    """Remove Thunder's modes for torch functions during the block; the user's own modes stay."""
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
def without_users_dispatch_modes() -> Iterator[None]:
    """Disable the user's `TorchDispatchMode`s during the block, such as a counter of FLOPs.

    A mode sees the operations of a program when the program runs. It must not see them on fakes as well, while the
    program is compiled. A mode of Thunder stays.
    """
    modes = _get_current_dispatch_mode_stack()
    if not modes or is_own(modes[-1]):
        yield
        return
    with _disable_current_modes():
        yield


@contextmanager
def without_recording() -> Iterator[None]:
    """Record nothing during the block, so that another recording can begin."""
    with without_our_functions(), _disable_current_modes(), torch._C._EnableTorchFunction():
        yield
