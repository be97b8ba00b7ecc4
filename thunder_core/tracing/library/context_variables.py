"""Setting context variables, for epilogues."""

from __future__ import annotations

import contextvars
from typing import Any


def set_variable(variable: contextvars.ContextVar[Any], value: Any) -> None:
    """Set a context variable in the context of the call."""
    variable.set(value)
