"""Patterns in programs with symbolic sizes are replaced as with constant sizes, under constraints with reasons."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import thunder_core as thunder
from tests.families import assert_same, gradients, inputs_for, sample
from tests.patterns.test_pattern import SPELLINGS, norm
from thunder_core.backend.claiming.executor import OperatorExecutor
from thunder_core.backend.patterns import hugging_face
from thunder_core.backend.patterns.pattern import Pattern
from thunder_core.tracing.ir.proxy import environment_of

Function = Callable[..., Any]
PATTERNS = (
    *(hugging_face.add_rms_norm, hugging_face.rms_norm, hugging_face.rotary_embedding, hugging_face.swiglu),
    hugging_face.next_token_loss,
)
IN_LLAMA = {"add_rms_norm": 4, "rms_norm": 1, "rotary_embedding": 2, "swiglu": 2}
SIZES = ((2, 5), (3, 9), (4, 2), (1, 17))


def executor_of(pattern: Function | Pattern, by: Function | None = None, **options: Any) -> OperatorExecutor:
    executor = OperatorExecutor("mine")
    executor.replaces(pattern, **options)(by or getattr(pattern, "function", pattern))
    return executor


def count_claimed(compiled: Any) -> Counter[str]:
    """Count the lines of the latest program that the executor runs."""
    steps = [bsym for trace in thunder.last_traces(compiled) for bsym in trace.bound_symbols if "mine" in trace.made_by]
    lines = {id(bsym): bsym for bsym in steps if bsym.executor == "mine"}
    return Counter(bsym.symbol.short_name for bsym in lines.values())


def needed_programs(compiled: Any) -> list[str]:
    return [str(constraint) for constraint in thunder.last_program(compiled).constraints if "mine" in str(constraint)]


def assert_eager(compiled: Any, program: Function, *calls: tuple[Any, ...]) -> None:
    for call in calls:
        torch.testing.assert_close(compiled(*call), program(*call), rtol=0, atol=0)
    assert not thunder.last_program(compiled).constant_because


def lengths(*found: int) -> list[tuple[Tensor, Tensor]]:
    return [(torch.randn(length, 3, 8), torch.randn(8)) for length in found]


# ---- the same as with constant sizes ------------------------------------------------------------------------------


def test_program_with_the_replacement_serves_all_lengths() -> None:
    compiled = thunder.jit(lambda x, w: norm(x + 1, w, 1e-6), executors=[executor_of(norm)], cache="symbolic values")
    assert_eager(compiled, lambda x, w: norm(x + 1, w, 1e-6), *lengths(2, 7, 1, 300))
    assert count_claimed(compiled) == {"norm": 1}
    assert thunder.cache_misses(compiled) == 1
    assert needed_programs(compiled) == []


def test_the_default_mode_has_the_replacement_in_the_program_for_all_lengths() -> None:
    compiled = thunder.jit(lambda x, w: norm(x, w, 1e-6) * 2, executors=[executor_of(norm)])
    assert_eager(compiled, lambda x, w: norm(x, w, 1e-6) * 2, *lengths(2, 7, 1, 300))
    assert count_claimed(compiled) == {"norm": 1}
    assert thunder.cache_misses(compiled) == 2


SPELLED_WITH_SIZES = {
    "sizes of the program": (lambda x: x.view(-1, x.shape[-1]).exp(), lambda x: x.view(x.shape[0] * 3, 8).exp()),
    "a slice to the end": (lambda x: x[1 : x.shape[0]].exp(), lambda x: x[1:].exp()),
    "a part by its size": (lambda x: x[: x.shape[0] // 2].exp(), lambda x: x[: x.size(0) // 2].exp()),
    "a number that is a size": (lambda x, n: (x * n).exp(), lambda x: (x * x.shape[0]).exp()),
    "a size made": (lambda x: x.new_zeros(x.shape[0], 1, 1) + x, lambda x: x.new_zeros(x.shape[0], 1, 1) + x),
}


@pytest.mark.parametrize("name", SPELLED_WITH_SIZES)
def test_pattern_matches_any_spelling_of_a_size(name: str) -> None:
    pattern, program = SPELLED_WITH_SIZES[name]
    compiled = thunder.jit(program, executors=[executor_of(pattern)], symbolic=["x.size(0)"])
    assert_eager(compiled, program, *((torch.randn(length, 3, 8),) for length in (4, 6, 31)))
    assert count_claimed(compiled).total() == 1
    assert thunder.cache_misses(compiled) == 1


# These programs only have some of the pattern's sizes, or their result shape depends on the size that is used.
FOR_ONE_SIZE = {"sizes", "sizes in a tuple", "reshape", "unpacked shapes", "several dimensions"}


@pytest.mark.parametrize("name", sorted(SPELLINGS.keys() - FOR_ONE_SIZE))
def test_spelling_that_matches_constant_sizes_matches_symbolic_sizes(name: str) -> None:
    pattern, program = SPELLINGS[name]
    count = pattern.__code__.co_argcount
    names = [f"{name}.size(0)" for name in program.__code__.co_varnames]
    compiled = thunder.jit(program, executors=[executor_of(pattern)], symbolic=names)
    assert_eager(compiled, program, *(tuple(torch.randn(n, 3, 8) for _ in range(count)) for n in (2, 5)))
    assert count_claimed(compiled).total() == 1
    assert thunder.cache_misses(compiled) == 1


@pytest.mark.parametrize("training", [False, True])
def test_layers_of_a_model_are_replaced_and_serve_all_lengths(training: bool) -> None:
    loaded = sample("llama")
    executor = OperatorExecutor("mine")
    for pattern in PATTERNS:
        executor.replaces(pattern)(pattern.function)
    compiled = thunder.jit(loaded.model, executors=[executor], cache="symbolic values")
    for batch, length in SIZES:
        inputs = inputs_for(loaded, batch=batch, seq=length, labels=training)
        if not training:
            with torch.no_grad():
                assert_same(compiled(**inputs), loaded.model(**inputs))
            continue
        found = [gradients(model, loaded.model, inputs) for model in (compiled, loaded.model)]
        assert_same(*found)
    expected = IN_LLAMA | ({"next_token_loss": 1} if training else {})
    assert expected.items() <= count_claimed(compiled).items()
    assert thunder.cache_misses(compiled) == 1
    assert needed_programs(compiled) == []


# ---- decisions of a match -----------------------------------------------------------------------------------------


def in_one_of_two_ways(x: Tensor) -> Tensor:
    return x.exp() + 1 if x.shape[0] <= 10 else x.exp() + 2


def test_decision_of_the_pattern_is_a_constraint_with_its_reason() -> None:
    program = lambda x: x.exp() + 1  # noqa: E731
    compiled = thunder.jit(program, executors=[executor_of(in_one_of_two_ways)], cache="symbolic values")
    assert_eager(compiled, program, (torch.randn(8),), (torch.randn(6),))
    assert count_claimed(compiled) == {"in_one_of_two_ways": 1}
    assert thunder.cache_misses(compiled) == 1
    (message,) = needed_programs(compiled)
    assert "required s0 <= 10, needed by mine for in_one_of_two_ways at " in message.replace("1 <= s0", "s0")
    assert_eager(compiled, program, (torch.randn(11),))
    assert not count_claimed(compiled)
    assert thunder.cache_misses(compiled) == 2


def evenly(x: Tensor) -> Tensor:
    if x.shape[0] % 4:
        raise NotImplementedError("whole blocks alone")
    return x.exp() + 1


def test_decision_of_the_replacement_is_a_constraint_with_its_reason() -> None:
    program = lambda x: x.exp() + 1  # noqa: E731
    compiled = thunder.jit(program, executors=[executor_of(program, evenly)], cache="symbolic values")
    assert_eager(compiled, program, (torch.randn(8),), (torch.randn(16),))
    assert thunder.cache_misses(compiled) == 1
    assert count_claimed(compiled) == {"evenly": 1}
    (message,) = needed_programs(compiled)
    assert "args[0].size(0): required (s0 % 4) == 0, needed by mine for evenly at " in message
    assert "test_patterns.py" in message
    assert_eager(compiled, program, (torch.randn(9),))
    assert count_claimed(compiled) == {}
    assert thunder.cache_misses(compiled) == 2
    assert "needed by mine for evenly" in thunder.recompile_reasons(compiled)[-1]


def test_decision_of_supports_is_a_constraint_with_its_reason() -> None:
    program = lambda x: x.exp() + 1  # noqa: E731
    long = executor_of(program, supports=lambda bsym: bsym.inputs[0].shape[0] >= 10)
    compiled = thunder.jit(program, executors=[long], cache="symbolic values")
    assert_eager(compiled, program, (torch.randn(12),), (torch.randn(20),), (torch.randn(10),))
    assert count_claimed(compiled).total() == 1
    assert any("10 <= s0" in message for message in needed_programs(compiled))
    assert_eager(compiled, program, (torch.randn(4),), (torch.randn(9),))
    assert not count_claimed(compiled)
    assert thunder.cache_misses(compiled) == 2


def test_match_that_is_not_used_adds_no_constraint() -> None:
    def fours(x: Tensor) -> Tensor:
        return (x * 2).exp() + 1 if x.shape[0] % 4 == 0 else (x * 3).exp() + 1

    program = lambda x: (x * 3).exp() + 1  # noqa: E731
    compiled = thunder.jit(program, executors=[executor_of(fours)], cache="symbolic values")
    assert_eager(compiled, program, (torch.randn(8),), (torch.randn(9),))
    assert not count_claimed(compiled)
    assert thunder.cache_misses(compiled) == 1


def test_replacement_that_may_return_its_input_is_checked_for_each_size() -> None:
    """`reshape` of one row is a view, and a program that writes to the result would differ from a copy."""

    def transposed(x: Tensor) -> Tensor:
        return x.transpose(0, 1).reshape(-1) * 1

    def by_view(x: Tensor) -> Tensor:
        return x.transpose(0, 1).reshape(-1)

    program = lambda x: transposed(x).add_(1)  # noqa: E731
    compiled = thunder.jit(program, executors=[executor_of(transposed, by_view)], cache="symbolic values")
    for rows in (3, 1, 4):
        ours, theirs = torch.ones(rows, 5), torch.ones(rows, 5)
        torch.testing.assert_close(compiled(ours), program(theirs))
        assert torch.equal(ours, theirs)


def test_outcomes_of_a_match_belong_to_one_environment() -> None:
    """Two programs whose sizes have equal names share no outcomes, although they use the same pattern."""
    pattern = executor_of(norm).replacements[0].pattern
    executor = OperatorExecutor("mine")
    executor.replaces(pattern)(norm)
    programs = []
    for smallest in (1, 4):
        program = lambda x, w, least=smallest: norm(x, w, 1e-6) if x.shape[0] >= least else x  # noqa: E731
        programs.append(thunder.jit(program, executors=[executor], symbolic=["x.size(0)"]))
        assert_eager(programs[-1], program, *lengths(smallest, smallest + 9))
        assert count_claimed(programs[-1]) == {"norm": 1}
    environments = [environment_of(thunder.last_traces(compiled)[0].inputs) for compiled in programs]
    assert set(map(id, pattern._outcomes.symbolic)) == set(map(id, environments))


# ---- no kernel is dropped silently --------------------------------------------------------------------------------


def constant_alone(x: Tensor) -> Tensor:
    if any(type(size) is not int for size in x.shape):
        raise NotImplementedError("sizes have to be integers")
    return x.exp() + 1


def test_kernel_for_constant_sizes_keeps_its_programs() -> None:
    """By default no program for all sizes replaces the programs that the user's kernel runs."""
    program = lambda x: x.exp() + 1  # noqa: E731
    compiled = thunder.jit(program, executors=[executor_of(program, constant_alone)])
    for length in (3, 4, 5):
        torch.testing.assert_close(compiled(torch.ones(length)), program(torch.ones(length)))
        assert count_claimed(compiled) == {"constant_alone": 1}
    assert thunder.cache_misses(compiled) == 3
    assert "sizes have to be integers" in thunder.last_program(compiled).constant_because


def test_kernel_that_symbolic_sizes_exclude_is_reported() -> None:
    program = lambda x: x.exp() + 1  # noqa: E731
    compiled = thunder.jit(program, executors=[executor_of(program, constant_alone)], cache="symbolic values")
    assert_eager(compiled, program, (torch.ones(3),), (torch.ones(5),))
    assert not count_claimed(compiled)
    (lost,) = {one for trace in thunder.last_traces(compiled) for one in trace.refused}
    assert lost.by_sizes
    assert "constant_alone is called for constant sizes only" in lost.reason
    assert "sizes have to be integers" in lost.reason


def test_pattern_without_a_match_does_not_prevent_symbolic_sizes() -> None:
    program = lambda x: functional.silu(x * 3) + 1  # noqa: E731
    compiled = thunder.jit(program, executors=[executor_of(lambda x: functional.silu(x * 2) + 1)])
    assert_eager(compiled, program, (torch.ones(3),), (torch.ones(5),), (torch.ones(7),))
    assert thunder.cache_misses(compiled) == 2


# ---- floats that are symbols --------------------------------------------------------------------------------------


def scaled_exp(x: Tensor, scale: float) -> Tensor:
    return (x * scale).exp()


def leaky(x: Tensor, slope: float) -> Tensor:
    return functional.leaky_relu(x, slope) + 1


def twice(x: Tensor, scale: float) -> Tensor:
    return (x * scale).exp() * scale


def of_any_kind(x: Any, scale: Any) -> Any:
    return (x * scale).exp()


WITH_A_FLOAT = (scaled_exp, leaky, twice, of_any_kind)


@pytest.mark.parametrize("pattern", WITH_A_FLOAT, ids=lambda pattern: pattern.__name__)
@pytest.mark.parametrize("options", [{"cache": "symbolic values"}, {"symbolic": ["scale"]}, {}], ids=str)
def test_a_float_that_changes_is_a_parameter_in_inference(pattern: Function, options: dict[str, Any]) -> None:
    executor = executor_of(pattern, lambda *given: pattern(*given))
    compiled = thunder.jit(lambda x, scale: pattern(x + 1, scale), executors=[executor], **options)
    with torch.no_grad():
        for scale in (0.5, 0.25, 3.0, -2.0):
            x = torch.randn(3, 4)
            torch.testing.assert_close(compiled(x, scale), pattern(x + 1, scale), rtol=0, atol=0)
    assert count_claimed(compiled).total() == 1
    assert thunder.cache_misses(compiled) == (1 if options else 2)


@torch.no_grad()
def test_two_floats_are_two_parameters() -> None:
    compiled = thunder.jit(
        lambda x, one, other: twice(x, one) + (x.tanh() * one).exp() * other,
        executors=[executor_of(twice, lambda x, scale: twice(x, scale))],
        cache="symbolic values",
    )
    for scale, factor in ((0.5, 2.0), (3.0, 0.25), (1.5, 1.5)):
        x = torch.randn(3)
        expected = twice(x, scale) + (x.tanh() * scale).exp() * factor
        torch.testing.assert_close(compiled(x, scale, factor), expected, rtol=0, atol=0)
    assert count_claimed(compiled).total() == 1
    assert thunder.cache_misses(compiled) == 1


def decides(x: Tensor, scale: float) -> Tensor:
    return (x * scale).exp() if scale > 0 else x.exp()


@torch.no_grad()
def test_replacement_that_needs_the_value_of_a_float_does_not_match() -> None:
    compiled = thunder.jit(scaled_exp, executors=[executor_of(decides, scaled_exp)], cache="symbolic values")
    for scale in (0.5, -0.25, 3.0):
        x = torch.randn(3)
        torch.testing.assert_close(compiled(x, scale), scaled_exp(x, scale), rtol=0, atol=0)
    assert not count_claimed(compiled)
    assert thunder.cache_misses(compiled) == 1


@torch.no_grad()
def test_the_value_of_a_tensor_is_a_parameter_too() -> None:
    def program(x: Tensor) -> Tensor:
        return scaled_exp(x, x.sum().item())

    compiled = thunder.jit(program, executors=[executor_of(scaled_exp, lambda x, scale: scaled_exp(x, scale))])
    for x in (torch.rand(4), torch.rand(4) - 1):
        torch.testing.assert_close(compiled(x), program(x), rtol=0, atol=0)
    assert count_claimed(compiled).total() == 1
    assert thunder.cache_misses(compiled) == 1
