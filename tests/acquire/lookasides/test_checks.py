"""Checks of values by PyTorch's functions: lines of the program, whose errors are eager's, texts included."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import thunder_core as thunder
from thunder_core.errors import ThunderError


def of_all(x: Tensor) -> Tensor:
    """A check with a text of tensors."""
    n = x.sum()
    torch._check_tensor_all(x > 0, lambda: f"not positive: {n} in {x}, at most {x.max():.1f}")
    return x.log()


def without_text(x: Tensor) -> Tensor:
    """A check without a text."""
    torch._check_tensor_all(x > 0)
    return x.log()


def of_a_class(x: Tensor) -> Tensor:
    """A check with an error of another class, and a text that was made before."""
    text = f"not positive: {x}"
    torch._check_tensor_all_with(ValueError, x > 0, lambda: text)
    return x.log()


def asserted(x: Tensor) -> Tensor:
    """An assertion as a function."""
    torch._assert((x > 0).all(), f"not positive: {x}")
    return x.log()


def with_gradient(x: Tensor) -> Tensor:
    """A check with the text of a tensor that autograd follows."""
    y = x.clone().requires_grad_() * 2
    torch._check_tensor_all(x > 0, lambda: f"not positive: {y}")
    return x.log()


@pytest.mark.parametrize("program", [of_all, without_text, of_a_class, asserted, with_gradient])
@pytest.mark.parametrize("data_dependent", ["retrace", "error"])
def test_one_program_serves_all_values_and_raises_eagers_error(
    program: Callable[[Tensor], Tensor], data_dependent: str
) -> None:
    compiled = thunder.jit(program, executors=("torch",), data_dependent=data_dependent)
    for step in (1, 2, 3):
        x = torch.tensor([1.0, 2.0]) * step
        assert torch.equal(compiled(x), program(x))
        with pytest.raises((RuntimeError, ValueError, AssertionError)) as wanted:
            program(-x)
        with pytest.raises(type(wanted.value)) as found:
            compiled(-x)
        assert str(found.value).splitlines()[0] == str(wanted.value).splitlines()[0]
        assert not isinstance(found.value, ThunderError)
    assert thunder.cache_misses(compiled) == 1


def test_a_check_that_fails_at_the_first_call_raises_eagers_error() -> None:
    with pytest.raises(ValueError, match=r"not positive: tensor\(\[-1.\]\)"):
        thunder.jit(of_a_class, data_dependent="error")(-torch.ones(1))


def test_effects_before_a_check_are_eagers() -> None:
    def program(x: Tensor, seen: list[str]) -> Tensor:
        seen.append(f"{x.sum():.0f}")
        torch._check_tensor_all(x > 0, lambda: f"not positive: {x}")
        seen.append("done")
        return x + 1

    compiled = thunder.jit(program, executors=("torch",))
    for values in ([1.0], [2.0], [-3.0]):
        found: list[str] = []
        wanted: list[str] = []
        for function, seen in ((compiled, found), (program, wanted)):
            try:
                function(torch.tensor(values), seen)
            except RuntimeError as error:
                seen.append(str(error).splitlines()[0])
        assert found == wanted
    assert thunder.cache_misses(compiled) == 1


def test_a_check_under_autograd_is_no_part_of_the_graph() -> None:
    compiled = thunder.jit(of_all, executors=("torch",))
    x, y = (torch.tensor([1.0, 2.0], requires_grad=True) for _ in range(2))
    compiled(x).sum().backward()
    of_all(y).sum().backward()
    assert torch.equal(x.grad, y.grad)  # type: ignore[arg-type]
