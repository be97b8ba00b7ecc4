"""Named sizes and numbers are symbolic from the first call on, within the given ranges."""

from __future__ import annotations

import copy
import pickle
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch

import thunder_core as thunder
from thunder_core.backend.claiming.executor import OperatorExecutor
from thunder_core.compilation.compiler import last_program, specializations_of
from thunder_core.foundation.errors import BadSymbolicArgument, RecompileWarning, SpecializationWarning, WrongInputs
from thunder_core.foundation.options.symbolic_arguments import (
    Attribute,
    EachItem,
    SymbolicArgument,
    parse_name,
    symbolic_arguments,
)


def scaled(x: torch.Tensor, step: int, scale: float = 2.0) -> torch.Tensor:
    return x * scale + step


def halves(x: torch.Tensor) -> torch.Tensor:
    return x * 2 if x.shape[0] > 100 else x


def assert_serves(compiled: Any, function: Callable[..., Any], calls: list[tuple[Any, ...]]) -> None:
    for call in calls:
        assert torch.equal(compiled(*call), function(*call))


def test_only_named_values_are_symbolic_from_the_first_call() -> None:
    compiled = thunder.jit(scaled, symbolic=["x.size(1)", "step", "scale"])
    assert_serves(compiled, scaled, [(torch.randn(2, n), n, n / 3) for n in (3, 1, 64)])
    assert thunder.cache_misses(compiled) == 1
    trace = thunder.last_traces(compiled)[-1]
    assert "f32[2, s" in str(trace), trace


def test_branch_that_a_range_implies_adds_no_guard() -> None:
    def bounded(x: torch.Tensor) -> torch.Tensor:
        return x * 2 if 2 <= x.shape[0] <= 100 and x.shape[0] * 2 < 201 else x

    compiled = thunder.jit(bounded, symbolic={"x.size(0)": (2, 100)})
    assert_serves(compiled, bounded, [(torch.ones(n),) for n in (2, 7, 100)])
    assert thunder.cache_misses(compiled) == 1
    (constraint,) = last_program(compiled).constraints
    assert str(constraint) == "args[0].size(0): required 2 <= s0 <= 100, the given range"


def test_range_of_a_number_decides_a_branch() -> None:
    def chosen(x: torch.Tensor, n: int) -> torch.Tensor:
        return x + n if n > 0 else x

    compiled = thunder.jit(chosen, symbolic={"n": (1, 9)})
    assert_serves(compiled, chosen, [(torch.ones(3), n) for n in (1, 5, 9)])
    assert thunder.cache_misses(compiled) == 1
    with pytest.warns(RecompileWarning, match=r"called with n 0, outside of 1 to 9"):
        assert_serves(compiled, chosen, [(torch.ones(3), 0)])


def test_call_outside_the_range_warns_and_is_traced_without_the_range() -> None:
    compiled = thunder.jit(halves, symbolic={"x.size(0)": (101, 200)})
    assert_serves(compiled, halves, [(torch.ones(150),), (torch.ones(101),)])
    with pytest.warns(RecompileWarning, match=r"halves was called with x\.size\(0\) 50, outside of 101 to 200"):
        assert_serves(compiled, halves, [(torch.ones(50),)])
    assert thunder.recompile_reasons(compiled) == ["args[0].size(0): required 101 <= s0 <= 200, the given range, is 50"]
    assert_serves(compiled, halves, [(torch.ones(150),)])
    assert thunder.cache_misses(compiled) == 2


def test_call_outside_the_range_is_refused_with_the_same_input_cache() -> None:
    compiled = thunder.jit(halves, symbolic={"x.size(0)": (101, 200)}, cache="same input")
    assert_serves(compiled, halves, [(torch.ones(150),), (torch.ones(101),)])
    with pytest.raises(WrongInputs, match="the given range, is 201"):
        compiled(torch.ones(201))


def test_program_that_does_not_serve_the_range_warns_with_the_line() -> None:
    compiled = thunder.jit(halves, symbolic={"x.size(0)": (1, 200)})
    line = halves.__code__.co_firstlineno + 1
    with pytest.warns(SpecializationWarning) as caught:
        assert_serves(compiled, halves, [(torch.ones(150),), (torch.ones(200),)])
    (message,) = (str(warning.message) for warning in caught)
    assert "101 <= x.size(0) <= 200, needed at" in message
    assert f"test_named.py:{line}, in halves" in message
    assert "{'x.size(0)': (101, 200)}" in message
    with pytest.warns(SpecializationWarning, match=r"1 <= x\.size\(0\) <= 100"):
        assert_serves(compiled, halves, [(torch.ones(100),), (torch.ones(1),)])
    assert thunder.cache_misses(compiled) == 2


def test_named_size_that_becomes_a_constant_warns() -> None:
    def told(x: torch.Tensor) -> tuple[torch.Tensor, str]:
        return x + 1, f"{x.shape[0]}".upper()

    compiled = thunder.jit(told, symbolic=["x.size(0)"])
    with pytest.warns(SpecializationWarning, match=r"one value of x\.size\(0\).* == 4, needed at .*told"):
        compiled(torch.ones(4))


def test_condition_that_excludes_values_warns() -> None:
    def even(x: torch.Tensor) -> torch.Tensor:
        return x.view(2, -1) if x.shape[0] % 2 == 0 else x

    compiled = thunder.jit(even, symbolic={"x.size(0)": (2, 64)})
    with pytest.warns(SpecializationWarning, match=r"x\.size\(0\) % 2"):
        compiled(torch.ones(8))


def test_program_that_cannot_be_traced_with_symbols_warns() -> None:
    def asked(x: torch.Tensor) -> tuple[torch.Tensor, Any]:
        return x, torch._C._VariableFunctions.is_floating_point(x) and __import__("json").dumps([x.shape[0]])

    compiled = thunder.jit(asked, symbolic=["x.size(0)"])
    with pytest.warns(SpecializationWarning, match=r"traced for the exact values of x\.size\(0\)"):
        compiled(torch.ones(4))


NAMES = {
    "scale": ("scale", (), None),
    "x.size(1)": ("x", (), 1),
    "x.size(-1)": ("x", (), -1),
    "batch['input_ids'].size(1)": ("batch", ("input_ids",), 1),
    'batch["a b"][0].size(2)': ("batch", ("a b", 0), 2),
    "rest[-1]": ("rest", (-1,), None),
    "cache.layers[*].keys.size(-2)": ("cache", (Attribute("layers"), EachItem(), Attribute("keys")), -2),
    "x.size(0) with cache": ("x", (), 0),
}


@pytest.mark.parametrize("name", NAMES)
def test_names_are_parsed(name: str) -> None:
    path = parse_name(name)
    assert (path.argument, path.items, path.dimension) == NAMES[name]


def items(batch: dict[str, Any], rest: list[Any]) -> torch.Tensor:
    return batch["x"] * rest[0][1]


def stars(x: torch.Tensor, *rest: Any, **named: Any) -> torch.Tensor:
    return x * rest[1] + named["y"]


class Doubled(torch.nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor | None = None) -> torch.Tensor:
        return x * 2 if y is None else x + y


def test_items_are_named() -> None:
    compiled = thunder.jit(items, symbolic=["batch['x'].size(0)", "rest[-1][1]"])
    for n in (3, 5):
        call: tuple[Any, ...] = ({"x": torch.ones(n)}, [(0, n)])
        assert torch.equal(compiled(*call), items(*call))
    assert thunder.cache_misses(compiled) == 1


def test_star_keyword_and_positional_arguments_are_named() -> None:
    compiled = thunder.jit(stars, symbolic=["x.size(0)", "rest[1]", "y.size(0)"])
    for n in (3, 5):
        assert torch.equal(compiled(torch.ones(n), 7, n, y=torch.ones(n)), torch.ones(n) * n + 1)
    assert thunder.cache_misses(compiled) == 1
    module = thunder.jit(Doubled(), symbolic=["x.size(0)", "y.size(0)"])
    for n in (3, 5):
        assert torch.equal(module(x=torch.ones(n)), torch.ones(n) * 2)
        assert torch.equal(module(torch.ones(n), torch.ones(n)), torch.ones(n) * 2)
    assert thunder.cache_misses(module) == 2  # with and without y


BAD: dict[str, tuple[Any, str]] = {
    "no list": ("x", "not a list of names"),
    "a number": (3, "not a list of names"),
    "no name": ([3], "neither a number nor a size"),
    "another grammar": (["x.shape[0]"], r"input_ids\.size\(1\)"),
    "no companion": (["x.size(0) with "], "neither a number nor a size"),
    "a method": (["x.keys()"], "neither a number nor a size"),
    "unknown": (["xx.size(0)"], "did you mean x"),
    "of the end": ({"x.size(0)": (8, 1)}, "has no values"),
    "one value": ({"x.size(0)": (8, 8)}, "only one value"),
    "no pair": ({"x.size(0)": (1, 2, 3)}, "not a pair"),
    "words": ({"x.size(0)": ("1", "2")}, "must be integers"),
    "booleans": ({"x.size(0)": (True, 8)}, "must be integers"),
    "zero": ({"x.size(0)": (0, 8)}, "a size of 0 is never symbolic"),
    "to one": ({"x.size(0)": (None, 1)}, "only one value"),
    "to zero": ({"x.size(0)": (5, 0)}, "has no values"),
    "no index": (["x[007].size(0)"], "neither an index nor a key"),
    "a list": ([["x.size(0)", 1, 8]], "neither a number nor a size"),
}
BAD_CALLS: dict[str, tuple[Any, str]] = {
    "dimension": (["x.size(2)"], r"the tensor has the shape \[3\]"),
    "a tensor": (["x"], r"x\.size\(0\)"),
    "no tensor": (["step.size(0)"], "which is an object of class int, not a tensor"),
    "an item of a tensor": (["x[0]"], "an item of an object of class Tensor"),
    "twice": (["x.size(0)", "x.size(-1)"], "the same value twice"),
    "range of a float": ({"scale": (1, 2)}, "it is a float"),
    "no number": (["text"], "which is an object of class str"),
    "a boolean": (["flag"], "which is an object of class bool"),
    "no item": (["table['b']"], "no such item: 'b'"),
    "no attribute": (["x.weight.size(0)"], "an object of class Tensor has no instance attribute 'weight'"),
    "an attribute of a number": (["step.keys.size(0)"], "an object of class int has no instance attribute 'keys'"),
    "each item of a number": (["step[*].size(0)"], "each item of an object of class int"),
}


def any_of(x: Any, step: Any, scale: Any, text: Any, flag: Any, table: Any) -> Any:
    return x


@pytest.mark.parametrize("name", BAD)
def test_invalid_names_and_ranges_are_refused_by_jit(name: str) -> None:
    given, message = BAD[name]
    with pytest.raises(BadSymbolicArgument, match=message):
        thunder.jit(halves, symbolic=given)


@pytest.mark.parametrize("name", BAD_CALLS)
def test_names_without_a_value_are_refused_by_the_call(name: str) -> None:
    given, message = BAD_CALLS[name]
    compiled = thunder.jit(any_of, symbolic=given)
    with pytest.raises(BadSymbolicArgument, match=message):
        compiled(torch.ones(3), 1, 2.0, "a", True, {"a": 1})


def test_a_misspelled_keyword_is_refused_by_the_call() -> None:
    with pytest.raises(BadSymbolicArgument, match="no argument is named 'yy'"):
        thunder.jit(stars, symbolic=["yy.size(0)"])(torch.ones(2), 1, 2, y=torch.ones(2))


def test_copies_pickles_and_artifacts_keep_the_names(tmp_path: Any) -> None:
    compiled = thunder.jit(Doubled(), symbolic={"x.size(0)": (2, 64)})
    loaded = None
    for run in (compiled, copy.deepcopy(compiled), pickle.loads(pickle.dumps(compiled))):
        for n in (2, 64, 7):
            assert torch.equal(run(torch.ones(n)), torch.full((n,), 2.0))
        assert thunder.cache_misses(run) == 1
        assert specializations_of(run).options.symbolic == (SymbolicArgument("x.size(0)", 2, 64),)
    folder = thunder.save(compiled, tmp_path / "a")
    loaded = thunder.load(folder, Doubled(), strict=True)
    for n in (2, 64, 9):
        assert torch.equal(loaded(torch.ones(n)), torch.full((n,), 2.0))
    with pytest.raises(WrongInputs, match="2 <= s0 <= 64, the given range, is 65"):
        loaded(torch.ones(65))
    with pytest.warns(RecompileWarning, match="outside of 2 to 64"):
        thunder.load(folder, Doubled())(torch.ones(65))


class TakesNone(OperatorExecutor):
    """An executor without symbolic sizes that claims nothing."""

    symbolic_sizes: ClassVar[bool] = False


@dataclass
class Layer:
    """A layer of a cache, as models keep it for the next tokens."""

    keys: torch.Tensor | None = None
    scale: float = 1.0


@dataclass
class Cache:
    layers: list[Layer]


def with_cache(x: torch.Tensor, cache: Cache | None = None) -> torch.Tensor:
    for layer in cache.layers if cache is not None else ():
        layer.keys = x if layer.keys is None else torch.cat([layer.keys, x])
        x = x + layer.keys.sum() * layer.scale
    return x * 2


def test_attributes_and_stars_name_sizes_and_numbers_of_objects() -> None:
    compiled = thunder.jit(with_cache, symbolic=["cache.layers[*].keys.size(0)", "cache.layers[*].scale"])
    for lengths, programs in (((4, 4), 1), ((9, 9), 1), ((7, 1), 2), ((300, 2), 2), ((5, 5), 2)):
        ours, theirs = (Cache([Layer(torch.ones(n), 1.0 / n) for n in lengths]) for _ in range(2))
        x = torch.randn(3)
        assert torch.equal(compiled(x, ours), with_cache(x, theirs))
        assert all(torch.equal(*(result.layers[n].keys for result in (ours, theirs))) for n in range(2))
        assert thunder.cache_misses(compiled) == programs  # equal values share one symbol
    compiled(x, Cache([Layer(), Layer()]))
    assert thunder.cache_misses(compiled) == 3  # an empty layer has no value of that name


def test_name_with_a_companion_applies_if_the_companion_is_passed() -> None:
    compiled = thunder.jit(with_cache, symbolic=["x.size(0) with cache"])
    for n in (4, 5, 6):
        compiled(torch.ones(n), Cache([]))
    assert thunder.cache_misses(compiled) == 1
    assert "s0" in str(thunder.last_traces(compiled)[0])
    compiled(torch.ones(4))
    assert "s0" not in str(thunder.last_traces(compiled)[0])


def test_name_with_a_companion_is_a_hint_without_warnings() -> None:
    def halved(x: torch.Tensor, cache: Cache | None = None) -> torch.Tensor:
        return x[: x.shape[0] // 2] if x.shape[0] % 2 == 0 else x * int(f"{x.shape[0]}")

    compiled = thunder.jit(halved, symbolic={"x.size(0) with cache": (2, None)})
    for n in (4, 1, 6, 3):  # warnings are errors
        assert torch.equal(compiled(torch.ones(n), Cache([])), halved(torch.ones(n)))
    assert thunder.cache_misses(compiled) == 3


def test_executor_without_symbolic_sizes_does_not_make_a_program_of_each_length() -> None:
    """The executor is left out of the program for all lengths: a program for each token would take seconds a token."""
    compiled = thunder.jit(with_cache, executors=[TakesNone("takes_none"), "torch"], symbolic=["x.size(0) with cache"])
    for length in range(4, 12):
        torch.testing.assert_close(compiled(torch.ones(length), Cache([])), with_cache(torch.ones(length), Cache([])))
    assert thunder.cache_misses(compiled) == 1
    assert "s0" in str(thunder.last_traces(compiled)[0])
    assert any(refusal.executor == "takes_none" for refusal in thunder.last_traces(compiled)[-1].refused)


def test_named_size_of_zero_and_named_argument_none_are_accepted() -> None:
    compiled = thunder.jit(Doubled(), symbolic=["x.size(0)", "y.size(0)"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert compiled(torch.ones(0), None).shape == (0,)


def test_ranges_are_described_in_words() -> None:
    texts = [
        argument.range_text for argument in symbolic_arguments({"a": None, "b": (1, None), "c": (None, 2), "d": (1, 2)})
    ]
    assert texts == ["any", "1 and more", "at most 2", "1 to 2"]


def test_condition_that_holds_throughout_the_range_adds_no_constraint() -> None:
    def clamped(x: torch.Tensor) -> torch.Tensor:
        return x * 2 if min(256, x.shape[0]) == x.shape[0] and x.shape[0] % 97 != 0 else x

    compiled = thunder.jit(clamped, symbolic={"x.size(0)": (2, 96)})
    assert_serves(compiled, clamped, [(torch.ones(n),) for n in (5, 2, 96)])
    assert [constraint.needed for constraint in last_program(compiled).constraints] == ["the given range"]
    wider = thunder.jit(clamped, symbolic={"x.size(0)": (2, 97)})
    with pytest.warns(SpecializationWarning, match=r"% 97"):
        wider(torch.ones(5))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SpecializationWarning)
        assert_serves(wider, clamped, [(torch.ones(97),), (torch.ones(96),)])
