"""Fusion: the lines that become regions, the regions that are compiled once, and the lines that stay outside."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor

import thunder_core as thunder
from thunder_core.backend.claiming.claim import claims_by_executor
from thunder_core.backend.fusion.fuse import Fused, FusionExecutor, Refusal
from thunder_core.backend.fusion.region import Region
from thunder_core.tracing.ir.evaluate import evaluate
from thunder_core.tracing.ir.symbol import BoundSymbol
from thunder_core.tracing.ir.trace import RefusedOperations


@dataclass
class Replays(FusionExecutor):
    """Fuses every operation, and runs a region by calling its aten operations one by one."""

    name: str = "replays"
    regions: list[Region] = field(default_factory=list)
    refused: str = ""
    updates: bool = False

    @property
    def claims(self) -> str:
        return "regions"

    def fuses(self, bsym: BoundSymbol) -> bool:
        return True

    def compile(self, regions: Sequence[Region]) -> Sequence[Fused | Refusal]:
        self.regions += regions
        return [Refusal(self.refused) if self.refused else Fused(self.runner(region)) for region in regions]

    def runner(self, region: Region):
        def named(name):
            def run(*given):
                taken = (*region.inputs, *region.numbers)
                values = {proxy.name: tensor for proxy, tensor in zip(taken, given, strict=True)}
                evaluate(region.operations, values)
                outputs = tuple(values[proxy.name] for proxy in region.outputs)
                return outputs[0] if len(outputs) == 1 else outputs

            run.__name__ = run.__qualname__ = name
            return run

        return named


def fuse_and_call(function, *args, **options):
    """Return the result of the function compiled with such an executor, the executor, and the final trace."""
    executor = Replays(**options)
    compiled = thunder.jit(function, executors=(executor, "torch"))
    with torch.no_grad():
        result = compiled(*args)
    return result, executor, thunder.last_traces(compiled)[-1]


def lines_called(trace, prefix):
    return [bsym.symbol.name for bsym in trace.bound_symbols if bsym.symbol.name.startswith(prefix)]


def layer(x, weight):
    hidden = torch.nn.functional.linear(torch.nn.functional.silu(x) * 2.0 + 1.0, weight)
    return x + hidden.tanh()


def layers(x, *weights):
    x = x.exp() / 3.0
    for weight in weights:
        x = layer(x, weight)
    return x.sum()


def test_a_region_is_on_one_device():
    """A region launches its kernels on one device, also if the program computes on two GPUs in turn."""

    def function(x, y):
        a, b = (x * 2 + 1).sin(), (y * 2 + 1).sin()
        return a.cos() * x, (b * y).cos()

    executor = Replays()
    thunder.jit(function, executors=(executor, "torch"))(torch.ones(3), torch.ones(3, device="meta"))
    devices = [
        {proxy.device.type for operation in region.operations for proxy in operation.tensors}
        for region in executor.regions
    ]
    assert devices == [{"cpu"}, {"meta"}] * 2


def test_repeated_layers_are_one_region():
    weights = [torch.randn(8, 8) for _ in range(6)]
    x = torch.randn(4, 8)
    result, executor, trace = fuse_and_call(layers, x, *weights)
    torch.testing.assert_close(result, layers(x, *weights))
    calls = lines_called(trace, "region")
    assert max(calls.count(name) for name in set(calls)) >= 5
    assert len(executor.regions) == len(set(calls)) <= 3
    assert claims_by_executor(trace) == {"replays": len(weights) * 6 + 3}


def test_regions_that_differ_in_a_constant_are_two():
    def function(x):
        return (x.exp() * 2.0 + 1.0).sum(0), x.sort()[0], (x.exp() * 3.0 + 1.0).sum(0)

    x = torch.randn(4, 4)
    result, executor, _ = fuse_and_call(function, x)
    torch.testing.assert_close(result, function(x))
    assert len({region.digest for region in executor.regions}) == len(executor.regions)


def test_trace_names_the_operations_of_its_regions():
    _, _, trace = fuse_and_call(layers, torch.randn(4, 8), *[torch.randn(8, 8) for _ in range(4)])
    text = str(trace)
    assert text.count("= region_1(") == 3
    assert text.count("torch.nn.functional.silu") == 3, "each region's lines stand there once"
    assert "[replays]" in text


def test_a_refused_region_is_left_to_the_next_executor():
    x = torch.randn(4, 4)
    result, _, trace = fuse_and_call(lambda x: (x.exp() + 1).log(), x, refused="no")
    torch.testing.assert_close(result, (x.exp() + 1).log())
    assert claims_by_executor(trace) == {"torch": 3}
    assert trace.refused == (RefusedOperations("replays", "no", 3, lasting=False),)


def writes(x):
    total = x.exp() + 1
    view = total[0]
    total.mul_(2)
    return view + 1, total * 3


def draws(x):
    return torch.rand_like(x.exp() + 1) * 0 + x


def switches(x):
    y = x.exp() + 1
    with torch.enable_grad():
        y = y * 2
    return y + 1


@pytest.mark.parametrize("function", [writes, draws, switches])
def test_effects_keep_their_place(function):
    x = torch.randn(4, 4)
    result, executor, _ = fuse_and_call(function, x)
    torch.testing.assert_close(result, function(x))
    names = {operation.symbol.short_name for region in executor.regions for operation in region.operations}
    assert not any(name in text for text in map(str, names) for name in ("mul_", "rand", "set_grad"))


def test_region_may_read_but_not_create_an_alias_of_a_written_tensor():
    x = torch.randn(4, 4)
    result, _, trace = fuse_and_call(writes, x)
    torch.testing.assert_close(result, writes(x))
    written = {"t0", "t1", "t2"}
    regions = [bsym for bsym in trace.bound_symbols if bsym.executor == "replays"]
    assert not {proxy.name for bsym in regions for proxy in bsym.outputs} & written
    assert {proxy.name for bsym in regions for proxy in bsym.inputs} & written


def test_region_may_read_a_tensor_that_is_written_later():
    def program(x, weight):
        y = (x * weight + 1).tanh()
        weight.add_(y)
        return (y * weight).sin().exp()

    x, ours, eager = torch.randn(4, 4), torch.ones(4, 4), torch.ones(4, 4)
    executor = Replays()
    compiled = thunder.jit(program, executors=(executor, "torch"))
    for _ in range(2):
        torch.testing.assert_close(compiled(x, ours), program(x, eager))
        torch.testing.assert_close(ours, eager)
    assert len(executor.regions) == 2


@pytest.mark.parametrize("updates", [False, True])
def test_lines_that_autograd_records_are_not_fused(updates):
    weight = torch.nn.Parameter(torch.randn(4, 4))
    executor = Replays(updates=updates)

    def recorded(x):
        hidden = (x @ weight).exp_()
        hidden.register_hook(lambda gradient: gradient * 2)
        return (hidden + 1).sum()

    compiled = thunder.jit(recorded, executors=(executor, "torch"))
    x = torch.randn(4, 4)
    compiled(x).backward()
    found, weight.grad = weight.grad, None
    recorded(x).backward()
    torch.testing.assert_close(found, weight.grad)
    assert executor.regions == []


def test_differentiated_program_is_fused_forward_and_backward():
    weight = torch.nn.Parameter(torch.randn(4, 4))
    executor = Replays()
    compiled = thunder.jit(lambda x: ((x @ weight).exp() + 1).sin().sum(), executors=(executor, "torch"))
    x = torch.randn(4, 4)
    compiled(x).backward()
    found, weight.grad = weight.grad, None
    ((x @ weight).exp() + 1).sin().sum().backward()
    torch.testing.assert_close(found, weight.grad)
    assert len(executor.regions) == 2


def test_lines_of_another_executor_are_not_fused():
    fast = thunder.OperatorExecutor("fast")

    @fast.implements(torch.nn.functional.silu)
    def fast_silu(input, inplace=False):  # noqa: A002
        return input * torch.sigmoid(input)

    executor = Replays()
    compiled = thunder.jit(layers, executors=(fast, executor, "torch"))
    x, weights = torch.randn(4, 8), [torch.randn(8, 8) for _ in range(4)]
    with torch.no_grad():
        torch.testing.assert_close(compiled(x, *weights), layers(x, *weights))
    claims = claims_by_executor(thunder.last_traces(compiled)[-1])
    assert claims["fast"] == 4
    assert claims["replays"] > 0


def test_the_order_of_executors_decides():
    executor = Replays()
    compiled = thunder.jit(lambda x: x.exp() + 1, executors=("torch", executor))
    compiled(torch.randn(3))
    assert claims_by_executor(thunder.last_traces(compiled)[-1]) == {"torch": 2}
    assert executor.regions == []


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x[::2],
        lambda x: x.detach(),
        lambda x: x.t()[1:].view(3, 2, 2),
        lambda x: x.unfold(0, 2, 1),
    ],
)
def test_returned_view_of_an_input_shares_its_version(view: Callable[[Tensor], Tensor]) -> None:
    """Autograd notices a write to the view that a region would return."""
    compiled = thunder.jit(lambda x, y: ((y * 2 + 1).tanh(), view(x), x.t() * y), executors=(Replays(), "torch"))
    for _ in range(2):
        weight, x, y = torch.ones(4, 4, requires_grad=True), torch.ones(4, 4), torch.ones(4, 4)
        product = (weight * x).sum()
        _, result, _ = compiled(x, y)
        assert torch.equal(result, view(x))
        result.mul_(5)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            product.backward()


def test_returned_view_of_another_result_shares_its_version() -> None:
    def program(x: Tensor) -> tuple[Tensor, Tensor]:
        y = (x * 2).tanh()
        return y, y[1:]

    compiled = thunder.jit(program, executors=(Replays(), "torch"))
    for _ in range(2):
        y, rest = compiled(torch.ones(4))
        before = y._version
        rest.zero_()
        assert y._version > before
        assert torch.equal(y[1:], torch.zeros(3))


def test_returned_views_do_not_divide_a_region() -> None:
    def program(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        a = x * y
        first = x[1:]
        b = a.tanh()
        return b, first, b[1:]

    compiled = thunder.jit(program, executors=(Replays(), "torch"))
    x, y = torch.ones(4), torch.arange(4.0)
    assert all(map(torch.equal, compiled(x, y), program(x, y)))
    bsyms = thunder.last_traces(compiled)[-1].bound_symbols
    assert [bsym.executor for bsym in bsyms if bsym.tensors] == ["torch", Replays().name, "torch"]


def test_view_that_a_region_reads_and_the_program_returns() -> None:
    def program(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        view = (y * 3).t()
        return (view * x + 1).tanh(), view

    compiled = thunder.jit(program, executors=(Replays(), "torch"))
    x, y = torch.ones(4, 4), torch.rand(4, 4)
    assert all(map(torch.equal, compiled(x, y), program(x, y)))


def test_returned_view_stays_within_a_change_of_grad_mode() -> None:
    def program(x: Tensor) -> tuple[Tensor, ...]:
        y = x * 2
        with torch.no_grad():
            view, view_of_result = x.view(-1), y.view(-1)
            z = (x + 1).cos()
        return view, view_of_result, y, (z * 2).sin()

    compiled = thunder.jit(program, executors=(Replays(), "torch"))
    x = torch.ones(2, 2, requires_grad=True)
    for result, expected in zip(compiled(x), program(x), strict=True):
        assert torch.equal(result, expected)
        assert (result.requires_grad, result.is_leaf) == (expected.requires_grad, expected.is_leaf)


def test_returned_view_stays_after_a_change_of_its_tensor() -> None:
    def program(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        a = (x * 2).sin() + y
        x.data = y
        y.requires_grad_()
        return x.view(-1), y.view(-1), a

    compiled = thunder.jit(program, executors=(Replays(), "torch"))
    first, second = ((torch.ones(2, 2), torch.full((2, 2), 3.0)) for _ in range(2))
    for result, expected in zip(compiled(*first), program(*second), strict=True):
        assert torch.equal(result, expected)
        assert result.requires_grad == expected.requires_grad


def test_returned_view_moves_across_random_numbers() -> None:
    def program(x: Tensor) -> tuple[Tensor, ...]:
        a = torch.rand(4)
        return (x * 3).tanh() + x[:1], x[1:], a

    compiled = thunder.jit(program, executors=(Replays(), "torch"))
    x = torch.ones(4)
    assert torch.equal(compiled(x)[1], x[1:])
    bsyms = thunder.last_traces(compiled)[-1].bound_symbols
    assert [bsym.executor for bsym in bsyms if bsym.tensors] == ["torch", "torch", Replays().name]
