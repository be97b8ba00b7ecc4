"""Values as plain data, to compare the effects of programs on objects."""

from __future__ import annotations

import collections
from typing import Any

from torch import Tensor


def plain_data(value: Any) -> Any:
    """A value as plain data: tensors as lists, and errors and the objects of tests by all their attributes."""
    if isinstance(value, Tensor):
        assert type(value) is Tensor, "a trace's tensor has leaked"
        return value.tolist()
    if isinstance(value, BaseException):
        members = list(value.exceptions) if isinstance(value, BaseExceptionGroup) else []
        parts = [value.args, vars(value), value.__cause__, value.__context__, value.__suppress_context__, members]
        return type(value), plain_data(parts)
    if type(value).__module__.startswith("tests."):
        return plain_data(vars(value))
    if isinstance(value, dict):
        return {key: plain_data(item) for key, item in value.items()}
    return [plain_data(item) for item in value] if isinstance(value, list | tuple | collections.deque) else value
