"""Modules as functions of their parameters: per-sample gradients and ensembles match eager PyTorch."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, grad_and_value, stack_module_state, vmap

import thunder_core as thunder

GENERATOR = torch.Generator().manual_seed(0)
SAMPLES, TARGETS = torch.randn(5, 3, generator=GENERATOR), torch.randn(5, 1, generator=GENERATOR)
SCALE = torch.tensor([0.5, 1.0, 2.0])


def small_network() -> nn.Module:
    """A small network with a buffer."""
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 1)).eval()


NETWORK, NETWORKS = small_network(), [small_network() for _ in range(3)]
STACKED = stack_module_state(NETWORKS)


def loss(parameters: dict[str, Tensor], sample: Tensor, target: Tensor) -> Tensor:
    return ((functional_call(NETWORK, parameters, (sample[None],)) - target[None]) ** 2).mean()


def per_sample(x: Tensor) -> Any:
    return vmap(grad(loss), in_dims=(None, 0, 0))(dict(NETWORK.named_parameters()), SAMPLES * x, TARGETS)


def per_sample_of_constants(x: Tensor) -> Any:
    parameters = {name: parameter.detach() for name, parameter in NETWORK.named_parameters()}
    return vmap(grad_and_value(loss), (None, 0, 0), chunk_size=2)(parameters, SAMPLES * x, TARGETS)


def ensemble(x: Tensor) -> Any:
    parameters, buffers = stack_module_state(NETWORKS)
    base = copy.deepcopy(NETWORKS[0])
    return vmap(lambda p, b: functional_call(base, (p, b), (SAMPLES * x,)))(parameters, buffers)


def ensemble_of_outer_state(x: Tensor) -> Any:
    return vmap(lambda p, b: functional_call(NETWORKS[0], (p, b), (SAMPLES * x,)))(*STACKED)


def steps_of_inner_training(x: Tensor) -> Any:
    """Return one step of gradient descent per sample and the loss after it (model-agnostic meta-learning)."""
    parameters = dict(NETWORK.named_parameters())

    def outer(sample: Tensor, target: Tensor) -> Tensor:
        gradients = grad(loss)(parameters, sample, target)
        return loss({name: parameters[name] - 0.1 * gradients[name] for name in gradients}, sample, target)

    return vmap(outer)(SAMPLES * x, TARGETS)


PROGRAMS = (per_sample, per_sample_of_constants, ensemble, ensemble_of_outer_state, steps_of_inner_training)


def used(run: Callable[[Tensor], Any], *, trains: bool) -> list[Any]:
    """Return all results of a program, and the gradients if it is trained."""
    x = SCALE.clone().requires_grad_(trains)
    with torch.set_grad_enabled(trains):
        results = run(x)
    if not trains:
        return [results]
    loss = sum((leaf * leaf).sum() for leaf in torch.utils._pytree.tree_leaves(results))
    parameters = (*NETWORK.parameters(), *NETWORKS[1].parameters(), *STACKED[0].values())
    return [results, *torch.autograd.grad(loss, (x, *parameters), allow_unused=True)]


@pytest.mark.parametrize("trains", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_results_and_gradients_match_eager(program: Callable[[Tensor], Any], trains: bool) -> None:
    compiled = thunder.jit(program)
    eager = used(program, trains=trains)
    for _ in range(2):
        torch.testing.assert_close(used(compiled, trains=trains), eager)
    assert thunder.cache_misses(compiled) == 1


def test_the_module_is_not_written_to_at_run_time() -> None:
    compiled = thunder.jit(per_sample)
    compiled(SCALE)
    assert "_parameters" not in str(thunder.last_epilogue_traces(compiled)[-1])


class PerSample(nn.Module):
    """Computes the gradients of a network for each sample."""

    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Linear(3, 1)

    def forward(self, x: Tensor) -> Tensor:
        gradient = grad(lambda p, row: functional_call(self.network, p, (row,)).sin().sum())
        return vmap(gradient, (None, 0))(dict(self.network.named_parameters()), x)["weight"]


def test_artifact_holds_the_functional_call(tmp_path: Path) -> None:
    module, again = PerSample(), PerSample()
    again.load_state_dict(module.state_dict())
    compiled = thunder.jit(module)
    expected = compiled(SAMPLES)
    loaded = thunder.load(thunder.save(compiled, tmp_path / "artifact"), again)
    torch.testing.assert_close(loaded(SAMPLES), expected)
    assert thunder.cache_misses(loaded) == 0
