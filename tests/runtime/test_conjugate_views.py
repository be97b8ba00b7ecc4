"""Views that are conjugated or negated on reading (`z.conj()`, `z.conj().imag`): values and bits equal eager's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import thunder_core as thunder

EXECUTORS = (["torch"], ["inductor", "torch"])
NUMBERS = torch.tensor([1 + 2j, 3 - 1j])


def negated() -> Tensor:
    """A new negated view."""
    return NUMBERS.clone().conj().imag


def plain() -> Tensor:
    """A tensor of the same metadata whose memory holds its values."""
    return torch._neg_view(torch._neg_view(NUMBERS.clone().imag))


def conjugated() -> Tensor:
    """A new conjugated view."""
    return NUMBERS.clone().conj()


def fused(x: Tensor) -> Tensor:
    """Element-wise operations that become a region."""
    return (x * 2 + 1).relu() - 3


def into(x: Tensor) -> Tensor:
    """Write to an argument, and compute with it."""
    x.mul_(3)
    x.add_(1)
    return fused(x)


def out_of(x: Tensor) -> Tensor:
    """Write an argument to a new tensor."""
    y = torch.ones(2)
    y.add_(x)
    y.mul_(2)
    return y + 1


def twice(z: Tensor) -> Tensor:
    """Take the same views twice."""
    return fused(z.conj().imag) + fused(z.conj().imag)


def asking(x: Tensor) -> Tensor:
    """A query that the bit answers."""
    return x * 2 if x.is_neg() else x * 3


REAL: dict[str, Callable[[Tensor], Any]] = {
    "fused": fused,
    "into": into,
    "out of": out_of,
    "asking": asking,
    "resolved": lambda x: fused(x.resolve_neg()),
    "view": lambda x: (x[1:], fused(x[1:])),
    "foreach": lambda x: torch._foreach_add([x.clone() * 2, x], [x, x]),
    "number": lambda x: fused(x) * x[0].item(),
    "branch": lambda x: x * 2 if x[0] > 0 else x * 3,
    "list": lambda x: x * x.tolist()[0],
    "array": lambda x: x * float(x.numpy()[0]),
}
COMPLEX: dict[str, Callable[[Tensor], Any]] = {
    "inside": lambda z: fused(z.conj().imag),
    "twice": twice,
    "returned": lambda z: (z.conj(), z.conj().imag, z.imag),
    "number": lambda z: z * z[0].item(),
    "product": lambda z: (torch.mm(z.conj()[None], z[:, None]), torch.vdot(z, z.conj())),
}
CASES = [
    *((name, program, (plain, negated, plain)) for name, program in REAL.items()),
    *((name, program, (NUMBERS.clone, conjugated, NUMBERS.clone)) for name, program in COMPLEX.items()),
]


def outcome(program: Callable[..., Any], x: Tensor) -> Any:
    """The results of a program and its changed argument, or the class of its error."""
    try:
        result = program(x)
    except RuntimeError as error:
        return type(error).__name__
    results = result if isinstance(result, tuple | list) else (result,)
    return [(output.resolve_conj().tolist(), output.is_conj(), output.is_neg()) for output in (*results, x)]


@pytest.mark.parametrize("executors", EXECUTORS, ids="-".join)
@pytest.mark.parametrize(("program", "inputs"), [pytest.param(*one, id=name) for name, *one in CASES])
def test_conjugate_views_equal_eager(
    program: Callable[..., Any], inputs: tuple[Callable[[], Tensor], ...], executors: Any
) -> None:
    compiled = thunder.jit(program, executors=executors)
    for make in (*inputs, *inputs):
        assert outcome(compiled, make()) == outcome(program, make())
    assert thunder.cache_misses(compiled) == 2 or program in (REAL["number"], REAL["array"])


class Scaled(torch.nn.Module):
    """A module with a buffer and a parameter that are negated views."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", negated())
        self.offset = torch.nn.Parameter(negated())

    def forward(self, x: Tensor) -> Tensor:
        """A region that reads both."""
        return fused(x * self.scale + self.offset)


@pytest.mark.parametrize("executors", EXECUTORS, ids="-".join)
def test_weights_and_constants(executors: list[str]) -> None:
    model, constant = Scaled(), negated()
    for program in (model, lambda x: fused(x * constant)):
        torch.testing.assert_close(thunder.jit(program, executors=executors)(plain()), program(plain()))


DIFFERENTIATED: dict[str, tuple[Callable[..., Tensor], Callable[[], Tensor], Callable[[], Tensor]]] = {
    "input": (fused, negated, lambda: torch.ones(2)),
    "gradient": (lambda x: fused(x) * x, plain, lambda: torch._neg_view(torch.ones(2))),
    "inside": (lambda z: fused(z.conj().imag).tanh(), NUMBERS.clone, lambda: torch.ones(2)),
    "conjugated": (lambda z: fused(z.conj().imag).tanh(), conjugated, lambda: torch.ones(2)),
    "complex gradient": (lambda z: z.conj() * z * 2, NUMBERS.clone, lambda: (NUMBERS * 1j).conj()),
}


@pytest.mark.parametrize("executors", EXECUTORS, ids="-".join)
@pytest.mark.parametrize("name", DIFFERENTIATED)
def test_gradients(name: str, executors: list[str]) -> None:
    program, make, incoming = DIFFERENTIATED[name]
    found = []
    for function in (program, thunder.jit(program, executors=executors)):
        x = make().requires_grad_()
        y = function(x)
        y.backward(incoming())
        found.append((y.detach(), x.grad))
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-6)


def test_claims_are_of_tensors_whose_memory_holds_their_values() -> None:
    kernels = thunder.OperatorExecutor("kernels of raw memory")
    given = []

    @kernels.implements(torch.Tensor.add)
    def add(x: Tensor, number: int) -> Tensor:
        given.append(x.is_neg())
        return torch.add(x, number)

    compiled = thunder.jit(lambda x: (x + 1) + 2, executors=[kernels, "torch"])
    for make in (negated, plain):
        assert torch.equal(compiled(make()), make() + 1 + 2)
    assert given == [False] * 3
