"""Failures of operations on fakes: their source lines, and fixes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch._ops import HigherOrderOperator
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
)

from thunder_core.foundation.errors import DataDependent, OperationFailed, SourceLine, ThunderError
from thunder_core.tracing.capture.fakes.quantized import is_about_quantized
from thunder_core.tracing.capture.torch_facts.symbols import symbol_of
from thunder_core.tracing.capture.values import Unknowable

NEEDS_VALUE = (DataDependentOutputException, DynamicOutputShapeException)
NO_MEMORY = ("its data is not allocated yet", "Cannot access data pointer")  # messages of C++ code that reads values
# PyTorch's messages for operations that cannot be recorded. Their exception classes are too general to identify them.
HIDING = ("There was no rule registered for HigherOrderOperator", "Cannot access storage of")
NO_FAKE = "There was no fake impl registered"
NEEDS_DATA = (UnsupportedFakeTensorException, UnsupportedOperatorException)


def needs_value(error: Exception) -> bool:
    """Whether an operation failed because fakes have no values."""
    return isinstance(error, NEEDS_VALUE) or any(text in str(error) for text in NO_MEMORY)


def needs_data(error: Exception) -> bool:
    """Whether an operation failed because it has no implementation for fakes."""
    is_known = any(text in str(error) for text in (*HIDING, NO_FAKE))
    return is_known or isinstance(error, NEEDS_DATA) or is_about_quantized(error)


def unrunnable(function: Callable[..., Any], source: SourceLine | None, error: Exception | None = None) -> ThunderError:
    """Return the error for an operation that cannot run on fakes."""
    name = symbol_of(function).name
    if error is None or isinstance(error, Unknowable) or needs_value(error):
        why = f", and {error}" if isinstance(error, Unknowable) else ""
        return DataDependent(
            f"`{name}` reads the value of a tensor, which is not known while tracing{why}",
            fix="use torch.where, pass the decision as a Python value, or keep the branch out of the compiled program"
            + ("" if isinstance(error, Unknowable) else '; thunder_core.jit can guard it (data_dependent="guard")'),
            where=source,
        )
    if any(text in str(error) for text in HIDING):
        return hides(function, source)
    if NO_FAKE in str(error):
        return OperationFailed(
            f"`{name}` has no fake implementation, so its results on tensors without data are not known",
            fix="register one: torch.library.register_fake, or `register_fake` of the operator",
            where=source,
        )
    if is_about_quantized(error):
        return OperationFailed(
            f"`{name}` computes a tensor with a quantized dtype (`torch.qint8` and similar), which cannot be traced",
            fix="keep the quantized part out of the compiled program, or quantize by a recipe of Thunder or by torchao",
            where=source,
        )
    return OperationFailed(
        f"`{name}` cannot run on tensors without data: {error}",
        fix="keep the operation out of the compiled part",
        where=source,
    )


def hides(function: Callable[..., Any], source: SourceLine | None) -> ThunderError:
    """Return the error for an operator that runs functions under its own modes, so that they cannot be recorded."""
    name = function._name if isinstance(function, HigherOrderOperator) else symbol_of(function).name
    return OperationFailed(
        f"`{name}` is a higher-order operator that runs its functions where the tracer cannot see them",
        fix="use Python's control flow and ordinary operations, or call the operator outside the compiled program",
        where=source,
    )


def with_source_line(error: Exception, source: SourceLine | None) -> Exception:
    """Add a note with the source line to an error, and return it; its class stays, because the program may catch it."""
    if source is not None and not hasattr(error, "__notes__"):
        error.add_note(f"  at: {source}")
    return error
