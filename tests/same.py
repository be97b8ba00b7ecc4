"""The comparison of results with those of eager PyTorch, down to classes and dtypes."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch


def assert_same(found: Any, expected: Any, **tolerances: float) -> None:
    """Assert that classes, dtypes and values are equal; `tolerances` are those of `torch.testing.assert_close`."""
    assert type(found) is type(expected)
    if isinstance(expected, torch.Tensor):
        torch.testing.assert_close(found, expected, **tolerances)
        assert found.requires_grad == expected.requires_grad
    elif isinstance(expected, np.ndarray | np.generic):
        assert found.dtype == expected.dtype
        assert found.tolist() == expected.tolist()
    elif isinstance(expected, list | tuple):
        assert len(found) == len(expected)
        for item, expected_item in zip(found, expected, strict=True):
            assert_same(item, expected_item, **tolerances)
    else:
        assert found == expected
