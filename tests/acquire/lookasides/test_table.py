"""Lookasides of functions whose modules are imported late are found by name, for exactly the function of that name."""

from __future__ import annotations

from types import FunctionType

import pytest

from thunder_core.foundation import plugins
from thunder_core.frontend.acquire.lookasides.table import LATE_LOOKASIDES, late_lookaside_of


@pytest.mark.parametrize(("module", "name"), LATE_LOOKASIDES)
def test_a_late_lookaside_is_found_for_its_function_alone(module: str, name: str) -> None:
    found = plugins.imported(f"{module}:{name}")
    function = getattr(found, "__func__", found)  # a class method's function
    assert isinstance(function, FunctionType)
    assert late_lookaside_of(function) is LATE_LOOKASIDES[module, name]

    def other() -> None:
        """A function whose name is that of another function."""

    other.__module__, other.__qualname__ = module, name
    assert late_lookaside_of(other) is None
    assert late_lookaside_of(test_a_late_lookaside_is_found_for_its_function_alone) is None
