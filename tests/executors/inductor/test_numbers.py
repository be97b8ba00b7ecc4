"""Operations on numbers that change from call to call: the formulas compared with PyTorch's kernels."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from thunder_executors.inductor.numbers import FORMULAS, compute

EXTREMES = (0.0, 1.0, -3.0, 1e8, 1e25, -1e25, 1e-25)
WEIGHTS = (1.0, 0.5, -0.75, 0.25, 1e30, 1e-30)
CALLS: dict[Any, Any] = {
    torch.ops.aten.add.Tensor: "alpha",
    torch.ops.aten.sub.Tensor: "alpha",
    torch.ops.aten.rsub.Tensor: "alpha",
    torch.ops.aten.mul.Tensor: None,
    torch.ops.aten.div.Tensor: None,
    torch.ops.aten.addcmul.default: "value",
    torch.ops.aten.addcdiv.default: "value",
    torch.ops.aten.lerp.Scalar: 2,
    torch.ops.aten.fill.Scalar: 1,
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("operator", CALLS, ids=str)
def test_operations_on_numbers_are_computed_as_by_pytorchs_kernels(operator: Any, dtype: torch.dtype) -> None:
    """The cases overflow, cancel or are exact, at both ends of `lerp` too."""
    name = operator._schema.name.partition("::")[2]
    place = CALLS[operator]
    count = {"addcmul": 3, "addcdiv": 3, "fill": 1, "mul": 1, "div": 1}.get(name, 2)
    grid = torch.cartesian_prod(*[torch.tensor(EXTREMES, dtype=dtype)] * count).reshape(-1, count)
    tensors = list(grid.unbind(1))
    for weight in WEIGHTS:
        scalar = torch.tensor(weight, dtype=torch.float64)
        keywords = {place: weight} if isinstance(place, str) else {}
        expected = operator(*tensors, *([] if keywords else [weight]), **keywords)
        given = {place: scalar} if keywords else {}
        found = compute(FORMULAS[name], dtype, [*tensors, *([] if keywords else [scalar])], given)
        torch.testing.assert_close(found, expected, equal_nan=True)
