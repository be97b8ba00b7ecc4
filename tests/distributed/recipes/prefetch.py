"""Checks of the bytes of gathered parameters that are alive at the same time, run on each rank."""

# mypy: disable-error-code="no-untyped-call,no-untyped-def,attr-defined"

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import thunder_core as thunder
from benchmarks.distributed import CONTENDERS, Model
from tests.distributed.comparison import assert_equal
from tests.distributed.recipes.sharded_training import steps_of
from tests.distributed.recipes.training import EAGER
from thunder_core.foundation.errors import BadOption
from thunder_core.workflow.benchmark.allocations import peak_allocated

LAYERS, WIDTH = 6, 256
LAYER = 4 * WIDTH * WIDTH  # the bytes of the weight of a layer
GIB = 1 << 30
ROWS = 4
WITHOUT = [*EAGER, "packed-linear"]  # products keep their names


def compiled_layers(limit: float, **options: Any) -> Any:
    """Layers of one weight each, whose gathered bytes are limited."""
    torch.manual_seed(0)
    layers = (nn.Sequential(nn.Linear(WIDTH, WIDTH, bias=False), nn.ReLU()) for _ in range(LAYERS))
    return thunder.compile(nn.Sequential(*layers), "fsdp", without=WITHOUT, max_in_flight_gb=limit / GIB, **options)


def loss(model: Any, step: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(step)
    result: torch.Tensor = model(torch.randn(ROWS, WIDTH, generator=generator)).pow(2).mean()
    return result


def gathers_and_products(trace: Any) -> str:
    """The order of gathers (g) and products (p) in a trace."""
    letters = {"all_gather_into_tensor_coalesced": "g", "linear": "p", "mm": "p", "addmm": "p"}
    names = (bsym.symbol.name.removesuffix(".default").rpartition(".")[2] for bsym in trace.bound_symbols)
    return "".join(letters.get(name, "") for name in names)


ONE_AHEAD = "gg" + "pg" * 4 + "pp"
BEGINNINGS = {0: "ggpp", 1: "gppg", 1.5: "gppg", 2: "gppg", 3.9: "ggpp", 99: "gggggp"}  # of the backward
ORDERS = {0: ONE_AHEAD, 1: "gp" * 6, 1.5: "gp" * 6, 2: ONE_AHEAD, 3.9: "ggg" + "pg" * 3 + "ppp", 99: "g" * 6 + "p" * 6}


def gathers_as_early_as_the_limit_allows() -> None:
    """The order of gathers and products by the limit in layers; the steps are the same with any limit."""
    expected = steps_of(compiled_layers(0), loss=loss, steps=2)
    for layers, order in ORDERS.items():
        compiled = compiled_layers(layers * LAYER)
        assert_equal(steps_of(compiled, loss=loss, steps=2), expected)
        assert gathers_and_products(thunder.last_traces(compiled)[-1]) == order
        backward = gathers_and_products(thunder.last_backward_traces(compiled)[-1])
        assert backward.startswith(BEGINNINGS[layers])


def saved_parameters_stay_alive() -> None:
    """With ZeRO-2, the forward saves the gathered parameters, so that a small limit leaves nothing to gather ahead.

    The first weight is not saved, because the input needs no gradient, so the third weight is gathered ahead.
    """
    compiled = compiled_layers(2 * LAYER, reshard_after_forward=False)
    loss(compiled, 0).backward()
    assert gathers_and_products(thunder.last_traces(compiled)[-1]) == "gg" + "pg" + "pp" + "gp" * 3
    assert gathers_and_products(thunder.last_backward_traces(compiled)[-1]) == "p" * 11


def memory_follows_the_limit() -> None:
    """The smallest peak of the allocated bytes of five forwards, because threads of gloo free memory late."""
    peaks = {}
    for layers in (1, LAYERS):
        compiled = compiled_layers(layers * LAYER)
        with torch.no_grad():
            loss(compiled, 0)
            peaks[layers] = min(peak_allocated(lambda compiled=compiled: loss(compiled, 1)) for _ in range(5))
    assert peaks[1] < 3.5 * LAYER  # a gather of gloo needs its result twice
    assert peaks[LAYERS] > LAYERS * LAYER


def memory_of_the_backward_follows_the_limit() -> None:
    """Each layer more that may be gathered ahead raises the peak; a small limit gathers none ahead."""
    peaks = {}
    for layers in (0, 1, 2, 3, 4, 5, 6):
        compiled = compiled_layers(layers * LAYER)
        loss(compiled, 0).backward()
        use = thunder.examine_memory(compiled)
        peaks[layers] = max(line.peak for line in use.lines if line.trace == "backward") - use.outside
    assert peaks[1] == peaks[2] == peaks[3] < peaks[0]
    steps = [peaks[layers + 1] - peaks[layers] for layers in (3, 4, 5)]
    assert all(0.4 * LAYER < step < 1.1 * LAYER for step in steps)


def gradients_count() -> None:
    """At most the limit is alive, unless a layer needs more: its weight, its gradient, and the flat copy before."""
    for layers in (1, 2, 3, 4, 5):
        compiled = compiled_layers(layers * LAYER)
        loss(compiled, 0).backward()
        assert most_in_flight(thunder.last_backward_traces(compiled)[-1]) == max(layers, 3)


FULL = ("all_gather_into_tensor_coalesced", "mm", "_chunk_cat")  # what makes gathered parameters and full gradients
VIEWS = ("wait_tensor", "t", "take_unreduced_gradients", "reshape", "view")


def most_in_flight(trace: Any) -> float:
    """The largest number of layers of which gathered weights, gradients or flat copies are alive in a trace."""
    roots: dict[str, str] = {}
    made, read = {}, {}
    for index, line in enumerate(trace.bound_symbols):
        name = line.symbol.name.removesuffix(".default").rpartition(".")[2]
        for proxy in line.outputs:
            is_view = name in VIEWS and line.inputs
            roots[proxy.name] = roots.get(line.inputs[0].name, "") if is_view else proxy.name
            if name in FULL and proxy.bytes >= LAYER:
                made[proxy.name] = index
        for proxy in line.inputs:
            read[roots.get(proxy.name, "")] = index
    lives = [(index, read[name]) for name, index in made.items()]
    return max(sum(first <= index <= last for first, last in lives) for index in range(len(trace.bound_symbols)))


def memory_is_at_most_that_of_fsdp2() -> None:
    """The smallest peak of five steps, because threads of gloo free memory late."""
    peaks = {}
    for name in ("FSDP2", "recipe fsdp, eager operations"):
        model, x = CONTENDERS[name](Model(4, 128)), torch.ones(128, 128)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)

        def step(model: Any = model, x: torch.Tensor = x, optimizer: Any = optimizer) -> None:
            model(x).pow(2).mean().backward()
            optimizer.step()
            optimizer.zero_grad()

        step()
        peaks[name] = min(peak_allocated(step) for _ in range(5))
    assert peaks["recipe fsdp, eager operations"] <= peaks["FSDP2"]


def bad_limits_are_refused() -> None:
    with pytest.raises(BadOption, match="greater than or equal to 0"):
        compiled_layers(-1)
