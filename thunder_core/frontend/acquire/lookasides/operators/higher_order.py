"""Higher-order operators: the operators of PyTorch that take functions, and the handlers that trace them.

PyTorch's entry functions (`torch.cond`, `while_loop`, `scan`, `map`) are interpreted like all Python code, so they
check their arguments with PyTorch's own messages. In eager PyTorch they compile their operator. Here, the call of
the operator reaches a handler, which records the operator. An operator without a handler is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch._higher_order_ops import utils
from torch._ops import HigherOrderOperator

from thunder_core.frontend.acquire.lookaside_table import lookaside
from thunder_core.frontend.acquire.lookasides.operators.foreign import refuse_operator
from thunder_core.frontend.acquire.traced_run import TracedRun

Handler = Callable[..., Any]  # (run, *args, **kwargs) -> the operator's result

HANDLERS: dict[str, Handler] = {}


def higher_order(*names: str) -> Callable[[Handler], Handler]:
    """Register the decorated function as the handler of the operators with these names."""

    def register(handler: Handler) -> Handler:
        HANDLERS.update(dict.fromkeys(names, handler))
        return handler

    return register


def call_operator(run: TracedRun, operator: HigherOrderOperator, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Trace the call of a higher-order operator by the operator's handler. Refuse an operator without a handler."""
    handler = HANDLERS.get(operator._name)
    return refuse_operator(run, operator) if handler is None else handler(run, *args, **kwargs)


# PyTorch calls operators with the first function since 2.12, and with the second in 2.11.
COMPILE_AND_CALL: Any = getattr(utils, "_hop_compile_and_call", None)
MAYBE_COMPILE_AND_RUN: Any = getattr(utils, "_maybe_compile_and_run_fn", None)


def call_uncompiled(
    run: TracedRun,
    /,
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None = None,
) -> Any:
    """Interpret a function that calls a higher-order operator, where eager PyTorch would compile the function.

    `args` and `kwargs` are the arguments of the function, as one tuple and one dictionary.
    """
    return run.machine.call(function, *args, **(kwargs or {}))


def run_uncompiled(run: TracedRun, /, function: Callable[..., Any], *args: Any) -> Any:
    """Interpret a function that calls a higher-order operator, where eager PyTorch would compile the function.

    `args` are the arguments of the function.
    """
    return run.machine.call(function, *args)


if COMPILE_AND_CALL is not None:
    lookaside(COMPILE_AND_CALL)(call_uncompiled)
else:
    lookaside(MAYBE_COMPILE_AND_RUN)(run_uncompiled)
