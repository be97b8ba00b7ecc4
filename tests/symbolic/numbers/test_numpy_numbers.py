"""NumPy's numbers that are computed from sizes: one program serves all sizes, with NumPy's classes and rounding."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import thunder_core as thunder
from tests.same import assert_same

Program = Callable[[Tensor], Any]
SIZES = (12, 9, 14, 3, 12, 21, 64, 5)


def in_steps(x: Tensor) -> Any:
    count = np.int64(x.shape[0])
    count += 3
    count = count * 2 - x.shape[0]
    return x.repeat(count), count


def padded(x: Tensor) -> Tensor:
    missing = (-x.shape[0]) % np.int64(4)
    return torch.nn.functional.pad(x, (0, missing)).view(-1, np.int64(4))


def levels(x: Tensor) -> Tensor:
    return x * int(np.floor(np.log2(x.shape[0])))


def resized(x: Tensor) -> Tensor:
    size = int(np.ceil(x.shape[0] * np.float64(1.5)))
    return torch.nn.functional.interpolate(x[None, None], size=size)


def of_a_copied_shape(x: Tensor) -> Tensor:
    shape = np.array(x[:, None].expand(-1, 3).shape)
    return torch.zeros(int(shape.prod())) + shape[0].item()


INTEGERS: dict[str, Program] = {
    "int64": lambda x: (np.int64(x.shape[0]), x + np.int64(x.shape[0])),
    "int32": lambda x: np.int32(x.shape[0]) * 2,
    "remainder": lambda x: x[: x.shape[0] % np.int64(4) + 1],
    "reversed remainder": lambda x: np.int64(1000) % x.shape[0],
    "floor division": lambda x: torch.zeros(np.int64(x.shape[0]) // 2, 3),
    "floor division by a number of NumPy": lambda x: x[x.shape[0] // np.int32(3) :],
    "sum": lambda x: x + (x.shape[0] + np.int64(4)),
    "difference": lambda x: torch.arange(np.int64(100) - x.shape[0]),
    "product": lambda x: torch.zeros(x.shape[0] * np.int64(2)),
    "power": lambda x: (x.shape[0] ** np.int64(2), np.int64(2) ** np.int64(x.shape[0] % 5)),
    "negative": lambda x: (-np.int64(x.shape[0]), abs(np.int64(-x.shape[0])), ~np.int64(x.shape[0])),
    "quotient and remainder": lambda x: divmod(np.int64(x.shape[0]), 4),
    "shift": lambda x: np.int64(x.shape[0]) << 2,
    "prod": lambda x: (np.prod(x.shape), torch.zeros(np.prod(x.shape) * 2)),
    "prod of a copied shape": of_a_copied_shape,
    "prod of sizes": lambda x: torch.zeros(int(np.prod([x.shape[0], 2, 3]))),
    "maximum": lambda x: x[: np.minimum(x.shape[0], 100) // 2],
    "in steps": in_steps,
    "padded": padded,
    "overflow": lambda x: np.int32(x.shape[0]) * np.int32(2**29),
    "unsigned": lambda x: np.uint8(x.shape[0]) * np.uint8(20),
    "index": lambda x: x[np.int64(x.shape[0]) - 1],
    "reshaped": lambda x: x[None].expand(4, -1).reshape(np.int64(2), np.int64(x.shape[0]) * 2),
}
FLOATS: dict[str, Program] = {
    "ceil": lambda x: torch.zeros(int(np.ceil(x.shape[0] / 2))),
    "floor": lambda x: x[: int(np.floor(x.shape[0] / np.float64(3)))],
    "log2": lambda x: (x / np.log2(x.shape[0]), np.log2(x.shape[0])),
    "levels": levels,
    "sqrt": lambda x: (x * np.sqrt(x.shape[0]), np.sqrt(np.float32(x.shape[0]))),
    "math": lambda x: (x * math.sqrt(np.float64(x.shape[0])), math.ceil(np.float64(x.shape[0]) / 5)),
    "round": lambda x: (round(np.float64(x.shape[0]) / 4), round(np.float32(x.shape[0]) / 7, 2)),
    "true division": lambda x: x * (np.int64(x.shape[0]) / 3),
    "float16": lambda x: np.float16(x.shape[0]) / 3,
    "resized": resized,
    "scaled": lambda x: x * np.float32(0.5) * x.shape[0] + np.float32(0.5) * x.shape[0],
    "mean": lambda x: x + np.mean([x.shape[0], 2.0]),
    "array": lambda x: x.sum() + torch.from_numpy(np.arange(3) * x.shape[0]),
}


@pytest.mark.parametrize("name", [*INTEGERS, *FLOATS])
@pytest.mark.parametrize("cache", ["constant values", "symbolic values"])
def test_numbers_of_numpy_from_sizes_have_one_program(name: str, cache: Any) -> None:
    program = {**INTEGERS, **FLOATS}[name]
    compiled = thunder.jit(program, cache=cache, executors=("torch",))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of NumPy, for an overflow
        for size in SIZES:
            x = torch.linspace(1, 2, size)
            assert_same(compiled(x), program(x))
    assert thunder.cache_misses(compiled) == (1 if cache == "symbolic values" else 2)


def test_gradients_reach_through_numbers_of_numpy() -> None:
    def program(x: Tensor) -> Tensor:
        return (x[: np.int64(x.shape[0]) // 2] * np.sqrt(x.shape[0])).square().sum()

    compiled = thunder.jit(program, cache="symbolic values")
    for size in SIZES:
        x = torch.linspace(1, 2, size, requires_grad=True)
        (found,), (expected,) = (torch.autograd.grad(call(x), x) for call in (compiled, program))
        torch.testing.assert_close(found, expected)
    assert thunder.cache_misses(compiled) == 1
    assert thunder.last_backward_reason(compiled) == ""


def by_remainder(x: Tensor) -> Any:
    rest = x.shape[0] % np.int64(3)
    is_divisible = rest == 0
    if is_divisible:
        return x * 2, is_divisible, rest
    return x, is_divisible, rest > 1, np.all(np.ones(2))


def test_a_branch_on_a_number_of_numpy_is_guarded() -> None:
    compiled = thunder.jit(by_remainder, cache="symbolic values", executors=("torch",))
    for size in SIZES:
        x = torch.linspace(1, 2, size)
        assert_same(compiled(x), by_remainder(x))
    assert thunder.cache_misses(compiled) == 2 + 1  # divisible or not, and a rest of 1 or 2
    assert "shape" not in thunder.recompile_reasons(compiled)[0]
    assert "size(0)" in thunder.recompile_reasons(compiled)[0]


def looped(x: Tensor) -> Tensor:
    for _ in range(np.int64(x.shape[0]) // 4):
        x = x + 1
    return x


def test_a_number_of_numpy_that_c_code_reads_has_a_program_for_each_value() -> None:
    compiled = thunder.jit(looped, cache="symbolic values", executors=("torch",))
    for size in (4, 8, 5, 11, 9):
        assert torch.equal(compiled(torch.ones(size)), looped(torch.ones(size)))
    assert thunder.cache_misses(compiled) == 2


def test_a_size_of_one_and_an_invalid_number_are_as_in_eager() -> None:
    def program(x: Tensor) -> Tensor:
        return x * 2 if int(np.ceil(x.shape[0] / 2)) > 10 else x.view(np.int64(x.shape[0]) // 2, 2)

    compiled = thunder.jit(program, cache="symbolic values", executors=("torch",))
    for size in (1, 40, 2, 1, 30, 3):
        x = torch.ones(size)
        outcomes = []
        for call in (program, compiled):
            try:
                outcomes.append(call(x))
            except RuntimeError as error:
                outcomes.append(str(error))
        assert str(outcomes[0]) == str(outcomes[1])


def test_a_compiled_function_inside_a_program_computes_with_numpy() -> None:
    inner = thunder.jit(lambda x: x[: np.int64(x.shape[0]) // 2], cache="symbolic values", executors=("torch",))
    program = thunder.jit(lambda x: inner(x * 2) + 1, cache="symbolic values", executors=("torch",))
    for size in SIZES:
        x = torch.linspace(1, 2, size)
        torch.testing.assert_close(program(x), (x * 2)[: size // 2] + 1)


def test_numbers_from_outside_reach_numpy_without_a_program_for_each() -> None:
    def program(x: Tensor, count: int, rate: float) -> Any:
        return x * np.float32(2) * rate, np.int64(count) + 1, np.exp(rate)

    compiled = thunder.jit(program, executors=("torch",))
    for count in range(2, 8):
        assert_same(compiled(torch.ones(2), count, count / 4), program(torch.ones(2), count, count / 4))
    assert thunder.cache_misses(compiled) <= 3
