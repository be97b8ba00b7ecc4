"""Hooks of leaves are called by backward passes of the program itself, in the order and with the effects of eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

import thunder_core as thunder
from thunder_core.foundation.errors import RecompileWarning

FACTOR = torch.tensor([1.0, 2.0, 3.0])


def leaf() -> Tensor:
    return torch.arange(3.0).requires_grad_()


def leaf_with_hooks() -> Tensor:
    """Return a leaf with a hook before accumulation and a hook after it."""
    tensor = leaf()
    tensor.register_hook(lambda gradient: gradient * FACTOR + 1)
    tensor.register_post_accumulate_grad_hook(double_gradient)
    return tensor


def double_gradient(tensor: Tensor) -> None:
    assert tensor.grad is not None
    tensor.grad.mul_(2)


def accumulation_node(tensor: Tensor) -> Any:
    """Return the node of autograd's graph that accumulates the gradient of a leaf."""
    node = tensor.view_as(tensor).grad_fn
    assert node is not None
    return node.next_functions[0][0]


def post_accumulate(x: Tensor) -> Any:
    handle = x.register_post_accumulate_grad_hook(double_gradient)
    (x * 3).sum().backward()
    handle.remove()
    (x * 3).sum().backward()
    return x.grad


def post_accumulate_of_own_parameter(x: Tensor) -> Any:
    weight = nn.Parameter(x.detach() + 1)
    weight.register_post_accumulate_grad_hook(double_gradient)
    (weight * x).sum().backward()
    return weight.grad, x.grad


def optimizer_in_backward(x: Tensor) -> Any:
    weight = nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([weight], lr=0.5, momentum=0.9)

    def step(_: Tensor) -> None:
        optimizer.step()
        optimizer.zero_grad()

    weight.register_post_accumulate_grad_hook(step)
    for _ in range(3):
        (weight * weight * x).sum().backward()
    return weight.detach(), weight.grad is None


def hook_before_accumulation(x: Tensor) -> Any:
    x.register_hook(lambda gradient: gradient + 5)
    (x * x).sum().backward()
    return x.grad


def gradient_of_loss(x: Tensor) -> Any:
    handle = x.register_hook(lambda gradient: gradient + 5)
    first = torch.autograd.grad((x * x).sum(), x)
    handle.remove()
    return first, torch.autograd.grad((x * x).sum(), x)


def hooks_of_accumulation_node(x: Tensor) -> Any:
    calls: list[Any] = []
    node = accumulation_node(x)
    before = node.register_prehook(lambda gradients: (gradients[0] * 5,))

    def after(inputs: Any, outputs: Any) -> None:
        calls.append((len(inputs), len(outputs), outputs[0].shape))
        double_gradient(x)

    handle = node.register_hook(after)
    (x * x).sum().backward()
    handle.remove()
    (x * x).sum().backward()
    before.remove()
    (x * x).sum().backward()
    return calls, x.grad


def hook_that_reads_a_gradient(x: Tensor) -> Any:
    x.register_hook(lambda gradient: gradient + (5 if x.grad is None else x.grad))
    for _ in range(3):
        (x * FACTOR).sum().backward()
    return x.grad


def hook_that_sets_a_gradient(x: Tensor) -> Any:
    doubled = x * 2

    def hook(gradient: Tensor) -> Tensor:
        x.grad = gradient * 100
        return gradient * FACTOR.sum()

    doubled.register_hook(hook)
    (doubled * 3).sum().backward()
    return x.grad


def gradient_of_an_edge(x: Tensor) -> Any:
    product = x * 2
    edge = torch.autograd.graph.get_gradient_edge(product)
    product.mul_(3)
    return torch.autograd.grad(product.sum(), (edge, product))


PROGRAMS = (
    post_accumulate,
    post_accumulate_of_own_parameter,
    optimizer_in_backward,
    hook_before_accumulation,
    gradient_of_loss,
    hooks_of_accumulation_node,
    hook_that_reads_a_gradient,
    hook_that_sets_a_gradient,
    gradient_of_an_edge,
)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
@pytest.mark.parametrize("make_leaf", [leaf, leaf_with_hooks], ids=["no_hooks_before", "hooks_before"])
def test_hooks_are_called_as_in_eager(program: Callable[[Tensor], Any], make_leaf: Callable[[], Tensor]) -> None:
    wanted = tree_leaves(program(make_leaf()))
    fast = thunder.jit(program, executors=("torch",))
    for _ in range(2):
        found = tree_leaves(fast(make_leaf()))
        assert len(found) == len(wanted)
        for ours, theirs in zip(found, wanted, strict=True):
            assert torch.equal(torch.as_tensor(ours), torch.as_tensor(theirs))
    assert make_leaf is leaf_with_hooks or thunder.cache_misses(fast) == 1


def test_a_program_whose_leaf_has_hooks_at_its_accumulation_node_runs_in_eager() -> None:
    x = leaf()
    node = accumulation_node(x)
    node.register_hook(lambda *_: double_gradient(x))
    fast = thunder.jit(lambda x: (x * 3).sum().backward(), executors=("torch",))
    with pytest.warns(RecompileWarning, match="had hooks before the program"):
        fast(x)
    assert torch.equal(x.grad, torch.full((3,), 6.0))


HOOKS_ADDED_LATER: dict[str, Callable[[Tensor, Any], Any]] = {
    "prehook of the node": lambda x, node: node.register_prehook(lambda gradients: (gradients[0] * 5,)),
    "hook of the node": lambda x, node: node.register_hook(lambda *_: double_gradient(x)),
    "hook of the tensor": lambda x, node: x.register_hook(lambda gradient: gradient * 5),
    "hook after accumulation": lambda x, node: x.register_post_accumulate_grad_hook(double_gradient),
    "hook of several": lambda x, node: torch.autograd.graph.register_multi_grad_hook(
        [x], lambda gradients: gradients[0].mul_(5)
    ),
    "hook of any": lambda x, node: torch.autograd.graph.register_multi_grad_hook(
        [x], lambda gradient: gradient.mul_(5), mode="any"
    ),
}


class Scaled(nn.Module):
    """A module with a parameter, used in steps that run a backward pass."""

    def __init__(self, count: int = 1) -> None:
        super().__init__()
        self.weights = nn.ParameterList([nn.Parameter(torch.arange(3.0)) for _ in range(count)])

    def forward(self, x: Tensor) -> None:
        for weight in self.weights:
            (weight * x).sum().backward()


@pytest.mark.filterwarnings("ignore::thunder_core.foundation.errors.RecompileWarning")
@pytest.mark.parametrize("register", HOOKS_ADDED_LATER.values(), ids=HOOKS_ADDED_LATER)
@pytest.mark.parametrize("compile_step", [lambda step: step, lambda step: thunder.jit(step, executors=("torch",))])
def test_hooks_that_a_leaf_gets_between_calls_are_noticed(
    register: Callable[[Tensor, Any], Any], compile_step: Callable[[Any], Any]
) -> None:
    """Two calls without the hook, two with it and two after its removal; with eager PyTorch, this tests the test."""
    module = Scaled()
    step, (weight,) = compile_step(module), module.weights
    node, gradients = accumulation_node(weight), []

    def run_twice() -> None:
        for _ in range(2):
            weight.grad = None
            step(FACTOR)
            gradients.append((weight.grad / FACTOR).tolist())

    run_twice()
    handle = register(weight, node)
    run_twice()
    handle.remove()
    run_twice()
    factor = gradients[2][0]
    assert factor in (2.0, 5.0)
    assert gradients == [[value] * 3 for value in (1.0, 1.0, factor, factor, 1.0, 1.0)]


@pytest.mark.filterwarnings("ignore::thunder_core.foundation.errors.RecompileWarning")
def test_hooks_of_nodes_are_noticed_by_a_program_that_skips_the_reads_of_its_module() -> None:
    module = Scaled(60)
    step = thunder.jit(module, executors=("torch",))
    for _ in range(6):
        step(FACTOR)
    assert thunder.cache_misses(step) <= 3
    weight = module.weights[41]
    node = accumulation_node(weight)
    node.register_prehook(lambda gradients: (gradients[0] * 5,))
    weight.grad = None
    step(FACTOR)
    assert torch.equal(weight.grad, FACTOR * 5)


ERRONEOUS_HOOKS: dict[str, tuple[Callable[[Tensor, Any], Any], str]] = {
    "no tuple": (lambda x, node: node.register_prehook(lambda gradients: gradients[0]), "expected tuple"),
    "two": (lambda x, node: node.register_prehook(lambda gradients: (gradients[0],) * 2), "incorrect number"),
    "gradients after accumulation": (
        lambda x, node: node.register_hook(lambda _, outputs: outputs),
        "incorrect number",
    ),
    "tensor after accumulation": (lambda x, _: x.register_post_accumulate_grad_hook(lambda x: x + 1), "return None"),
    "number after accumulation": (lambda x, _: x.register_post_accumulate_grad_hook(lambda x: 5), "expected Variable"),
}


@pytest.mark.parametrize(("register", "message"), ERRONEOUS_HOOKS.values(), ids=ERRONEOUS_HOOKS)
@pytest.mark.parametrize("compile_step", [lambda step: step, lambda step: thunder.jit(step, executors=("torch",))])
def test_erroneous_results_of_hooks_raise_errors_of_eager(
    register: Callable[[Tensor, Any], Any], message: str, compile_step: Callable[[Any], Any]
) -> None:
    def step(x: Tensor) -> None:
        node = accumulation_node(x)
        register(x, node)
        (x * 2).sum().backward()

    with pytest.raises((TypeError, RuntimeError), match=message):
        compile_step(step)(leaf())


def drops_the_node(x: Tensor) -> Any:
    accumulation_node(x).register_prehook(lambda gradients: (gradients[0] * 5,))
    (x * x).sum().backward()
    return x.grad


def drops_the_node_after_the_graph(x: Tensor) -> Any:
    node = accumulation_node(x)
    node.register_hook(lambda _inputs, _outputs: double_gradient(x))
    loss = (x * x).sum()
    del node
    loss.backward()
    return x.grad


@pytest.mark.parametrize(("program", "factor"), [(drops_the_node, 1), (drops_the_node_after_the_graph, 2)])
def test_hook_of_a_node_lives_as_long_as_the_node(program: Callable[[Tensor], Any], factor: int) -> None:
    step = thunder.jit(program, executors=("torch",))
    expected = torch.arange(3.0) * 2 * factor
    assert torch.equal(program(leaf()), expected)
    with pytest.warns(RecompileWarning, match="holds the node no longer"):
        results = [step(leaf()) for _ in range(2)]
    assert all(torch.equal(result, expected) for result in results)
