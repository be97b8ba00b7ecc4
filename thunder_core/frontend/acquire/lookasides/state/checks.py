"""Lookasides that record PyTorch's checks of tensor values, such as `torch._assert`, as bound symbols.

At each call, the bound symbol checks the value, and raises the program's own error if the check fails.
"""

from __future__ import annotations

from typing import Any

import torch

from thunder_core.frontend.acquire.held_objects import SideEffects
from thunder_core.frontend.acquire.lookaside_table import lookaside
from thunder_core.frontend.acquire.outside.reductions import TensorToPrint
from thunder_core.frontend.acquire.traced_run import TracedRun
from thunder_core.frontend.interpreter.catching import is_caught
from thunder_core.frontend.interpreter.observer import NOT_TAKEN, NotTaken
from thunder_core.tracing.capture.torch_facts.symbols import symbol_of
from thunder_core.tracing.capture.torch_facts.texts import TextPart, parts_of_text
from thunder_core.tracing.ir.symbol import BoundSymbol
from thunder_core.tracing.ir.tree import replace_leaves
from thunder_core.tracing.library.checks import require
from thunder_core.tracing.library.output import tensor_to_print

# PyTorch's message for a failed check that has no message of its own.
DEFAULT_MESSAGE = (
    "Expected cond to be True, but got False. (Could this error message be improved? If so, please report an "
    "enhancement request to PyTorch.)"
)
# Errors that computing a message may raise if the check holds, such as an IndexError of `wrong_items[0]`.
ERRORS_OF_MESSAGES = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)


@lookaside(torch._check_tensor_all_with)
def record_check(run: TracedRun, /, *args: Any, **kwargs: Any) -> NotTaken | None:
    """Record `torch._check_tensor_all_with`, so that tracing does not need the value of the condition.

    PyTorch's other checks of tensors call this function. Returns `NOT_TAKEN` if the check cannot be recorded.
    """
    arguments = dict(zip(("error_type", "cond", "message"), args, strict=False)) | kwargs
    kind, condition, message = (arguments.get(name) for name in ("error_type", "cond", "message"))
    if not can_be_recorded(run, kind, condition) or not (message is None or callable(message)):
        return NOT_TAKEN
    try:
        emit_check(run, kind, condition, message)
    except ERRORS_OF_MESSAGES:  # eager PyTorch computes the message only if the check fails
        return NOT_TAKEN
    return None


@lookaside(torch._assert)
def record_assert(run: TracedRun, /, *args: Any, **kwargs: Any) -> NotTaken | None:
    """Record `torch._assert(condition, message)`, so that tracing does not need the value of the condition.

    Returns `NOT_TAKEN` if the condition is not a tensor with one element, or if the check cannot be recorded.
    """
    arguments = dict(zip(("condition", "message"), args, strict=False)) | kwargs
    condition, message = arguments.get("condition"), arguments.get("message")
    is_scalar = isinstance(condition, torch.Tensor) and condition.numel() == 1
    if not is_scalar or not can_be_recorded(run, AssertionError, condition) or parts_of_text(message) is None:
        return NOT_TAKEN
    emit_check(run, AssertionError, condition, lambda: message)
    return None


def can_be_recorded(run: TracedRun, kind: Any, condition: Any) -> bool:
    """Whether a check can be recorded as a bound symbol: its condition is a plain bool tensor, outside of transforms.

    `kind` must be a class of exceptions, and no warning. If the program may catch the error, the value of the condition
    is read instead, because a bound symbol that raises ends the program.
    """
    is_error = isinstance(kind, type) and issubclass(kind, Exception) and not issubclass(kind, Warning)
    is_plain = run.class_of(condition) is torch.Tensor and condition.dtype is torch.bool
    is_passed_on = not is_caught(run.machine.frame) and not run.recorder.caught_errors.is_at_line_that_raised()
    return is_error and is_plain and not run.recorder.levels.depth and is_passed_on


def emit_check(run: TracedRun, kind: Any, condition: Any, message: Any) -> None:
    """Emit a bound symbol that raises an error of class `kind` unless the condition holds.

    `message` is a function without arguments that returns the message, or None for PyTorch's message. The bound symbol
    computes the values in the message at each call.
    """
    text = DEFAULT_MESSAGE if message is None else text_of_message(run, message)
    recorder, location = run.recorder, run.location()
    with torch._C.DisableTorchFunction():
        args = (
            recorder.proxy_of(condition),
            kind,
            *(as_argument(recorder, part) for part in parts_of_text(text) or ()),
        )
    recorder.caught_errors.note_line(location.source)
    recorder.emit(BoundSymbol(symbol_of(require), args, {}, None, (), location.source, location.module, ordered=True))


def text_of_message(run: TracedRun, message: Any) -> Any:
    """Return the text of a message that a function computes.

    Refuse a function with a side effect, also on objects of the program, because eager PyTorch calls the function only
    if the check fails.
    """
    bsyms, effects = run.recorder.bound_symbols, SideEffects(run, message)
    bsym_count = len(bsyms)
    text = run.machine.call(str, run.machine.call(message))
    has_written = any(bsym.mutates or bsym.ordered for bsym in bsyms[bsym_count:])
    if has_written or effects.change_objects() or effects.draw_numbers():
        run.refuse("computing the message of a check has a side effect", fix="pass the message as a string")
    return text


def as_argument(recorder: Any, part: str | TextPart) -> Any:
    """Return a part of a message as an argument of `require`: a string, or a tuple of a function and its arguments."""
    if isinstance(part, str):
        return part

    def proxies_for(leaf: Any) -> Any:
        values = leaf.values if type(leaf) is TensorToPrint else leaf
        proxy = recorder.tensors.to_proxies(recorder.tensors.to_fake(values))
        return (tensor_to_print, proxy, leaf.kind, leaf.node) if type(leaf) is TensorToPrint else proxy

    return (part.function, *replace_leaves(part.arguments, proxies_for))
