"""A call on tensors without data leaves no such tensors in a model or in the caches of its functions."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from thunder_core.workflow.pipeline.session.model_state import restore_model_state


@functools.lru_cache
def names() -> str:
    """A cached function that no call of the model uses."""
    return "kept"


class Keeping(torch.nn.Module):
    """A model that stores tensors in every kind of container that models use."""

    tables: Any

    def __init__(self) -> None:
        super().__init__()
        self.table: torch.Tensor | None = None
        self.tables, self.seen = {}, []
        self.is_hooked = False
        self.positions = functools.lru_cache(maxsize=1)(lambda length: torch.arange(length))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Add the positions, which are computed once."""
        if not self.is_hooked:
            self.is_hooked = True
            self.register_forward_hook(lambda _module, _inputs, result: result * 2)
        if self.table is None:
            self.table = torch.arange(x.shape[0])
        self.late = self.tables.setdefault(x.shape[0], x.new_ones(x.shape[0]))
        self.seen.append(x)
        result: torch.Tensor = x + self.positions(x.shape[0]) + self.table + self.late
        return result


@pytest.mark.parametrize("fails", [False, True])
def test_nothing_of_the_call_is_found_later(fails: bool) -> None:
    model = torch.nn.Sequential(Keeping())
    names()
    with restore_model_state(model), FakeTensorMode(allow_non_fake_inputs=True):
        assert isinstance(model(torch.ones(3)), FakeTensor)
        if fails:
            with pytest.raises(TypeError):
                model(None, None)
    keeping = model[0]
    assert (keeping.table, keeping.tables, keeping.seen) == (None, {}, [])
    assert not hasattr(keeping, "late")
    assert names.cache_info().currsize == 1
    assert model(torch.ones(3)).tolist() == [2, 4, 6]  # the hook counts from the next call on
    assert model(torch.ones(3)).tolist() == [4, 8, 12]


def test_values_cached_before_the_call_are_restored() -> None:
    keeping = Keeping()
    keeping(torch.ones(2))
    expected, table = keeping(torch.ones(2)), keeping.table
    with restore_model_state(keeping), FakeTensorMode(allow_non_fake_inputs=True):
        keeping(torch.ones(2))
    assert keeping.table is table
    assert len(keeping.seen) == 2
    assert torch.equal(keeping(torch.ones(2)), expected)
