"""A compiled program in autograd's graph: each use is run in eager and compiled, and all results are compared."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch.nn import functional

import thunder_core as thunder
from thunder_core.compilation.compiler import last_program
from thunder_core.passes.autodiff.reverse_mode import Differentiated, Underivable

Use = Callable[[Callable[..., Any]], list[Any]]
FUSED = ("gradients", "second_derivative", "all_outputs", "returned_views", "random_numbers", "running_statistics")


@dataclass(frozen=True)
class Case:
    """A program and its use: `use(program)` returns everything that is compared."""

    program: Callable[..., Any]
    use: Use
    derived: bool = True


CASES: dict[str, Case] = {}


def case(program: Callable[..., Any], *, derived: bool = True) -> Callable[[Use], Use]:
    """Register a use of a program by name."""

    def register(use: Use) -> Use:
        CASES[use.__name__] = Case(program, use, derived)
        return use

    return register


def leaf(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).requires_grad_(True)


def gated(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return functional.silu(x) * torch.tanh(y).exp() + x


@case(gated)
def gradients(program):
    x, y = leaf(3, 4), leaf(3, 4, seed=1)
    out = program(x, y)
    out.sum().backward()
    return [out, x.grad, y.grad]


@case(lambda x, weight: functional.linear(x, weight).tanh())
def of_a_vector(program):
    """`linear` of a vector removes a dimension in place."""
    x, weight = leaf(3), leaf(4, 3, seed=1)
    out = program(x, weight)
    out.square().sum().backward()
    return [out, x.grad, weight.grad]


@case(lambda x: (x.tanh(), torch.tensor([x.detach().sum(), 2.0]), torch.tensor([x.sum().item(), 1.0])))
def beside_new_tensors(program):
    """The result of `torch.tensor` is not a view of its argument."""
    x = leaf(3)
    out, *others = program(x)
    out.sum().backward()
    return [out, *others, x.grad, [other._is_view() for other in others]]


def beside_places(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    total = x.sum()
    return (x.tanh() if total > -100 else x), x.nonzero()


@case(beside_places)
def beside_values(program):
    """Reading the value of a tensor that requires a gradient does not require a gradient."""
    x = leaf(3)
    out, places = program(x)
    out.sum().backward()
    return [out, places, x.grad]


def through_a_new_leaf(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    y = x.detach() * 2
    y.requires_grad = True
    return torch.tanh(y @ weight)


@case(through_a_new_leaf)
def new_leaf(program):
    x, weight = leaf(3).detach(), leaf(3, 3, seed=1)
    out = program(x, weight)
    out.sum().backward()
    return [out, weight.grad]


@case(gated)
def gradients_add_up(program):
    x, y = leaf(3, 4), leaf(3, 4, seed=1)
    for _ in range(3):
        program(x, y).square().sum().backward()
    return [x.grad, y.grad]


@case(gated)
def mixed_with_eager(program):
    x, y = leaf(3, 4), leaf(3, 4, seed=1)
    out = program(program((x * 2).sigmoid(), y).cos(), x) + x
    out.sum().backward()
    return [out, x.grad, y.grad]


@case(gated)
def partly_required(program):
    x, y = leaf(3, 4), leaf(3, 4, seed=1).detach()
    out = program(x, y)
    out.sum().backward()
    return [out, x.grad, y.grad, out.requires_grad]


@case(gated)
def nothing_required(program):
    out = program(leaf(3, 4).detach(), leaf(3, 4).detach())
    return [out, out.requires_grad, out.grad_fn is None]


@case(gated)
def without_grad(program):
    with torch.no_grad():
        out = program(leaf(3, 4), leaf(3, 4, seed=1))
    return [out, out.requires_grad]


@case(gated)
def retained(program):
    x, y = leaf(3, 4), leaf(3, 4, seed=1)
    out = program(x, y)
    out.sum().backward(retain_graph=True)
    out.square().sum().backward()
    return [x.grad, y.grad]


@case(gated)
def twice_without_retaining(program):
    x, y = leaf(3, 4), leaf(3, 4, seed=1)
    out = program(x, y)
    out.sum().backward()
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        out.sum().backward()
    return [x.grad]


@case(gated)
def hooks(program):
    x, y = leaf(3, 4), leaf(3, 4, seed=1)
    seen = []
    x.register_hook(lambda grad: seen.append(grad.clone()))
    y.register_hook(lambda grad: grad * 2)
    x.register_post_accumulate_grad_hook(lambda tensor: seen.append(tensor.grad.clone()))
    out = program(x, y)
    out.register_hook(lambda grad: grad * 3)
    out.retain_grad()
    out.sum().backward()
    return [*seen, x.grad, y.grad, out.grad]


@case(gated)
def autograd_grad(program):
    x, y = leaf(3, 4), leaf(3, 4, seed=1)
    out = program(x, y)
    return list(torch.autograd.grad(out, [y], torch.full_like(out, 2.0)))


@case(gated)
def expanded_gradient(program):
    x, y = leaf(3, 4), leaf(3, 4, seed=1)
    out = program(x, y)
    out.backward(torch.ones(()).expand(3, 4))
    return [x.grad, y.grad]


@case(gated)
def second_derivative(program):
    x, y = leaf(3, 4), leaf(3, 4, seed=1)
    hidden = x * 1.5
    first = torch.autograd.grad(program(hidden, y).square().sum(), [x, y, hidden], create_graph=True)
    second = torch.autograd.grad(sum(item.square().sum() for item in first), [x, y])
    return [*first, *second]


@case(gated)
def gradcheck(program):
    x, y = (leaf(2, 2, seed=seed).double().detach().requires_grad_(True) for seed in (0, 1))
    return [torch.autograd.gradcheck(program, (x, y)), torch.autograd.gradgradcheck(program, (x, y))]


@case(gated)
def changed_behind_its_back(program):
    x, y = leaf(3, 4), leaf(3, 4, seed=1)
    hidden = x * 1
    out = program(hidden, y)
    hidden.detach().mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()
    return []


@case(gated)
def result_changed_in_place(program):
    x, y = leaf(3, 4), leaf(3, 4, seed=1)
    out = program(x, y)
    out *= 2
    out.sum().backward()
    return [out, x.grad]


def several(x: torch.Tensor, y: torch.Tensor) -> Any:
    hidden = x @ y
    return {"a": hidden.exp(), "b": [hidden.argmax(-1), x.detach() * 2, y.sin()], "c": (3, None)}


@case(several)
def unused_outputs(program):
    x, y = leaf(3, 3), leaf(3, 3, seed=1)
    out = program(x, y)
    out["b"][2].sum().backward()
    return [out["a"], *out["b"], x.grad, y.grad, out["b"][0].requires_grad, out["b"][1].requires_grad]


@case(several)
def all_outputs(program):
    x, y = leaf(3, 3), leaf(3, 3, seed=1)
    out = program(x, y)
    (out["a"].sum() + out["b"][2].sum()).backward()
    return [x.grad, y.grad]


def views(x: torch.Tensor, y: torch.Tensor) -> Any:
    hidden = x * y
    return hidden, hidden[0], hidden.T.unsqueeze(0), x.view(-1), y, x


@case(views)
def returned_views(program):
    x, y = leaf(3, 3), leaf(3, 3, seed=1)
    base, row, turned, flat, same, given = program(x, y)
    shared = [row.data_ptr() == base.data_ptr(), flat.data_ptr() == x.data_ptr(), same is y, given is x]
    (base.sum() + row.square().sum() + turned.sin().sum() + flat.exp().sum() + same.sum()).backward()
    return [base, row, turned, flat, *shared, x.grad, y.grad, row._is_view(), flat._base is x]


@case(views)
def views_written_to(program):
    x, y = leaf(3, 3), leaf(3, 3, seed=1)
    base, row, _, _, _, _ = program(x, y)
    row.mul_(3)
    base.sum().backward()
    return [base, row, x.grad, y.grad]


@case(lambda x: x.view(2, 6).transpose(0, 1))
def nothing_but_views(program):
    x = leaf(3, 4)
    out = program(x)
    out.square().sum().backward()
    return [out, x.grad, out._base is x]


@case(lambda x, index: functional.embedding(index, x)[..., :2].cumsum(0))
def integers(program):
    x, index = leaf(5, 3), torch.tensor([[0, 4], [4, 1]])
    out = program(x, index)
    out.sum().backward()
    return [out, x.grad]


@case(lambda x: functional.dropout(x, 0.5) + torch.rand_like(x) * x, derived=True)
def random_numbers(program):
    x = leaf(8, 8)
    torch.manual_seed(3)
    out = program(x)
    after = torch.rand(2)
    out.square().sum().backward()
    return [out, after, x.grad]


@case(lambda x: functional.dropout(x, 0.5) * x)
def random_second_derivative(program):
    x = leaf(8, 8)
    torch.manual_seed(3)
    (first,) = torch.autograd.grad(program(x).pow(3).sum(), [x], create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), [x])
    return [first, second, torch.rand(2)]


@case(lambda x: functional.relu(x * 2, inplace=True))
def written_on_the_way(program):
    x = leaf(3, 4)
    program(x).sum().backward()
    return [x.grad]


def built_up(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Parts of a tensor are written, some of them twice, and a view of the tensor is returned with it."""
    whole = torch.zeros(3, 4)
    whole[:, :2] = x[:, 2:] * 3
    whole[:, 2:] += y[:, :2]
    whole.mul_(2).sub_(x)
    return whole, whole[1]


@case(built_up)
def built_up_in_parts(program):
    x, y = leaf(3, 4), leaf(3, 4, seed=1)
    whole, row = program(x, y)
    (whole.sin().sum() + row.exp().sum()).backward()
    with torch.no_grad():
        row.zero_()
    return [whole, row, x.grad, y.grad]


def noisy(x: torch.Tensor) -> torch.Tensor:
    """Random numbers are generated by lines that write."""
    hidden = functional.dropout(x * 2, 0.5, inplace=True)
    hidden += torch.empty(3, 4).normal_()
    return hidden.mul_(torch.zeros(3, 4).bernoulli_(0.5))


@case(noisy)
def random_numbers_written_in_place(program):
    x = leaf(3, 4)
    torch.manual_seed(0)
    out = program(x)
    out.sum().backward()
    return [out, x.grad, torch.rand(1)]


@case(lambda x: functional.rrelu(x * 2, training=True, inplace=True), derived=False)
def noise_that_is_drawn_while_it_is_used(program):
    x = leaf(3, 4)
    torch.manual_seed(0)
    program(x).sum().backward()
    return [x.grad]


@case(lambda x: (x * 2).exp().add_(1), derived=False)
def written_after_it_was_saved(program):
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        program(leaf(3, 4)).sum().backward()
    return []


@case(lambda x: x.add_(1) * 2, derived=False)
def written_leaf(program):
    with pytest.raises(RuntimeError, match="a leaf Variable that requires grad"):
        program(leaf(3, 4))
    return []


def written_by_a_value(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    hidden = x * 2
    if mask.any():
        hidden *= mask
    return functional.relu(hidden, inplace=True)


@case(written_by_a_value)
def written_where_a_value_decides(program):
    results = []
    for number in (1.0, 0.0):
        x = leaf(3, 4)
        program(x, torch.full((3, 4), number)).sum().backward()
        results.append(x.grad)
    return results


def written_beside_values(x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    y = x * 2
    y[labels > 1] = x.mean()
    kept = labels.masked_select(labels > 0)
    return y.tanh() * kept.sum() + y.detach().nonzero().shape[0]


@case(written_beside_values)
def written_beside_what_needs_values(program):
    """Operations that need values and that autograd ignores do not prevent the differentiation of a write."""
    x, labels = leaf(3, 4), torch.arange(12).view(3, 4) % 4
    out = program(x, labels)
    out.sum().backward()
    return [out, x.grad]


def written_in_saved_values(x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    kept = labels.masked_select(labels > 0).float()
    y = x * 2
    y += 1
    y = y * kept.sum()
    z = y.flatten()[: kept.shape[0]] * kept
    kept.mul_(2)
    return z


@case(written_in_saved_values, derived=False)
def written_where_it_was_saved_for_values(program):
    x, labels = leaf(3, 4), torch.arange(12).view(3, 4) % 4
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        program(x, labels).sum().backward()
    return [x.grad]


def written_before_overlapping_windows(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    y /= 3
    return y.view(12).as_strided((5, 4), (2, 1)).sin() + y.t().add(1).as_strided((4, 3), (3, 1)).sum()


@case(written_before_overlapping_windows)
def windows_of_what_was_written(program):
    x = leaf(3, 4)
    out = program(x)
    out.square().sum().backward()
    return [out, x.grad]


def written_beneath_windows_of_a_transpose(x: torch.Tensor) -> torch.Tensor:
    y = (x.t() * 2).exp()
    y += 1
    return y.as_strided((6, 2), (2, 1)).square()


@case(written_beneath_windows_of_a_transpose, derived=False)
def windows_of_what_was_written_after_it_was_saved(program):
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        program(leaf(3, 4)).sum().backward()
    return []


@case(lambda x: (x.t() * 2).add_(1).as_strided((6, 2), (2, 1)).square())
def windows_of_a_transpose_that_was_written(program):
    x = leaf(3, 4)
    out = program(x)
    out.sum().backward()
    return [out, x.grad]


@case(lambda x: (x * 2).add_(1)[:1].as_strided((3, 2), (4, 1)).sin(), derived=False)
def windows_beyond_the_rows_that_they_are_taken_of(program):
    x = leaf(3, 4)
    out = program(x)
    out.sum().backward()
    return [out, x.grad]


@case(lambda x: x.view(torch.div(x.shape[0] * 4, 2, rounding_mode="trunc"), 2).sin())
def shapes_by_constant_tensors(program):
    x = leaf(3, 4)
    out = program(x)
    out.sum().backward()
    return [out, x.grad]


@case(lambda x: (x * 2).add_(1).view(torch.div(x.shape[0] * 4, 2, rounding_mode="trunc"), 2).sin())
def shapes_by_constant_tensors_of_what_was_written(program):
    x = leaf(3, 4)
    out = program(x)
    out.sum().backward()
    return [out, x.grad]


@case(lambda x: (x * 2)[:, [0, 2]].sin())
def numbers_as_an_index(program):
    x = leaf(3, 4)
    program(x).sum().backward()
    return [x.grad]


@case(lambda x, y: functional.softplus(functional.linear(x, y)).mT.contiguous().sin())
def strides_that_metadata_gets_wrong(program):
    x, y = leaf(2, 12, 3), leaf(3, 3, seed=1)
    program(x, y).sum().backward()
    return [x.grad, y.grad]


def partly_off(x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        scale = x.abs().max()
    return (x / scale).exp()


@case(partly_off)
def grad_mode_inside(program):
    x = leaf(3, 4)
    out = program(x)
    out.sum().backward()
    return [out, x.grad]


def matched(x: torch.Tensor) -> torch.Tensor:
    """Detection losses choose by costs, which they compute from views with autograd disabled."""
    hidden = x * 2
    with torch.no_grad():
        costs = hidden.flatten().view(4, 3).mT.softmax(-1)
        chosen = costs.argmax()
    return hidden.sin() * chosen


@case(matched)
def views_that_only_choose(program):
    x = leaf(3, 4)
    out = program(x)
    out.sum().backward()
    return [out, x.grad]


def used_where_autograd_is_on(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    hidden = x * 2
    with torch.no_grad():
        apart = hidden.view(4, 3).mT
    return hidden.sin(), apart * 3


@case(used_where_autograd_is_on, derived=False)
def views_that_are_leaves(program):
    x = leaf(3, 4)
    out, apart = program(x)
    (out.sum() + apart.sum()).backward()
    return [out, apart, x.grad, apart.requires_grad]


def returned_from_where_autograd_is_off(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    hidden = x * 2
    with torch.no_grad():
        apart = hidden.view(4, 3)[1:]
    return hidden.sin(), apart


@case(returned_from_where_autograd_is_off, derived=False)
def views_that_are_returned_as_leaves(program):
    x = leaf(3, 4)
    out, apart = program(x)
    out.sum().backward()
    return [out, apart, x.grad, apart.requires_grad, apart.is_leaf]


def written_where_autograd_is_off(x: torch.Tensor) -> torch.Tensor:
    hidden = x * 2
    with torch.no_grad():
        hidden.view(-1).mul_(3)
    return hidden.sin()


@case(written_where_autograd_is_off, derived=False)
def views_that_are_written_to_where_autograd_is_off(program):
    x = leaf(3, 4)
    out = program(x)
    out.sum().backward()
    return [out, x.grad]


def kept_beside_values(x: torch.Tensor, places: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """A state is created and written to; C++ code reads values as sizes."""
    state = torch.zeros(3, 4)
    hidden = x * 2
    state.copy_(hidden)
    sizes = torch.tensor([places.max(), places.min()])
    return hidden.sin() * sizes.sum(), state


@case(kept_beside_values)
def states_beside_what_reads_values_by_itself(program):
    x = leaf(3, 4)
    out, state = program(x, torch.arange(4))
    (out.sum() + state.sum()).backward()
    return [out, state, x.grad]


def norm_in_training(x: torch.Tensor, mean: torch.Tensor, variance: torch.Tensor) -> torch.Tensor:
    return functional.batch_norm(x, mean, variance, training=True)


@case(norm_in_training)
def running_statistics(program):
    x, mean, variance = leaf(4, 3), torch.zeros(3), torch.ones(3)
    out = program(x, mean, variance)
    out.square().sum().backward()
    return [out, x.grad, mean, variance]


def counting(x: torch.Tensor, y: torch.Tensor, calls: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    calls.add_(1)
    return x.exp(), (x * y).sin()


@case(counting)
def some_results_of_one_that_writes(program):
    x, y, calls = leaf(3, 3), leaf(3, 3, seed=1), torch.zeros(())
    first, _ = program(x, y, calls)
    first.sum().backward()
    return [x.grad, y.grad, calls]


@case(lambda x: (x.exp(), x.int().sum(), x.detach()))
def not_all_are_differentiable(program):
    x = leaf(3, 4)
    out, number, cut = program(x)
    out.sum().backward()
    return [out, number, cut, cut.requires_grad, number.requires_grad, x.grad]


@case(lambda x, y: torch.where(x > 0, x, y).masked_fill(y > 1, 0.0) @ torch.eye(4))
def masks(program):
    x, y = leaf(3, 4), leaf(3, 4, seed=1)
    program(x, y).square().mean().backward()
    return [x.grad, y.grad]


@case(lambda x: torch.complex(x, x.sin()).abs().sum())
def complex_numbers(program):
    x = leaf(3, 4)
    program(x).backward()
    return [x.grad]


@case(lambda x: torch.as_strided_copy(x, (2, 2), (1, 2)).square().sum())
def a_backward_that_writes_to_a_view(program):
    x = leaf(3, 4)
    program(x).backward()
    return [x.grad]


@case(torch.nn.LSTM(3, 4))
def an_operation_that_saves_only_while_autograd_is_on(program):
    x = leaf(2, 1, 3)
    program(x)[0].square().sum().backward()
    return [x.grad]


def compare(name: str, executors: tuple[str, ...]) -> None:
    one = CASES[name]
    compiled = thunder.jit(one.program, executors=executors)
    expected = one.use(one.program)
    for _ in range(2):
        found = one.use(compiled)
        assert len(found) == len(expected)
        for number, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
            if isinstance(theirs, torch.Tensor):
                assert ours.stride() == theirs.stride(), number
            torch.testing.assert_close(ours, theirs, msg=lambda text, number=number: f"{number}: {text}")


@pytest.mark.parametrize("name", CASES)
def test_results_and_gradients_match_eager(name):
    compare(name, ("torch",))


@pytest.mark.parametrize("name", FUSED)
def test_results_and_gradients_of_fused_regions_match_eager(name):
    compare(name, ("inductor", "torch"))


OWN = ("gradients", "returned_views", "random_numbers", "running_statistics", "integers")


@pytest.mark.parametrize("name", [*OWN, "of_a_vector", "beside_new_tensors", "beside_values", "new_leaf"])
def test_program_has_a_compiled_backward(name):
    compiled = thunder.jit(CASES[name].program)
    CASES[name].use(compiled)
    assert last_program(compiled).no_backward_reason == ""
    assert thunder.last_backward_traces(compiled)


def test_program_recorded_by_autograd_has_a_reason():
    compiled = thunder.jit(CASES["written_after_it_was_saved"].program)
    CASES["written_after_it_was_saved"].use(compiled)
    assert "add_" in thunder.last_backward_reason(compiled)
    assert thunder.last_backward_traces(compiled) == []


def test_region_names_the_tensors_of_its_gradients():
    compiled = thunder.jit(gated, executors=("inductor", "torch"))
    CASES["gradients"].use(compiled)
    assert re.search(r"\[inductor\]  gradients of [xy], [xy]$", str(thunder.last_backward_traces(compiled)[-1]), re.M)


@pytest.mark.parametrize("executors", [("torch",), ("inductor", "torch")])
def test_gradients_at_once_match_gradients_one_by_one(executors):
    compiled = thunder.jit(lambda x: x.sin().mul(x).exp(), executors=executors)
    x = leaf(4)
    ones = torch.eye(4)
    (found,) = torch.autograd.grad(compiled(x), x, ones, is_grads_batched=True)
    wanted = [torch.autograd.grad(compiled(x), x, item)[0] for item in ones]
    torch.testing.assert_close(found, torch.stack(wanted))
    torch.testing.assert_close(torch.autograd.functional.jacobian(compiled, x, vectorize=True), found)


def test_program_without_a_backward_has_a_reason():
    compiled = thunder.jit(gated)
    compiled(leaf(2).detach(), leaf(2).detach())
    assert thunder.last_backward_reason(compiled) == "nothing that it reads requires a gradient"
    with torch.no_grad():
        compiled(leaf(2), leaf(2))
    assert thunder.last_backward_reason(compiled) == "autograd was off when it was traced"


def test_each_line_of_a_backward_names_the_line_that_it_derives():
    compiled = thunder.jit(gated, executors=("torch",))
    CASES["gradients"].use(compiled)
    first, *_, last = thunder.last_backward_traces(compiled)
    assert all(line.derives is not None for line in first.bound_symbols)
    names = [line.derives.symbol.short_name for line in first.bound_symbols]
    assert list(dict.fromkeys(names)) == ["mul", "exp", "tanh", "silu"]
    text = str(last)
    assert "# ---- backward of gated ----" in text
    assert "# of t0 = torch.nn.functional.silu(x" in text
    assert {"gradient of x", "gradient of y"} <= set(re.findall(r"gradient of [xy]$", text, flags=re.MULTILINE))


@pytest.mark.parametrize("name", ["unused_outputs", "all_outputs", "some_results_of_one_that_writes"])
def test_missing_backward_for_some_results_falls_back_to_autograd(monkeypatch, name):
    """Autograd records the body again; a body that writes cannot run again, and gets zeros for missing gradients."""
    derived = Differentiated.backward

    def only_whole(self, given, *parts):
        if not all(given):
            raise Underivable("it reads what was not saved")
        return derived(self, given, *parts)

    monkeypatch.setattr(Differentiated, "backward", only_whole)
    compare(name, ("torch",))


def transcribed(x: torch.Tensor) -> torch.Tensor:
    return functional.ctc_loss(x.log_softmax(-1)[:, None], torch.tensor([[1, 2]]), (6,), (2,))


# Programs that PyTorch differentiates, and that cannot be differentiated without data.
RECORDED = {
    "ctc_loss of lengths in a tuple": (transcribed, "it does not run without data"),
}
SIZED_BY_VALUES = {
    "a mask": lambda x: (x * 2)[x > 0],
    "masked_select": lambda x: (x * 2).masked_select(x > 0),
    "pad": lambda x: functional.pad(x * 2, (0, (x > 0).sum())),
    "repeat_interleave": lambda x: (x * 2).repeat_interleave((x > 0).sum(1), dim=0),
    "interpolate": lambda x: functional.interpolate((x * 2)[None], size=((x > 0).sum(),)),
}


@pytest.mark.parametrize("name", RECORDED)
def test_program_without_a_compiled_backward_is_recorded_with_a_reason(name):
    program, reason = RECORDED[name]
    assert reason in thunder.last_backward_reason(compared(program))


@pytest.mark.parametrize("name", SIZED_BY_VALUES)
def test_program_with_sizes_out_of_tensors_has_a_backward(name):
    assert thunder.last_backward_reason(compared(SIZED_BY_VALUES[name])) == ""


def compared(program):
    compiled, results = thunder.jit(program), []
    for call in (compiled, program):
        x = leaf(6, 4)
        out = call(x)
        out.square().sum().backward()
        results.append((out.detach(), x.grad))
    torch.testing.assert_close(results[0], results[1], rtol=0, atol=0)
    return compiled
