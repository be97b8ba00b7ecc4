"""Lookasides of functions whose modules are imported late are found by name, for exactly the function of that name."""

from __future__ import annotations

from functools import partial
from types import FunctionType

import pytest

from thunder_core.foundation import plugins
from thunder_core.frontend.acquire.lookasides.table import LATE_LOOKASIDES, late_lookaside_of


@pytest.mark.parametrize(("module", "name"), LATE_LOOKASIDES)
def test_a_late_lookaside_is_found_for_its_function_alone(module: str, name: str) -> None:
    function = plugins.imported(f"{module}:{name}")
    assert isinstance(function, FunctionType)
    lookaside = late_lookaside_of(function)
    assert isinstance(lookaside, partial)
    assert lookaside.func is LATE_LOOKASIDES[module, name]
    assert lookaside.args == (function,)

    def other() -> None:
        """A function whose name is that of another function."""

    other.__module__, other.__name__ = module, name
    assert late_lookaside_of(other) is None
    assert late_lookaside_of(test_a_late_lookaside_is_found_for_its_function_alone) is None
