"""Unread results are not computed, except for operations that raise an error in eager PyTorch."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import thunder_core as thunder
from thunder_core.passes.transforms.autocast import Autocast
from thunder_core.passes.transforms.functionalize import Functionalize

ATEN: Any = torch.ops.aten
SEEN: list[float] = []


@torch.library.custom_op("thunder_tests::note", mutates_args=())
def note(x: Tensor) -> None:
    SEEN.append(x.sum().item())


@note.register_fake
def without_data(x: Tensor) -> None:
    """Return nothing for a tensor without data."""


FAILS: dict[str, Callable[[Tensor], object]] = {
    "assertion": lambda x: torch._assert_async((x > 0).all()),
    "assertion with words": lambda x: torch._assert_async((x > 0).all(), "too small"),
    "assertion with a token": lambda x: ATEN._functional_assert_async.msg(x.sum() > 0, "too small", x[:0]),
    "range": lambda x: torch.sym_constrain_range_for_size(int(x.sum().item()), min=0),
    "index": lambda x: x[x.long().clamp(max=0) * 4],
    "index that is written": lambda x: torch.zeros(3).index_put((x.long() * 4,), x),
    "gather": lambda x: x.gather(0, x.long()),
    "embedding": lambda x: functional.embedding(x.long(), x.view(3, 1)),
    "one hot": lambda x: functional.one_hot(x.long(), 3),
    "loss": lambda x: functional.cross_entropy(x.view(1, 3), x.long()[:1]),
    "integers": lambda x: x.long() // (x.long() + 1).clamp(min=0),
    "matrix": lambda x: torch.linalg.cholesky(x.diag()),
    "remainder by zero": lambda x: x.long() % 0,
    "remainder of the sign by zero": lambda x: x.long().fmod(0),
    "quotient by zero": lambda x: x.long() // 0,
    "rounded quotient by zero": lambda x: torch.div(x.long(), 0, rounding_mode="trunc"),
    "negative power": lambda x: x.long() ** -1,
    "negative power in place": lambda x: x.long().pow_(-1),
    "singular values": lambda x: torch.linalg.svd(x.log().diag()),
    "pseudoinverse": lambda x: torch.linalg.pinv(x.log().diag()),
    "norm of a matrix": lambda x: torch.linalg.matrix_norm(x.log().diag(), 2),
    "sorter": lambda x: torch.searchsorted(x, x, sorter=x.long()),
    "pivots": lambda x: torch.linalg.lu_solve(torch.eye(3), x.int(), torch.eye(3)),
    "pivots of symmetric ones": lambda x: torch.linalg.ldl_solve(torch.eye(3), x.int() * 5 - 4, torch.eye(3)),
    "histogram": lambda x: torch.histogram(x / (x + 1), 3),
    "eigenvalues": lambda x: torch.linalg.eigvalsh(x.log().diag() + 1),
    "eigenvectors": lambda x: torch.linalg.eigh(x.log().diag() + 1),
    "factor": lambda x: torch.cholesky(x.diag()),
    "inverse of a factor": lambda x: torch.cholesky_inverse((x + 1).diag()),
    "factor with a check": lambda x: torch.linalg.cholesky_ex(x.diag(), check_errors=True),
    "inverse with a check": lambda x: torch.linalg.inv_ex((x + 1).diag(), check_errors=True),
    "solution with a check": lambda x: torch.linalg.solve_ex((x + 1).diag(), x, check_errors=True),
    "factors with a check": lambda x: torch.linalg.lu_factor_ex((x + 1).diag(), check_errors=True),
    "zero points": lambda x: torch.fake_quantize_per_channel_affine(x, x.abs(), x.int(), 0, 0, 255),
    "lengths": lambda x: functional.ctc_loss(
        torch.zeros(4, 1, 3), torch.ones(1, 2, dtype=torch.long), (6 - 2 * x[:1]).long(), x[:1].long().abs()
    ),
    "number in integers": lambda x: torch.full((2,), (x[0] - 1).item() * 1000, dtype=torch.int8),
    "histogram of rows": lambda x: torch.histogramdd((x / (x + 1))[:, None], [3]),
}


def outcome(call: Callable[[Tensor], Tensor], x: Tensor) -> tuple[type, object]:
    """The class and the message of the error, or the values of the result."""
    try:
        return Tensor, call(x).tolist()
    except RuntimeError as error:
        return type(error), str(error)
    except IndexError as error:
        return type(error), str(error)


@pytest.mark.filterwarnings("ignore:torch.cholesky is deprecated")
@pytest.mark.parametrize("name", FAILS)
def test_errors_of_unread_results_are_raised(name: str) -> None:
    def program(x: Tensor) -> Tensor:
        FAILS[name](x)
        return x + 1

    fast = thunder.jit(program)
    kinds = set()
    for x in (torch.ones(3), -torch.ones(3)):
        expected = outcome(program, x)
        assert outcome(fast, x) == expected
        kinds.add(expected[0])
    assert kinds != {Tensor}


@pytest.mark.parametrize("options", [{"executors": ["inductor", "torch"]}, {"transforms": [Autocast()]}, {}])
@pytest.mark.parametrize("requires_grad", [True, False])
def test_checks_stay_with_every_executor(options: dict[str, Any], requires_grad: bool) -> None:
    def program(x: Tensor) -> Tensor:
        y = (x * 2 + 1).relu()
        y[x.long() - 1]
        torch._assert_async((x > 0).all(), "too small")
        return torch.linalg.cholesky((y - 2).diag()) * 3 + 1

    fast = thunder.jit(program, **options)
    x = torch.ones(3, requires_grad=requires_grad)
    torch.testing.assert_close(fast(x), program(x))
    for bad, what in ((x * 5, "out of bounds"), (-x, "too small"), (x * 0.4, "cholesky")):
        for call in (program, fast):
            with pytest.raises((RuntimeError, IndexError), match=what):
                call(bad)


@pytest.mark.parametrize("divide", [lambda n: n // 0, lambda n: 1 / (n - 3), lambda n: n % 0, lambda n: 1 % (n - 3)])
def test_errors_of_unread_numbers_are_raised(divide: Callable[[int], object]) -> None:
    def program(x: Tensor) -> Tensor:
        divide(int(x.sum()))
        return x + 1

    for call in (program, thunder.jit(program)):
        with pytest.raises(ZeroDivisionError):
            call(torch.ones(3))


@pytest.mark.parametrize("convert", [int, round, math.floor, math.sqrt, math.log, lambda n: n**-1])
def test_errors_of_unread_conversions_are_raised_and_caught(convert: Callable[[float], object]) -> None:
    def program(x: Tensor) -> Tensor:
        convert(x.item())
        return x + 1

    def catching(x: Tensor) -> Tensor:
        try:
            return program(x)
        except (ArithmeticError, ValueError):
            return x - 1

    fast, fast_catching = thunder.jit(program), thunder.jit(catching)
    caught = 0
    for number in (1.0, math.nan, 0.0, -1.0, math.inf, 2.0):
        x = torch.tensor(number)
        torch.testing.assert_close(fast_catching(x), catching(x), equal_nan=True)
        try:
            program(x)
        except (ArithmeticError, ValueError) as error:
            caught += 1
            with pytest.raises(type(error)):
                fast(x)
    assert caught


def test_a_check_after_functionalized_writes_is_kept() -> None:
    def program(x: Tensor) -> Tensor:
        y = x * 1
        y.mul_(2)
        torch._assert_async((y > 1).all(), "too small")
        return y

    fast = thunder.jit(program, transforms=[Functionalize()])
    assert fast(torch.ones(2)).tolist() == [2, 2]
    with pytest.raises(RuntimeError, match="too small"):
        fast(torch.zeros(2))


def test_metadata_is_checked_by_lists_too() -> None:
    def program(x: Tensor) -> Tensor:
        ATEN._assert_tensor_metadata(x, [3], [1], torch.float32)
        return x + 1

    assert thunder.jit(program)(torch.ones(3)).tolist() == [2, 2, 2]
    with pytest.raises(RuntimeError, match="sizes mismatch"):
        thunder.jit(program)(torch.ones(2))


def test_unread_operations_that_cannot_fail_are_dropped() -> None:
    def program(x: Tensor) -> Tensor:
        (x.exp() @ x)[0:1:1] if x.dim() > 1 else x.exp()
        x / (x - 1)
        x.long() % 3 + x.long() // 2
        x.long() ** 2 + torch.searchsorted(x, x)
        return x + 1

    fast = thunder.jit(program)
    fast(torch.ones(3))
    names = [bsym.symbol.short_name for bsym in thunder.last_traces(fast)[-1].bound_symbols]
    assert not {"exp", "div", "remainder", "floor_divide", "pow", "searchsorted"} & set(names)
    assert "mod" not in " ".join(names)


def test_an_operator_without_results_is_called() -> None:
    def program(x: Tensor) -> Tensor:
        with torch.profiler.record_function("of nobody"):
            note(x * 2)
        return x + 1

    fast = thunder.jit(program)
    for x in (torch.ones(2), torch.zeros(2)):
        SEEN.clear()
        torch.testing.assert_close(fast(x), x + 1)
        assert [x.sum().item() * 2] == SEEN
    assert not any("profiler" in bsym.symbol.name for bsym in thunder.last_traces(fast)[0].bound_symbols)
