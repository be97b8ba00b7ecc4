"""Seeds and states of the random number generator: the numbers and the final state match eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch._dynamo  # importing this module replaces torch.manual_seed by a wrapper
from torch import Tensor

import thunder_core as thunder
from thunder_core.foundation.errors import DataDependent, RecompileWarning

X = torch.full((8,), 0.5)


def seeded(x: Tensor) -> Tensor:
    torch.manual_seed(7)
    return torch.bernoulli(x)


def kept(x: Tensor) -> tuple[Tensor, Tensor]:
    before = torch.get_rng_state()
    torch.manual_seed(7)
    drawn = torch.bernoulli(x)
    torch.set_rng_state(before)
    return drawn, torch.rand(3)


def forked(x: Tensor) -> tuple[Tensor, Tensor]:
    with torch.random.fork_rng():
        drawn = torch.bernoulli(x)
    return drawn, torch.rand(3)


def returned(x: Tensor) -> tuple[Tensor, Tensor]:
    return torch.get_rng_state(), torch.bernoulli(x)


@pytest.mark.parametrize("program", [seeded, kept, forked, returned])
def test_numbers_and_the_final_state_match_eager(program: Callable[[Tensor], object]) -> None:
    compiled = thunder.jit(program)
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        wanted = (program(X), torch.get_rng_state())
        torch.manual_seed(seed)
        found = (compiled(X), torch.get_rng_state())
        torch.testing.assert_close(found, wanted, rtol=0, atol=0)


def test_tracing_alone_leaves_the_generator_unchanged() -> None:
    def failing(x: Tensor) -> Tensor:
        torch.manual_seed(7)
        return x if torch.bernoulli(x).sum() > 0 else -x

    torch.manual_seed(0)
    before = torch.get_rng_state()
    with pytest.raises(DataDependent):
        thunder.jit(failing, data_dependent="error")(X)
    assert torch.equal(torch.get_rng_state(), before)


def test_seeding_with_a_data_dependent_number_matches_eager() -> None:
    def seeded(x: Tensor) -> Any:
        generator = torch.Generator()
        return torch.seed(), x + torch.rand(2), generator.seed(), torch.rand(2, generator=generator)

    state, compiled = torch.get_rng_state(), thunder.jit(seeded)
    try:
        calls = [compiled(torch.ones(2)) for _ in range(2)]
        for seed, drawn, own, drawn_by_own in calls:
            assert torch.equal(drawn, 1 + torch.rand(2, generator=torch.Generator().manual_seed(seed)))
            assert torch.equal(drawn_by_own, torch.rand(2, generator=torch.Generator().manual_seed(own)))
        assert len({seed for seed, *_ in calls}) == 2
        assert thunder.cache_misses(compiled) == 1
        with pytest.warns(RecompileWarning, match="seed"):
            thunder.jit(lambda x: x if (torch.seed(), torch.rand(1))[1] > 0.5 else -x)(torch.ones(2))
    finally:
        torch.set_rng_state(state)
