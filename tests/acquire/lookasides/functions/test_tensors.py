"""Parameters and buffers that a program makes are new at each call and match eager PyTorch."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import Parameter

import thunder_core as thunder


class Net(nn.Module):
    """A module with a parameter, a list of parameters and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = Parameter(torch.ones(3))
        self.listed = nn.ParameterList([Parameter(torch.ones(2))])
        self.register_buffer("offset", torch.zeros(3))


def adds(net: Any, x: Tensor) -> Tensor:
    net.extra = Parameter(torch.full((3,), 2.0))
    return x * net.extra


def replaces(net: Any, x: Tensor) -> Tensor:
    net.weight = Parameter(torch.zeros(3))
    return x * net.weight


def registers(net: Any, x: Tensor) -> Tensor:
    net.register_parameter("extra", Parameter(torch.ones(3)))
    net.register_buffer("kept", x * 2)
    return x + net.extra + net.kept


def appends(net: Any, x: Tensor) -> Tensor:
    net.listed.append(Parameter(torch.ones(3)))
    return x + net.listed[1]


def adds_a_module(net: Any, x: Tensor) -> Tensor:
    net.layer = nn.Linear(3, 3)
    return net.layer(x)


def adds_a_buffer(net: Any, x: Tensor) -> Tensor:
    net.kept = nn.Buffer(x * 2, persistent=False)
    return net.kept


def of_computed(net: Any, x: Tensor) -> Any:
    made = Parameter(x * 2)
    return made, made * 3, isinstance(made, Parameter), type(made), type(x * 2), (x * 2).__class__


def of_an_argument(net: Any, x: Tensor) -> Any:
    made = Parameter(x)
    with torch.no_grad():
        made.add_(1)
    return made, x * 1


def without_gradient(net: Any, x: Tensor) -> Any:
    return Parameter(x + 1, requires_grad=False), net.weight * 2


def of_outside_data(net: Any, x: Tensor) -> Any:
    return Parameter(net.weight.detach()), Parameter(net.weight), copy.deepcopy(net.weight), copy.copy(net.weight)


def trains(net: Any, x: Tensor) -> Any:
    made = Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([made], lr=0.1)
    (made * x).sum().backward()
    optimizer.step()
    return made, made.grad


def becomes_double(net: Any, x: Tensor) -> Any:
    return net.double().weight


def beside_what_is_followed(net: Any, x: Tensor) -> Any:
    made = Parameter(torch.ones(3))
    return made, made * net.weight * x


def uninitialized(net: Any, x: Tensor) -> Any:
    made = nn.UninitializedParameter()
    made.materialize((3,))
    with torch.no_grad():
        made.copy_(x)
    return made


PROGRAMS: tuple[Callable[[Any, Tensor], Any], ...] = (
    adds,
    replaces,
    registers,
    appends,
    adds_a_module,
    adds_a_buffer,
    of_computed,
    of_an_argument,
    without_gradient,
    of_outside_data,
    trains,
    becomes_double,
    beside_what_is_followed,
    uninitialized,
)


def shown(value: Any) -> Any:
    """Return everything that can be observed of a value."""
    if isinstance(value, Tensor):
        return type(value), value.dtype, value.tolist(), value.requires_grad, value.is_leaf, vars(value)
    return [shown(item) for item in value] if isinstance(value, list | tuple) else value


def run(program: Callable[..., Any]) -> list[Any]:
    """Return the results of three calls and the final state of the module."""
    net, outcomes = Net(), []
    for step in range(3):
        torch.manual_seed(0)
        x = torch.arange(3.0) + step
        outcomes.append(shown(program(net, x)))
        outcomes.append(shown(x))
        outcomes += [(name, shown(tensor)) for name, tensor in (*net.named_parameters(), *net.named_buffers())]
    return outcomes


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_parameters_and_buffers_match_eager(program: Callable[..., Any]) -> None:
    assert run(thunder.jit(program)) == run(program)


def test_a_parameter_of_an_argument_shares_its_memory_at_each_call() -> None:
    compiled = thunder.jit(lambda x: Parameter(x))
    for _ in range(2):
        x = torch.randn(3)
        made = compiled(x)
        assert made.data_ptr() == x.data_ptr()
        assert made is not x
    assert thunder.cache_misses(compiled) == 1


def test_leaf_made_by_a_program_with_gradients_gets_its_own_gradient() -> None:
    def program(weight: Tensor, x: Tensor) -> Any:
        made = x.detach().requires_grad_()
        return made, (made * weight).sum()

    def gradients(function: Callable[..., Any]) -> Any:
        weight = torch.arange(3.0).requires_grad_()
        made, total = function(weight, torch.ones(3))
        total.backward()
        return made.requires_grad, made.grad.tolist(), weight.grad.tolist()

    assert gradients(thunder.jit(program)) == gradients(program)


def test_attributes_that_the_program_gives_a_tensor_are_on_the_result() -> None:
    def program(x: Tensor) -> Tensor:
        y = x * 2
        y.label, y.source = "twice", [x, 1]  # type: ignore[attr-defined]
        return y

    compiled, x = thunder.jit(program), torch.ones(2)
    for _ in range(2):
        found: Any = compiled(x)
        assert found.label == "twice"
        assert found.source[0] is x
        assert list(vars(found)) == ["label", "source"]


def lazy() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.LazyConv1d(4, 2), nn.LazyBatchNorm1d(), nn.Flatten(), nn.LazyLinear(3))


def call(module: nn.Module, x: Tensor) -> Any:
    return module(x)


def test_a_lazy_module_that_a_function_calls_first_gets_its_shapes_as_in_eager() -> None:
    x, module, twin, compiled = torch.randn(3, 2, 5), lazy(), lazy(), thunder.jit(call)
    for step in range(3):
        torch.manual_seed(step)
        wanted = call(module, x)
        torch.manual_seed(step)
        torch.testing.assert_close(compiled(twin, x), wanted, rtol=0, atol=0)
    torch.testing.assert_close(twin.state_dict(), module.state_dict(), rtol=0, atol=0)
    assert [*map(type, twin)] == [*map(type, module)]
    assert (thunder.cache_misses(compiled), thunder.cache_hits(compiled)) == (2, 1)


def test_lazy_module_of_the_program_is_new_at_each_call() -> None:
    def program(x: Tensor) -> Any:
        module = nn.LazyLinear(3)
        return module(x), type(module), [*map(type, module.parameters())]

    compiled = thunder.jit(program)
    for step in range(2):
        x = torch.ones(2, 4) + step
        torch.manual_seed(0)
        wanted = program(x)
        torch.manual_seed(0)
        found = compiled(x)
        assert torch.equal(found[0], wanted[0])
        assert found[1:] == wanted[1:]


def test_operation_on_a_parameter_without_shape_raises_as_in_eager() -> None:
    def program(x: Tensor) -> Tensor:
        return nn.UninitializedParameter() + x

    with pytest.raises(ValueError, match="uninitialized parameter"):
        thunder.jit(program)(torch.ones(2))


EMPTY: dict[str, Callable[[Tensor], Any]] = {
    "of a list": lambda x: torch.tensor([]),
    "of a tuple": lambda x: torch.tensor(()),
    "with a dtype": lambda x: torch.tensor([], dtype=torch.int16),
    "with a device and a gradient": lambda x: torch.tensor([], device=x.device, requires_grad=True),
    "as a list again": lambda x: (torch.tensor([]).tolist(), x.new_tensor([])),
    "joined with a tensor": lambda x: torch.cat([torch.tensor([], dtype=x.dtype), x], dim=-1),
    "joined and promoted": lambda x: torch.cat([torch.tensor([], dtype=torch.float64), x], dim=-1),
    "of nested lists": lambda x: torch.tensor([[]]),
    "written to": lambda x: torch.tensor([]).resize_(2).fill_(3.0),
}


@pytest.mark.parametrize("name", EMPTY)
def test_a_tensor_of_no_numbers_is_an_operation_and_equals_eager(name: str) -> None:
    x = torch.arange(4.0).reshape(2, 2).t()
    found, wanted = thunder.jit(EMPTY[name], executors=["torch"])(x), EMPTY[name](x)
    torch.testing.assert_close(found, wanted, rtol=0, atol=0)
    if isinstance(wanted, Tensor):
        assert (found.dtype, found.stride(), found.requires_grad) == (
            wanted.dtype,
            wanted.stride(),
            wanted.requires_grad,
        )


def test_an_empty_list_from_outside_is_guarded_by_its_length() -> None:
    def program(x: Tensor, numbers: list[int]) -> tuple[Tensor, Tensor]:
        return torch.tensor(numbers), x + 1

    compiled = thunder.jit(program)
    for numbers in ([], [1], [], [2, 3]):
        found, _ = compiled(torch.ones(2), numbers)
        assert torch.equal(found, torch.tensor(numbers))


@pytest.mark.parametrize("kind", ["list", "tuple"])
def test_empty_tensor_has_the_default_dtype_of_each_call(kind: str) -> None:
    def program(x: Tensor) -> Tensor:
        return torch.cat([torch.tensor([] if kind == "list" else ()), x])

    compiled = thunder.jit(program)
    for dtype in (torch.float32, torch.float64):
        torch.set_default_dtype(dtype)
        try:
            assert compiled(torch.ones(2, dtype=torch.float32)).dtype is dtype
        finally:
            torch.set_default_dtype(torch.float32)


def groups_of_parameters(x: Tensor) -> Any:
    layer = torch.nn.Linear(3, 1)
    double = torch.nn.Parameter(x.double())
    rows: list[list[Any]] = [[double, *layer.parameters()], [None, x, x * 2], []]
    return [
        str([(key, [[None if item is None else item.device for item in row] for row in parts], indices)])
        for with_indices in (False, True)
        for key, (parts, indices) in torch._C._group_tensors_by_device_and_dtype(rows, with_indices).items()
    ]


def step_of_asgd(x: Tensor) -> Any:
    weight = torch.nn.Parameter(x * 2)
    optimizer = torch.optim.ASGD([weight], lr=0.5, t0=0, foreach=True)
    for _ in range(3):
        optimizer.zero_grad()
        (weight * x).sum().backward()
        optimizer.step()
    state = optimizer.state[weight]
    return weight.detach(), state["eta"], state["mu"], state["ax"]


@pytest.mark.parametrize("program", [groups_of_parameters, step_of_asgd])
def test_parameters_of_the_program_are_grouped_by_their_device(program: Callable[[Tensor], Any]) -> None:
    compiled, x = thunder.jit(program, executors=("torch",)), torch.arange(3.0)
    for _ in range(2):
        result, expected = compiled(x), program(x)
        values, expected_values = (
            [item.tolist() if isinstance(item, Tensor) else item for item in items] for items in (result, expected)
        )
        assert values == expected_values
