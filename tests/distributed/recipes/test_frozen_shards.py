"""Parameters of a sharded model may be frozen and thawed at any time, as those of `fully_shard`."""

from __future__ import annotations

import pytest
import torch

import thunder_core as thunder

pytestmark = pytest.mark.usefixtures("group_of_one")


def step(model: torch.nn.Module) -> list[torch.Tensor | None]:
    """The gradients of one step, as plain tensors."""
    model.zero_grad(set_to_none=True)
    model(torch.ones(2, 4)).square().sum().backward()
    found = [parameter.grad for parameter in model.parameters()]
    return [None if one is None else getattr(one, "full_tensor", lambda one=one: one)() for one in found]


@pytest.mark.parametrize("frozen_first", [True, False])
def test_parameters_follow_requires_grad(frozen_first: bool) -> None:
    torch.manual_seed(0)
    eager = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Tanh(), torch.nn.Linear(3, 2))
    eager[0].weight.requires_grad_(not frozen_first)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Tanh(), torch.nn.Linear(3, 2))
    model[0].weight.requires_grad_(not frozen_first)
    compiled = thunder.compile(model, "fsdp", without=["inductor"])
    for frozen in (frozen_first, not frozen_first, frozen_first):
        for module in (eager, compiled):
            dict(module.named_parameters())["0.weight"].requires_grad = not frozen
        expected, found = step(eager), step(compiled)
        assert (expected[0] is None) is frozen
        assert all(a is None if b is None else torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    assert thunder.cache_misses(compiled) == 2


def test_writes_outside_of_a_program_reach_the_shards() -> None:
    compiled = thunder.compile(torch.nn.Sequential(torch.nn.Linear(4, 2)), "fsdp", without=["inductor"])
    with torch.no_grad():
        compiled[0].weight.fill_(2.0)
        compiled[0].bias.zero_()
    assert compiled(torch.ones(1, 4)).tolist() == [[8, 8]]
    compiled.requires_grad_(requires_grad=False)
    compiled[0].weight.requires_grad_()
    assert [one is not None for one in step(compiled)] == [True, False]
