"""Calls with dtypes that a kernel refuses raise as in eager PyTorch, even if their result is unused."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import thunder_core as thunder
from thunder_core.foundation.errors import RecompileWarning
from thunder_core.passes.transforms.autocast import Autocast
from thunder_core.passes.transforms.channels_last import ChannelsLast
from thunder_core.tracing.capture.fakes import kernel_types
from thunder_core.tracing.extension.transform import Transform

REFUSED: dict[str, Callable[[Tensor], Any]] = {
    "max_pool1d of integers": lambda x: functional.max_pool1d(x.long(), 2),
    "softmax of integers": lambda x: x.int().softmax(-1),
    "erf of complex": lambda x: torch.erf(x.to(torch.complex64)),
    "cross of booleans": lambda x: torch.linalg.cross(x > 0, x > 1, dim=1),
    "glu of integers": lambda x: functional.glu(x.long()),
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("cache", ["constant values", "symbolic values"])
def test_refused_dtype_raises_although_the_result_is_unused(name: str, cache: str) -> None:
    def program(x: Tensor) -> Tensor:
        REFUSED[name](x)
        return x + 1

    x = torch.arange(24.0).reshape(2, 3, 4)
    with pytest.raises((RuntimeError, NotImplementedError), match="not implemented for"):
        program(x)
    with pytest.raises((RuntimeError, NotImplementedError), match="not implemented for"):
        thunder.jit(program, cache=cache)(x)


UNUSUAL: dict[str, Callable[[Tensor], Any]] = {
    "maximum of float and complex": lambda x: torch.maximum(x, x * 1j),
    "lt of complex and float": lambda x: x * 1j < x,
    "difference of float and boolean": lambda x: x - (x > 0),
    "difference of a number and a boolean": lambda x: 1 - (x > 0),
    "sort of complex": lambda x: (x * 1j).sort(),
    "relu of booleans": lambda x: (x > 0).relu(),
    "variance of integers": lambda x: x.long().var(),
    "bitwise and of floats": lambda x: x & x,
    "gcd of floats": lambda x: torch.gcd(x, x),
    "zeta of halves": lambda x: torch.special.zeta(x.half(), x.half()),
    "heaviside of two dtypes": lambda x: torch.heaviside(x, x.long()),
    "huber loss of integers and floats": lambda x: functional.huber_loss(x.long(), x),
    "product of two dtypes": lambda x: torch.mv(x.bfloat16().expand(2, 4), x.long()),
    "bitwise and of integers and a float": lambda x: (x.long() & 1, x.long() & 1.5),
}


@pytest.mark.parametrize("name", UNUSUAL)
def test_unusual_dtypes_raise_as_in_eager(name: str) -> None:
    def unused(x: Tensor) -> Tensor:
        UNUSUAL[name](x)
        return x + 1

    def caught(x: Tensor) -> tuple[type[Exception], str] | None:
        try:
            UNUSUAL[name](x)
        except Exception as error:
            return type(error), str(error)
        return None

    x = torch.arange(4.0)
    with pytest.raises(Exception) as raised:
        unused(x)
    with pytest.raises(type(raised.value)):
        thunder.jit(unused)(x)
    compiled = thunder.jit(caught)
    for _ in range(2):
        assert compiled(x) == caught(x)


def test_usual_dtypes_raise_as_in_eager_if_the_program_catches_the_error() -> None:
    def program(x: Tensor) -> Tensor:
        try:
            return torch.linalg.inv(x)
        except RuntimeError:
            return torch.linalg.inv(x.float())

    compiled = thunder.jit(program)
    for dtype in (torch.bfloat16, torch.float32):
        torch.testing.assert_close(compiled(torch.eye(2).to(dtype)), torch.eye(2))


def test_error_that_depends_on_values_is_not_raised_for_unusual_dtypes() -> None:
    compiled, a = thunder.jit(lambda a, b: torch.linalg.solve(a, b)), torch.eye(2, dtype=torch.complex64)
    with warnings.catch_warnings(action="error", category=RecompileWarning):
        torch.testing.assert_close(compiled(a * 2j, a), a / 2j)
    with pytest.raises(torch.linalg.LinAlgError, match="singular"):
        compiled(a * 0, a)


REFUSED_IN_TRY: dict[str, Callable[[Tensor], Any]] = {
    "in-place gcd that needs a larger result": lambda x: x.long().view(4, 1).gcd_(x.long()),
    "interpolation of no pixels": lambda x: functional.interpolate(x.view(1, 1, 1, 4)[..., :0], size=3, mode="linear"),
    "softmax of a dimension that is missing": lambda x: torch.softmax(x, 5),
    "view out of its memory": lambda x: torch.as_strided_copy(x, (2, 4), (4, 1)),
}


@pytest.mark.parametrize("name", REFUSED_IN_TRY)
def test_error_in_a_try_statement_is_caught_as_in_eager(name: str) -> None:
    def program(x: Tensor) -> Any:
        try:
            return REFUSED_IN_TRY[name](x).shape
        except Exception as error:
            return type(error), str(error), x + 1

    compiled, x = thunder.jit(program), torch.arange(4.0)
    for _ in range(2):
        assert str(compiled(x)) == str(program(x))


def test_call_that_only_tensors_without_data_refuse_is_not_caught() -> None:
    """In eager PyTorch, `addbmm_` resizes its tensor."""

    def program(x: Tensor, batch: Tensor) -> Tensor:
        try:
            return x.addbmm_(batch, batch)
        except RuntimeError:
            return x - 1

    batch = torch.ones(2, 3, 3)
    compiled = thunder.jit(program)
    with pytest.warns(RecompileWarning, match="addbmm_"):
        result = compiled(torch.ones(1), batch)
    torch.testing.assert_close(result, program(torch.ones(1), batch))


def test_result_with_another_dtype_than_on_tensors_without_data() -> None:
    def program(x: Tensor, y: Tensor) -> Tensor:
        loss = functional.soft_margin_loss(x, y, reduction="none")
        return loss if loss.dtype is torch.float16 else loss + 1

    x, y = torch.ones(3, dtype=torch.float16), torch.ones(3)
    compiled = thunder.jit(program)
    for _ in range(2):
        torch.testing.assert_close(compiled(x, y), program(x, y))


def test_message_of_an_assertion_is_no_refusal() -> None:
    def program(x: Tensor) -> Tensor:
        torch._assert_async((x + 1 > 0).all(), "negative numbers are not supported")
        return x + 1

    torch.testing.assert_close(thunder.jit(program, data_dependent="error")(torch.ones(2)), torch.full((2,), 2.0))


def test_accepted_dtypes_are_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []
    try_in_eager = kernel_types.try_in_eager

    def counted(function: Any, *args: Any, **kwargs: Any) -> Any:
        tried.append(function.__name__)
        return try_in_eager(function, *args, **kwargs)

    monkeypatch.setattr(kernel_types.KERNEL_TYPES, "_accepted", set())
    monkeypatch.setattr(kernel_types, "try_in_eager", counted)

    def program(x: Tensor, mask: Tensor) -> Tensor:
        return (x + 1).cumsum(0) + 1, mask & mask, functional.one_hot(x, 9)

    for length in (3, 4):
        thunder.jit(program)(torch.arange(length), torch.ones(length, dtype=torch.bool))
    assert sorted(tried) == ["__and__", "add", "cumsum", "one_hot"]


class Forgetful(set[object]):
    """A set of accepted calls that is always empty, so that each call is tried."""

    def __contains__(self, key: object) -> bool:
        return False


@pytest.mark.parametrize("transform", [Autocast(), ChannelsLast()], ids=["autocast", "channels last"])
def test_transform_that_replays_symbolic_sizes_tries_no_call(
    transform: Transform, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replay has no values for symbolic sizes, with which a call could be tried."""
    monkeypatch.setattr(kernel_types.KERNEL_TYPES, "_accepted", Forgetful())

    def program(model: torch.nn.Module, x: Tensor) -> Tensor:
        half = model(x)[:2].half()
        return half.cumsum(0) + half.long().cumsum(1) + functional.softmax(x.half(), 1).sum()

    torch.manual_seed(0)
    model = torch.nn.Conv1d(4, 8, 1).requires_grad_(False)
    compiled = thunder.jit(program, transforms=[transform], cache="symbolic values", executors=["torch"])
    for batch, length in ((3, 5), (4, 6), (7, 9)):
        x = torch.linspace(-1, 1, batch * 4 * length).reshape(batch, 4, length)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=isinstance(transform, Autocast)):
            expected = program(model, x)
        torch.testing.assert_close(compiled(model, x), expected)
    assert thunder.cache_misses(compiled) == 1


@pytest.mark.parametrize("dtype", [torch.float16, torch.uint8, torch.bool, torch.complex64], ids=str)
def test_call_on_a_counted_number_of_elements_is_tried(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_types.KERNEL_TYPES, "_accepted", Forgetful())

    def program(x: Tensor) -> Tensor:
        return x[x > 0].to(dtype).cumsum(0)

    compiled = thunder.jit(program, cache="symbolic values", executors=["torch"])
    for length in (4, 6, 9):
        x = torch.linspace(-1, 1, length)
        torch.testing.assert_close(compiled(x), program(x))
    assert thunder.cache_misses(compiled) == 1


def test_custom_operator_is_not_tried() -> None:
    """A custom operator may have arbitrary effects, so it is not tried."""
    calls: list[int] = []

    @torch.library.custom_op("kernel_types::counted", mutates_args=())
    def counted(x: Tensor) -> Tensor:
        calls.append(1)
        return x.clone()

    counted.register_fake(lambda x: torch.empty_like(x))
    assert torch.equal(thunder.jit(lambda x: counted(x))(torch.arange(3)), torch.arange(3))
    assert calls == [1]


def test_operator_with_effects_on_a_constant_runs_in_the_program_alone() -> None:
    """PyTorch's fake mode runs operations on constants such as `torch.tensor([2.0])` while it traces."""
    calls: list[float] = []

    @torch.library.custom_op("kernel_types::noted", mutates_args=())
    def noted(x: torch.Tensor) -> torch.Tensor:
        calls.append(float(x))
        return x + 1

    noted.register_fake(torch.empty_like)
    compiled = thunder.jit(lambda x: x * torch.ops.kernel_types.noted(torch.tensor(2.0)))
    for count in (1, 2):
        torch.testing.assert_close(compiled(torch.ones(2)), torch.full((2,), 3.0))
        assert calls == [2.0] * count
