"""Check whether a class is a subclass of an abstract class, with the C function that `issubclass` calls."""

from __future__ import annotations

import _abc  # type: ignore[import-not-found]
from collections.abc import Callable

regards: Callable[[type, type], bool] = _abc._abc_subclasscheck
