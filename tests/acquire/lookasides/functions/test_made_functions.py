"""Classes of `torch.autograd.Function` that the program itself defines."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

import thunder_core as thunder

SCALE = 2.0


def made(factor: Any, scaled: Any = None) -> Any:
    """Return a class whose backward multiplies by `factor`, and whose forward multiplies by `scaled`."""

    class Made(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Any:
            ctx.save_for_backward(x)
            return x * x if scaled is None else x * x * scaled

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            return gradients[0] * ctx.saved_tensors[0] * factor * SCALE

    return Made


def plain(x: Tensor) -> Any:
    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Any:
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            return gradients[0] * ctx.saved_tensors[0] * 100 * SCALE

    return Square.apply(x) + Square.apply(x * 2)


def with_setup(x: Tensor) -> Any:
    class Square(torch.autograd.Function):
        @staticmethod
        def forward(x: Tensor) -> Any:
            return x * x

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            ctx.save_for_backward(*inputs)

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            return gradients[0] * ctx.saved_tensors[0] * 100

    return Square.apply(x)


def twice(x: Tensor) -> Any:
    (first,) = torch.autograd.grad(made(2).apply(x).sum(), x, create_graph=True)
    return first, torch.autograd.grad(first.sum(), x, create_graph=True)


def derived(x: Tensor) -> Any:
    class Derived(made(3)):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Any:
            ctx.save_for_backward(x)
            return x.sin()

    return Derived.apply(x)


PROGRAMS: dict[str, Callable[[Tensor], Any]] = {
    "plain": plain,
    "setup_context": with_setup,
    "number in the closure": lambda x: made(3).apply(x),
    "size in the closure": lambda x: made(x.shape[0]).apply(x),
    "tensor of the forward in the closure": lambda x: made(3, x.detach() * 5).apply(x),
    "two": lambda x: made(5).apply(made(3).apply(x)),
    "derivative inside": twice,
    "derived class": derived,
    "without autograd": lambda x: made(3, x + 1).apply(x.detach()),
}


def with_attribute(x: Tensor) -> Any:
    kind = made(3)

    class Attributed(kind):  # type: ignore[misc, valid-type]
        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            return gradients[0] * Attributed.scale

    Attributed.scale = x.detach() * 3  # type: ignore[attr-defined]
    return Attributed.apply(x)


class Log:
    """An object from outside that a backward writes to."""

    def __init__(self) -> None:
        self.gradients: list[Tensor] = []


LEFT_TO_EAGER: dict[str, Callable[[Tensor], Any]] = {
    "tensor of the backward": lambda x: made(x.detach() * 5).apply(x),
    "attribute of the class": with_attribute,
    "number of a tensor": lambda x: made(x.sum().item()).apply(x),
}


def results(program: Callable[[Tensor], Any], x: Tensor) -> list[Any]:
    """Return the results, and the gradient of x if there is one."""
    x = x.clone().requires_grad_()
    output = program(x)
    tracked = [tensor.sum() for tensor in tree_leaves(output) if tensor.requires_grad]
    gradients = torch.autograd.grad(sum(tracked), x) if tracked else ()  # type: ignore[arg-type]
    return [*tree_leaves(output), *gradients]


def assert_same_as_eager(program: Callable[[Tensor], Any], fast: Callable[[Tensor], Any]) -> None:
    for x in (torch.arange(3.0), torch.arange(3.0) + 1, torch.arange(4.0)):
        pairs = zip(results(fast, x), results(program, x), strict=True)
        assert all(torch.equal(ours, theirs) for ours, theirs in pairs)


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_function_of_a_class_that_the_program_makes_is_traced(
    program: Callable[[Tensor], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    fast = thunder.jit(program, executors=("torch",))
    assert_same_as_eager(program, fast)
    monkeypatch.setattr(f"{__name__}.SCALE", 7.0)
    assert_same_as_eager(program, fast)
    assert not any("cannot be traced" in reason for reason in thunder.recompile_reasons(fast))


@pytest.mark.filterwarnings("ignore::thunder_core.foundation.errors.RecompileWarning")
@pytest.mark.parametrize("program", LEFT_TO_EAGER.values(), ids=LEFT_TO_EAGER)
def test_backward_that_closes_over_values_of_one_call_runs_in_eager(program: Callable[[Tensor], Any]) -> None:
    fast = thunder.jit(program, executors=("torch",))
    assert_same_as_eager(program, fast)
    assert thunder.recompile_reasons(fast)


def test_number_argument_in_a_closure_is_guarded() -> None:
    fast = thunder.jit(lambda x, factor: made(factor).apply(x), executors=("torch",), cache="constant values")
    for factor in (2, 3, 4.0, 2):
        fast_results, wanted = (
            results(lambda x, program=program, factor=factor: program(x, factor), torch.arange(3.0))
            for program in (fast, lambda x, factor: made(factor).apply(x))
        )
        assert all(map(torch.equal, fast_results, wanted))
    assert thunder.cache_misses(fast) == 3


@pytest.mark.filterwarnings("ignore::thunder_core.foundation.errors.RecompileWarning")
@pytest.mark.parametrize("runs_backward", [False, True])
def test_backward_writes_to_an_object_in_its_closure_at_each_call(runs_backward: bool) -> None:
    def program(x: Tensor, log: Log) -> Any:
        class Logged(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, x: Tensor) -> Any:
                return x * 2

            @staticmethod
            def backward(ctx: Any, *gradients: Any) -> Any:
                log.gradients.append(gradients[0] * 3)
                return gradients[0]

        result = Logged.apply(x).sum()
        return result.backward() if runs_backward else result

    fast, log = thunder.jit(program, executors=("torch",)), Log()
    for _ in range(3):
        x = torch.ones(2, requires_grad=True)
        result = fast(x, log)
        if not runs_backward:
            result.backward()
    assert [gradient.tolist() for gradient in log.gradients] == [[3.0, 3.0]] * 3
