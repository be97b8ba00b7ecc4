"""The function with which epilogues set context variables."""

from __future__ import annotations

import contextvars
from typing import Any


def set_variable(variable: contextvars.ContextVar[Any], value: object) -> None:
    """Set a context variable in the context of the caller."""
    variable.set(value)
