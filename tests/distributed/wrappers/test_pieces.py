"""The pieces of a backward inside DistributedDataParallel: where a backward is cut, and pieces from an artifact."""

# mypy: disable-error-code="no-untyped-call,no-untyped-def,attr-defined"

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import thunder_core as thunder
from tests.distributed.comparison import assert_equal
from tests.distributed.wrappers.chains import (
    MODELS,
    WAYS,
    Checkpointed,
    Net,
    chains_of,
    example,
    gradients_of,
    loss_of_net,
    nodes_of,
    penalty,
    run_twice,
    wrap,
)
from thunder_core.backend.parallel.backward_pieces import lines_before_cuts
from thunder_core.tracing.capture.torch_facts.symbols import symbol_of
from thunder_core.tracing.ir.proxy import Proxy
from thunder_core.tracing.ir.symbol import BoundSymbol, Symbol
from thunder_core.workflow.artifact.format import printed

pytestmark = pytest.mark.usefixtures("group_of_one")


def saved_and_loaded(model: nn.Module, other: nn.Module, loss: Callable[[Any], Tensor], folder: Path) -> Any:
    """Save a module after a call, and load the artifact for another module."""
    compiled = thunder.jit(model)
    loss(compiled).backward()
    return thunder.load(thunder.save(compiled, folder), other, strict=True)


@pytest.mark.parametrize("way", [way for way in WAYS if way is not penalty], ids=lambda way: way.__name__)
@pytest.mark.parametrize("kind", MODELS, ids=lambda kind: kind.__name__)
def test_module_from_an_artifact_has_a_chain(kind: Any, way: Any, tmp_path: Path) -> None:
    loss = MODELS[kind]
    chained, eager = wrap(saved_and_loaded(kind(), kind(), loss, tmp_path / "artifact")), wrap(kind())
    for model in (chained, eager):
        run_twice(way, model, loss)
    with chained.no_sync():
        assert len(nodes_of(loss(chained))) >= 2
    assert_equal(gradients_of(chained), gradients_of(eager))
    assert sum(one is not None for one in gradients_of(chained)) >= 3


def test_regions_of_inductor_from_an_artifact_are_in_pieces(tmp_path: Path) -> None:
    compiled: Any = thunder.compile(Net().eval())
    loss_of_net(compiled).backward()
    loaded = thunder.load(thunder.save(compiled, tmp_path / "artifact"), Net().eval(), strict=True)
    gradients = []
    for module in (compiled, loaded, Net().eval()):
        module.zero_grad()
        model = wrap(module)
        loss = loss_of_net(model)
        assert isinstance(module, Net) or len(nodes_of(loss)) >= 2
        loss.backward()
        gradients.append(gradients_of(model))
    assert_equal(gradients[1], gradients[0])
    torch.testing.assert_close(gradients[1], gradients[2], rtol=1e-12, atol=1e-12)


def test_artifact_without_arrivals_has_one_node(tmp_path: Path) -> None:
    """Artifacts of earlier versions do not say where gradients are final."""
    compiled = thunder.jit(Net())
    loss_of_net(compiled).backward()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(printed, "with_arrivals", lambda stage, program: stage)
        folder = thunder.save(compiled, tmp_path / "artifact")
    loaded, eager = wrap(thunder.load(folder, Net())), wrap(Net())
    for model in (loaded, eager):
        loss_of_net(model).backward()
    assert [node.chain for node in nodes_of(loss_of_net(loaded))] == [None]
    assert_equal(gradients_of(loaded), gradients_of(eager))


@pytest.mark.parametrize("is_loaded", [False, True])
def test_hooks_between_pieces_see_the_random_state_of_the_process(is_loaded: bool, tmp_path: Path) -> None:
    """The backward sets the state of the random numbers for recomputed dropouts, and restores it before a hook runs."""
    module: Any = thunder.jit(Checkpointed())
    if is_loaded:
        module = saved_and_loaded(Checkpointed(), Checkpointed(), loss_of_net, tmp_path / "artifact")
    model = wrap(module)
    states: list[Tensor] = []
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda _: states.append(torch.get_rng_state()))
    loss = loss_of_net(model)
    assert len(chains_of(loss).groups) >= 4
    before = torch.get_rng_state()
    loss.backward()
    assert len(states) == 9
    assert all(torch.equal(state, before) for state in states)


def test_module_that_returns_an_input_without_gradient_has_a_chain() -> None:
    class Returns(Net):
        def forward(self, x: Tensor) -> Any:
            return super().forward(x), x

    gradients = []
    for model in (wrap(Returns().eval()), wrap(thunder.jit(Returns().eval()))):
        x = example().detach()
        result, same = model(x)
        assert same is x
        result.sum().backward()
        gradients.append(gradients_of(model))
    assert len(nodes_of(model(x)[0])) >= 4
    assert_equal(*gradients)


def call(name: str, argument: str, result: str) -> BoundSymbol:
    """A bound symbol of an operator that communicates, or of one that does not."""
    symbol = Symbol(name, torch.sin)
    return BoundSymbol(symbol, (Proxy(argument),), {}, Proxy(result))


def test_no_cut_while_a_collective_is_in_flight() -> None:
    start, wait = (f"torch.ops._c10d_functional.{name}.default" for name in ("all_reduce", "wait_tensor"))
    bsyms = [
        call("torch.sin", "x", "a"),
        call(start, "a", "b"),
        call("torch.sin", "a", "c"),
        call(start, "c", "d"),
        call(wait, "b", "e"),
        call("torch.sin", "e", "f"),
        call(wait, "d", "g"),
        call("torch.sin", "g", "h"),
    ]
    assert lines_before_cuts(bsyms) == [0, 6, 6, 6, 6, 6, 6, 7]


def test_no_cut_between_switches() -> None:
    switch = BoundSymbol(symbol_of(torch.set_autocast_enabled), ("cpu", True), {}, None, ordered=True)
    operation = call("torch.sin", "x", "a")
    assert lines_before_cuts([operation, switch, operation, switch, operation]) == [0, 3, 3, 3, 4]
