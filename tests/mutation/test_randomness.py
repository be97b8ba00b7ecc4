"""Random programs draw eager's numbers, bit by bit, and leave the generators in eager's state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import thunder_core as thunder
from tests.mutation.outcome import outcome
from tests.mutation.programs import Make, leaf, numbers, one
from tests.mutation.test_mutation import EXECUTORS
from thunder_core.foundation.errors import DataDependent

Program = Callable[[Tensor], Any]
GENERATOR = torch.Generator()


def distributions(x: Tensor) -> Any:
    size = (3, 2)
    return [
        torch.rand(size), torch.randn(size), torch.randint(0, 9, size), torch.randperm(7), torch.rand_like(x),
        torch.randn_like(x), torch.randint_like(x, 5), torch.bernoulli(x.sigmoid()), torch.poisson(x.abs() * 3),
        torch.multinomial(x.abs() + 0.1, 2), torch.normal(x, 0.5), torch.normal(0.0, x.abs()),
        torch.normal(0.0, 1.0, size), torch.bernoulli(x, 0.3), torch.binomial(x.abs().ceil() * 5, x.sigmoid()),
    ]  # fmt: skip


def in_place(x: Tensor) -> Any:
    y = x.clone()
    y[0].uniform_()
    y[1].normal_(1, 2)
    y[2].exponential_()
    y[3].bernoulli_(0.4)
    z = torch.empty(8)
    z[:4].geometric_(0.3)
    z[4:].log_normal_()
    return y, z, torch.empty(5).cauchy_(), torch.empty(5).random_(10)


def equal_draws(x: Tensor) -> Any:
    """Two equal lines, which must not become one."""
    return torch.rand(3), torch.rand(3), x + torch.rand(4), functional.dropout(x), functional.dropout(x)


def dropped_draws(x: Tensor) -> Any:
    """The random numbers are unread, but later numbers depend on them."""
    torch.rand(3)
    functional.dropout(x)
    return torch.rand(3)


def fused_draws(x: Tensor) -> Any:
    y = (x * 2 + 1).tanh()
    z = torch.rand_like(y) * y + 1
    y = (z * 3).sin() * torch.randn(4)
    return (y + functional.dropout(z, 0.3) * 2).exp()


def dropouts(x: Tensor) -> Any:
    y = functional.dropout(x, 0.5)
    z = functional.alpha_dropout(x, 0.3, training=True)
    w = functional.feature_alpha_dropout(x[None], 0.3, training=True)
    v = functional.dropout1d(x[None], 0.5)
    u = functional.dropout(x.clone(), 0.4, inplace=True)
    return (
        y,
        z,
        w,
        v,
        u,
        functional.dropout(x, training=False),
        functional.dropout(x, 0.0),
        functional.rrelu(x, training=True),
    )


def attention(x: Tensor) -> Any:
    q = x[None, None]
    return functional.scaled_dot_product_attention(q, q, q, dropout_p=0.4), functional.gumbel_softmax(x)


def seeds(x: Tensor) -> Any:
    torch.manual_seed(5)
    first = torch.rand(2)
    torch.manual_seed(5)
    return first, torch.rand(2), torch.rand(4) + x


def forks(x: Tensor) -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(7)
        inside = torch.rand(3)
    return inside, torch.rand(3), x


def saves_and_restores(x: Tensor) -> Any:
    state = torch.get_rng_state()
    first = torch.rand(3)
    torch.set_rng_state(state)
    return first, torch.rand(3), torch.rand(3), x


def own_generator(x: Tensor) -> Any:
    generator = torch.Generator()
    generator.manual_seed(3)
    first = torch.rand(3, generator=generator)
    return first, torch.rand(3, generator=generator), torch.rand(3), x.clone().normal_(generator=generator)


def given_generator(x: Tensor, generator: torch.Generator) -> Any:
    return torch.rand(3, generator=generator), torch.randperm(5, generator=generator), x, torch.rand(2)


def held_generator(x: Tensor, holder: dict[str, Any]) -> Any:
    return torch.bernoulli(x.sigmoid(), generator=holder["generator"]), torch.rand(2)


def seeded_given_generator(x: Tensor, generator: torch.Generator) -> Any:
    generator.manual_seed(11)
    return torch.randn(3, generator=generator) + x[0, :3]


def global_generator(x: Tensor) -> Any:
    return torch.rand(3, generator=GENERATOR) + x[0, :3]


def checkpoints(x: Tensor) -> Any:
    def part(y: Tensor) -> Tensor:
        return functional.dropout(y.tanh() * 2, 0.5).sin()

    return checkpoint(part, x * 2, use_reentrant=False) * torch.rand(4)


def generator_at(seed: int) -> torch.Generator:
    made = torch.Generator()
    made.manual_seed(seed)
    return made


def with_generator() -> tuple[Any, ...]:
    return numbers(4, 4), generator_at(42)


def with_holder() -> tuple[Any, ...]:
    return numbers(4, 4), {"generator": generator_at(43)}


CASES: dict[str, tuple[Callable[..., Any], Make]] = {
    **{
        function.__name__: (function, one)
        for function in (
            distributions, in_place, equal_draws, dropped_draws, fused_draws, dropouts, attention, seeds, forks,
            saves_and_restores, own_generator, checkpoints,
        )
    },
    **{
        f"{function.__name__} of a leaf": (function, leaf)
        for function in (fused_draws, dropouts, equal_draws, checkpoints, attention)
    },
    "given generator": (given_generator, with_generator),
    "seeded given generator": (seeded_given_generator, with_generator),
    "held generator": (held_generator, with_holder),
}  # fmt: skip


@pytest.mark.parametrize("executors", EXECUTORS)
@pytest.mark.parametrize("name", CASES)
def test_the_numbers_are_eagers(name: str, executors: str) -> None:
    function, make = CASES[name]
    compiled = thunder.jit(function, executors=EXECUTORS[executors]())
    for _ in range(2):
        assert outcome(function, make()).differences(outcome(compiled, make())) == []
    assert thunder.cache_misses(compiled) == 1


@pytest.mark.parametrize("name", ["fused_draws", "equal_draws", "dropped_draws", "fused_draws of a leaf"])
def test_random_numbers_with_inductor_equal_eager(name: str) -> None:
    function, make = CASES[name]
    compiled = thunder.jit(function, executors=("inductor", "torch"))
    for _ in range(2):
        assert outcome(function, make()).differences(outcome(compiled, make()), exact=False) == []


def test_calls_follow_one_another_as_in_eager() -> None:
    compiled = thunder.jit(dropouts)
    runs = []
    for function in (dropouts, compiled):
        torch.manual_seed(0)
        runs.append([function(*one())[0] for _ in range(4)])
    assert all(map(torch.equal, *runs))
    assert not torch.equal(runs[0][0], runs[0][1])


def test_a_global_generator_advances_and_is_not_baked() -> None:
    compiled = thunder.jit(global_generator)
    runs = []
    for function in (global_generator, compiled):
        GENERATOR.manual_seed(0)
        runs.append([function(*one()) for _ in range(3)])
    assert all(map(torch.equal, *runs))


def test_another_generator_of_the_callers_is_the_one_that_advances() -> None:
    compiled = thunder.jit(given_generator)
    for seed in (1, 2, 3):
        ours, theirs = generator_at(seed), generator_at(seed)
        torch.manual_seed(0)
        eager = given_generator(numbers(2), theirs)
        torch.manual_seed(0)
        found = compiled(numbers(2), ours)
        assert all(map(torch.equal, found, eager))
        assert torch.equal(ours.get_state(), theirs.get_state())
    assert thunder.cache_misses(compiled) == 1


@pytest.mark.parametrize("executors", EXECUTORS)
def test_training_and_evaluation_are_distinguished(executors: str) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.ReLU(), nn.Dropout1d(0.3))
    compiled = thunder.jit(model, executors=EXECUTORS[executors]())
    for training in (True, False, True, False):
        model.train(training)
        torch.manual_seed(0)
        eager = model(numbers(4, 4))
        torch.manual_seed(0)
        assert torch.equal(compiled(numbers(4, 4)), eager)
    assert thunder.cache_misses(compiled) == 2


def test_initial_seed_is_not_baked() -> None:
    def program(x: Tensor) -> Tensor:
        return x + torch.initial_seed() % 7

    compiled = thunder.jit(program)
    for seed in (1, 2, 1):
        torch.manual_seed(seed)
        assert torch.equal(compiled(numbers(2)), program(numbers(2)))


def seeded(x: Tensor) -> Any:
    torch.manual_seed(5)
    return x + torch.initial_seed() % 7


def seeded_below_zero(x: Tensor) -> Any:
    torch.manual_seed(-1)
    generator = torch.Generator().manual_seed(-3)
    return x + torch.initial_seed() % 7 + generator.initial_seed() % 5


def seeded_by_a_size(x: Tensor) -> Any:
    torch.manual_seed(x.shape[0])
    return x + torch.initial_seed() % 7


def seeded_within_a_fork(x: Tensor) -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        y = x + torch.initial_seed() % 7
    return y * 2 + torch.initial_seed() % 7


def seeded_by_a_state(x: Tensor) -> Any:
    generator = torch.Generator()
    generator.set_state(torch.get_rng_state())
    return x + generator.initial_seed() % 7


def seeded_anew(x: Tensor) -> Any:
    seed = torch.seed()
    return x + (torch.initial_seed() - seed)


@pytest.mark.parametrize(
    "program",
    [seeded, seeded_below_zero, seeded_by_a_size, seeded_within_a_fork, seeded_by_a_state, seeded_anew],
)
@pytest.mark.parametrize("data_dependent", ["guard", "error"])
@pytest.mark.parametrize("cache", ["constant values", "symbolic values"])
def test_the_initial_seed_is_the_last_seed(program: Program, data_dependent: Any, cache: Any) -> None:
    compiled = thunder.jit(program, data_dependent=data_dependent, cache=cache)
    for seed, size in ((1, 2), (2, 3), (12, 4)):
        torch.manual_seed(seed)
        expected = program(numbers(size))
        torch.manual_seed(seed)
        assert torch.equal(compiled(numbers(size)), expected)


@pytest.mark.parametrize("number", [lambda g: g.clone_state()])
def test_random_numbers_unknown_before_the_call_are_refused(number: Callable[[torch.Generator], Any]) -> None:
    def program(x: Tensor, generator: torch.Generator) -> Tensor:
        number(generator)
        return x + 1

    generator = generator_at(3)
    before = generator.get_state(), torch.get_rng_state()
    with pytest.raises(DataDependent, match="not known while tracing") as caught:
        thunder.jit(program, data_dependent="error")(numbers(2), generator)
    assert caught.value.where is not None
    assert torch.equal(generator.get_state(), before[0])
    assert torch.equal(torch.get_rng_state(), before[1])


def test_tracing_leaves_generators_unchanged() -> None:
    generator = generator_at(3)
    before = generator.get_state()
    compiled = thunder.jit(seeded_given_generator)
    compiled(numbers(4, 4), generator)
    generator.set_state(before)
    program = thunder.last_program(compiled)
    assert "torch.Generator.manual_seed(generator, 11)" in str(program.last("computation"))


@pytest.mark.parametrize("preserve", [True, False])
@pytest.mark.parametrize("reentrant", [False])
def test_checkpoint_recomputes_with_the_same_random_numbers(reentrant: bool, preserve: bool) -> None:
    def program(x: Tensor) -> Tensor:
        def part(y: Tensor) -> Tensor:
            return functional.dropout(y, 0.5) * y

        found: Tensor = checkpoint(part, x, use_reentrant=reentrant, preserve_rng_state=preserve)
        return found.sum()

    gradients = []
    compiled = thunder.jit(program)
    for function in (program, compiled):
        (x,) = leaf()
        torch.manual_seed(0)
        function(x).backward()
        gradients.append(x.grad)
    if preserve:
        assert torch.equal(*gradients)


def numbers_of_random_length(x: Tensor) -> Any:
    length = torch.randint(2, 5, (1,))
    noise = torch.rand(length[0])
    other_length = torch.randint(2, 9, (1,))
    return noise, torch.rand(other_length[0]), x * (2 if other_length[0] > 4 else 3)


def written_slices(x: Tensor) -> Any:
    y = x.clone()
    for _ in range(2):
        length = torch.randint(1, 3, (1,))
        y[: length[0]] = torch.randn(length[0])
    return y


@pytest.mark.parametrize("program", [numbers_of_random_length, written_slices])
def test_random_numbers_whose_count_is_random_are_drawn_before_later_ones(program: Callable[[Tensor], Any]) -> None:
    """A function that PyTorch runs on values while tracing draws too, and so changes the values of later draws."""
    compiled = thunder.jit(program)
    for seed in range(6):
        torch.manual_seed(seed)
        expected = (program(torch.ones(4)), torch.rand(1))
        torch.manual_seed(seed)
        torch.testing.assert_close((compiled(torch.ones(4)), torch.rand(1)), expected, rtol=0, atol=0)
