"""`max` and `min` of sizes are expressions; nothing is decided until their value is needed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import thunder_core as thunder

Function = Callable[[torch.Tensor], torch.Tensor]
PROGRAMS: dict[str, tuple[Function, int]] = {  # and the number of programs that serve the lengths
    "a factor": (lambda x: x * max(x.shape[0] - 5, 0), 1),
    "a place": (lambda x: x[max(x.shape[0] - 5, 0) :], 1),
    "an end": (lambda x: x[: min(x.shape[0], 5)] + 1, 1),
    "a size": (lambda x: torch.zeros(max(x.shape[0], 3)), 1),
    "a size that may be zero": (lambda x: torch.zeros(max(x.shape[0] - 5, 0)).sum() + x, 1),
    "padding": (lambda x: torch.nn.functional.pad(x, (0, max(0, 8 - x.shape[0]))), 1),
    "of three": (lambda x: x + min(x.shape[0], 3, 7), 1),
    "known for all sizes": (lambda x: x * max(1, x.shape[0]), 1),
    "of a bool, which may be the result": (lambda x: x * max(x.shape[0] > 3, x.shape[0]), 2),
    "of a float": (lambda x: x * max(x.shape[0], 2.5), 2),
    "a condition on one": (lambda x: x + 1 if max(x.shape[0], 4) > 6 else x, 2),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_few_programs_serve_lengths_on_both_sides_of_an_extreme(name: str) -> None:
    function, most = PROGRAMS[name]
    compiled = thunder.jit(function, cache="symbolic values", executors=["torch"])
    for length in (7, 3, 1, 5, 6, 9, 2, 8, 4, 12):
        x = torch.randn(length)
        torch.testing.assert_close(compiled(x), function(x))
        assert not thunder.last_program(compiled).constant_because
    assert thunder.cache_misses(compiled) <= most, thunder.recompile_reasons(compiled)
