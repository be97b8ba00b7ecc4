"""Small programs that write, alias, or both, each with a function that creates new arguments."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

Make = Callable[[], tuple[Any, ...]]
Program = tuple[Callable[..., Any], Make]


def numbers(*shape: int, start: float = -1.0, grad: bool = False) -> Tensor:
    """Distinct numbers around zero."""
    count = max(1, int(torch.Size(shape).numel()))
    return torch.linspace(start, start + 2.3, count).reshape(shape).clone().requires_grad_(grad)


def one() -> tuple[Any, ...]:
    return (numbers(4, 4),)


def two() -> tuple[Any, ...]:
    return numbers(4, 4), numbers(4, 4, start=0.2)


def leaf() -> tuple[Any, ...]:
    return (numbers(4, 4, grad=True),)


def leaf_and_plain() -> tuple[Any, ...]:
    return numbers(4, 4, grad=True), numbers(4, 4, start=0.2)


def inner() -> tuple[Any, ...]:
    """A tensor that autograd records and that is not a leaf."""
    return (numbers(4, 4, grad=True) * 2,)


def whole_and_row() -> tuple[Any, ...]:
    whole = numbers(4, 4)
    return whole, whole[1]


def row_and_whole() -> tuple[Any, ...]:
    whole = numbers(4, 4)
    return whole[1], whole


def overlapping() -> tuple[Any, ...]:
    buffer = numbers(6, 4)
    return buffer[:4], buffer[2:]


def disjoint() -> tuple[Any, ...]:
    buffer = numbers(8, 4)
    return buffer[:4], buffer[4:]


def same() -> tuple[Any, ...]:
    tensor = numbers(4, 4)
    return tensor, tensor


def same_memory() -> tuple[Any, ...]:
    tensor = numbers(4, 4)
    return tensor, tensor.view(4, 4)


def transposed() -> tuple[Any, ...]:
    tensor = numbers(4, 4)
    return tensor, tensor.t()


# ---- in place -------------------------------------------------------------------------------------------------


def chain(x: Tensor) -> Tensor:
    y = x.clone()
    y.add_(1).mul_(2).sub_(0.5).div_(3).neg_().abs_().clamp_(0.1, 2.0)
    return y


def operators(x: Tensor) -> Tensor:
    y = x + 0
    y += 1
    y -= x
    y *= 2
    y /= 3
    y **= 2
    return y


def integers_in_place(x: Tensor) -> Tensor:
    n = x.mul(10).to(torch.int64)
    n //= 3
    n %= 5
    n <<= 1
    n |= 1
    n &= 7
    n ^= 2
    return n


def set_items(x: Tensor) -> Tensor:
    y = torch.zeros_like(x)
    y[0] = 7
    y[1:, 0] = x[1:, 1]
    y[..., -1] += 1
    y[2, 2] = x[0, 0]
    y[x > 0.5] = 9.0
    y[torch.tensor([0, 1]), torch.tensor([2, 3])] = x.sum()
    return y


def set_item_none(x: Tensor) -> Tensor:
    y = x.clone()
    y[:] = 1
    y[None, 0] = x[0]
    y[[1, 2]] = -1.0
    return y


def index_family(x: Tensor) -> Tensor:
    index = torch.tensor([2, 0])
    y = x.clone()
    y.index_copy_(0, index, x[:2])
    y.index_add_(1, index, x[:, :2], alpha=2)
    y.index_fill_(0, index, 3.0)
    y.index_put_((index, index), torch.tensor([1.0, 2.0]), accumulate=True)
    y.scatter_(1, index[None], 5.0)
    y.scatter_add_(0, index[None], x[:1, :2])
    y.masked_fill_(x > 0.9, 0.5)
    y.masked_scatter_(x < -0.9, x)
    y.put_(index, torch.tensor([4.0, 5.0]))
    y.fill_diagonal_(0.25)
    return y


def out_arguments(x: Tensor, y: Tensor) -> Any:
    first = torch.empty_like(x)
    result = torch.add(x, y, out=first)
    second = torch.empty(0)
    torch.matmul(x, y, out=second)
    values, indices = torch.empty(4), torch.empty(4, dtype=torch.long)
    torch.max(x, 1, out=(values, indices))
    return result is first, first, second, values, indices


def out_is_input(x: Tensor, y: Tensor) -> Tensor:
    torch.mul(x, y, out=x)
    return torch.exp(y, out=y)


def out_is_view(x: Tensor) -> Tensor:
    y = torch.zeros(2, 4, 4)
    torch.add(x, 1, out=y[0])
    torch.sub(x, 1, out=y[1])
    return y


def views_see_writes(x: Tensor) -> Any:
    y = x.clone()
    row, column, flat = y[1], y[:, 2], y.view(-1)
    y.add_(1)
    flat[3] = 100
    return row, column, flat.sum(), y.t()


def writes_through_views(x: Tensor) -> Any:
    y = x.clone()
    y[0].add_(1)
    y.t()[1].mul_(3)
    y.view(-1)[2:5].zero_()
    y.diagonal().fill_(2)
    y.unsqueeze(0).squeeze().narrow(0, 1, 2).copy_(x[:2])
    y.unfold(0, 2, 2)[0].neg_()
    y.as_strided((2,), (5,)).add_(10)
    for row in y.unbind():
        row.sub_(0.5)
    for part in y.chunk(2, 1):
        part.mul_(2)
    first, _ = y.split(2)
    first.exp_()
    return y


def expanded_write(x: Tensor) -> Tensor:
    return x[0].clone().expand(4, 4).add_(1)


def self_overlap(x: Tensor) -> Tensor:
    y = x.clone()
    y[1:].copy_(y[:-1])
    return y


def complex_views(x: Tensor) -> Any:
    z = torch.complex(x, x + 1)
    z.real.add_(1)
    torch.view_as_real(z)[..., 1].zero_()
    return z, z.imag


def sets_parts(x: Tensor) -> Any:
    z = torch.complex(x, x + 1)
    z.real = 0.5
    z[1].imag = x[0].detach()
    setattr(z, "imag", z.imag.sum())  # noqa: B010
    torch.Tensor.real.__set__(x, z.abs())  # type: ignore[attr-defined]
    x.sin_()
    x.real = True
    return z, x * 2


def sets_parts_of_inputs(x: Tensor, y: Tensor) -> Any:
    x.real = y.abs()
    x.mul_(2)
    with torch.no_grad():
        y.real = x.sum().item()
    y.add_(1)


def bit_views(x: Tensor) -> Any:
    y = x.clone()
    y.view(torch.int32).bitwise_and_(-2)
    return y


def conjugate(x: Tensor) -> Any:
    z = torch.complex(x, x + 1)
    conj = z.conj()
    z.mul_(2)
    return conj.resolve_conj(), conj.imag


# ---- inputs ---------------------------------------------------------------------------------------------------


def writes_input(x: Tensor) -> Tensor:
    x.add_(1)
    return x * 2


def returns_written_input(x: Tensor) -> Tensor:
    return x.mul_(2)


def writes_view_of_input(x: Tensor) -> Any:
    x[0].zero_()
    x.view(-1)[5:7].add_(3)
    x[1, 1:] = 4
    return x.sum()


def returns_view_of_input(x: Tensor) -> Any:
    return x, x[0], x.t(), x.view(2, 8), x[0]


def returns_chain_of_views(x: Tensor) -> Any:
    y = x[1:]
    x.add_(1)
    return y, y[0]


def copies_into_input(x: Tensor, y: Tensor) -> None:
    x.copy_(y)
    y[:2].copy_(x[2:])


def swaps(x: Tensor, y: Tensor) -> Any:
    kept = x.clone()
    x.copy_(y)
    y.copy_(kept)
    return x, y, kept


def metadata_in_place(x: Tensor) -> Any:
    y = x.clone()
    y.unsqueeze_(0)
    y.transpose_(1, 2)
    shape = tuple(y.shape)
    y.squeeze_().t_()
    return y, shape


def input_metadata_in_place(x: Tensor) -> Any:
    x.unsqueeze_(0)
    return x.shape, x + 1


def resizes(x: Tensor) -> Any:
    y = x.clone()
    y.resize_(2, 3)
    return y + 1


def resizes_input(x: Tensor) -> Any:
    x.resize_(2, 3)
    return x + 1


def uses_data(x: Tensor) -> Any:
    x.data.add_(1)
    return x * 2


def sets_data(x: Tensor, y: Tensor) -> Any:
    x.data = y * 2
    return x + 1


def detached_write(x: Tensor) -> Any:
    y = x * 2
    y.detach().add_(1)
    return y.sum()


def no_grad_write(x: Tensor) -> Any:
    with torch.no_grad():
        x.mul_(2)
        x[0] = 0
    return (x * 3).sum()


def leaf_write(x: Tensor) -> Any:
    return x.add_(1)


def leaf_view_write(x: Tensor) -> Any:
    return x[0].add_(1)


def leaf_write_caught(x: Tensor) -> Any:
    try:
        x.add_(1)
    except RuntimeError as error:
        return x + 1, str(error)


def inner_write(x: Tensor) -> Any:
    x.mul_(3)
    return x.exp()


def saved_write(x: Tensor) -> Any:
    y = x.exp()
    y.add_(1)
    return y.sum()


def view_under_no_grad(x: Tensor) -> Any:
    y = x * 2
    with torch.no_grad():
        row = y[0]
    row.add_(1)
    return y


def write_follows(x: Tensor, y: Tensor) -> Any:
    """Writing a tensor that requires grad into a plain tensor makes autograd record the plain tensor."""
    y[0] = x[0]
    y.mul_(x)
    return y.sum(), y.requires_grad, y.is_leaf


def write_into_view_follows(x: Tensor, y: Tensor) -> Any:
    z = y.clone()
    row = z[1]
    row.copy_(x[0])
    return z * 2, row, z.requires_grad


def requires_grad_inside(x: Tensor) -> Any:
    y = x.clone().requires_grad_()
    z = (y * y).sum()
    return z, y


def detach_in_place(x: Tensor) -> Any:
    y = x * 2
    y.detach_()
    return y * 3, y.requires_grad


def clone_and_write(x: Tensor) -> Any:
    y = x.detach().clone()
    y.sigmoid_().round_()
    return y, x


def activations(x: Tensor) -> Any:
    y = functional.relu(x.clone(), inplace=True)
    y = functional.leaky_relu(y - 1, 0.1, inplace=True)
    y = functional.silu(y, inplace=True)
    y = functional.elu_(y)
    y = functional.hardtanh(y, inplace=True)
    y = functional.threshold_(y, 0.1, 0.2)
    y = functional.hardswish(y, inplace=True)
    y = functional.relu6(y, inplace=True)
    y = functional.celu(y, inplace=True)
    return functional.mish(y, inplace=True)


def activation_on_input(x: Tensor) -> Any:
    return functional.relu_(x)


def same_twice(x: Tensor) -> Any:
    y = x.clone()
    first = y * 2
    y.add_(1)
    second = y * 2
    return first, second


def same_view_twice(x: Tensor) -> Any:
    y = x.clone()
    first = y[0] + 1
    y[0] = 5
    return first, y[0] + 1


def common_before_and_after(x: Tensor) -> Any:
    first = torch.zeros(4)
    second = torch.zeros(4)
    first.add_(1)
    return first, second, x + 1, x + 1


def common_returned(x: Tensor) -> Any:
    """Equal results must stay separate: the caller may write to one of them."""
    return x + 1, x + 1, (x + 1)[0], (x + 1)[0]


def fused_around(x: Tensor, y: Tensor) -> Any:
    a = (x * 2 + 1).tanh()
    y.copy_(a)
    b = (x * 2 + 1).tanh() + y
    y.add_(b)
    return (y * 3 - 1).sigmoid(), b


def fused_views(x: Tensor) -> Any:
    a = x * 2 + 1
    view = a[0]
    b = (a * 3).tanh()
    view.mul_(5)
    return (a + b).sin(), view.exp() + 1


def dead_write(x: Tensor) -> Any:
    y = x.clone()
    y.add_(1)
    return x * 2


def offsets(x: Tensor) -> Any:
    return [row.storage_offset() for row in x], [x[n, 1:].storage_offset() for n in range(3)]


def offsets_of_views(x: Tensor) -> Any:
    y = x.clone()
    return [row[1:].as_strided((2,), (1,)).sum() for row in y], [row.view(2, 2)[1].storage_offset() for row in y]


def view_relations(x: Tensor) -> Any:
    y = x.clone()
    views = [y[0], y[1], y.t()]
    return [view._is_view() and view._base is y for view in views], y._is_view()


def bases_of_inputs(x: Tensor) -> Any:
    with torch.no_grad():
        row = x[0]
    views = (row, x.t(), x.t(), x.unbind()[0], x.view(-1)[1:], x.detach(), x.data)
    x.t()._base.add_(1)  # type: ignore[union-attr]
    return [view._base is x for view in views], [view._base is None for view in views], row._base


def shares_storage(x: Tensor) -> Any:
    y = x.clone()
    return y[0].untyped_storage()._cdata == y[1].untyped_storage()._cdata


def versions(x: Tensor) -> Any:
    y = x.clone()
    before = y._version
    y.add_(1)
    y[0].mul_(2)
    return y, y._version - before


def inference(x: Tensor) -> Any:
    with torch.inference_mode():
        y = x * 2
        y.add_(1)
    return y, y.is_inference()


def foreach(x: Tensor, y: Tensor) -> Any:
    torch._foreach_add_([x, y], 1.0)
    torch._foreach_mul_([x, y], [y.clone(), x.clone()])
    return x + y


def dictionaries(x: Tensor) -> Any:
    state = {"cache": torch.zeros(3, 4)}
    for n in range(3):
        state["cache"][n] = x[n] * n
    return state


def interleaved(x: Tensor) -> Any:
    y = x.clone()
    z = y.view(-1)
    total = z.sum()
    for n in range(3):
        y[n] += total
        total = z[n::4].sum()
    return y, total


def sets_data_of_another_shape(x: Tensor, y: Tensor) -> Any:
    before = x.t()
    x.data = y[:2].clone()
    return before, x.t(), y.t()


def normalizes_twice(x: Tensor) -> Any:
    """Each batch norm updates the statistics, even if its result is not read."""
    mean, variance = torch.zeros(4), torch.ones(4)
    functional.batch_norm(x, mean, variance, training=True)
    functional.batch_norm(x, mean, variance, training=True)
    return functional.batch_norm(x, mean, variance), mean, variance


# ---- arguments that share memory ------------------------------------------------------------------------------


def writes_first_reads_second(x: Tensor, y: Tensor) -> Any:
    before = y * 2
    x.add_(1)
    return before, y * 2


def writes_both(x: Tensor, y: Tensor) -> Any:
    x.add_(1)
    y.mul_(2)
    x.sub_(3)
    return x.sum() + y.sum()


def returns_both(x: Tensor, y: Tensor) -> Any:
    x.add_(1)
    return x, y


def identity(x: Tensor, y: Tensor) -> Any:
    return (x + 1 if x is y else x - 1), y is x, x is not y


def identity_in_list(x: Tensor, y: Tensor) -> Any:
    return x + 1, len({id(x), id(y)})


def fused_between(x: Tensor, y: Tensor) -> Any:
    a = (y * 2 + 1).tanh()
    x.mul_(a.sum())
    b = (y * 2 + 1).tanh()
    return a, b, a is b


def parameter_and_view(x: Tensor, y: Tensor) -> Any:
    with torch.no_grad():
        x.add_(1)
    return (x * 2).sum() + (y * 3).sum()


# ---- modules --------------------------------------------------------------------------------------------------


class Counting(nn.Module):
    """A module that counts its calls in a buffer and keeps a running mean."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))
        self.register_buffer("mean", torch.zeros(4))
        self.weight = nn.Parameter(torch.ones(4) * 0.5)

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        with torch.no_grad():
            self.mean.lerp_(x.mean(0), 0.1)
        return (x - self.mean) * self.weight / self.calls


class Replacing(nn.Module):
    """A module that gives a buffer a new tensor at each call."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("last", torch.zeros(4, 4))

    def forward(self, x: Tensor) -> Tensor:
        result = x + self.last
        self.last = x.detach() * 2
        return result


class Tied(nn.Module):
    """A module with a parameter and a buffer that is a view of the parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(numbers(4, 4))
        self.register_buffer("row", self.weight.detach()[1])

    def forward(self, x: Tensor) -> Tensor:
        self.row.mul_(2)
        return x @ self.weight


class Cache(nn.Module):
    """A key-value cache that is written a slice at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("keys", torch.zeros(6, 4))

    def forward(self, x: Tensor) -> Tensor:
        self.keys[1:5] = x
        self.keys.index_copy_(0, torch.tensor([0]), x[:1])
        return self.keys @ x


def module_case(make: Callable[[], nn.Module], shape: tuple[int, ...] = (4, 4)) -> Program:
    def call(module: nn.Module, x: Tensor) -> Any:
        return module(x)

    def arguments() -> tuple[Any, ...]:
        torch.manual_seed(3)
        return make(), numbers(*shape)

    return call, arguments


NORMED = nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4))
MODULES: dict[str, Program] = {
    "counting": module_case(Counting),
    "replacing": module_case(Replacing),
    "tied": module_case(Tied),
    "cache": module_case(Cache),
    "batch norm": module_case(lambda: nn.BatchNorm1d(4)),
    "batch norm in eval": module_case(lambda: nn.BatchNorm1d(4).eval()),
    "batch norm 2d": module_case(lambda: nn.BatchNorm2d(3), (2, 3, 4, 4)),
    "instance norm": module_case(lambda: nn.InstanceNorm1d(3, track_running_stats=True), (2, 3, 4)),
    "relu in place": module_case(lambda: nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, 2))),
    "spectral norm": module_case(lambda: copy.deepcopy(NORMED)),
}

WRITING: dict[str, Program] = {
    function.__name__: (function, make)
    for make, functions in (
        (
            one,
            (
                chain, operators, integers_in_place, set_items, set_item_none, index_family, out_is_view,
                views_see_writes, writes_through_views, expanded_write, self_overlap, complex_views, bit_views,
                conjugate, writes_input, returns_written_input, writes_view_of_input, returns_view_of_input,
                returns_chain_of_views, metadata_in_place, input_metadata_in_place, resizes, resizes_input,
                uses_data, clone_and_write, activations, activation_on_input, same_twice, same_view_twice,
                common_before_and_after, common_returned, fused_views, dead_write, offsets, offsets_of_views,
                view_relations, shares_storage, bases_of_inputs, sets_parts, versions, inference, dictionaries,
                interleaved, requires_grad_inside, normalizes_twice,
            ),
        ),
        (
            two,
            (
                out_arguments, out_is_input, copies_into_input, swaps, sets_data, sets_data_of_another_shape,
                fused_around, foreach, sets_parts_of_inputs,
            ),
        ),
        (
            leaf,
            (
                detached_write, no_grad_write, leaf_write, leaf_view_write, leaf_write_caught, saved_write,
                view_under_no_grad, detach_in_place,
            ),
        ),
        (inner, (inner_write,)),
        (leaf_and_plain, (write_follows, write_into_view_follows, parameter_and_view)),
    )
    for function in functions
}  # fmt: skip

WITH_GRAD = (
    chain, operators, set_items, index_family, views_see_writes, writes_through_views, writes_view_of_input,
    returns_view_of_input, returns_chain_of_views, writes_input, returns_written_input, metadata_in_place,
    input_metadata_in_place, uses_data, activations, activation_on_input, same_twice, same_view_twice, fused_views,
    dead_write, view_relations, sets_parts, versions, dictionaries, interleaved,
)  # fmt: skip
GRAD = {f"{function.__name__} of {kind.__name__}": (function, kind) for function in WITH_GRAD for kind in (leaf, inner)}

ALIASED = (two, same, same_memory, whole_and_row, row_and_whole, overlapping, disjoint, transposed)
OF_TWO = (
    writes_first_reads_second, writes_both, returns_both, identity, identity_in_list, fused_between, fused_around,
    swaps, foreach,
)  # fmt: skip
PROGRAMS: dict[str, Program] = {**WRITING, **MODULES, **GRAD}
