"""In-place updates with a result of a higher type than their target raise eager's error; all others are made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import thunder_core as thunder

Update = Callable[[Tensor, Tensor], Any]
REFUSED: dict[str, Update] = {
    "addcmul": lambda t, z: t.addcmul_(z, z, value=0.5),
    "number": lambda t, z: t.mul_(2.5),
    "logit": lambda t, z: t.logit_(),
    "out": lambda t, z: torch.mul(z, 2.5, out=t),
    "foreach": lambda t, z: torch._foreach_mul_([t, t.clone()], 2.5),
    "computed number": lambda t, z: t.mul_(z.sum().item()),
    "complex": lambda t, z: z.clone().add_(1j * torch.ones(2)),
}
MADE: dict[str, Update] = {
    "integers": lambda t, z: t.mul_(2).add_(True).clamp_(0, 9).pow_(2).remainder_(5),
    "booleans": lambda t, z: t.ge_(z),
    "copies": lambda t, z: t.copy_(z * 2.2),
    "floats": lambda t, z: z.clone().mul_(t).add_(t, alpha=2),
    "foreach": lambda t, z: torch._foreach_add_([t], 2),
}


def outcome(program: Callable[[Tensor], Tensor]) -> Any:
    """Return the result, or the error, for float32 inputs."""
    try:
        return program(torch.tensor([1.2, 2.0])).tolist()
    except RuntimeError as error:
        return str(error)


@pytest.mark.parametrize("executors", [("torch",), ("inductor", "torch")], ids="-".join)
@pytest.mark.parametrize(("refused", "update"), [(True, item) for item in REFUSED] + [(False, entry) for entry in MADE])
def test_update_matches_eager(refused: bool, update: str, executors: tuple[str, ...]) -> None:
    def program(z: Tensor) -> Tensor:
        t = (z * 3).int()
        (REFUSED if refused else MADE)[update](t, z)
        return t + 1

    expected = outcome(program)
    assert isinstance(expected, str) == refused
    assert outcome(thunder.jit(program, executors=executors)) == expected
