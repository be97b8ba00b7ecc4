"""A loaded function leaves a line with many tensor values to eager PyTorch, like a function that was traced here."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import thunder_core as thunder
from thunder_core.foundation.errors import RecompileWarning

Program = Callable[[Tensor], Tensor]


def doubled(x: Tensor) -> Tensor:
    """Double a tensor as often as its first element says."""
    for _ in range(int(x[0])):
        x = x * 2
    return x


def outer(x: Tensor) -> Tensor:
    return doubled(x + 1) - 1


def called(function: Any, values: range) -> list[str]:
    """Call a function with these values, compare with eager, and return the warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", RecompileWarning)
        for value in values:
            x = torch.full((2,), float(value))
            torch.testing.assert_close(function(x), (doubled if function.__name__ == "doubled" else outer)(x))
    return [str(warning.message) for warning in caught if "since" in str(warning.message)]


@pytest.mark.parametrize("program", [doubled, outer])
def test_ninth_value_is_left_to_eager(program: Program, tmp_path: Path) -> None:
    compiled = thunder.jit(program)
    assert called(compiled, range(1, 9)) == []
    loaded = thunder.load(thunder.save(compiled, tmp_path / "a"), program)
    found, expected = called(loaded, range(9, 14)), called(compiled, range(9, 14))
    assert found == expected
    assert len(found) == 1
    assert called(loaded, range(1, 14)) == []
