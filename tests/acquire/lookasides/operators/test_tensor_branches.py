"""Branches on tensors: one program for all outcomes, or a program for each where that is wrong."""

from __future__ import annotations

import copy
import itertools
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import thunder_core as thunder
from thunder_core.foundation.errors import DataDependent

LINEAR = nn.Linear(4, 4)


class LayerDrop(nn.Module):
    """Layers with dropout, each of which is skipped with a probability."""

    def __init__(self, count: int = 5) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.3)) for _ in range(count))


class Skips(LayerDrop):
    """Layers that are skipped as in Wav2Vec2."""

    def forward(self, x: Tensor) -> Tensor:
        x = x * 1
        for layer in self.layers:
            skip: Any = False
            if self.training:
                skip = torch.rand([]) < 0.5
            if not skip or x.dim() == 7:
                x = x + layer(x).tanh()
        return x


class Continues(LayerDrop):
    """Layers that are skipped as in the decoder of BART."""

    def forward(self, x: Tensor) -> Tensor:
        x = x * 1
        for layer in self.layers:
            if self.training:
                probability = torch.rand([])
                if probability < 0.5:
                    continue
            residual = x
            x = residual + layer(x).tanh()
        return x


class Notes(LayerDrop):
    """Layers that are skipped as in the encoder of BART."""

    def forward(self, x: Tensor) -> Tensor:
        x = x * 1
        for _, layer in enumerate(self.layers):
            to_drop = False
            if self.training:
                probability = torch.rand([])
                if probability < 0.5:
                    to_drop = True
            if not to_drop:
                x = x + layer(x).tanh()
        return x


@pytest.mark.parametrize("kind", [Skips, Continues, Notes])
def test_all_patterns_of_dropped_layers_have_one_program(kind: type[LayerDrop]) -> None:
    eager = kind()
    twin = copy.deepcopy(eager)
    compiled = thunder.jit(twin, executors=("torch",), data_dependent="error")
    for seed in range(8):
        results = [step(module, call, seed) for module, call in ((eager, eager), (twin, compiled))]
        torch.testing.assert_close(results[1], results[0], rtol=0, atol=1e-6)
    assert thunder.cache_misses(compiled) == 1
    assert "take_arm" in thunder.last_backward_reason(compiled)


def step(module: nn.Module, call: Callable[[Tensor], Tensor], seed: int) -> list[Any]:
    """Return the result of a training step, its gradients, which are None for skipped layers, and the next number."""
    torch.manual_seed(seed)
    x = torch.randn(3, 4, requires_grad=True)
    module.zero_grad()
    result = call(x)
    result.sum().backward()  # type: ignore[no-untyped-call]
    return [result, x.grad, *(parameter.grad for parameter in module.parameters()), torch.rand(1)]


def conditional(x: Tensor) -> Tensor:
    y = LINEAR(x) if torch.rand(()) < 0.5 else x
    return y * 2


def nested(x: Tensor) -> Tensor:
    x = x * 1
    for _ in range(3):
        if torch.rand(()) < 0.5:
            x = LINEAR(x) if torch.rand(()) < 0.5 else x + torch.rand(4)
        elif torch.rand(()) < 0.2:
            x = x * 2
    return x


def writes_to_the_result(x: Tensor) -> tuple[Tensor, Tensor]:
    y = kept = x * 1
    if torch.rand(()) < 0.5:
        y = LINEAR(y)
    y += 1
    return kept, y


def returns_both(x: Tensor) -> tuple[Tensor, Tensor]:
    x = y = x * 1
    if torch.rand(()) < 0.5:
        y = LINEAR(x)
    return x, y


def returns_its_input(x: Tensor) -> Tensor:
    if torch.rand(()) < 0.5:
        x = LINEAR(x)
    return x


def asks_whether_both_are_one_tensor(x: Tensor) -> tuple[bool, Tensor]:
    y = x
    if torch.rand(()) < 0.5:
        y = LINEAR(x)
    return y is x, y * 1


def appends(x: Tensor) -> tuple[Tensor, int]:
    items = []
    if torch.rand(()) < 0.5:
        items.append(x)
        x = x * 2
    return x, len(items)


def changes_the_shape(x: Tensor) -> Tensor:
    if torch.rand(()) < 0.5:
        x = torch.cat([x, x])
    return x * 2


def leaves_the_loop(x: Tensor) -> Tensor:
    for _ in range(3):
        if torch.rand(()) < 0.3:
            break
        x = LINEAR(x)
    return x


def returns(x: Tensor) -> Tensor:
    if torch.rand(()) < 0.5:
        return x * 2
    return x - 1


def catches(x: Tensor) -> Tensor:
    if torch.rand(()) < 0.5:
        try:
            x = torch.linalg.cholesky(-torch.eye(3)) @ x
        except torch.linalg.LinAlgError:
            x = x * 3
    return x


def without_gradients(x: Tensor) -> Tensor:
    with torch.no_grad():
        x = half_the_time(x)
    return LINEAR(x)


def half_the_time(x: Tensor) -> Tensor:
    if torch.rand(()) < 0.5:
        x = x * 2
    return x


def reads_variables(x: Tensor) -> Tensor:
    if torch.rand(()) < 0.5:
        scale = 2
        x = x * scale
    return x * len(locals())


def captured(x: Tensor) -> Tensor:
    def later() -> Tensor:
        return x

    if torch.rand(()) < 0.5:
        x = x * 2
    return later() * 2


def taking_the_next_item(make: Callable[[], Any]) -> Callable[[Tensor], Tensor]:
    """Return a program whose arms take items of an iterator, which the program reads after the branch."""

    def program(x: Tensor) -> Tensor:
        numbers = make()
        scale = torch.rand(())
        x = x * next(numbers) if scale < 0.5 else x * 7
        return x * next(numbers)

    program.__name__ = f"takes_the_next_item_of_a_{type(make()).__name__}"
    return program


def writes_to_a_byte_array(x: Tensor) -> Tensor:
    memory = bytearray(b"1")
    if torch.rand(()) < 0.5:
        memory[0] = 3
        x = x * 2
    return x * memory[0]


def writes_to_an_array(x: Tensor) -> Tensor:
    numbers = np.ones(1)
    if torch.rand(()) < 0.5:
        numbers[0] = 3
        x = x * 2
    return x * float(numbers[0])


def writes_to_a_local_class(x: Tensor) -> Tensor:
    class Settings:
        scale = 1

    if torch.rand(()) < 0.5:
        Settings.scale = 3
        x = x * 2
    return x * Settings.scale


def draws_in_one_arm(x: Tensor) -> Tensor:
    generator = random.Random(0)
    if torch.rand(()) < 0.5:
        x = x * generator.random()
    return x * generator.random()


def draws_by_numpy_in_one_arm(x: Tensor) -> Tensor:
    np.random.seed(0)
    if torch.rand(()) < 0.5:
        x = x * np.random.rand()
    return x * np.random.rand()


ITERATORS: tuple[Callable[[], Any], ...] = (
    *(lambda: iter([2, 3, 4]), lambda: iter(range(2, 5)), lambda: itertools.count(2), lambda: iter({2: 0, 3: 0, 4: 0})),
    *(lambda: (number + 1 for number in (2, 3, 4)), lambda: map(abs, [2, -3, 4]), lambda: reversed((2, 3, 4))),
    *(lambda: itertools.chain([2], [3, 4]), lambda: iter({2, 3, 4}), lambda: filter(None, [2, 0, 3, 4])),
)
ONE_PROGRAM = (conditional, nested)
SEVERAL = (
    *(writes_to_the_result, asks_whether_both_are_one_tensor, appends, changes_the_shape, leaves_the_loop, returns),
    *(catches, without_gradients, reads_variables, captured, returns_both, returns_its_input),
    *map(taking_the_next_item, ITERATORS),
    *(writes_to_a_byte_array, writes_to_an_array, writes_to_a_local_class),
    *(draws_in_one_arm, draws_by_numpy_in_one_arm),
)


def outcome(program: Callable[[Tensor], Any], call: Callable[[Tensor], Any], seed: int) -> list[Any]:
    """Return the results of a call, which of them is its input, its gradients, and the next random number."""
    torch.manual_seed(seed)
    x = torch.linspace(0, 1, 12).view(3, 4).requires_grad_()
    LINEAR.zero_grad()
    given = x * 1
    result = call(given)
    results = result if isinstance(result, tuple) else (result,)
    tensors = [leaf for leaf in results if isinstance(leaf, Tensor)]
    sum(tensor.sum() for tensor in tensors if tensor.requires_grad).backward()  # type: ignore[union-attr]
    same = [leaf is given or leaf is results[0] for leaf in results]
    return [result, same, x.grad, LINEAR.weight.grad, torch.rand(1)]


@pytest.mark.filterwarnings("ignore::thunder_core.errors.RecompileWarning")
@pytest.mark.parametrize("program", [*ONE_PROGRAM, *SEVERAL], ids=lambda program: program.__name__)
def test_a_branch_on_a_random_number_matches_eager(program: Callable[[Tensor], Any]) -> None:
    compiled = thunder.jit(program, executors=("torch",))
    for seed in range(6):
        found, expected = outcome(program, compiled, seed), outcome(program, program, seed)
        assert found[1] == expected[1]
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("program", ONE_PROGRAM, ids=lambda program: program.__name__)
def test_one_program_serves_all_outcomes_where_values_may_not_be_read(program: Callable[[Tensor], Any]) -> None:
    compiled = thunder.jit(program, executors=("torch",), data_dependent="error")
    for seed in range(6):
        torch.testing.assert_close(outcome(program, compiled, seed), outcome(program, program, seed))
    assert thunder.cache_misses(compiled) == 1


@pytest.mark.parametrize("program", SEVERAL, ids=lambda program: program.__name__)
def test_other_branches_are_refused_where_values_may_not_be_read(program: Callable[[Tensor], Any]) -> None:
    with pytest.raises(DataDependent):
        thunder.jit(program, executors=("torch",), data_dependent="error")(torch.ones(3, 4, requires_grad=True) * 1)


class Clamps(nn.Module):
    """A layer whose result is clamped if it is not finite, as in DETR, and is written to before."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.shift = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x)
        y += self.shift(x)
        if not torch.isfinite(y).all():
            y = torch.clamp(y, min=-1e30, max=1e30)
        return y * 2


class Chooses(nn.Module):
    """A model that uses one of two layers, by a value."""

    def __init__(self) -> None:
        super().__init__()
        self.small, self.large = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.large(x) if x.sum() > 10 else self.small(x)
        return y.tanh()


class Halves(nn.Module):
    """A model whose arms use a layer with and without a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.unused = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        weight = self.unused.weight.detach() if x.dim() == 7 else self.unused.weight
        y = self.linear(x)
        y = y * (weight[:1] > 0) if y.mean() > 0 else y - weight.argmax()
        return y * 3


@pytest.mark.parametrize("kind", [Clamps, Chooses, Halves])
def test_a_condition_on_values_has_one_program_and_the_gradients_of_eager(kind: type[nn.Module]) -> None:
    eager = kind()
    twin = copy.deepcopy(eager)
    compiled = thunder.jit(twin, executors=("torch",), data_dependent="error")
    for value in (1.0, float("inf"), 9.0, -1.0, float("nan")):
        results = [values_of_step(module, call, value) for module, call in ((eager, eager), (twin, compiled))]
        torch.testing.assert_close(results[1], results[0], equal_nan=True)
    assert thunder.cache_misses(compiled) == 1
    assert bool(thunder.last_backward_reason(compiled)) is (kind is not Clamps)


def values_of_step(module: nn.Module, call: Callable[[Tensor], Tensor], value: float) -> list[Any]:
    """Return the result of a training step with an input of equal values, and the gradients."""
    x = torch.full((3, 4), value, requires_grad=True)
    module.zero_grad()
    result = call(x * 1)
    result.sum().backward()  # type: ignore[no-untyped-call]
    return [result, x.grad, *(parameter.grad for parameter in module.parameters())]


def zeros_of_both_signs(x: Tensor) -> Tensor:
    if x.sum() > 0:
        sign, y = 0.0, x * 2
    else:
        sign, y = -0.0, x * 3
    return y * torch.copysign(torch.ones(()), torch.tensor(sign))


def gradient_after_one_arm(x: Tensor) -> tuple[Tensor, bool]:
    y = x * 2 if x.sum() > 0 else x.detach() * 3
    return y, y.requires_grad


@pytest.mark.parametrize("program", [zeros_of_both_signs, gradient_after_one_arm], ids=lambda program: program.__name__)
def test_a_condition_is_read_if_the_arms_differ_in_more_than_values(program: Callable[[Tensor], Any]) -> None:
    with pytest.raises(DataDependent, match="reads the value"):
        thunder.jit(program, data_dependent="error")(torch.ones(3, requires_grad=True))


def test_a_condition_is_read_if_an_arm_may_return_the_input() -> None:
    def program(x: Tensor) -> Tensor:
        if x.sum() + torch.rand(()) > 0:
            x = x * 2
        return x

    with pytest.raises(DataDependent, match="reads the value"):
        thunder.jit(program, data_dependent="error")(torch.ones(3))


def branch_in_an_arm(x: Tensor, flag: Any, draw: Tensor, number: int, other: int) -> Tensor:
    y = x * 1
    if flag:
        if draw < 0.5:
            n, m = number, x + 1
        else:
            n, m = other, x + 2
    else:
        n, m = number, x + 3
    y = m * n
    return y  # noqa: RET504


def draws_whether_to_branch(x: Tensor) -> Tensor:
    return branch_in_an_arm(x, torch.rand(()) < 0.5, torch.rand(()), 2, 2)


def draws_which_arm(x: Tensor) -> Tensor:
    return branch_in_an_arm(x, True, torch.rand(()), 2, 3)


def deletes_what_both_arms_assign(x: Tensor) -> Tensor:
    if torch.rand(()) < 0.5:
        y = x + 1
        z = x * 2
    else:
        y = x + 2
        z = x * 3
    del y
    return z


def test_branches_match_eager_after_other_branches_of_the_same_code() -> None:
    compiled = [
        (program, thunder.jit(program, executors=("torch",), data_dependent="error"))
        for program in (draws_whether_to_branch, draws_which_arm, deletes_what_both_arms_assign)
    ]
    for seed, (program, fast) in itertools.product(range(6), compiled):
        torch.manual_seed(seed)
        expected = program(torch.ones(2))
        torch.manual_seed(seed)
        assert torch.equal(fast(torch.ones(2)), expected)


def doubles_while_draws_are_small(x: Tensor) -> tuple[Tensor, int]:
    count = 0
    while torch.rand(()) < 0.6 and count < 5:
        x, count = x * 2, count + 1
    return x, count


@pytest.mark.filterwarnings("ignore::thunder_core.foundation.errors.RecompileWarning")
def test_branch_of_a_while_loop_matches_eager() -> None:
    fast = thunder.jit(doubles_while_draws_are_small, executors=("torch",))
    for seed in range(6):
        torch.manual_seed(seed)
        expected = doubles_while_draws_are_small(torch.ones(2))
        torch.manual_seed(seed)
        result = fast(torch.ones(2))
        assert torch.equal(result[0], expected[0])
        assert result[1] == expected[1]
