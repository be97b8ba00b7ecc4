"""Sizes that depend on values are symbols if the prologue can count them: one program serves all counts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import thunder_core as thunder

PROGRAMS: dict[str, Callable[[Tensor], Any]] = {
    "nonzero": lambda x: (x > 0).nonzero(),
    "as a tuple": lambda x: (x > 0).nonzero(as_tuple=True)[1].flip(0),
    "where": lambda x: torch.where(x[:, 1] > 0)[0],
    "a mask": lambda x: x[x > 0],
    "rows": lambda x: x[x[:, 0] > 0].softmax(-1),
    "columns": lambda x: x.T[:, x[:, 0] > 0] + 1,
    "of what is transposed": lambda x: x.T[x.T > 0].view(-1, 1),
    "select": lambda x: torch.masked_select(x, x > 0.3),
    "a size": lambda x: torch.ones((x > 0).nonzero().shape[0] * 2, 3),
    "two counts": lambda x: torch.cat([x[x[:, 0] > 0], x[x[:, 1] > 0]]).softmax(-1),
    "of a size": lambda x: x[torch.arange(x.shape[0]) < x.shape[0] // 2 + 1],
    "in a slice": lambda x: x[: (x[:, 0] > 0).nonzero().shape[0]],
    "an item": lambda x: torch.arange(int((x > -9).sum())),
    "an item of a slice": lambda x: x[: (x[:, 0] > -9).sum().item() - 1],
    "arithmetic with an item": lambda x: torch.ones(int((x > -9).sum()) * 2 + 2).view(2, -1),
    "a greatest element": lambda x: torch.arange(int((x * 0 + x.shape[0]).long().max()))[None] < x[:, :1],
    "an item that is computed with": lambda x: x * (x > -9).sum().item() + torch.ones((x > -9).sum().item()).sum(),
}
LENGTHS = (5, 9, 3, 20)


def inputs(*, grad: bool = False) -> list[Tensor]:
    """Return tensors of several lengths, each with elements above zero and elements below."""
    generator = torch.Generator().manual_seed(3)
    drawn = [torch.randn(length, 4, generator=generator) for length in LENGTHS]
    for x in drawn:
        x[0], x[1] = 0.5, -0.5
    return [x.requires_grad_(grad) for x in drawn]


def leaves(results: Any) -> tuple[Tensor, ...]:
    return results if isinstance(results, tuple) else (results,)


def assert_same(found: Any, expected: Any) -> None:
    for leaf, expected_leaf in zip(leaves(found), leaves(expected), strict=True):
        torch.testing.assert_close(leaf, expected_leaf)
        assert leaf.stride() == expected_leaf.stride()


@pytest.mark.parametrize("name", PROGRAMS)
def test_all_counts_share_one_program(name: str) -> None:
    program = PROGRAMS[name]
    compiled = thunder.jit(program, cache="symbolic values", executors=("torch",))
    for x in inputs():
        assert_same(compiled(x), program(x))
    assert thunder.cache_misses(compiled) == 1, thunder.recompile_reasons(compiled)


@pytest.mark.parametrize("name", ["a mask", "rows", "two counts"])
def test_gradients_of_selected_elements_match_eager(name: str) -> None:
    compiled = thunder.jit(PROGRAMS[name], cache="symbolic values", executors=("torch",))
    for x in inputs(grad=True):
        found, expected = (torch.autograd.grad(run(x).square().sum(), x) for run in (compiled, PROGRAMS[name]))
        torch.testing.assert_close(found, expected)
    assert thunder.cache_misses(compiled) == 1


def test_a_count_is_symbolic_from_its_second_value_on() -> None:
    compiled = thunder.jit(PROGRAMS["rows"], executors=("torch",))
    x = inputs()[1]
    for value, misses in ((-1.0, 1), (-1.0, 1), (1.0, 2), (-1.0, 2)):
        x[2:, 0] = value
        x[3, 0] = 1.0
        assert_same(compiled(x), PROGRAMS["rows"](x))
        assert thunder.cache_misses(compiled) == misses
    assert len(compiled(torch.cat([x, x]))) == 2 * len(compiled(x))


def test_branch_on_a_count_is_a_constraint() -> None:
    def program(x: Tensor) -> Tensor:
        chosen = x[x > 0]
        return chosen * 2 if chosen.shape[0] > 3 else x

    compiled = thunder.jit(program, cache="symbolic values", executors=("torch",))
    for count in (5, 4, 1, 7, 3, 2):
        x = torch.full((9,), -1.0)
        x[:count] = 1.0
        assert_same(compiled(x), program(x))
    assert thunder.cache_misses(compiled) == 2
    line = program.__code__.co_firstlineno + 1
    function = program.__qualname__
    where = f"count of nonzero elements at {__file__}:{line}, in {function}"
    assert thunder.recompile_reasons(compiled) == [
        f"{where}: required 4 <= s1, needed at {__file__}:{line + 1}, in {function}, is 1"
    ]


def test_count_of_zero_has_a_separate_program() -> None:
    compiled = thunder.jit(PROGRAMS["a mask"], cache="symbolic values", executors=("torch",))
    for x in (torch.ones(3, 4), -torch.ones(3, 4), torch.ones(2, 4), -torch.ones(5, 4)):
        assert_same(compiled(x), PROGRAMS["a mask"](x))
    assert thunder.cache_misses(compiled) == 2


def test_counts_of_zero_and_one_have_separate_programs() -> None:
    def program(x: Tensor) -> Tensor:
        return torch.ones(int((x > 0).sum()), 2)

    compiled = thunder.jit(program, cache="symbolic values", executors=("torch",))
    for count in (3, 0, 1, 5, 0, 1, 2):
        x = torch.full((6,), -1.0)
        x[:count] = 1.0
        assert_same(compiled(x), program(x))
    assert thunder.cache_misses(compiled) <= 3


def test_count_after_a_write_is_not_computed_in_the_prologue() -> None:
    def program(x: Tensor) -> Tensor:
        x.add_(1)
        return x[x > 0]

    compiled = thunder.jit(program, cache="symbolic values", executors=("torch",))
    for x in inputs():
        mine, theirs = x.clone(), x.clone()
        assert_same(compiled(mine), program(theirs))
        assert torch.equal(mine, theirs)


def sums_around_a_write(x: Tensor) -> Tensor:
    positive = (x > 0).long()
    increased = positive + 1
    positive.fill_(3)
    return x * int(positive.sum()) + int(increased.sum())


def pairs_around_a_write(x: Tensor) -> tuple[Tensor, Tensor]:
    equal = ((x[:, None, 0] > 0) == (x[None, :, 0] > 0)).byte()
    different = equal ^ 1
    equal.fill_diagonal_(0)
    return torch.where(equal)[0], torch.where(different)[1]


def three_counts_around_two_writes(x: Tensor) -> tuple[Tensor, ...]:
    mask = (x > -9).long()
    sums, doubled = mask.cumsum(0), mask * 2
    mask[0] = 0
    tripled, last = mask * 3, mask.nonzero()
    mask.add_(1)
    return last, (sums > 1).nonzero(), (tripled > 2).nonzero(), (doubled > 1).nonzero(), mask.nonzero()


@pytest.mark.parametrize("program", [sums_around_a_write, pairs_around_a_write, three_counts_around_two_writes])
def test_count_of_a_tensor_from_before_a_write_does_not_see_the_write(program: Callable[[Tensor], Any]) -> None:
    compiled = thunder.jit(program, cache="symbolic values", executors=("torch",))
    for x in inputs():
        assert_same(compiled(x), program(x))


def test_size_that_depends_on_a_matrix_product_is_a_symbol() -> None:
    def program(x: Tensor) -> Tensor:
        y = x @ x.T
        return y[y > 0]

    compiled = thunder.jit(program, cache="symbolic values", executors=("torch",))
    for x in inputs():
        assert_same(compiled(x), program(x))
    assert thunder.cache_misses(compiled) == 1
    assert "count_nonzero" in str(thunder.last_prologue_traces(compiled)[-1])


def test_a_size_of_random_numbers_is_a_value() -> None:
    def program(x: Tensor) -> Tensor:
        return x[torch.rand(x.shape[0]) > 0.5]

    compiled = thunder.jit(program, cache="symbolic values", executors=("torch",))
    for seed in (1, 2, 3):
        results = []
        for call in (compiled, program):
            torch.manual_seed(seed)
            results.append(call(inputs()[3]))
        assert_same(*results)
    assert "count_nonzero" not in str(thunder.last_prologue_traces(compiled)[-1])


@pytest.mark.parametrize("name", ["rows", "a mask", "select", "an item", "in a slice"])
def test_values_may_be_sizes_if_values_must_not_determine_the_program(name: str) -> None:
    compiled = thunder.jit(PROGRAMS[name], data_dependent="error", executors=("torch",))
    x = inputs()[3]
    for limit in (-9.0, 0.0, 0.5):
        given = torch.cat([torch.ones(2, 4), x.clamp(min=limit)])[: len(x)]
        assert_same(compiled(given), PROGRAMS[name](given))
    assert thunder.cache_misses(compiled) == 1, thunder.recompile_reasons(compiled)


def test_branch_is_refused_if_values_must_not_determine_the_program() -> None:
    with pytest.raises(thunder.ThunderError, match="value of a tensor"):
        thunder.jit(lambda x: x[x > 0] if x.sum() > 0 else x, data_dependent="error")(inputs()[0])


def rows_kept(x: Tensor, keep: Tensor) -> Tensor:
    chosen = x[keep & (x[:, 0] > 0)]
    return chosen.softmax(-1) * chosen.shape[0]


def test_artifact_counts_in_its_prologue(tmp_path: Path) -> None:
    compiled = thunder.jit(rows_kept, cache="symbolic values", executors=("torch",))
    pairs = [(x, torch.arange(len(x)) % 3 < 2) for x in inputs()]
    compiled(*pairs[0])
    loaded = thunder.load(thunder.save(compiled, tmp_path / "kept"), rows_kept, strict=True)
    for pair in pairs:
        assert_same(loaded(*pair), rows_kept(*pair))
    assert thunder.cache_misses(loaded) == 0
