"""Results of a program that are computed from other results: each gradient between two results matches eager."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._pytree import tree_leaves

import thunder_core as thunder
from thunder_core.foundation.errors import NotDifferentiable
from thunder_core.tracing.library.changes.node_hooks import _word_indices_of_hooks, has_hooks

Compile = Callable[[Any], Any]
EXECUTORS = [("torch",), ("inductor", "torch")]


def assert_same(run: Callable[[Compile], Any], executors: tuple[str, ...] = ("torch",)) -> None:
    """Compare the results of a run with `thunder.jit` and in eager PyTorch."""
    wanted = tree_leaves(run(lambda subject: subject))
    found = tree_leaves(run(lambda subject: thunder.jit(subject, executors=executors)))
    assert wanted
    assert len(found) == len(wanted)
    for ours, theirs in zip(found, wanted, strict=True):
        if isinstance(theirs, Tensor):
            torch.testing.assert_close(ours, theirs)
        else:
            assert ours == theirs


def leaf(count: int = 3) -> Tensor:
    return (torch.arange(float(count)) + 1).requires_grad_()


def error_of(function: Callable[[], Any]) -> str:
    try:
        function()
    except RuntimeError as error:
        return str(error)
    return "none"


def scores_and_loss(x: Tensor) -> tuple[Tensor, Tensor]:
    scores = x * 2
    return scores, scores.square().sum()


def chain(x: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
    first = x * weight
    second = first.sin() * weight
    return first, second, (second * first).sum(), second.view(-1)[1:]


@pytest.mark.parametrize("executors", EXECUTORS)
def test_the_gradient_of_a_result_with_respect_to_another_matches_eager(executors: tuple[str, ...]) -> None:
    def run(compile_: Compile) -> Any:
        called, x = compile_(scores_and_loss), leaf()
        scores, loss = called(x)
        found = [*torch.autograd.grad(loss, scores, retain_graph=True), *torch.autograd.grad(loss, [scores, x])]
        scores, loss = called(x)
        loss.backward(inputs=[x, scores])
        return found, scores.grad, x.grad, *torch.autograd.grad(called(x)[1], x, materialize_grads=True)

    assert_same(run, executors)


@pytest.mark.parametrize("executors", EXECUTORS)
def test_gradients_along_a_chain_of_results_match_eager(executors: tuple[str, ...]) -> None:
    def run(compile_: Compile) -> Any:
        x, weight, found = leaf(4), leaf(4), []
        first, second, total, view = compile_(chain)(x, weight)
        for result, wanted in (
            (total, [first, second]),
            (total, [second, weight]),
            (second.sum() + total, [first, x]),
            (view.sum(), [first, x, second]),
        ):
            found += torch.autograd.grad(result, wanted, retain_graph=True)
        (total * 2 + view.sum() + first.sum()).backward()
        return found, x.grad, weight.grad

    assert_same(run, executors)


@pytest.mark.parametrize("executors", EXECUTORS)
def test_hooks_and_retain_grad_of_a_result_see_its_whole_gradient(executors: tuple[str, ...]) -> None:
    def run(compile_: Compile) -> Any:
        x, weight, met = leaf(4), leaf(4), []
        first, second, total, view = compile_(chain)(x, weight)
        first.register_hook(lambda gradient: met.append(gradient.clone()) or gradient * 2)
        second.register_hook(lambda gradient: met.append(gradient.clone()) or gradient + 1)
        view.register_hook(lambda gradient: met.append(gradient.clone()))
        torch.autograd.graph.register_multi_grad_hook((first, second), met.extend)
        second.retain_grad()
        (total * 2 + view.sum()).backward()
        return met, x.grad, weight.grad, second.grad

    assert_same(run, executors)


@pytest.mark.parametrize("look", [torch.Tensor.retain_grad, lambda tensor: tensor.register_hook(lambda g: g * 2)])
def test_hook_of_a_dropped_result_is_called(look: Callable[[Tensor], Any]) -> None:
    def run(compile_: Compile) -> Any:
        x = leaf()
        scores, loss = compile_(scores_and_loss)(x)
        look(scores)
        del scores
        gc.collect()
        loss.backward()
        return x.grad

    assert_same(run)


def test_views_that_a_loss_is_computed_from_have_gradients() -> None:
    """A causal language model returns its loss and logits, which are a view of the last layer's output."""

    def run(compile_: Compile) -> Any:
        torch.manual_seed(0)
        head, x = nn.Linear(3, 4), torch.arange(12.0).reshape(2, 2, 3).requires_grad_()

        def program(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            hidden = head(x)
            logits = hidden.view(-1, 2)
            return functional.cross_entropy(logits, torch.tensor([0, 1] * 4)), logits, hidden

        loss, logits, hidden = compile_(program)(x)
        found = [
            *torch.autograd.grad(loss, logits, retain_graph=True),
            *torch.autograd.grad(loss, hidden, retain_graph=True),
            *torch.autograd.grad(loss, [logits, hidden, x], retain_graph=True),
        ]
        logits.retain_grad()
        hidden.retain_grad()
        (loss + logits.sum()).backward()
        return found, logits.grad, hidden.grad, x.grad, head.weight.grad

    assert_same(run)


def test_an_activation_that_a_forward_hook_kept_has_gradients() -> None:
    """Captum's methods for the neurons of a layer need these gradients."""

    def run(compile_: Compile) -> Any:
        torch.manual_seed(0)
        model, kept, found = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)), [], []
        model[1].register_forward_hook(lambda module, args, output: kept.append(output))
        called = compile_(model)
        for call in range(3):
            result = called(torch.arange(6.0).reshape(2, 3) + call)
            found += torch.autograd.grad(result[:, 1].sum(), kept[-1])
        return found

    assert_same(run)


def test_the_second_derivative_with_respect_to_a_result_matches_eager() -> None:
    def run(compile_: Compile) -> Any:
        def program(x: Tensor) -> tuple[Tensor, Tensor]:
            powers = x**2
            return powers, (powers**3).sum()

        x = leaf()
        powers, total = compile_(program)(x)
        (gradient,) = torch.autograd.grad(total, powers, create_graph=True)
        second = torch.autograd.grad(gradient.sum(), powers, retain_graph=True)
        return gradient, second, torch.autograd.grad(gradient.sum(), x)

    assert_same(run)


def test_many_gradients_at_once_match_eager() -> None:
    def run(compile_: Compile) -> Any:
        def program(x: Tensor) -> tuple[Tensor, Tensor]:
            powers = x**2
            return powers, powers.sin()

        powers, sines = compile_(program)(leaf())
        return torch.autograd.grad(sines, powers, torch.eye(3), is_grads_batched=True)

    assert_same(run)


def test_backward_uses_the_random_numbers_of_the_call() -> None:
    def run(compile_: Compile) -> Any:
        def program(x: Tensor) -> tuple[Tensor, Tensor]:
            dropped = functional.dropout(x * 2, 0.5)
            return dropped, (dropped * torch.rand(8)).square().sum()

        torch.manual_seed(3)
        x = leaf(8)
        dropped, total = compile_(program)(x)
        (gradient,) = torch.autograd.grad(total, dropped, create_graph=True)
        total.backward()
        return gradient, x.grad

    assert_same(run)


def test_a_model_that_writes_to_its_buffers_has_gradients_between_results() -> None:
    def run(compile_: Compile) -> Any:
        torch.manual_seed(0)
        model, x = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)), torch.randn(5, 3, requires_grad=True)

        def program(x: Tensor) -> tuple[Tensor, Tensor]:
            hidden = model[0](x)
            return hidden, model[1](hidden).square().sum()

        hidden, total = compile_(program)(x)
        found = torch.autograd.grad(total, [hidden, x], retain_graph=True)
        return found, torch.autograd.grad(total, list(model.parameters())), model[1].running_mean

    assert_same(run)


def test_results_that_are_not_computed_from_each_other_stay_unconnected() -> None:
    def run(compile_: Compile) -> Any:
        def program(x: Tensor) -> tuple[Tensor, ...]:
            powers = x**2
            return powers, x.sin().sum(), powers.detach().sum() * x.sum()

        powers, *others = compile_(program)(leaf())
        found = [torch.autograd.grad(item, powers, allow_unused=True, retain_graph=True) for item in others]
        return [gradient is None for (gradient,) in found], [
            error_of(lambda power=power: torch.autograd.grad(power, powers, retain_graph=True)) for power in others
        ]

    assert_same(run)


def test_a_graph_that_was_freed_is_refused_as_in_eager() -> None:
    def run(compile_: Compile) -> Any:
        scores, loss = compile_(scores_and_loss)(leaf())
        (gradient,) = torch.autograd.grad(loss, scores)
        return gradient, error_of(lambda: torch.autograd.grad(loss, scores))[:51]

    assert_same(run)


@pytest.mark.parametrize("wanted", [None, "sources", "leaf"])
def test_dropped_results_keep_nothing_alive(wanted: str | None) -> None:
    compiled = thunder.jit(chain)

    def use() -> list[weakref.ref[Any]]:
        x = leaf(4)
        first, second, total, view = compiled(x, leaf(4))
        if wanted is None:
            first.register_hook(lambda gradient: gradient)
            (total + view.sum()).backward()
        else:
            torch.autograd.grad(total, [first, second] if wanted == "sources" else [x])
        return [weakref.ref(item) for item in (first, second, total, view, first.grad_fn)]

    use()
    gc.disable()
    try:
        assert [reference() for reference in use()] == [None] * 5
    finally:
        gc.enable()


def flat_view(x: Tensor) -> tuple[Tensor, Tensor]:
    view = (x * 2).view(-1)
    return view, view.square().sum()


def view_of_view(x: Tensor) -> tuple[Tensor, ...]:
    view = (x * 2).view(-1).unsqueeze(0)
    return view, (view * x).sum(), view.sin().sum()


def slice_of_sum(x: Tensor) -> tuple[Tensor, Tensor]:
    sliced = x.exp()[1:]
    return sliced, sliced.sum()


def transposed_input(x: Tensor) -> tuple[Tensor, Tensor]:
    turned = x.expand(2, -1).t()
    return turned, (turned * 3).sum()


@pytest.mark.parametrize("program", [flat_view, view_of_view, slice_of_sum, transposed_input])
@pytest.mark.parametrize("kind", ["register_hook", "register_prehook"])
def test_a_hook_at_the_node_of_a_returned_view_sees_all_of_its_gradient(program: Any, kind: str) -> None:
    def run(compile_: Compile) -> Any:
        x, met = leaf(4), []
        called = compile_(program)
        for _ in range(2):
            view, *totals = called(x)
            getattr(view.grad_fn, kind)(lambda *gradients: met.append(tree_leaves(gradients)))
            (sum(totals) + view.sum()).backward()
        return met, x.grad

    assert_same(run)


def test_a_hook_at_a_view_between_the_program_and_a_result_is_refused() -> None:
    view, total, _ = thunder.jit(view_of_view)(leaf())
    view.grad_fn.next_functions[0][0].register_hook(print)
    with pytest.raises(NotDifferentiable, match="between a compiled program and its result"):
        total.backward()


def test_hooks_of_a_cpp_node_are_visible() -> None:
    for make in (Tensor.t, lambda x: x.view(-1), lambda x: x[0], lambda x: x.expand(2, 2, 2), torch.sin):
        first, second = (make(torch.ones(2, 2, requires_grad=True)).grad_fn for _ in range(2))
        assert not has_hooks(first)
        first.register_hook(print)
        second.register_prehook(print)
        assert has_hooks(first)
        assert has_hooks(second)
    assert _word_indices_of_hooks()


def test_a_hook_at_the_node_of_a_program_is_refused() -> None:
    scores, loss = thunder.jit(scores_and_loss)(leaf())
    single = thunder.jit(lambda x: x.sin())(leaf())
    for result in (scores, loss, single):
        with pytest.raises(NotDifferentiable, match="represents the whole program"):
            result.grad_fn.register_hook(print)
    with pytest.raises(NotDifferentiable, match="represents the whole program"):
        scores.grad_fn.register_prehook(print)


def test_a_hook_before_the_node_of_a_single_result_gets_its_gradient() -> None:
    def run(compile_: Compile) -> Any:
        x, met = leaf(), []
        result = compile_(lambda x: x.sin())(x)
        result.grad_fn.register_prehook(lambda gradients: met.extend(gradients) or (gradients[0] * 2,))
        result.sum().backward()
        return met, x.grad

    assert_same(run)
