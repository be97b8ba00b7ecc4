"""`torch.while_loop` in compiled programs: results that its condition and its body may return, compared with eager."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, vmap
from torch._higher_order_ops import while_loop

import thunder_core as thunder

# Eager PyTorch compiles the functions that are passed to the operator.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning", "ignore::FutureWarning")

X = torch.tensor([1.0, 2.0, 3.0])


def double(x: Tensor) -> tuple[Tensor]:
    return (x * 2,)


def double_and_count(i: int, x: Tensor) -> tuple[int, Tensor]:
    return i + 1, x * 2


def sum_is_small(x: Tensor) -> Tensor:
    return x.sum() < 20


def is_early(i: int, x: Tensor) -> bool:
    return i < 2


def item_is_small(tree: dict[str, Tensor]) -> Tensor:
    return sum_is_small(tree["a"])


def none(i: int, x: Tensor) -> bool:
    return i < 0


def dict_with_a_number(x: Tensor) -> Any:
    body = lambda tree: ({"i": tree["i"] + 1, "x": tree["x"] * 2},)  # noqa: E731
    return while_loop(lambda tree: tree["i"] < 2, body, ({"i": 0, "x": x},))


def never_doubled(x: Tensor) -> tuple[Tensor, Tensor]:
    """The result of a loop without turns is a copy, which may be written to."""
    result: Tensor = while_loop(none, double_and_count, (0, x))[1]
    return result.mul_(5), x * 1


# Each with the result of eager PyTorch, which takes seconds to compile.
RESULTS: dict[str, tuple[Callable[[Tensor], Any], Any]] = {
    "a list": (lambda x: while_loop(sum_is_small, lambda x: [x * 2], (x,)), [X * 4]),
    "a tensor": (lambda x: while_loop(sum_is_small, lambda x: x * 2, (x,)), X * 4),
    "a dict": (lambda x: while_loop(item_is_small, lambda d: ({"a": d["a"] * 2},), ({"a": x},)), ({"a": X * 4},)),
    "another dict": (lambda x: while_loop(item_is_small, lambda d: {"b": d["a"] * 2}, ({"a": x},)), {"b": X * 4}),
    "a list and a number": (lambda x: while_loop(is_early, lambda i, x: [i + 1, x * 2], (0, x)), [2, X * 4]),
    "a dict with a number": (dict_with_a_number, ({"i": 2, "x": X * 4},)),
    "a structure of no turn": (lambda x: while_loop(none, lambda i, x: [i + 1, x * 2], (0, x)), [0, X]),
    "a copy": (never_doubled, (X * 5, X)),
    "a boolean carried": (lambda x: while_loop(lambda b, x: b, lambda b, x: (False, x * 2), (True, x)), (False, X * 2)),
    "a tensor's value": (lambda x: while_loop(lambda i, x: sum_is_small(x), double_and_count, (0, x)), (2, X * 4)),
    "False": (lambda x: while_loop(lambda x: False, double, (x,)), (X,)),
    "a size": (lambda x: while_loop(lambda x: x.shape[0] < 2, double, (x,)), (X,)),
    "None": (lambda x: while_loop(lambda x: None, double, (x,)), (X,)),
    "nothing": (lambda x: while_loop(lambda: False, lambda: (), ()), ()),
}


@pytest.mark.parametrize("cache", ["constant values", "symbolic values"])
@pytest.mark.parametrize("name", RESULTS)
def test_results_match_eager(name: str, cache: Any) -> None:
    program, expected = RESULTS[name]
    torch.testing.assert_close(thunder.jit(program, cache=cache)(X.clone()), expected)


def test_results_listed_in_this_file_match_eager() -> None:
    program, expected = RESULTS["a dict with a number"]
    torch.testing.assert_close(program(X), expected)


PREDICATE = "unsupported cond_fn return type"
METADATA = "carried_inputs to have same metadata"
ERRORS: dict[str, tuple[Callable[[Tensor], Any], str]] = {
    "floats": (lambda x: while_loop(lambda x: x.sum().clamp(max=0), double, (x,)), PREDICATE),
    "an integer tensor": (lambda x: while_loop(lambda x: sum_is_small(x).int(), double, (x,)), PREDICATE),
    "one element": (lambda x: while_loop(lambda x: x[:1] < 9, double, (x,)), PREDICATE),
    "several elements": (lambda x: while_loop(lambda x: x < 9, double, (x,)), PREDICATE),
    "a tuple": (
        lambda x: while_loop(lambda x: (sum_is_small(x),), double, (x,)),
        "must return a boolean scalar tensor",
    ),
    "an endless loop": (lambda x: while_loop(lambda x: True, double, (x,)), "Infinite loop detected"),
    "a number for a boolean": (lambda x: while_loop(lambda i, x: 2 - i, double_and_count, (0, x)), "boolean scalar"),
    "an element and a number": (lambda x: while_loop(lambda i, x: x[:1] < 9, double_and_count, (0, x)), PREDICATE),
    "a tuple and a number": (lambda x: while_loop(lambda i, x: (i < 2,), double_and_count, (0, x)), "boolean scalar"),
    "a dtype": (lambda x: while_loop(is_early, lambda i, x: (i + 1, x.double()), (0, x)), METADATA),
    "a shape": (lambda x: while_loop(is_early, lambda i, x: (i + 1, torch.cat([x, x])), (0, x)), METADATA),
    "a stride": (lambda x: while_loop(is_early, lambda i, x: (i + 1, x.T * 1), (0, x.outer(x))), METADATA),
    "a tensor for a number": (lambda x: while_loop(is_early, lambda i, x: (x.sum() * 1, x * 1), (0, x)), METADATA),
    "a number for a tensor": (lambda x: while_loop(sum_is_small, lambda x: (1,), (x,)), METADATA),
    "None for a tensor": (lambda x: while_loop(sum_is_small, lambda x: None, (x,)), METADATA),
    "a float carried": (lambda x: while_loop(is_early, lambda i, x: (i + 1.5, x * 2), (0, x)), "got <class 'float'>"),
    "too much": (lambda x: while_loop(sum_is_small, lambda x: (x * 2, x * 3), (x,)), "same number of outputs"),
    "a tensor for a condition": (lambda x: while_loop(x, double, (x,)), "cond_fn and body_fn to be callable"),
    "a number for a body": (lambda x: while_loop(sum_is_small, 3, (x,)), "cond_fn and body_fn to be callable"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_mistakes_raise_pytorchs_messages_at_the_users_line(name: str) -> None:
    program, message = ERRORS[name]
    with pytest.raises(RuntimeError, match=message) as caught:
        thunder.jit(program)(X)
    frames = traceback.extract_tb(caught.value.__traceback__)
    assert any(frame.filename == __file__ and frame.name == "<lambda>" for frame in frames)


@pytest.mark.parametrize("name", ["an integer tensor", "several elements", "a dtype", "a number for a tensor"])
def test_mistakes_within_a_batch_are_reported(name: str) -> None:
    program, _ = ERRORS[name]
    with pytest.raises(Exception, match=r"unsupported cond_fn|same metadata|while_loop|vmap"):
        thunder.jit(lambda x: vmap(program)(x))(X.repeat(2, 1))


def counted(x: Tensor) -> Any:
    inner = lambda y: while_loop(sum_is_small, double, (y,))[0]  # noqa: E731
    return while_loop(lambda i, y: (i < 3) & (y.sum() < 100), lambda i, y: (i + 1, inner(y) + x), (X[0].long() * 0, x))


def test_a_loop_within_a_loop_in_an_artifact(tmp_path: Path) -> None:
    compiled = thunder.jit(counted)
    expected = counted(X)
    torch.testing.assert_close(compiled(X), expected)
    loaded = thunder.load(thunder.save(compiled, tmp_path / "kept"), counted, strict=True)
    torch.testing.assert_close(loaded(X), expected)
