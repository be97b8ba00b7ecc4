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
from tests.distributed.sharded_training import steps_of
from tests.distributed.training import EAGER
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
ORDERS = {0: ONE_AHEAD, 1: "gp" * 6, 1.5: "gp" * 6, 2: ONE_AHEAD, 3.9: "ggg" + "pg" * 3 + "ppp", 99: "g" * 6 + "p" * 6}


def gathers_as_early_as_the_limit_allows() -> None:
    """The order of gathers and products by the limit in layers; the steps are the same with any limit."""
    expected = steps_of(compiled_layers(0), loss=loss, steps=2)
    for layers, order in ORDERS.items():
        compiled = compiled_layers(layers * LAYER)
        assert_equal(steps_of(compiled, loss=loss, steps=2), expected)
        assert gathers_and_products(thunder.last_traces(compiled)[-1]) == order
        backward = gathers_and_products(thunder.last_backward_traces(compiled)[-1])
        assert backward.startswith("gppg" if 0 < layers < 2 else "g" * min(int(layers) or 2, 5) + "p")


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
    """Each layer more that may be gathered ahead raises the peak; a layer as limit needs no more than one ahead."""
    peaks = {}
    for layers in (0, 1, 2, 3, 4):
        compiled = compiled_layers(layers * LAYER)
        loss(compiled, 0).backward()
        use = thunder.examine_memory(compiled)
        peaks[layers] = max(line.peak for line in use.lines if line.trace == "backward") - use.outside
    assert peaks[1] <= peaks[0]
    steps = [peaks[layers + 1] - peaks[layers] for layers in (1, 2, 3)]
    assert all(0.4 * LAYER < step < 1.1 * LAYER for step in steps)


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
