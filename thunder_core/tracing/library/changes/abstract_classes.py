"""The check whether an abstract class regards another class as its subclass, as in C code."""

from __future__ import annotations

import _abc  # type: ignore[import-not-found]
from collections.abc import Callable

regards: Callable[[type, type], bool] = _abc._abc_subclasscheck
