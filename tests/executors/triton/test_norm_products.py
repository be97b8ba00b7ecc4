"""Norms become part of the products that read them, where a measurement or a rule chooses this; a GPU is replaced."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import silu

import thunder_core as thunder
from tests.executors.cudagraphs.stand_in import OnCpu, StandIn
from tests.executors.triton.closeness import assert_close, draw
from tests.executors.triton.launches import launches_of
from thunder_core.backend.claiming.tuning import tuning
from thunder_executors.cudagraphs import graph
from thunder_executors.joined import JoinedProducts
from thunder_executors.triton import measurement
from thunder_executors.triton.launch import INTERPRETED, Launch

pytestmark = pytest.mark.skipif(not INTERPRETED, reason="for the interpreter")
WIDTH, EPS = 24, 1e-6
JOINED = JoinedProducts(devices=("cpu", "cuda"))


class Norm(nn.Module):
    """RMSNorm as transformers writes it."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(draw(WIDTH, seed=7))

    def forward(self, hidden: Tensor) -> Tensor:
        dtype = hidden.dtype
        wide = hidden.to(torch.float32)
        variance = wide.pow(2).mean(-1, keepdim=True)
        return self.weight * (wide * torch.rsqrt(variance + EPS)).to(dtype)


class Layer(nn.Module):
    """The norms and products of a layer of a Llama, with a sum in place of attention."""

    def __init__(self, dtype: torch.dtype = torch.float32, bias: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = Norm(), Norm()
        self.q, self.k, self.v = (nn.Linear(WIDTH, out, bias=bias) for out in (WIDTH, 16, 8))
        self.o, self.down = nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(40, WIDTH, bias=False)
        self.gate, self.up = (nn.Linear(WIDTH, 40, bias=bias) for _ in range(2))
        self.to(dtype)

    def forward(self, x: Tensor) -> Tensor:
        normal = self.first(x)
        mixed = self.q(normal) + torch.cat([self.k(normal), self.v(normal)], dim=-1)
        return self.rest(x, self.o(mixed))

    def rest(self, x: Tensor, mixed: Tensor) -> Tensor:
        hidden = x + mixed
        normal = self.second(hidden)
        return hidden + self.down(silu(self.gate(normal)) * self.up(normal))


class ReadTwice(Layer):
    """A layer whose second normalized row is also a result."""

    def rest(self, x: Tensor, mixed: Tensor) -> Any:
        normal = self.second(x + mixed)
        return self.gate(normal) + normal.sum()


class Written(Layer):
    """A layer that writes to its normalized row before a product reads it."""

    def rest(self, x: Tensor, mixed: Tensor) -> Tensor:
        normal = self.second(x + mixed)
        first = self.gate(normal)
        normal.mul_(2)
        return silu(first) * self.up(normal)


class Gate(Layer):
    """A layer whose gate is also a result, and whose SwiGLU is therefore not part of the product."""

    def rest(self, x: Tensor, mixed: Tensor) -> Tensor:
        normal = self.second(x + mixed)
        gate = self.gate(normal)
        return gate + silu(gate) * self.up(normal)


Layer.__module__ = Norm.__module__ = "tests.executors.triton.test_norm_products"


def run(module: Any, *inputs: Tensor, executors: Any = ("triton", "torch"), **options: Any) -> tuple[list[str], Any]:
    """The claimed calls and the distinct reasons against others; the result is checked."""
    compiled = thunder.jit(module, executors=executors, **options)
    with torch.no_grad():
        assert_close(compiled(*inputs), module(*inputs).double())
    trace = thunder.last_traces(compiled)[-1]
    names = [bsym.symbol.short_name for bsym in trace.bound_symbols if bsym.executor not in ("", "torch", None)]
    return names, [*dict.fromkeys(refusal.reason for refusal in trace.refused if refusal.by_measurement)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_norms_of_one_row_are_part_of_the_products_that_read_them(dtype: torch.dtype) -> None:
    names, reasons = run(Layer(dtype), draw(1, 1, WIDTH, dtype=dtype))
    assert (names, reasons) == (["norm_linear", "norm_swiglu"], [measurement.ABSENT])  # for the other products


def test_without_an_addition_or_swiglu_the_product_is_of_the_norm_alone() -> None:
    model = nn.Sequential(Norm(), nn.Linear(WIDTH, 7, bias=False))
    assert run(model, draw(1, WIDTH)) == (["norm_linear"], [])


def test_products_that_autocast_casts_keep_the_norm() -> None:
    model, x = nn.Sequential(Norm(), nn.Linear(WIDTH, 7, bias=False)), draw(1, WIDTH)
    compiled = thunder.jit(model, executors=["triton", "torch"])
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        result, expected = compiled(x), model(x)
    assert result.dtype == expected.dtype == torch.bfloat16
    assert_close(result, expected.double())


def test_other_readers_and_writes_keep_the_norm() -> None:
    x = draw(1, 1, WIDTH)
    assert run(ReadTwice(), x)[0] == ["norm_linear", "add_norm"]
    assert run(Written(), x)[0] == ["norm_linear", "add_norm", "swiglu"]
    assert run(Gate(), x)[0] == ["norm_linear", "norm_linear", "swiglu"]
    assert run(Layer(bias=True), x)[0] == ["norm", "add_norm", "swiglu"]


def test_more_rows_are_left_to_other_executors_where_nothing_can_be_measured() -> None:
    for rows in (2, 4):
        assert run(Layer(), draw(rows, WIDTH)) == (["norm", "add_norm", "swiglu"], [measurement.ABSENT])
    assert run(Layer(), draw(5, WIDTH))[0] == ["norm", "add_norm", "swiglu"]
    assert run(Layer(), draw(1, WIDTH), symbolic={"x.size(0)": (1, 8)})[0] == ["norm", "add_norm", "swiglu"]


def test_recorded_norms_are_not_claimed() -> None:
    model, results = Layer(), []
    for function in (model, compiled := thunder.jit(model, executors=["triton", "torch"])):
        x = draw(1, WIDTH).requires_grad_()
        function(x).sum().backward()
        results.append(x.grad)
    assert_close(results[1], results[0].double())
    names = {bsym.symbol.short_name for bsym in thunder.last_traces(compiled)[-1].bound_symbols}
    assert not names & {"norm_linear", "norm_swiglu"}


@pytest.mark.parametrize("executors", [("triton", "torch"), ("triton", OnCpu(), "torch")], ids=["alone", "in a graph"])
def test_the_launched_kernels_are_compiled_for_an_absent_gpu(executors: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The norm and SwiGLU of the joined lines are not launched, so an artifact needs no machine code of them."""
    monkeypatch.setattr(graph, "CUDA", StandIn())
    compiled = thunder.jit(Layer(), executors=executors)
    launched = []
    run = Launch.run
    with torch.no_grad():
        compiled(draw(1, WIDTH))
        monkeypatch.setattr(Launch, "run", lambda launch: (launched.append(launch.specialization), run(launch))[1])
        compiled(draw(1, WIDTH))
    found = [launch.specialization for launch in launches_of(thunder.last_traces(compiled)[-1])]
    assert set(found) == set(launched)
    assert [kernel.kernel.partition(":")[2] for kernel in found] == [
        "normalized_linear_kernel",
        "normalized_gated_kernel",
    ]


@pytest.mark.parametrize("rows", [1, 3])
def test_the_faster_of_both_is_called_and_the_times_are_kept(rows: int, gpu: dict[str, float]) -> None:
    for _ in range(2):
        names, reasons = run(Layer(), draw(rows, WIDTH))
        assert [name for name in names if name.startswith("norm")] == ["norm_linear", "norm_swiglu"]
        assert reasons == []
    assert gpu["calls"] == 2 * 2 + 5 + 4  # also of the output projection and the down projection


def test_a_kernel_that_is_slower_leaves_the_products_to_the_executor_joined(gpu: dict[str, float]) -> None:
    gpu["library"] = 1.01
    names, reasons = run(Layer(), draw(1, WIDTH), executors=("triton", JOINED, "torch"))
    assert names == ["norm", "joined_linear", "add_norm", "joined_linear", "swiglu"]
    assert {reason.partition(":")[0] for reason in reasons} == {
        "PyTorch computes 1 x 24 to 24 in float32, with addition, norm",
        "PyTorch computes 1 x 40 to 24 in float32, with addition",
        "PyTorch computes 1 x 24 to 24, 16, 8 in float32, with norm",
        "PyTorch computes 1 x 24 to 40, 40 in float32, with norm, residual, SwiGLU",
    }


def test_no_time_to_measure_keeps_the_norms(gpu: dict[str, float]) -> None:
    with tuning(0.0):
        names, reasons = run(Layer(), draw(1, WIDTH))
    assert (names, reasons) == (["norm", "add_norm", "swiglu"], [measurement.NOT_MEASURED])


def test_weights_stay_in_place_and_may_be_tied() -> None:
    model = Layer()
    model.up.weight = model.gate.weight
    addresses = {name: weight.data_ptr() for name, weight in model.named_parameters()}
    names, _ = run(model, draw(1, WIDTH))
    assert names[0] == "norm_linear"
    assert addresses == {name: weight.data_ptr() for name, weight in model.named_parameters()}
