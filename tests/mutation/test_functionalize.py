"""Functionalization: the computation writes to nothing, and its results are indistinguishable."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import thunder_core as thunder
from tests.fusion.test_fuse import Replays
from tests.mutation.outcome import Outcome, outcome
from tests.mutation.programs import ALIASED, OF_TWO, PROGRAMS, Make, leaf, numbers, one
from thunder_core.passes.transforms.functionalize import Functionalize
from thunder_core.tracing.ir.symbol import BoundSymbol
from thunder_core.tracing.ir.trace import Trace

# PyTorch does not differentiate these because a saved tensor was written to. The functional form has no such write.
MENDED = {"saved_write", "activations of leaf", "activations of inner"}
# Programs whose writes stay: they change sizes and strides in place, autograd does not see the writes,
# tensors overlap, or PyTorch has no functional form.
STAY = {
    "set_item_none", "metadata_in_place", "input_metadata_in_place", "resizes", "resizes_input", "inference",
    "out_arguments", "detached_write", "no_grad_write", "leaf_write", "leaf_write_caught", "parameter_and_view", "tied",
    "expanded_write", "self_overlap", "uses_data", "index_family",
    "bases_of_inputs",
}  # fmt: skip


def writes(trace: Trace) -> list[BoundSymbol]:
    return [line for line in trace.bound_symbols if line.mutates]


def is_final(trace: Trace, line: BoundSymbol) -> bool:
    """Whether a line copies into an external tensor that is read later only by views."""
    return line.symbol.name == "torch.ops.aten.copy_.default" and line.args[0].name in {
        *(proxy.name for proxy in trace.inputs),
        *trace.constants,
    }


def without_autograd(found: Outcome) -> Outcome:
    """An outcome without the facts that functionalization may change: versions of tensors and bases of views."""
    facts: dict[str, Any] = {}
    for key, fact in found.facts.items():
        if isinstance(fact, dict):
            requires_grad, _, inference = fact["autograd"]
            facts[key] = {**fact, "autograd": (requires_grad, inference)}
        elif not key.endswith(" version"):
            facts[key] = fact
    return Outcome(found.values, facts)


@pytest.mark.parametrize("grad", [True, False], ids=["grad", "no grad"])
@pytest.mark.parametrize("name", sorted(set(PROGRAMS) - MENDED))
def test_functionalized_program_equals_eager(name: str, grad: bool) -> None:
    function, make = PROGRAMS[name]
    with torch.set_grad_enabled(grad):
        compiled = thunder.jit(function, transforms=(Functionalize(),), executors=(Replays(), "torch"))
        for _ in range(2):
            eager = without_autograd(outcome(function, make()))
            assert eager.differences(without_autograd(outcome(compiled, make()))) == []
    if "error" not in eager.facts and not grad and name.split(maxsplit=1)[0] not in STAY and "of leaf" not in name:
        trace = thunder.last_traces(compiled)[-1]
        assert [line for line in writes(trace) if not is_final(trace, line)] == []


@pytest.mark.parametrize("function", OF_TWO, ids=lambda function: function.__name__)
@pytest.mark.parametrize("first", ALIASED, ids=lambda make: make.__name__)
def test_arguments_that_share_memory(function: Callable[..., Any], first: Make) -> None:
    compiled = thunder.jit(function, transforms=(Functionalize(),), executors=(Replays(), "torch"))
    for make in (first, *ALIASED):
        eager, ours = outcome(function, make()), outcome(compiled, make())
        if "error" in eager.facts:
            assert ours.facts["error"][0] == eager.facts["error"][0], make.__name__
        else:
            assert without_autograd(eager).differences(without_autograd(ours)) == [], make.__name__


def running_mean(x: Tensor, mean: Tensor) -> Tensor:
    mean.mul_(0.9).add_(x.mean(0), alpha=0.1)
    return (x - mean).exp()


def test_functionalized_lines_show_their_operations() -> None:
    compiled = thunder.jit(running_mean, transforms=(Functionalize(),))
    compiled(numbers(4, 4), torch.zeros(4))
    (trace,) = (trace for trace in thunder.last_traces(compiled) if trace.made_by == "functionalize")
    assert [line.symbol.name for line in trace.bound_symbols] == [
        "torch.ops.aten.mul.Tensor",
        "torch.Tensor.mean",
        "torch.ops.aten.add.Tensor",
        "torch.Tensor.sub",
        "torch.Tensor.exp",
        "torch.ops.aten.copy_.default",
    ]
    assert trace.bound_symbols[-1].mutates == ("mean",)
    assert all(line.source is not None and line.source.function == "running_mean" for line in trace.bound_symbols)


def test_functionalized_writes_are_fused_with_their_neighbours() -> None:
    def operations(*transforms: Any) -> list[int]:
        executor = Replays()
        with torch.no_grad():
            thunder.jit(running_mean, executors=(executor, "torch"), transforms=transforms)(numbers(4, 4), numbers(4))
        return [len(region.operations) for region in executor.regions]

    assert operations() == [2]
    assert operations(Functionalize()) == [5]


def test_batch_norm_in_training_updates_its_statistics() -> None:
    with torch.no_grad():
        model, x = nn.BatchNorm1d(4), numbers(5, 4)
        eager = nn.BatchNorm1d(4)
        compiled = thunder.jit(model, transforms=(Functionalize(),))
        for _ in range(3):
            torch.testing.assert_close(compiled(x), eager(x))
        torch.testing.assert_close(model.state_dict(), eager.state_dict())
    trace = thunder.last_traces(compiled)[-1]
    assert len(writes(trace)) == 3
    assert all(is_final(trace, line) for line in writes(trace))


def test_gradients_flow_through_writes() -> None:
    def program(x: Tensor) -> Tensor:
        y = torch.zeros(4, 4)
        y[1:] = x[:-1] * 2
        y[0] += x[3]
        y.mul_(3)
        y.t()[2].add_(x[1])
        return y.sum()

    gradients = []
    compiled = thunder.jit(program, transforms=(Functionalize(),))
    for function in (program, compiled):
        (x,) = leaf()
        function(x).backward()
        gradients.append(x.grad)
    assert torch.equal(*gradients)
    assert writes(thunder.last_traces(compiled)[-1]) == []


def test_writes_that_stay_do_not_stop_the_functionalization_of_others() -> None:
    def program(x: Tensor) -> tuple[Tensor, Tensor]:
        stays, goes = x.clone(), x.clone()
        stays.t_()
        stays.add_(1)
        goes.mul_(stays)
        goes[0] = 3
        return stays, goes

    compiled = thunder.jit(program, transforms=(Functionalize(),))
    for ours, eager in zip(compiled(*one()), program(*one()), strict=True):
        assert torch.equal(ours, eager)
    assert [line.symbol.short_name for line in writes(thunder.last_traces(compiled)[-1])] == ["t_", "add_"]


def test_functionalized_program_with_inductor_equals_eager() -> None:
    def program(x: Tensor, mean: Tensor) -> Tensor:
        y = torch.zeros(4, 4)
        y[1:] = x[:-1] * 2
        y[0] += x[3]
        mean.lerp_(y.sum(0), 0.1)
        return (y - mean).tanh()

    with torch.no_grad():
        compiled = thunder.jit(program, transforms=(Functionalize(),), executors=("inductor", "torch"))
        for _ in range(2):
            means = torch.zeros(4), torch.zeros(4)
            torch.testing.assert_close(compiled(*one(), means[0]), program(*one(), means[1]))
            torch.testing.assert_close(*means)
    assert thunder.last_traces(compiled)[-1].bound_symbols[0].executor == "inductor"


def all_copied(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    x = x * 1
    x.copy_(y[:1])
    return x * 2, y + 1


def all_set(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    x = x.sin()
    x[:] = y
    return x, y * 2


def copied_to_nothing(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    z = torch.zeros_like(x)
    z.copy_(x)
    z.copy_(y)
    return z, y * 2


@pytest.mark.parametrize("follows", [True, False])
@pytest.mark.parametrize("function", [all_copied, all_set, copied_to_nothing], ids=lambda function: function.__name__)
def test_fully_overwritten_tensors_have_eagers_gradient(function: Callable[..., Any], follows: bool) -> None:
    """Autograd includes the overwritten tensor: its gradient is zero, and not None."""
    outcomes = []
    for called in (function, thunder.jit(function)):
        x, y = torch.ones(2, 3, requires_grad=True), torch.randn(2, 3, generator=torch.Generator().manual_seed(0))
        results = called(x, y.requires_grad_(follows))
        (results[0].sum() + results[1].sum()).backward()
        outcomes.append((results, x.grad, y.grad, [result.requires_grad for result in results]))
    torch.testing.assert_close(outcomes[1], outcomes[0])


def overwritten(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    t = x * 1
    t.copy_(y)
    return t * 2, x * y


def overwritten_by_item(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    t = x * 1
    t[:] = y
    return t, x * y


def drawn_by_bernoulli(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    t = x.bfloat16()
    t.bernoulli_(0.5)
    return t.float(), x * y


def drawn_by_normal(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    t = x * 1
    t.normal_()
    return t * x, x * y


def overwritten_by_what_needs_a_gradient(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    t = y * 1
    t.copy_(x)
    return t, x * y


@pytest.mark.parametrize("explicit", [True, False])
@pytest.mark.parametrize(
    "program",
    [
        overwritten,
        overwritten_by_item,
        drawn_by_bernoulli,
        drawn_by_normal,
        overwritten_by_what_needs_a_gradient,
    ],
)
def test_autograd_metadata_and_gradients_equal_eager(
    program: Callable[..., tuple[Tensor, ...]], explicit: bool
) -> None:
    def run(call: Callable[..., tuple[Tensor, ...]]) -> tuple[tuple[Tensor, ...], list[bool], tuple[Tensor, ...]]:
        x, y = torch.ones(3, requires_grad=True), torch.full((3,), 2.0)
        torch.manual_seed(0)
        results = call(x, y)
        return (
            results,
            [result.requires_grad for result in results],
            torch.autograd.grad([result.sum() for result in results], x),
        )

    fast = thunder.jit(program, transforms=[Functionalize()] if explicit else [])
    torch.testing.assert_close(run(fast), run(program))


@pytest.mark.parametrize("alias", [lambda x: x.data, lambda x: x.detach(), lambda x: x.view_as(x), lambda x: x])
def test_two_results_in_the_same_memory_are_as_many_objects_as_in_eager(alias: Callable[[Tensor], Tensor]) -> None:
    def program(x: Tensor) -> tuple[Tensor, ...]:
        y = x * 1
        counts = torch.bucketize(y, torch.arange(3.0))
        written = alias(counts).add_(1)
        return counts, written, y.mul_(2), counts

    x = torch.linspace(0, 4, 5)
    for requires_grad in (True, False):
        compiled = thunder.jit(program, transforms=(Functionalize(),), executors=("torch",))
        expected, found = (function(x.clone().requires_grad_(requires_grad)) for function in (program, compiled))
        torch.testing.assert_close(found, expected)
        assert [result is found[0] for result in found] == [result is expected[0] for result in expected]
        assert found[0].untyped_storage()._cdata == found[1].untyped_storage()._cdata


@pytest.mark.parametrize("requires_grad", [True, False], ids=["grad", "no grad"])
@pytest.mark.parametrize("transforms", [(), (Functionalize(),)], ids=["plain", "functionalized"])
@pytest.mark.parametrize("window", [(0, 2, 7), (0, 2, 3), (0, 2, 2), (1, 3, 3), (1, 6, 6), (1, 2, 1)], ids=str)
def test_writes_through_windows_leave_uncovered_elements(
    window: tuple[int, int, int], transforms: tuple[Functionalize, ...], requires_grad: bool
) -> None:
    """PyTorch's functionalization builds a tensor of the written windows of `unfold` and of zeros."""

    def program(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        y = x * 1
        windows = y.unfold(*window)
        windows[1:].zero_()
        windows[..., 0].add_(3)
        return y, windows, y * 2

    compiled = thunder.jit(program, transforms=transforms)
    outcomes = []
    for run in (program, compiled):
        x = torch.arange(42.0).view(7, 6).requires_grad_(requires_grad)
        results = run(x)
        gradient = torch.autograd.grad((results[2] * results[0]).sum(), x) if requires_grad else ()
        outcomes.append((*results, *gradient))
    torch.testing.assert_close(*outcomes, rtol=0, atol=0)


@pytest.mark.parametrize("transforms", [(), (Functionalize(),)], ids=["plain", "functionalized"])
def test_complex_numbers_that_are_set_to_zero_have_gradients_of_zero(transforms: tuple[Functionalize, ...]) -> None:
    """PyTorch has the derivative of `zero_` for complex numbers, but not that of its out-of-place form."""

    def program(x: Tensor) -> Tensor:
        y = x * 2
        y[:1].zero_()
        return y

    compiled = thunder.jit(program, transforms=transforms)
    gradients = []
    for run in (program, compiled):
        x = torch.tensor([1 + 2j, 3 - 1j], requires_grad=True)
        gradients.append(torch.autograd.grad(run(x).abs().square().sum(), x))
    torch.testing.assert_close(*gradients)


def test_write_to_a_part_of_an_expanded_tensor_stays() -> None:
    """PyTorch's functional form adds the difference: it rounds, and infinity becomes NaN."""

    def program(x: Tensor, y: Tensor) -> Tensor:
        x.expand(2, *x.shape)[0] = y
        return x * 1

    x, y = torch.tensor([0.1, torch.inf]), torch.tensor([1 / 3, 2.0])
    compiled = thunder.jit(program, transforms=(Functionalize(),))
    torch.testing.assert_close(compiled(x.clone(), y), program(x.clone(), y), rtol=0, atol=0)
