"""What an operation fails with when it is run on tensors without data: where that was, and what to do instead."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
)

from thunder_core.capture.symbols import symbol_of
from thunder_core.capture.values import Unknowable
from thunder_core.errors import DataDependent, OperationFailed, SourceLine, ThunderError

NEEDS_VALUE = (DataDependentOutputException, DynamicOutputShapeException)
NO_MEMORY = ("its data is not allocated yet", "Cannot access data pointer")  # C++ that reads values by itself says this
NEEDS_DATA = (UnsupportedFakeTensorException, UnsupportedOperatorException)


def needs_value(error: Exception) -> bool:
    """Whether an operation failed because fakes have no values."""
    return isinstance(error, NEEDS_VALUE) or any(text in str(error) for text in NO_MEMORY)


def needs_data(error: Exception) -> bool:
    """Whether an operation failed because it does not know fakes."""
    return isinstance(error, NEEDS_DATA)


def unrunnable(function: Callable[..., Any], source: SourceLine | None, error: Exception | None = None) -> ThunderError:
    """The error for an operation that cannot run without data."""
    name = symbol_of(function).name
    if error is None or isinstance(error, Unknowable) or needs_value(error):
        why = f", and {error}" if isinstance(error, Unknowable) else ""
        return DataDependent(
            f"`{name}` asks for the value of a tensor, which a trace does not have{why}",
            fix="use torch.where, pass the decision in as a Python value, or keep the branch out of what is compiled"
            + ("" if isinstance(error, Unknowable) else '; thunder_core.jit can guard it (data_dependent="guard")'),
            where=source,
        )
    return OperationFailed(
        f"`{name}` cannot run on tensors without data: {error}",
        fix="keep the operation out of the compiled part",
        where=source,
    )


def located(error: Exception, source: SourceLine | None) -> Exception:
    """An error of PyTorch's with a note of the line; it stays what it is, since the program may catch it."""
    if source is not None and not hasattr(error, "__notes__"):
        error.add_note(f"  at: {source}")
    return error
