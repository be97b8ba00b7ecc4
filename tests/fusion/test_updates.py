"""Updates: in-place operations inside regions, and the lines of an optimizer, grouped by parameter."""

from __future__ import annotations

import pytest
import torch

import thunder_core as thunder
from tests.fusion.test_fuse import Replays, lines_called
from thunder_core.backend.fusion.foreach import split_foreach
from thunder_core.backend.fusion.schedule import schedule_groups
from thunder_core.tracing.analysis.aliasing import alias_sets
from thunder_core.tracing.ir.trace import RefusedOperations

SHAPES = [(4, 3), (4, 3), (5,), (4, 3), (5,)]


def tensors(seed=0, shapes=SHAPES):
    torch.manual_seed(seed)
    return [torch.rand(shape) + 0.5 for shape in shapes]


def momentum(parameters, gradients, states):
    torch._foreach_mul_(states, 0.9)
    torch._foreach_add_(states, gradients, alpha=0.1)
    roots = torch._foreach_sqrt(states)
    torch._foreach_add_(roots, 1e-3)
    torch._foreach_addcdiv_(parameters, gradients, roots, value=-0.5)


def compare_with_eager(function, make, executor=None, calls=3):
    """Compare several calls with eager, including the versions of tensors; return the final trace."""
    executor = executor or Replays(updates=True)
    compiled = thunder.jit(function, executors=(executor, "torch"))
    ours, eager = make(), make()
    with torch.no_grad():
        for _ in range(calls):
            torch.testing.assert_close(compiled(*ours), function(*eager), rtol=0, atol=0)
    torch.testing.assert_close(ours, eager, rtol=0, atol=0)
    assert versions(ours) == versions(eager)
    return thunder.last_traces(compiled)[-1]


def versions(tree):
    return [versions(item) if isinstance(item, list | tuple) else item._version for item in tree]


def three():
    return tensors(0), tensors(1), tensors(2)


def test_operations_on_lists_become_one_region_for_each_shape():
    executor = Replays(updates=True)
    trace = compare_with_eager(momentum, three, executor)
    assert len(executor.regions) == 2
    assert sorted(map(len, (region.writes for region in executor.regions))) == [3, 3]
    assert len(lines_called(trace, "region")) == len(SHAPES)
    assert not lines_called(trace, "torch._foreach")


def test_executor_without_updates_leaves_operations_on_lists():
    executor = Replays()
    trace = compare_with_eager(momentum, three, executor)
    assert len(lines_called(trace, "torch._foreach")) == 5
    assert not executor.regions


def test_operations_on_lists_stay_whole_if_regions_are_refused():
    trace = compare_with_eager(momentum, three, Replays(updates=True, refused="no"))
    assert len(lines_called(trace, "torch._foreach")) == 5
    assert set(trace.refused) == {RefusedOperations("replays", "no", 5, lasting=False)}


def test_loop_over_parameters_with_numbers_is_one_region_per_parameter():
    def step(parameters, gradients, counts):
        for parameter, gradient, count in zip(parameters, gradients, counts, strict=True):
            count.add_(1)
            gradient.mul_(2)
            rate = 0.1 / count.item()
            parameter.add_(gradient, alpha=-rate)
            parameter.mul_(1 - rate)

    executor = Replays(updates=True)
    trace = compare_with_eager(step, lambda: (tensors(0), tensors(1), [torch.zeros(()) for _ in SHAPES]), executor)
    assert len(executor.regions) == 2
    assert all(len(region.numbers) == 2 for region in executor.regions)
    assert len(lines_called(trace, "region")) == len(SHAPES)
    assert lines_called(trace, "torch.Tensor") == ["torch.Tensor.add_", "torch.Tensor.item"] * len(SHAPES)


def test_shared_norm_does_not_join_the_regions_of_parameters():
    def clipped(gradients, parameters):
        norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
        torch._foreach_mul_(gradients, (0.1 / (norm + 1e-6)).clamp(max=1.0))
        torch._foreach_sub_(parameters, gradients)
        return norm

    executor = Replays(updates=True)
    trace = compare_with_eager(clipped, lambda: (tensors(0), tensors(1)), executor)
    assert sum(bool(region.writes) for region in executor.regions) == 2
    assert sum(bool(line.mutates) for line in trace.bound_symbols) == len(SHAPES)


def test_lines_of_a_parameter_that_others_depend_on_are_not_grouped():
    def step(x, y):
        x.mul_(2)
        x.add_(1)
        total = x.sum()
        y.mul_(total)
        y.add_(3)
        x.mul_(y.sum())
        return x.sin_()

    compare_with_eager(step, lambda: tensors(0, [(4,), (3,)]))


def through_a_view(x):
    row = x[0]
    x.mul_(2)
    x.add_(1)
    return row * 2, row.exp()


def through_two_views(x):
    one, other = x.view(-1), x.view(2, -1)
    one.mul_(2)
    other.add_(one.view(2, -1))
    one.mul_(3)
    return other.sin()


def fresh(x):
    y = x.exp()
    y.mul_(2)
    y.add_(x)
    return y, y.sin()


def seen_before(x):
    y = x.exp()
    row = y[1]
    y.mul_(2)
    y.add_(1)
    return row, y


def broadcast(x):
    y = x.expand(3, *x.shape).clone()
    y.mul_(x)
    y.sub_(1)
    return y.sum()


def into(x):
    y = torch.zeros_like(x)
    torch.add(x, 1, out=y)
    torch.maximum(x, y, out=x)
    torch.sub(y, x, out=y)
    return y.exp()


def turned(x):
    x.t_()
    x.mul_(2)
    x.add_(1)
    return x


@pytest.mark.parametrize("function", [through_a_view, through_two_views, fresh, seen_before, broadcast, into, turned])
def test_views_see_writes(function):
    compare_with_eager(function, lambda: tensors(0, [(4, 4)]))


def test_overlapping_arguments_are_not_passed_to_one_region():
    def step(x, y):
        x.mul_(2)
        y.add_(1)
        x.sin_()
        y.mul_(3)
        return x.sin()

    def make():
        base = torch.arange(6.0)
        return base[:4], base[2:]

    executor = Replays(updates=True)
    compare_with_eager(step, make, executor)
    assert not any(region.writes for region in executor.regions)


def test_write_to_a_saved_tensor_in_a_region_is_detected():
    weight = torch.ones(4, requires_grad=True)
    saved = (weight * weight).sum()
    compiled = thunder.jit(lambda x: x.mul_(2).add_(1), executors=("inductor", "torch"))
    with torch.no_grad():
        compiled(weight)
    assert lines_called(thunder.last_traces(compiled)[-1], "region") == ["region_0"]
    assert weight._version == 2
    torch.testing.assert_close(weight.detach(), torch.full((4,), 3.0))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        saved.backward()


def test_line_on_lists_matches_its_parts():
    def rows(x, y, z):
        torch._foreach_addcmul_([x, y], [y, z], [z, z], value=2.0)
        torch._foreach_lerp_([x, y], [y, z], 0.3)
        torch._foreach_div_([x, y], [2.0, 3.0])
        torch._foreach_pow_([x, y], 2.0)
        torch._foreach_copy_([x], [z])
        torch._foreach_zero_([x])
        return torch._foreach_abs([x, y])

    compiled = thunder.jit(rows)
    compiled(*tensors(0, [(3,)] * 3))
    lines = thunder.last_traces(compiled)[0].bound_symbols
    parts = {line.symbol.short_name: [part.symbol.name for part in split_foreach(line)] for line in lines}
    assert parts["_foreach_addcmul_"] == ["torch.ops.aten.addcmul_.default"] * 2
    assert parts["_foreach_lerp_"] == ["torch.ops.aten.lerp_.Scalar"] * 2
    assert parts["_foreach_div_"] == ["torch.ops.aten.div_.Scalar"] * 2
    assert parts["_foreach_copy_"] == ["torch.ops.aten.copy_.default"]
    assert parts["_foreach_zero_"] == ["torch.ops.aten.zero_.default"]
    assert parts["_foreach_abs"] == ["torch.ops.aten.abs.default"] * 2
    compare_with_eager(rows, lambda: tensors(0, [(3,)] * 3))


def test_mutually_dependent_groups_are_not_reordered():
    def crossing(x, y):
        a = x * 2
        b = y * a
        c = b + 1
        return a - c

    compiled = thunder.jit(crossing)
    compiled(torch.ones(2), torch.ones(2))
    lines = thunder.last_traces(compiled)[0].bound_symbols
    known = alias_sets(lines)
    assert schedule_groups(lines, [(0, 3)], known)[1] == [(0, 3)]
    assert schedule_groups(lines, [(1, 2)], known) == ([(0,), (1, 2), (3,)], [])
