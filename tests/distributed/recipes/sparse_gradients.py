"""Checks of sparse gradients in parallel training, run on each rank."""

# mypy: disable-error-code="no-untyped-call,no-untyped-def,attr-defined"

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import embedding_bag

import thunder_core as thunder
from tests.distributed.recipes.training import EAGER
from thunder_core.foundation.errors import OperationFailed


class Table(nn.Module):
    """A token table with sparse gradients, and two layers that ranks can divide."""

    def __init__(self, *, pools: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(5, 4, sparse=True)
        self.up, self.down = nn.Linear(4, 4), nn.Linear(4, 2)
        self.pools = pools

    def forward(self, tokens: Tensor) -> Tensor:
        rows = (
            embedding_bag(tokens.view(1, -1), self.table.weight, None, None, 2.0, False, "mean", True)
            if self.pools
            else self.table(tokens)
        )
        result: Tensor = self.down(self.up(rows).tanh())
        return result


def sparse_gradients_are_refused(recipes: Any) -> None:
    tokens = torch.tensor([0, 1 + dist.get_rank()])
    for pools in (False, True):
        model = Table(pools=pools)
        expected = copy.deepcopy(model)(tokens)
        compiled: Any = thunder.compile(model, recipes, without=EAGER)
        with pytest.raises(OperationFailed, match=r"embedding.* is sparse") as caught:
            compiled(tokens)
        assert "sparse=False" in (caught.value.fix or "")
        assert caught.value.where is not None
        with torch.no_grad():
            assert torch.equal(compiled(tokens), expected)
        compiled.table.requires_grad_(False)
        compiled(tokens).sum().backward()
        assert compiled.up.weight.grad is not None


def undivided_tables_have_sparse_gradients() -> None:
    """Tensor parallelism leaves a table as it is on each rank, with the gradient of eager PyTorch."""
    model, tokens = Table(), torch.tensor([0, 3])
    twin: Any = copy.deepcopy(model)
    plan = {"up": "colwise", "down": "rowwise"}
    compiled: Any = thunder.compile(model, "tensor-parallel", without=EAGER, parallelize_plan=plan)
    for module in (compiled, twin):
        module(tokens).sum().backward()
    gradient, expected = (one.table.weight.grad for one in (compiled, twin))
    assert gradient.is_sparse
    torch.testing.assert_close(gradient.to_dense(), expected.to_dense())
