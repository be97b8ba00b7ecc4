"""Inside DistributedDataParallel, the backward of a compiled module is a chain of nodes, with eager's gradients."""

# mypy: disable-error-code="no-untyped-call,no-untyped-def,attr-defined"

from __future__ import annotations

import copy
from contextlib import nullcontext
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import thunder_core as thunder
from tests.distributed.comparison import assert_equal
from tests.distributed.wrappers.chains import (
    MODELS,
    WAYS,
    Net,
    chains_of,
    example,
    gradients_of,
    nodes_of,
    penalty,
    run_twice,
    wrap,
)
from thunder_core.passes.autodiff.chained_nodes import PieceNode

pytestmark = pytest.mark.usefixtures("group_of_one")


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
@pytest.mark.parametrize("kind", MODELS, ids=lambda kind: kind.__name__)
def test_gradients_match_one_node_and_eager(kind: Any, way: Any) -> None:
    """Also for tied, frozen and unused parameters, buffers that are written, and random numbers."""
    loss = MODELS[kind]
    chained, single, eager = wrap(thunder.jit(kind())), NoWrapper(thunder.jit(kind())), wrap(kind())
    for model in (chained, single, eager):
        run_twice(way, model, loss)
    with chained.no_sync():
        assert len(nodes_of(loss(chained))) >= 2
    assert_equal(gradients_of(chained), gradients_of(single))
    if way is penalty:  # a second run of the program, which adds in another order than eager
        torch.testing.assert_close(gradients_of(chained), gradients_of(eager), rtol=1e-12, atol=1e-12)
    else:
        assert_equal(gradients_of(chained), gradients_of(eager))
    assert sum(one is not None for one in gradients_of(chained)) >= 3


class NoWrapper(nn.Module):
    """A model outside of any wrapper, with the interface of the wrapper."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *args: Any) -> Any:
        return self.module(*args)

    def no_sync(self) -> Any:
        return nullcontext()


def test_gradients_arrive_while_the_backward_runs() -> None:
    """A parameter has its gradient before the piece for the previous layer runs."""
    model = wrap(thunder.jit(Net()))
    order: list[str] = []
    for name, parameter in model.module.named_parameters():
        parameter.register_post_accumulate_grad_hook(lambda _, name=name: order.append(name))
    x = example()
    x.register_hook(lambda _: order.append("x"))
    torch.manual_seed(1)
    result = model(x)
    chain = chains_of(result)
    run = chain._run_piece

    def noted(number: int, rest: Any) -> Any:
        order.append(f"piece {number}")
        return run(number, rest)

    chain._run_piece = noted  # type: ignore[method-assign]
    result.sum().backward()
    layers = [f"layers.{number}" for number in reversed(range(4))]
    places = {layer: [order.index(f"{layer}.{kind}") for kind in ("weight", "bias")] for layer in layers}
    pieces = [index for index, name in enumerate(order) if name.startswith("piece")]
    assert len(pieces) == len(chain.groups) >= 4
    assert order[0] == "piece 0"
    for layer, later in pairwise(layers):
        assert any(max(places[layer]) < piece < min(places[later]) for piece in pieces)


def test_no_wrapper_means_one_node() -> None:
    compiled = thunder.jit(Net())
    model = wrap(compiled)
    assert len(nodes_of(model(example()))) > 2
    assert [node.chain for node in nodes_of(compiled(example()))] == [None]
    assert nodes_of(DistributedDataParallel(compiled)(example()))[0].chain is None  # one bucket has all gradients
    with torch.no_grad():
        assert model(example()).grad_fn is None
    assert thunder.cache_misses(compiled) <= 2


def test_partial_backward_runs_and_keeps_no_later_piece() -> None:
    model = wrap(thunder.jit(Net()))
    result = model(example())
    last = model.module.layers[3].bias
    chain = chains_of(result)
    numbers: list[int] = []
    run = chain._run_piece

    def noted(number: int, rest: Any) -> Any:
        numbers.append(number)
        return run(number, rest)

    chain._run_piece = noted  # type: ignore[method-assign]
    torch.autograd.grad(result.sum(), [last], retain_graph=True)
    assert 0 < len(numbers) < len(chain.groups)
    assert not chain._remaining
    result.sum().backward()
    assert not chain._remaining
    with pytest.raises(RuntimeError, match="second time"):
        result.sum().backward()


class WithLoss(nn.Module):
    """A model whose loss is computed from another result."""

    def __init__(self) -> None:
        super().__init__()
        self.net = Net().eval()

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.net(x)
        return y, y.pow(2).mean()


@pytest.mark.parametrize("hooked", [False, True])
def test_loss_that_is_computed_from_another_result(hooked: bool) -> None:
    gradients = []
    for model in (wrap(WithLoss()), wrap(thunder.jit(WithLoss()))):
        seen: list[Tensor] = []
        y, loss = model(example())
        if hooked:
            y.register_hook(lambda gradient, seen=seen: seen.append(gradient.clone()))
        (loss + y.sum()).backward()
        gradients.append([*gradients_of(model), *seen])
    assert len(gradients[0]) == len(gradients[1])
    assert_equal(*gradients)


def test_gradients_for_many_vectors_equal_eagers() -> None:
    vectors = torch.eye(15, dtype=torch.float64).view(15, 3, 5)
    gradients = []
    for model in (wrap(Net().eval()), wrap(thunder.jit(Net().eval()))):
        parameters = list(model.parameters())
        gradients.append(torch.autograd.grad(model(example()), parameters, vectors, is_grads_batched=True))
    torch.testing.assert_close(*gradients, rtol=1e-12, atol=1e-12)


def test_copies_and_sizes_that_vary() -> None:
    eager, compiled = Net().eval(), thunder.jit(copy.deepcopy(Net().eval()), cache="symbolic values")
    eager.shift.requires_grad_(False)
    compiled.shift.requires_grad_(False)
    models = wrap(eager), wrap(compiled)
    for size in (3, 1, 3):
        for model in models:
            model(example()[:size].detach()).sin().sum().backward()
    assert_equal(*map(gradients_of, models))


def test_hook_of_a_node_of_the_chain_is_refused() -> None:
    node = nodes_of(wrap(thunder.jit(Net()))(example()))[1]
    assert isinstance(node, PieceNode._backward_cls)
    with pytest.raises(thunder.errors.NotDifferentiable):
        node.register_hook(lambda *_: None)
