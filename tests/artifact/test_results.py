"""Objects that a program creates at each call are also created at each call of a loaded artifact."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import thunder_core as thunder


class Model(nn.Module):
    """A layer whose results include objects that keep their state in C."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> tuple[Any, ...]:
        """Return the layer's result with an attribute, a parameter, and the other objects."""
        y: Any = self.layer(x)
        y.label = ["label", 1]
        made = nn.Parameter(x.detach() * 2)
        constants = torch.finfo(x.dtype), int | str, np.float32(2), np.arange(3), re.compile("a"), ValueError("b")
        return y, made, constants, zip([y], [1], strict=True)


def test_a_loaded_artifact_computes_new_results_at_each_call(tmp_path: Path) -> None:
    model, x = Model().eval(), torch.ones(2, 3)
    compiled: Any = thunder.jit(model, data_dependent="error")
    with torch.no_grad():
        compiled(x)
        thunder.save(compiled, tmp_path / "artifact")
        loaded: Any = thunder.load(tmp_path / "artifact", model)
        for _ in range(2):
            found, wanted = loaded(x), model(x)
            assert torch.equal(found[0], wanted[0])
            assert found[0].label == wanted[0].label
            assert type(found[1]) is nn.Parameter
            assert repr(found[2]) == repr(wanted[2])
            assert next(found[3])[0] is found[0]


def factors_in_settings(x: Tensor) -> Tensor:
    """Compute the Cholesky factor of a matrix under autocast and without oneDNN; raise for other matrices."""
    with torch.autocast("cpu", torch.bfloat16), torch.backends.mkldnn.flags(enabled=False, allow_tf32=None):
        return torch.linalg.cholesky(x)


def test_an_error_restores_autocast_and_settings(tmp_path: Path) -> None:
    compiled: Any = thunder.jit(factors_in_settings)
    compiled(torch.eye(3))
    loaded: Any = thunder.load(thunder.save(compiled, tmp_path / "artifact"), factors_in_settings)
    for function in (factors_in_settings, loaded):
        with torch.autocast("cpu", enabled=False), torch.backends.mkldnn.flags(enabled=True, allow_tf32=None):
            with pytest.raises(torch.linalg.LinAlgError):
                function(-torch.eye(3))
            assert (torch.is_autocast_enabled("cpu"), torch.backends.mkldnn.enabled) == (False, True)
