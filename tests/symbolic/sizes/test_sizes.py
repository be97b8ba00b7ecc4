"""Programs with symbolic sizes match eager PyTorch, at sizes that were traced and at others."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_leaves

import thunder_core as thunder
from tests.symbolic.programs import FEATURES, PROGRAMS
from thunder_core.compilation.compiler import last_program

SHAPES = ((2, 7), (1, 5), (4, 1), (2, 64))
# Number of programs that these four shapes may need; 2 if not listed.
SPECIAL = {"formats_sizes": 4, "computes_with_sizes": 4, "joins_and_parts": 4, "branches": 4, "loops_over_a_size": 3}
MOST = {**SPECIAL, "writes_to_a_part": 4, "takes_the_smaller": 3, "multiplies": 3, "repeats": 3, "returns_sizes": 3}
NOT_DIFFERENTIATED = {"returns_sizes", "formats_sizes"}


def assert_same(expected: Any, found: Any) -> None:
    """Assert equal values, classes and layouts, except for strides of dimensions with one element."""
    for expected_leaf, leaf in zip(tree_leaves(expected), tree_leaves(found), strict=True):
        assert type(expected_leaf) is type(leaf)
        if not isinstance(expected_leaf, torch.Tensor):
            assert expected_leaf == leaf
            continue
        torch.testing.assert_close(leaf, expected_leaf, equal_nan=True)
        assert laid_out(expected_leaf) == laid_out(leaf)


def laid_out(tensor: torch.Tensor) -> list[int]:
    return [stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size > 1]


def gradient_of(function: Callable[[torch.Tensor], Any], x: torch.Tensor) -> tuple[Any, torch.Tensor | None]:
    x = x.clone().requires_grad_()
    results = function(x)
    ends = [leaf for leaf in tree_leaves(results) if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
    sum(((end * end).sum() for end in ends), start=torch.zeros(())).backward()
    return results, x.grad


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.filterwarnings("ignore::thunder_core.foundation.errors.RecompileWarning")
def test_programs_equal_eager_at_all_sizes(name: str) -> None:
    compiled = thunder.jit(PROGRAMS[name], cache="symbolic values")
    for shape in SHAPES:
        x = torch.randn(*shape, FEATURES)
        assert_same(PROGRAMS[name](x.clone()), compiled(x.clone()))
    assert thunder.cache_misses(compiled) <= MOST.get(name, 2)


@pytest.mark.parametrize("name", [name for name in PROGRAMS if name not in NOT_DIFFERENTIATED])
@pytest.mark.filterwarnings("ignore::thunder_core.foundation.errors.RecompileWarning")
def test_gradients_equal_eager_at_all_sizes(name: str) -> None:
    compiled = thunder.jit(PROGRAMS[name], cache="symbolic values")
    for shape in SHAPES:
        x = torch.randn(*shape, FEATURES)
        (expected, wanted), (found, gradient) = gradient_of(PROGRAMS[name], x), gradient_of(compiled, x)
        assert_same(expected, found)
        if wanted is not None and gradient is not None:
            torch.testing.assert_close(gradient, wanted)
    assert thunder.cache_misses(compiled) <= MOST.get(name, 2)


def test_few_programs_serve_all_lengths_forward_and_backward() -> None:
    """A few programs serve all lengths and batches, each with a separate backward."""

    def layer(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        hidden = (x @ weight).view(x.shape[0], x.shape[1], 2, 4).transpose(1, 2).contiguous()
        return torch.nn.functional.pad(hidden, (0, 1)).flatten(2).sum(-1)

    compiled = thunder.jit(layer, cache="symbolic values")
    for shape in ((1, 1), (2, 5), (1, 64), (7, 1), (3, 3)):
        x, weight = torch.randn(*shape, 8), torch.randn(8, 8, requires_grad=True)
        torch.testing.assert_close(compiled(x, weight), layer(x, weight))
        (found,) = torch.autograd.grad(compiled(x, weight).sum(), weight)
        (expected,) = torch.autograd.grad(layer(x, weight).sum(), weight)
        torch.testing.assert_close(found, expected)
    assert thunder.cache_misses(compiled) <= 3  # PyTorch's formulas for the backward check whether sizes are one
    assert not thunder.last_backward_reason(compiled)


def test_an_input_that_is_written_to_is_written_to_at_all_sizes() -> None:
    def scaled(x: torch.Tensor) -> torch.Tensor:
        x.mul_(2)
        return x.sum()

    compiled = thunder.jit(scaled, cache="symbolic values")
    for length in (3, 4, 9):
        one, other = torch.ones(2, length), torch.ones(2, length)
        assert compiled(one) == scaled(other)
        assert torch.equal(one, other)
    assert thunder.cache_misses(compiled) == 1


def test_copy_that_is_a_view_for_some_sizes_is_not_treated_as_a_copy() -> None:
    """`contiguous` returns the tensor itself if one dimension has one element, and writes reach the tensor."""

    def written(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        rows = x.t()
        rows.contiguous().add_(1)
        return x.clone(), rows

    compiled = thunder.jit(written, cache="symbolic values")
    for shape in ((3, 4), (1, 4), (5, 1), (2, 2)):
        x = torch.zeros(shape)
        assert_same(written(x.clone()), compiled(x.clone()))


def test_copy_of_a_written_tensor_has_one_program_for_all_sizes() -> None:
    def appended(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x[:, 0] = 1
        columns = x[:, None].expand(-1, 2, -1).reshape(-1, x.shape[1])
        y.add_(1)
        return columns.sum() + y.t().contiguous().sum()

    compiled = thunder.jit(appended, cache="symbolic values")
    for rows in (3, 1, 4):
        ours, theirs = (torch.arange(2.0 * rows).view(rows, 2) for _ in range(2))
        assert torch.equal(compiled(ours, ours.clone()), appended(theirs, theirs.clone()))
        assert torch.equal(ours, theirs)
    assert thunder.cache_misses(compiled) == 1, thunder.recompile_reasons(compiled)


def test_writes_by_an_index_tensor_match_eager_at_all_sizes() -> None:
    def stored(x: torch.Tensor, y: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        rolled = x.roll(-1, dims=-2)
        rolled[:, :, index] = y
        return rolled

    compiled = thunder.jit(stored, cache="symbolic values")
    for rows, length in ((2, 5), (1, 5), (3, 4)):
        inputs = torch.randn(rows, 2, length, 4), torch.randn(rows, 2, 1, 4), torch.tensor([-1])
        assert torch.equal(compiled(*inputs), stored(*inputs))
    assert thunder.cache_misses(compiled) == 1, thunder.recompile_reasons(compiled)
    narrow = torch.randn(2, 2, 5, 4), torch.randn(2, 3, 1, 4), torch.tensor([-1])
    with pytest.raises(RuntimeError, match="shape mismatch"):
        stored(*narrow)
    with pytest.raises(RuntimeError, match="shape mismatch"):
        compiled(*narrow)


def test_sizes_of_different_tensors_are_different_symbols() -> None:
    def outer(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x[:, None] + y if x.shape[0] != y.shape[0] else x + y

    compiled = thunder.jit(outer, cache="symbolic values")
    for rows, columns in ((3, 4), (5, 2), (3, 3), (7, 7)):
        x, y = torch.randn(rows), torch.randn(columns)
        assert torch.equal(compiled(x, y), outer(x, y))
    assert thunder.cache_misses(compiled) == 2


def test_program_that_cannot_be_symbolic_is_specialized_with_a_reason() -> None:
    def told(x: torch.Tensor) -> tuple[torch.Tensor, str]:
        return x + 1, json.dumps([x.shape[0]])

    compiled = thunder.jit(told, cache="symbolic values")
    for length in (4, 5):
        x = torch.arange(length)
        assert_same(told(x), compiled(x))
        assert "container" in last_program(compiled).constant_because
    assert thunder.cache_misses(compiled) == 2


def test_result_is_a_view_for_the_sizes_for_which_eager_returns_a_view() -> None:
    """The caller may write to the result: `contiguous` returns the tensor itself if one dimension has one element."""
    compiled = thunder.jit(lambda x: x.t().contiguous(), cache="symbolic values")
    for shape in ((3, 4), (1, 4), (5, 1), (2, 2)):
        x = torch.zeros(shape)
        compiled(x).add_(1)
        assert bool(x.any()) == (1 in shape)


def test_overlap_is_checked_again_for_other_sizes() -> None:
    def written(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        b.add_(1)
        return a.sum()

    compiled = thunder.jit(written, cache="symbolic values")
    memory = torch.zeros(16)  # whose slices begin at the same offsets at each call
    for end in (4, 12, 6, 9):
        memory.zero_()
        assert compiled(memory[:end], memory[8:12]) == max(0, end - 8)


def test_names_of_symbols_differ_from_names_of_parameters() -> None:
    compiled = thunder.jit(lambda s0, n0: (s0 * 2, torch.cat([n0, n0]), n0.shape[0] + 1), cache="symbolic values")
    for length in (2, 3):
        one, other = torch.ones(length), torch.ones(length + 1)
        assert_same((one * 2, torch.cat([other, other]), length + 2), compiled(one, other))
    assert thunder.cache_misses(compiled) == 1


def test_strides_of_dimensions_of_one_element_do_not_specialize() -> None:
    compiled = thunder.jit(lambda x: x.transpose(1, 2) * 1, cache="symbolic values")
    for length in (3, 4, 5):
        x = torch.randn(2, length, 1).transpose(1, 2)
        assert_same(x.transpose(1, 2) * 1, compiled(x))
    assert thunder.cache_misses(compiled) == 1


@pytest.mark.parametrize("lengths", [(0, 1, 2, 8), (8, 2, 1, 0), (1, 8, 0)])
def test_sizes_of_zero_and_one_have_separate_programs_if_strides_are_read(
    lengths: tuple[int, ...],
) -> None:
    def looked(x: torch.Tensor) -> tuple[Any, ...]:
        last = x[:, -1:]
        return last.shape, x.stride(), (x * 1).stride(), last

    compiled = thunder.jit(looked, cache="symbolic values")
    for length in lengths:
        expected, found = looked(torch.ones(2, length)), compiled(torch.ones(2, length))
        assert expected[:3] == found[:3]
        assert torch.equal(expected[3], found[3])
    assert thunder.cache_misses(compiled) == 3


def test_sizes_of_slices_are_computed_from_their_bounds() -> None:
    def sizes(x: torch.Tensor, start: int, end: int) -> tuple[Any, ...]:
        parts = x[start:end], x[start:], x[:end:2], x.tensor_split([start, end])[1], x[x.shape[0] - end :]
        return *(torch.zeros(part.shape[0]) for part in parts), *parts

    compiled = thunder.jit(sizes, cache="symbolic values")
    for length, start, end in ((6, 2, 4), (9, 5, 2), (3, 0, 7), (4, -3, 3), (5, 1, -1), (4, -9, -2), (1, 0, 1)):
        x = torch.randn(length)
        assert_same(sizes(x, start, end), compiled(x, start, end))
    assert thunder.cache_misses(compiled) <= 5, thunder.recompile_reasons(compiled)


@pytest.mark.parametrize("dims", [(), (0,), (-1,), ((0, -1),)])
def test_dimensions_that_squeeze_drops_are_constraints(dims: tuple[Any, ...]) -> None:
    compiled = thunder.jit(lambda x: x.squeeze(*dims).shape, cache="symbolic values")
    for shape in ((2, 3, 4), (1, 3, 1), (1, 1, 1), (2, 1, 1), (1, 1, 2), (5, 1, 7)):
        assert torch.ones(shape).squeeze(*dims).shape == compiled(torch.ones(shape))


@pytest.mark.parametrize("dims", [(), (0,), ((0, -1),)])
def test_squeeze_drops_a_dimension_whose_size_is_computed(dims: tuple[Any, ...]) -> None:
    def program(x: torch.Tensor) -> torch.Size:
        return x.chunk(2)[1].squeeze(*dims).shape

    compiled = thunder.jit(program, cache="symbolic values")
    for length in (3, 2, 5, 9):
        assert program(torch.ones(length, 3, 3)) == compiled(torch.ones(length, 3, 3))


LENGTHS: dict[str, Callable[[torch.Tensor, int], Any]] = {
    "expand": lambda x, n: x.expand(n, 4).shape,
    "reshape": lambda x, n: x.reshape(n, 2).shape,
    "zeros": lambda x, n: torch.zeros(n, 2).shape[0],
    "unflatten": lambda x, n: x.unflatten(1, (n, 2)).shape,
    "full": lambda x, n: x.new_full((n,), 1.0).shape,
}


@pytest.mark.parametrize("name", LENGTHS)
@pytest.mark.parametrize("lengths", [(2, -1, 4, -3), (-1, 2, 1, -3)])
def test_negative_lengths_are_inferred_or_raise(name: str, lengths: tuple[int, ...]) -> None:
    def told(function: Callable[..., Any], n: int) -> Any:
        try:
            return function(torch.ones(1, 4), n)
        except RuntimeError as error:
            return str(error).splitlines()[0]

    compiled = thunder.jit(LENGTHS[name], cache="symbolic values")
    for n in lengths:
        assert told(LENGTHS[name], n) == told(compiled, n)


def strides_of_a_copy(x: torch.Tensor) -> tuple[int, ...]:
    return x.transpose(0, 1).reshape(x.shape[1], -1).stride()


def strides_of_what_is_contiguous(x: torch.Tensor) -> tuple[Any, ...]:
    return x.t().contiguous().stride(), (x * 2).stride()


@pytest.mark.parametrize(
    "function", [strides_of_a_copy, strides_of_what_is_contiguous], ids=lambda function: function.__name__
)
@pytest.mark.parametrize("first", [(5, 1), (2, 3), (1, 4), (1, 1)])
def test_strides_that_a_program_reads_match_eager(function: Callable[..., Any], first: tuple[int, int]) -> None:
    compiled = thunder.jit(function, cache="symbolic values")
    for shape in (first, (5, 1), (1, 5), (3, 4), (1, 1), (6, 2)):
        x = torch.ones(shape)
        assert compiled(x) == function(x)
    assert thunder.cache_misses(compiled) <= 5
