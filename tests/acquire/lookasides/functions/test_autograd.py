"""backward() inside a compiled program: gradients, hooks and graphs match eager PyTorch."""

from __future__ import annotations

import copy
import re
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._pytree import tree_leaves

import thunder_core as thunder
from thunder_core.foundation.errors import DataDependent, OperationFailed


def small_network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 3))


def grads(model: nn.Module) -> list[torch.Tensor | None]:
    return [parameter.grad for parameter in model.parameters()]


def assert_same(step: Callable[..., Any], *args: Any, model: nn.Module | None = None, calls: int = 3) -> Any:
    """Call the step several times, compiled and eager, on two copies of a model; return the compiled function."""
    eager = small_network() if model is None else model
    ours = copy.deepcopy(eager)
    compiled = thunder.jit(step)
    for _ in range(calls):
        torch.testing.assert_close(compiled(ours, *args), step(eager, *args))
        torch.testing.assert_close(grads(ours), grads(eager))
    for grad, expected in zip(grads(ours), grads(eager), strict=True):
        assert grad is None or (grad.stride() == expected.stride() and grad.requires_grad == expected.requires_grad)
    return compiled


X = torch.linspace(-1, 1, 8).reshape(2, 4)


def whole(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    loss = functional.cross_entropy(model(x), torch.tensor([0, 2]))
    loss.backward()
    return loss


def fresh(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    model.zero_grad()
    return whole(model, x)


def zeroed(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    model.zero_grad(set_to_none=False)
    return whole(model, x)


def twice(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    loss = model(x).square().sum()
    loss.backward(retain_graph=True)
    (loss * 2).backward()
    return loss.detach()


def some_inputs(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    loss = model(x).square().sum()
    loss.backward(inputs=[model[0].weight])
    return loss.detach()


def given_gradient(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    y = model(x)
    torch.autograd.backward([y, y.sum()], [torch.ones_like(y), None])
    return y.detach()


def returned_gradients(model: nn.Module, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return torch.autograd.grad(model(x).sum(), list(model.parameters()))


def read_gradients(model: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    whole(model, x)
    return [parameter.grad.norm() for parameter in model.parameters() if parameter.grad is not None]


def penalized(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    loss = model(x).square().sum()
    (first,) = torch.autograd.grad(loss, model[0].weight, create_graph=True)
    (loss + first.square().sum()).backward()
    return loss.detach()


def shared_gradient(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Two leaves share one gradient expression, but each leaf must get a separate gradient tensor."""
    loss = (model[1].weight + model[1].bias).sum()
    loss.backward()
    model[1].weight.grad.mul_(2)
    return loss.detach() + x.sum()


def set_by_hand(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    whole(model, x)
    for parameter in model.parameters():
        parameter.grad = parameter.grad * 0.5
    return x + 1


def clipped(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    fresh(model, x)
    return nn.utils.clip_grad_norm_(model.parameters(), 0.1)


def checkpointed(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    from torch.utils.checkpoint import checkpoint

    y = checkpoint(model, x, use_reentrant=False)
    y.square().mean().backward()
    return y.detach()


def accumulated(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    model.zero_grad()
    total = torch.zeros(())
    for part in x.split(1):
        loss = model(part).square().mean() / 2
        loss.backward()
        total += loss.detach()
    return total


@pytest.mark.parametrize(
    "step",
    [
        whole, fresh, zeroed, twice, some_inputs, given_gradient, returned_gradients, read_gradients, penalized,
        shared_gradient, set_by_hand, clipped, checkpointed, accumulated,
    ],
)  # fmt: skip
def test_gradients_match_eager(step: Callable[..., Any]) -> None:
    compiled = assert_same(step, X)
    assert thunder.cache_misses(compiled) <= 2


def test_frozen_parameters_and_buffers_stay_unchanged() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    model[0].weight.requires_grad_(False)
    assert_same(fresh, X, model=nn.Sequential(model, nn.Linear(2, 3)))
    assert model[0].weight.grad is None


def test_lines_are_tagged_by_the_forward_line_and_recorded_by_no_autograd() -> None:
    compiled = assert_same(fresh, X)
    lines = thunder.last_traces(compiled)[-1].bound_symbols
    assert lines[0].symbol.name == "torch._C._set_grad_enabled"
    backward = [line for line in lines if line.module.startswith("backward of ")]
    assert {line.module for line in backward} >= {"backward of args[0][0]", "backward of args[0][1]"}
    assert all(line.source is not None for line in backward)


def test_second_backward_of_a_freed_graph_raises() -> None:
    loss = thunder.jit(whole)(small_network(), X)
    assert loss.requires_grad
    assert loss.grad_fn is not None
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        loss.backward()


def test_loss_with_a_retained_graph_can_be_differentiated_outside() -> None:
    def step(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        loss = model(x).square().sum()
        loss.backward(retain_graph=True)
        return loss

    ours, eager = small_network(), small_network()
    thunder.jit(step)(ours, X).backward()
    step(eager, X).backward()
    torch.testing.assert_close(grads(ours), grads(eager))


def test_hooks_of_leaves_are_called() -> None:
    ours, eager = small_network(), small_network()
    seen: dict[int, list[torch.Tensor]] = {id(ours): [], id(eager): []}

    def watch(model: nn.Module) -> None:
        mine = seen[id(model)]
        model[0].weight.register_hook(lambda grad: grad * 2)
        model[3].weight.register_post_accumulate_grad_hook(lambda leaf: mine.append(leaf.grad.sum()))

    watch(ours)
    watch(eager)
    compiled = thunder.jit(fresh)
    for _ in range(2):
        compiled(ours, X)
        fresh(eager, X)
    torch.testing.assert_close(grads(ours), grads(eager))
    torch.testing.assert_close(seen[id(ours)], seen[id(eager)])
    ours[0].weight._backward_hooks.clear()
    eager[0].weight._backward_hooks.clear()
    compiled(ours, X)
    fresh(eager, X)
    torch.testing.assert_close(grads(ours), grads(eager))


def test_tensors_inside_have_hooks_and_gradients() -> None:
    def step(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        hidden = model[0](x)
        hidden.retain_grad()
        hidden.register_hook(lambda grad: grad * 3)
        model[1:](hidden).sum().backward()
        return hidden.grad

    assert_same(step, X)


def test_an_input_that_was_computed_outside_is_refused() -> None:
    compiled = thunder.jit(whole, data_dependent="error")
    model, before = small_network(), nn.Linear(4, 4)
    with pytest.raises(OperationFailed, match="outside the program") as caught:
        compiled(model, before(X))
    assert caught.value.where is not None
    leaf = X.clone().requires_grad_()
    compiled(model, leaf)
    assert leaf.grad is not None
    with pytest.raises(OperationFailed, match="outside the program"):
        compiled(model, before(X))


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (lambda model, x: x.sum().backward(), "does not require grad"),
        (lambda model, x: model(x).backward(), "implicitly created only for scalar"),
        (lambda model, x: [(y := model(x).square().sum()).backward(), y.backward()], "second time"),
    ],
)
def test_calls_that_autograd_refuses_raise_the_same_error(step: Callable[..., Any], message: str) -> None:
    with pytest.raises(RuntimeError, match=message):
        step(small_network(), X)
    with pytest.raises(RuntimeError, match=message):
        thunder.jit(step)(small_network(), X)


def test_tracing_leaves_no_gradient_behind() -> None:
    def step(model: nn.Module, x: torch.Tensor) -> float:
        whole(model, x)
        return float(model[0].weight.detach().numpy().max())

    model = small_network()
    with pytest.raises(DataDependent):
        thunder.jit(step, data_dependent="error")(model, X)
    assert grads(model) == [None] * 6


class Doubled(torch.autograd.Function):
    """A product with a custom derivative: twice the mathematical derivative."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        return x @ weight

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x, weight = ctx.saved_tensors
        return 2 * gradient @ weight.t(), 2 * x.t() @ gradient


def test_custom_derivatives_of_the_user_are_used() -> None:
    def step(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        y = Doubled.apply(model[0](x), model[3].weight.t())
        Doubled.apply(y.relu(), model[3].weight).square().sum().backward()
        return y.detach()

    assert_same(step, X)


def stateful() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.GELU(), nn.Linear(8, 3))


def leaf_inside(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    weight = torch.zeros(4, requires_grad=True)
    (x * weight + x).square().sum().backward()
    return weight


def several_steps(model: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    losses = []
    for _ in range(3):
        losses.append(fresh(model, x).detach())
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.1 * parameter.grad
    return losses


def frozen_inside(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    for parameter in model[0].parameters():
        parameter.requires_grad_(False)
    return fresh(model, x)


def second_derivative(model: nn.Module, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    weight = model[4].weight
    loss = model[4](model[3](model[0](x))).square().sum()
    (first,) = torch.autograd.grad(loss, weight, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), weight)
    return first.detach(), second


def unused_parameters(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    model.zero_grad()
    loss = model[4](model[0](x)).sum()
    loss.backward()
    return loss.detach()


def data_written(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    fresh(model, x)
    for parameter in model.parameters():
        parameter.data.add_(parameter.grad.data, alpha=-0.1)
    return x + 1


def gradients_by_name(model: nn.Module, x: torch.Tensor) -> dict[str, torch.Tensor]:
    return torch.autograd.grad(model(x).square().sum(), dict(model.named_parameters()))


def gradients_of_an_iterator(model: nn.Module, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return torch.autograd.grad(model(x).square().sum(), model.parameters())


def accumulated_by_name(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    model(x).square().sum().backward(inputs=dict(model[1].named_parameters()))
    return model[1].weight.grad.clone()


def accumulated_for_an_iterator(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    model(x).square().sum().backward(inputs=model[1].parameters())
    return model[1].weight.grad.clone()


def gradients_by_ordered_name(model: nn.Module, x: torch.Tensor) -> dict[str, torch.Tensor]:
    return torch.autograd.grad(model(x).square().sum(), OrderedDict(model.named_parameters()))


def in_two_stages(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    hidden = model[0](x)
    cut = hidden.detach().requires_grad_()
    model[4](cut).sum().backward()
    hidden.backward(cut.grad)
    return hidden.detach()


def one_graph_left(model: nn.Module, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = model(x)
    fresh(model, x)
    return y.detach(), y


@pytest.mark.parametrize(
    "step",
    [
        fresh, leaf_inside, several_steps, frozen_inside, second_derivative, unused_parameters, data_written,
        in_two_stages, one_graph_left,
    ],
)  # fmt: skip
def test_states_and_random_numbers_match_eager(step: Callable[..., Any]) -> None:
    ours, eager, compiled = stateful(), stateful(), thunder.jit(step)
    for seed in range(3):
        torch.manual_seed(seed)
        found = tree_leaves(compiled(ours, X))
        torch.manual_seed(seed)
        wanted = tree_leaves(step(eager, X))
        torch.testing.assert_close(found, wanted, rtol=0, atol=0)
        for result, expected_result in zip(found, wanted, strict=True):
            assert result.requires_grad == expected_result.requires_grad
            assert not result.is_leaf or (result.grad is None) == (expected_result.grad is None)
        torch.testing.assert_close(ours.state_dict(), eager.state_dict(), rtol=0, atol=0)
        torch.testing.assert_close(grads(ours), grads(eager), rtol=0, atol=0)
    assert thunder.cache_misses(compiled) <= 2


@pytest.mark.parametrize(
    "step",
    [
        gradients_by_name, gradients_by_ordered_name, gradients_of_an_iterator,
        accumulated_by_name, accumulated_for_an_iterator,
    ],
)  # fmt: skip
def test_forms_of_leaves_are_accepted_as_in_the_installed_pytorch(step: Callable[..., Any]) -> None:
    """PyTorch 2.11, for example, refuses a dict of leaves; PyTorch 2.13 returns a dict of gradients."""
    ours, eager = small_network(), small_network()
    try:
        wanted = step(eager, X)
    except (RuntimeError, TypeError) as error:
        with pytest.raises(type(error), match=re.escape(str(error).partition(".")[0])):
            thunder.jit(step)(ours, X)
        return
    found = thunder.jit(step)(ours, X)
    assert type(found) is type(wanted)
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(grads(ours), grads(eager))


@pytest.mark.parametrize("kind", ["register_full_backward_hook", "register_forward_hook"])
def test_hooks_of_modules_are_called(kind: str) -> None:
    hooks: dict[str, Callable[..., Any]] = {
        "register_full_backward_hook": lambda module, inputs, outputs: tuple(value * 2 for value in inputs),
        "register_forward_hook": lambda module, inputs, output: output * 2,
    }
    ours, eager = small_network(), small_network()
    for model in (ours, eager):
        getattr(model[1], kind)(hooks[kind])
    compiled = thunder.jit(fresh)
    for _ in range(2):
        torch.testing.assert_close(compiled(ours, X), fresh(eager, X))
        torch.testing.assert_close(grads(ours), grads(eager))


def test_write_to_a_saved_tensor_is_detected() -> None:
    def step(model: nn.Module, x: torch.Tensor) -> None:
        hidden = model[0](x).relu()
        hidden[0] = 0
        hidden.sum().backward()

    for function in (step, thunder.jit(step)):
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            function(small_network(), X)


def grad_by_keyword(y: torch.Tensor) -> Any:
    return torch.autograd.grad(outputs=(y**2).sum(), inputs=[y])


def backward_by_keyword(y: torch.Tensor) -> Any:
    torch.autograd.backward(tensors=[(y**3).sum()])
    return y.grad


def backward_with_cotangents(y: torch.Tensor) -> Any:
    z = y**2
    torch.autograd.backward([z], grad_tensors=[z.detach()])
    return y.grad


def backward_of_inputs(y: torch.Tensor) -> Any:
    z = y**2
    torch.autograd.backward(z, torch.ones_like(z), retain_graph=True, inputs=y)
    torch.autograd.backward(tensors=z, grad_tensors=torch.ones_like(z), inputs=[y])
    return y.grad


SPELLINGS = (grad_by_keyword, backward_by_keyword, backward_with_cotangents, backward_of_inputs)


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_backward_passes_take_their_arguments_by_keyword(spelling: Callable[[torch.Tensor], Any]) -> None:
    def program(x: torch.Tensor) -> Any:
        return spelling(x.detach().requires_grad_())

    compiled = thunder.jit(program)
    x = torch.randn(3)
    for _ in range(2):
        torch.testing.assert_close(compiled(x), program(x))
    assert thunder.cache_misses(compiled) == 1


def test_autograd_function_defined_in_the_program_is_traced() -> None:
    def program(x: Tensor) -> Tensor:
        class Tripled(torch.autograd.Function):
            """A function with a derivative of its own."""

            @staticmethod
            def forward(ctx: Any, x: Tensor) -> Tensor:
                ctx.save_for_backward(x)
                return x * 2

            @staticmethod
            def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
                return gradient * 3 * ctx.saved_tensors[0]

        result: Tensor = Tripled.apply(x)  # type: ignore[no-untyped-call]
        return result.sum()

    compiled = thunder.jit(program, executors=("torch",))
    for value in (1.0, 2.0):
        x = torch.full((2,), value, requires_grad=True)
        result = compiled(x)
        result.backward()  # type: ignore[no-untyped-call]
        assert (result.item(), x.grad.tolist()) == (4 * value, [3 * value, 3 * value])  # type: ignore[union-attr]
    assert thunder.cache_misses(compiled) == 1
    assert thunder.recompile_reasons(compiled) == []
    assert thunder.last_program(compiled)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_anomaly_detection_finds_nan_in_a_backward_of_the_program() -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        (gradient,) = torch.autograd.grad(x.sqrt().sum(), x)
        return gradient

    def step_with_detection(x: torch.Tensor) -> torch.Tensor:
        with torch.autograd.detect_anomaly():
            return step(x)

    compiled, detecting = thunder.jit(step), thunder.jit(step_with_detection)
    good, bad = (torch.full((2,), value, requires_grad=True) for value in (1.0, -1.0))
    for called in (compiled, detecting):
        torch.testing.assert_close(called(good), step(good))
    assert compiled(bad).isnan().all()
    with torch.autograd.detect_anomaly():
        torch.testing.assert_close(compiled(good), step(good))
        with pytest.raises(RuntimeError, match="returned nan values"):
            compiled(bad)
    with pytest.raises(RuntimeError, match="returned nan values"):
        detecting(bad)
