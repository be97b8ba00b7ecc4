"""Traces for a GPU that is not present: the devices that the program sees, and the devices that its guards require."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import pytest
import torch

import thunder_core as thunder
from thunder_core.backend.claiming.claim import claim
from thunder_core.compilation.compiler import specializations_of
from thunder_core.foundation.errors import Bug
from thunder_core.foundation.plugins import load
from thunder_core.frontend.acquire.acquire import acquire
from thunder_core.frontend.acquire.assembly import Acquired
from thunder_core.frontend.acquire.run.options import RunOptions
from thunder_core.tracing.ir.proxy import TensorProxy
from thunder_core.tracing.library.objects import GuardFailed

CUDA = torch.device("cuda")
AWAY = torch.ones(3)


class Model(torch.nn.Module):
    """A module with a parameter, a buffer, and a plain tensor attribute, which `to` does not move."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(3))
        self.register_buffer("shift", torch.ones(3))
        self.other = torch.ones(())

    def forward(self, x: torch.Tensor) -> Any:
        assert x.device.type == self.weight.device.type
        kind = 2.0 if x.is_cuda else 3.0
        places = torch.arange(x.shape[0], device=x.device)
        return x * self.weight * kind + self.shift, places, self.other + 1, torch.zeros(2)


def acquire_on_device(function: Any, *args: Any) -> Acquired:
    with torch.no_grad():
        return acquire(function, args, {}, RunOptions(device=CUDA))


def devices(found: Acquired) -> dict[str, str]:
    lines = found.computation.bound_symbols
    proxies = (*found.computation.inputs, *(proxy for bsym in lines for proxy in bsym.tensors))
    return {proxy.name: str(proxy.device) for proxy in proxies if isinstance(proxy, TensorProxy)}


def test_the_program_sees_its_model_and_inputs_on_the_gpu() -> None:
    found = acquire_on_device(Model(), torch.ones(2, 3))
    assert [str(p.device) for p in found.computation.outputs] == ["cuda:0", "cuda:0", "cpu", "cpu"]
    assert {name: where for name, where in devices(found).items() if not name.startswith("t")} == {
        "x": "cuda:0",
        "weight": "cuda:0",
        "shift": "cuda:0",
        "other": "cpu",
    }
    assert any(2.0 in bsym.args for bsym in found.computation.bound_symbols)


def test_nothing_is_moved() -> None:
    model, x = Model(), torch.ones(2, 3)
    acquire_on_device(model, x)
    assert {t.device.type for t in (x, model.weight, model.shift)} == {"cpu"}


def test_guards_require_the_gpu() -> None:
    model, x = Model(), torch.ones(2, 3)
    compiled = thunder.jit(model)
    cache = specializations_of(compiled)
    with torch.no_grad():
        program = replace(cache.compiler, device=CUDA)(model, (x,), {})
        assert 'torch.is_autocast_enabled("cuda") is False' in str(program.last("prologue"))
        assert any("f32[2, 3] cuda:0" in guard.words for guard in program.guards)
        with pytest.raises(GuardFailed):
            program.prepare(model, (x,), {})


def test_tensors_in_arguments_move_and_outside_tensors_do_not() -> None:
    found = acquire_on_device(lambda inputs: (inputs["x"][0] + 1, AWAY + 1), {"x": [torch.ones(3)]})
    assert [str(p.device) for p in found.computation.outputs] == ["cuda:0", "cpu"]


class Hidden(torch.nn.Module):
    """A module that reads its parameter from a cache with a key that the program makes, which no path can follow."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(3))
        self.find = functools.lru_cache(lambda key: self.weight)
        self.find(frozenset((1, 2)))

    def forward(self) -> torch.Tensor:
        return self.find(frozenset((1, 2))) * 2


def test_constant_of_the_trace_is_not_moved() -> None:
    """The constant is stored with the trace, and is not moved with the model."""
    found = acquire_on_device(Hidden())
    assert devices(found) == {"t0": "cpu"}
    assert list(found.computation.constants) == ["constant"]


def test_mismatched_devices_raise_the_error_of_eager() -> None:
    with pytest.raises(RuntimeError, match="cpu"):
        acquire_on_device(lambda x: x + AWAY, torch.ones(3))


INDICES: tuple[Any, ...] = (
    None,
    0,
    (slice(0, 1), ..., 1),
    (slice(None), None),
    (slice(None), slice(None, None, 2)),
    [0, 1],
    (..., [0, 1]),
    True,
)


@pytest.mark.parametrize("index", INDICES, ids=str)
def test_indexing_for_the_gpu_records_the_metadata_of_the_cpu(index: Any) -> None:
    x = torch.ones(2, 3, 4)
    found = acquire_on_device(lambda x: x[index], x)
    (result,) = found.computation.outputs
    assert isinstance(result, TensorProxy)
    assert (result.shape, result.stride) == (tuple(x[index].shape), x[index].stride())
    assert str(result.device) == "cuda:0"


def test_indexing_by_tensors_and_writing_to_items() -> None:
    def program(x: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        y = x[rows].transpose(0, 1).contiguous()
        y[0] = 1.0
        y[rows, :2] = 2.0
        return y

    found = acquire_on_device(program, torch.ones(2, 3), torch.tensor([1, 0, 1]))
    assert set(devices(found).values()) == {"cuda:0"}
    assert [p.stride for p in found.computation.outputs if isinstance(p, TensorProxy)] == [(3, 1)]
    assert sum(bool(bsym.mutates) for bsym in found.computation.bound_symbols) == 2


def test_attention_stays_one_line_for_its_executor() -> None:
    def program(q: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True)

    found = acquire_on_device(program, torch.ones(1, 2, 4, 8))
    (line,) = claim(found.computation, [load("executors", "sdpa").EXECUTOR]).bound_symbols
    assert (line.symbol.short_name, line.executor) == ("attention", "sdpa")


def test_new_program_for_an_absent_device_cannot_be_called() -> None:
    compiled = thunder.jit(Model())
    cache = specializations_of(compiled)
    cache.compiler = replace(cache.compiler, device=CUDA)
    with torch.no_grad(), pytest.raises(Bug, match="refuse its own inputs"):
        compiled(torch.ones(2, 3))
