"""A compiled program's backward raises whenever eager PyTorch's backward detects a write to a saved tensor."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import thunder_core as thunder
from thunder_core.passes.transforms.functionalize import Functionalize


def written_by_another_name(w: Tensor, x: Tensor, y: Tensor) -> Tensor:
    product = w * x
    y.add_(1)
    return product.sum()


def written_in_a_list(w: Tensor, x: Tensor, y: Tensor) -> Tensor:
    other = (w - x).view(1, -1).view(-1)
    product = (w - x) * other
    torch._foreach_mul_([other], [y])
    return product.sum()


def inner_backward(w: Tensor, x: Tensor, y: Tensor) -> Tensor | None:
    written_in_a_list(w, x, y).backward()
    return w.grad


def view_in_a_list(w: Tensor, x: Tensor, y: Tensor) -> Tensor | None:
    view = x.view(-1)
    product = w * x + y
    torch._foreach_add_([view], 1)
    product.sum().backward()
    return w.grad


@pytest.mark.parametrize("program", [written_by_another_name, written_in_a_list, inner_backward, view_in_a_list])
def test_write_to_a_saved_tensor_is_refused(program: Callable[..., Tensor]) -> None:
    for call in (program, thunder.jit(program)):
        x = torch.full((3,), 2.0)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            call(torch.ones(3, requires_grad=True), x, x.view(-1)).backward()


def test_write_before_a_tensor_is_saved_is_allowed() -> None:
    def program(w: Tensor, x: Tensor, y: Tensor) -> Tensor:
        torch._foreach_add_([y], 1)
        return (w * x).sum()

    gradients = []
    for call in (program, thunder.jit(program)):
        w, x = torch.ones(3, requires_grad=True), torch.full((3,), 2.0)
        call(w, x, x.view(-1)).backward()
        gradients.append(w.grad)
    torch.testing.assert_close(gradients[1], gradients[0])


@pytest.mark.parametrize("before", [True, False])
def test_derivative_within_a_program_detects_writes_through_aliases(before: bool) -> None:
    def program(w: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        y = x.view(-1)

        def product(w: Tensor) -> Tensor:
            result = w * 1 if before else w * x
            y.add_(1)
            return (result * x if before else result).sum()

        return thunder.grad(product)(w), y

    given = torch.ones(3), torch.full((3,), 2.0)
    if before:
        torch.testing.assert_close(thunder.jit(program)(*given), (torch.full((3,), 3.0),) * 2)
    else:
        with pytest.raises(RuntimeError, match="would mutate a captured Tensor"):  # as `torch.func.grad` does
            thunder.jit(program)(*given)


def data_of_the_base(w: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    exponent = w * 1
    power = 2.0**exponent
    return power.view(-1), exponent.data.mul_(x)


def data_under_autocast(w: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    with torch.autocast("cpu", torch.bfloat16):
        product = w * x
        result = product.exp()
        product.data.zero_()
        return result, product.data


def data_that_the_backward_reads(w: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    product = w * x
    squares = product * product
    product.mT.data.add_(1)
    return squares, product.data


def data_where_autograd_is_off(w: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    product = w * x
    squares = product * product
    with torch.no_grad():
        product.data.add_(x)
    return squares, product.detach()


@pytest.mark.parametrize("transforms", [(), (Functionalize(),)], ids=["plain", "functionalized"])
@pytest.mark.parametrize(
    "program",
    [data_of_the_base, data_under_autocast, data_that_the_backward_reads, data_where_autograd_is_off],
)
def test_writes_to_data_are_not_detected(
    program: Callable[..., tuple[Tensor, Tensor]], transforms: tuple[Functionalize, ...]
) -> None:
    outcomes = []
    compiled = thunder.jit(program, transforms=transforms, cache="symbolic values")
    for call in (program, compiled):
        w = torch.linspace(-1, 2, 40).view(2, 5, 4).permute(2, 1, 0).requires_grad_()
        result, data = call(w, torch.full((5, 2), 3.0))
        (gradient,) = torch.autograd.grad(result.sum(), w)
        outcomes.append((result, data, gradient))
    torch.testing.assert_close(outcomes[1], outcomes[0], rtol=0, atol=0)


@pytest.mark.parametrize("transforms", [(), (Functionalize(),)], ids=["plain", "functionalized"])
def test_a_write_to_the_data_of_an_input_leaves_its_version(transforms: tuple[Functionalize, ...]) -> None:
    def program(x: Tensor) -> Tensor:
        x.data.add_(1)
        return x * 2

    x = torch.ones(2)
    assert thunder.jit(program, transforms=transforms)(x).tolist() == [4.0, 4.0]
    assert (x.tolist(), x._version) == ([2.0, 2.0], 0)


EIGENVECTORS: dict[str, Callable[[Tensor], Tensor]] = {
    "eig": lambda x: torch.linalg.eig(x)[1],
    "eig of a real matrix": lambda x: torch.linalg.eig(x.real)[1],
    "eigh": lambda x: torch.linalg.eigh(x + x.mH)[1],
}


@pytest.mark.filterwarnings("ignore::thunder_core.foundation.errors.RecompileWarning")
@pytest.mark.parametrize("eigenvectors", EIGENVECTORS.values(), ids=EIGENVECTORS)
def test_loss_that_depends_on_phases_raises_error_of_eager(
    eigenvectors: Callable[[Tensor], Tensor],
) -> None:
    torch.manual_seed(0)
    matrix = torch.randn(3, 3, dtype=torch.complex64, requires_grad=True)

    def gradient(x: Tensor) -> Tensor:
        return torch.autograd.grad(eigenvectors(x).real.sum(), x)[0]

    with pytest.raises(RuntimeError, match="it is ill-defined"):
        thunder.jit(gradient, executors=("torch",))(matrix)
    loss = thunder.jit(lambda x: eigenvectors(x).real.sum(), executors=("torch",))(matrix)
    with pytest.raises(RuntimeError, match="it is ill-defined"):
        loss.backward()


def test_loss_of_eigenvalues_has_a_compiled_backward() -> None:
    matrix = torch.randn(3, 3, dtype=torch.complex64, requires_grad=True)
    fast = thunder.jit(lambda x: torch.linalg.eig(x)[0].abs().sum(), executors=("torch",))
    fast(matrix).backward()
    assert matrix.grad is not None
    assert not thunder.last_backward_reason(fast)
