"""Random numbers of generators other than PyTorch's are drawn at each call: results and final states match eager."""

from __future__ import annotations

import json
import math
import os
import random
import secrets
import uuid
import warnings
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
import transformers
from torch import Tensor

import thunder_core as thunder
from tests.acquire.numbers.test_numbers_in_c import assert_same
from tests.uncompiled import leave_inductor_out
from thunder_core.foundation.errors import CannotReplay, RecompileWarning, SharpEdgeWarning
from thunder_core.tracing.library.draws import PENDING

X = torch.ones(3)
CALLS = 6
Program = Callable[[Any, Tensor], Any]


@pytest.fixture(autouse=True)
def without_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run programs in eager operations; the random numbers do not depend on the executor."""
    leave_inductor_out(monkeypatch)


@pytest.fixture(autouse=True)
def generators_as_they_were() -> Iterator[None]:
    """Restore the generators of the process."""
    states = random.getstate(), np.random.get_state()
    yield
    random.setstate(states[0])
    np.random.set_state(states[1])


def seed_all() -> None:
    random.seed(7)
    np.random.seed(7)
    torch.manual_seed(7)


def states_of(owner: Any) -> Any:
    """Return the states of the process's generators, and of a generator that is passed to programs."""
    own: Any = None
    if isinstance(owner, random.Random):
        own = owner.getstate()
    elif isinstance(owner, np.random.Generator):
        own = str(owner.bit_generator.state)
    elif isinstance(owner, np.random.RandomState):
        own = str(owner.get_state())
    return random.getstate(), str(np.random.get_state(legacy=False)), torch.get_rng_state().tolist(), own


def assert_drawn_as_in_eager(program: Program, make: Callable[[], Any] = lambda: None, **options: Any) -> Any:
    """Compare the results of several calls and the final states with eager; return the compiled function."""
    compiled = thunder.jit(program, **options)
    seed_all()
    owner = make()
    expected = [program(owner, X) for _ in range(CALLS)]
    expected_states = states_of(owner)
    seed_all()
    owner = make()
    found = [compiled(owner, X) for _ in range(CALLS)]
    assert_same(found, expected)
    assert states_of(owner) == expected_states
    assert PENDING.draws == []
    return compiled


def shuffled(_: Any, x: Tensor) -> Any:
    numbers = [1.0, 2.0, 3.0]
    random.shuffle(numbers)
    return [x * number for number in numbers]


def shuffles_what_it_is_given(numbers: Any, x: Tensor) -> Any:
    random.shuffle(numbers)
    return x * numbers[0], list(numbers)


def seeds(_: Any, x: Tensor) -> Any:
    random.seed(5)
    np.random.seed(6)
    return x * random.random() * np.random.rand()


def draws_and_seeds(_: Any, x: Tensor) -> Any:
    y = x * random.random()
    random.seed(5)
    return y


def goes_back(_: Any, x: Tensor) -> Any:
    state, states = random.getstate(), np.random.get_state()
    y = x * random.random() * np.random.rand()
    random.setstate(state)
    np.random.set_state(states)
    return y + random.random()


def keeps_a_generator(owner: Any, x: Tensor) -> Any:
    if not hasattr(owner, "generator"):
        owner.generator = np.random.default_rng(1)
    return x * owner.generator.random()


def stores(owner: Any, x: Tensor) -> Any:
    owner.drawn = random.random()
    return x * owner.drawn, owner.drawn


def takes_turns(owner: Any, x: Tensor) -> Any:
    owner.count += 1
    if owner.count % 2:
        return x * random.random()
    return x + np.random.rand() + torch.rand(3)


class Owner:
    """An object that programs write to."""

    count = 0


# Programs that are traced once.
ONCE: dict[str, tuple[Program, Callable[[], Any]]] = {
    "random": (lambda _, x: x * random.random(), Owner),
    "uniform and gauss": (lambda _, x: x * random.uniform(1, 2) + random.gauss(0, 1), Owner),
    "randint": (lambda _, x: x * random.randint(1, 6), Owner),
    "getrandbits": (lambda _, x: x * random.getrandbits(8), Owner),
    "choice of numbers": (lambda _, x: x * random.choice([1, 2, 3]), Owner),
    "sample of numbers": (lambda _, x: [x * n for n in random.sample([1.0, 2.0, 3.0, 4.0], 3)], Owner),
    "choices of numbers": (lambda _, x: [x * n for n in random.choices([1.0, 2.0], weights=[1, 3], k=2)], Owner),
    "returned number": (lambda _, x: (x + 1, random.random()), Owner),
    "text": (lambda _, x: (x + 1, f"{random.random():.3f}"), Owner),
    "a generator expression": (lambda _, x: sum(x * random.random() for _ in range(3)), Owner),
    "a list for a tensor": (lambda _, x: x * torch.tensor([random.random() for _ in range(3)]), Owner),
    "stored": (stores, Owner),
    "seeds": (seeds, Owner),
    "draws and seeds": (draws_and_seeds, Owner),
    "seed of PyTorch's": (lambda _, x: (torch.manual_seed(random.randint(0, 9)), x * torch.rand(3))[1], Owner),
    "rand": (lambda _, x: x * float(np.random.rand()), Owner),
    "uniform of NumPy's": (lambda _, x: x * np.random.uniform(0, 2), Owner),
    "normal by keywords": (lambda _, x: x * np.random.normal(loc=1.0, scale=0.1), Owner),
    "mixup": (lambda _, x: (lam := np.random.beta(1, 1)) * x + (1 - lam) * x.flip(0), Owner),
    "array": (lambda _, x: x * torch.from_numpy(np.random.randn(3)), Owner),
    "array by as_tensor": (lambda _, x: x * torch.as_tensor(np.random.rand(3), dtype=torch.float32), Owner),
    "array by tensor": (lambda _, x: x * torch.tensor(np.random.rand(3)), Owner),
    "array of the tensor's shape": (lambda _, x: x * torch.from_numpy(np.random.rand(*x.shape)), Owner),
    "returned array": (lambda _, x: (x + 1, np.random.rand(2)), Owner),
    "permutation": (lambda _, x: x[torch.from_numpy(np.random.permutation(3))], Owner),
    "choice without replacement": (lambda _, x: x * torch.from_numpy(np.random.choice(np.arange(9), 3, False)), Owner),
    "item of an array": (lambda _, x: x * np.random.rand(3)[0], Owner),
    "int of an item": (lambda _, x: x * int(np.random.randint(5, size=1)[0]), Owner),
    "item()": (lambda _, x: x * np.random.rand(1).item(), Owner),
    "tolist": (lambda _, x: [x * number for number in np.random.rand(2).tolist()], Owner),
    "mask": (lambda _, x: x * torch.from_numpy(np.random.rand(3) < 0.5), Owner),
    "mean and max": (lambda _, x: x * np.random.rand(3).mean() + np.random.rand(2, 2).max(), Owner),
    "argsort": (lambda _, x: x[torch.from_numpy(np.argsort(np.random.rand(3)))], Owner),
    "concatenate": (lambda _, x: x * torch.from_numpy(np.concatenate([np.random.rand(1), np.ones(2)])), Owner),
    "where": (lambda _, x: x * torch.from_numpy(np.where(np.random.rand(3) < 0.5, 1.0, 2.0)), Owner),
    "float32": (lambda _, x: (x, np.float32(2) * np.random.rand(2).astype(np.float32)), Owner),
    "array times a drawn number": (lambda _, x: (x, np.random.rand(2) * random.random()), Owner),
    "Generator": (lambda rng, x: x * rng.normal(), lambda: np.random.default_rng(3)),
    "array of a Generator": (lambda rng, x: x * torch.from_numpy(rng.normal(size=3)), lambda: np.random.default_rng(3)),
    "integers": (lambda rng, x: x * rng.integers(5), lambda: np.random.default_rng(3)),
    "RandomState": (lambda rng, x: x * rng.rand(), lambda: np.random.RandomState(3)),
    "Random": (lambda rng, x: x * rng.random(), lambda: random.Random(3)),
    "Generator of the program's": (lambda _, x: x * np.random.default_rng(3).normal(), Owner),
    "RandomState of the program's": (lambda _, x: x * np.random.RandomState(3).rand(), Owner),
    "Random of the program's": (lambda _, x: x * random.Random(3).random(), Owner),
}
# Programs that are traced again if a decision depends on random numbers, or if C code reads their values.
DECIDING: dict[str, tuple[Program, Callable[[], Any]]] = {
    "branch": (lambda _, x: x if random.random() < 0.5 else -x, Owner),
    "branches": (lambda _, x: [x if random.random() < 0.5 else -x for _ in range(2)], Owner),
    "branch on an array": (lambda _, x: x if (np.random.rand(3) > 0.8).any() else -x, Owner),
    "branch on a tensor": (lambda _, x: x * random.random() if (x * random.random()).sum() > 1.5 else -x, Owner),
    "choice of texts": (lambda _, x: x * len(random.choice(["a", "bb", "ccc"])), Owner),
    "choice of objects": (lambda items, x: x * random.choice(items).count, lambda: [Owner(), Owner()]),
    "item at a drawn place": (lambda _, x: x[random.randint(0, 2)], Owner),
    "size": (lambda _, x: torch.zeros(random.randint(1, 3)), Owner),
    "numbers in a list for C code": (lambda _, x: (x, np.array([random.random(), 2.0])), Owner),
    "numbers in a list for math": (lambda _, x: x * math.fsum([random.random(), 2.0]), Owner),
    "numbers in a list for JSON": (lambda _, x: (x, json.dumps({"drawn": [random.random()]})), Owner),
    "numbers in a list of arrays": (lambda _, x: (x, np.concatenate([np.ones(2), [random.random()]])), Owner),
    "loop over an array": (lambda _, x: [x * number for number in np.random.rand(2)], Owner),
    "shuffle": (shuffled, Owner),
    "shuffle of what is given": (shuffles_what_it_is_given, lambda: [1.0, 2.0, 3.0]),
    "bytes": (lambda _, x: (x + 1, random.randbytes(4)), Owner),
    "states": (goes_back, Owner),
    "kept generator": (keeps_a_generator, Owner),
    "turns": (takes_turns, Owner),
}


@pytest.mark.parametrize(("program", "make"), ONCE.values(), ids=ONCE)
def test_program_with_random_numbers_is_traced_once(program: Program, make: Callable[[], Any]) -> None:
    assert thunder.cache_misses(assert_drawn_as_in_eager(program, make)) == 1


@pytest.mark.filterwarnings("ignore::thunder_core.foundation.errors.RecompileWarning")
@pytest.mark.parametrize(("program", "make"), DECIDING.values(), ids=DECIDING)
def test_branch_on_random_numbers_matches_eager(program: Program, make: Callable[[], Any]) -> None:
    assert_drawn_as_in_eager(program, make)


@pytest.mark.parametrize("program", [ONCE["randint"][0], ONCE["array of the tensor's shape"][0], ONCE["stored"][0]])
def test_random_numbers_with_symbolic_sizes_match_eager(program: Program) -> None:
    assert_drawn_as_in_eager(program, Owner, cache="symbolic values")


def test_array_filled_at_random_places_matches_eager() -> None:
    def masked(_: Any, x: Tensor) -> Any:
        mask = np.zeros(8)
        mask[np.random.choice(8, 3, replace=False)] = 1
        return x, mask

    with pytest.warns(RecompileWarning):
        assert_drawn_as_in_eager(masked)


def filled(size: int, count: int) -> Any:
    """Return a mask that is filled at random positions."""
    mask = np.zeros(size)
    mask[np.random.choice(size, count, replace=False)] = 1
    return mask


def test_function_that_fills_an_array_at_random_places_is_called_at_each_call() -> None:
    compiled = assert_drawn_as_in_eager(lambda _, x: x * torch.from_numpy(filled(3, 2)))
    assert thunder.cache_misses(compiled) == 1


def test_random_masks_of_a_speech_model_match_eager_at_each_call() -> None:
    config = transformers.Wav2Vec2Config(
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        conv_dim=(8,),
        conv_stride=(8,),
        conv_kernel=(8,),
        num_feat_extract_layers=1,
        num_conv_pos_embeddings=4,
        num_conv_pos_embedding_groups=2,
        mask_time_length=2,
        mask_time_prob=0.3,
    )
    torch.manual_seed(0)
    model, x = transformers.Wav2Vec2Model(config).train(), torch.randn(2, 400)

    def outputs(function: Any) -> list[Tensor]:
        seed_all()
        return [function(x).last_hidden_state.detach() for _ in range(3)]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RecompileWarning)  # layers are dropped by random numbers of PyTorch
        found, expected = outputs(thunder.jit(model, executors=["torch"])), outputs(model)
    for result, expected_result in zip(found, expected, strict=True):
        torch.testing.assert_close(result, expected_result)


def spans(lengths: Tensor, size: int) -> Any:
    """Return a mask with random positions of each row, as SpecAugment draws them for padded rows."""
    mask, places = np.zeros((len(lengths), size), dtype=bool), []
    rounding = np.random.rand(1).item()
    for length in lengths.tolist():
        count = min(int(0.3 * length + rounding), 2)
        chosen = np.random.choice(np.arange(length), count, replace=False)
        places.append(np.concatenate([chosen, np.ones(2 - count, dtype=np.int32) * (size - 1)]))
    np.put_along_axis(mask, np.array(places).astype(int), 1, -1)
    return mask


def masked_by_lengths(x: Tensor, padding: Tensor) -> Tensor:
    kept = torch.zeros_like(padding)
    kept[torch.arange(len(padding)), padding.sum(-1) - 1] = 1
    mask = spans(kept.flip([-1]).cumsum(-1).flip([-1]).sum(-1), x.shape[1])
    return torch.where(torch.tensor(mask), x * 2, x) * float(np.random.rand())


def test_function_that_draws_by_values_of_tensors_is_called_at_each_call() -> None:
    compiled = thunder.jit(masked_by_lengths, executors=["torch"])
    for step in range(6):
        x, padding = torch.randn(2, 9, requires_grad=True), torch.ones(2, 9, dtype=torch.int64)
        padding[1, 9 - step :] = 0
        seed_all()
        found, state = compiled(x, padding), np.random.rand()
        seed_all()
        assert torch.equal(found, masked_by_lengths(x, padding))
        assert np.random.rand() == state
    assert thunder.cache_misses(compiled) == 1, thunder.recompile_reasons(compiled)


def noisy(x: Tensor, scale: float) -> Tensor:
    places = np.random.permutation(4)
    x = x * (scale if 2 in list(places[:2]) else 3)
    x += 1
    return x


def test_function_that_returns_a_tensor_is_not_called_by_the_prologue() -> None:
    def program(x: Tensor) -> Tensor:
        return noisy(x * 2, 0.5)

    compiled = thunder.jit(program, executors=["torch"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RecompileWarning)
        for _ in range(4):
            state, outcomes = np.random.get_state(), []
            for function in (compiled, program):
                np.random.set_state(state)
                x = torch.ones(3, requires_grad=True)
                result = function(x)
                result.sum().backward()
                outcomes.append((result.detach(), x.grad, torch.tensor(np.random.rand())))
            assert all(map(torch.equal, *outcomes))


def writes_where_drawn(mask: Tensor) -> Any:
    places = np.random.permutation(4)
    mask[int(places.tolist()[0])] = 0
    return places * 2


def test_function_that_writes_to_a_tensor_is_not_called_by_the_prologue() -> None:
    def program(x: Tensor) -> Any:
        mask = torch.ones(4) * 2
        places = writes_where_drawn(mask)
        return mask * x, places

    compiled = thunder.jit(program, executors=["torch"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RecompileWarning)
        for _ in range(3):
            seed_all()
            found = compiled(torch.ones(4))
            seed_all()
            assert_same(found, program(torch.ones(4)))


def items_of(array: Any) -> list[float]:
    """Return the items of a random array, so that a trace would be valid only for them."""
    return [float(item) for item in array]


ROWS: list[int] = []
COUNTS = {"calls": 0}
GENERATOR = np.random.default_rng(3)
random_from_generator = GENERATOR.random


class Counter:
    calls: ClassVar = {"calls": 0}


def writes_to_its_list(size: int, items: list[float]) -> list[float]:
    drawn = items_of(np.random.rand(size))
    items[0] = 7.0
    return drawn


def writes_to_a_list_of_its_tuple(size: int, items: tuple[list[float]]) -> list[float]:
    drawn = items_of(np.random.rand(size))
    items[0].append(7.0)
    return drawn


def shuffles_its_list(size: int, *, items: list[float]) -> list[float]:
    np.random.shuffle(items)
    drawn = items_of(np.random.rand(size))
    items = ()  # type: ignore[assignment]
    return drawn


def appends_to_a_global(size: int) -> list[float]:
    ROWS.append(size)
    return items_of(np.random.rand(size))


def counts_in_a_global(size: int) -> list[float]:
    COUNTS["calls"] += 1
    return items_of(np.random.rand(size))


def counts_by_a_function(size: int) -> list[float]:
    drawn = items_of(np.random.rand(size))
    count_call()
    return drawn


def count_call() -> None:
    COUNTS["calls"] += 1


def counts_in_a_class(size: int) -> list[float]:
    Counter.calls["calls"] += 1
    return items_of(np.random.rand(size))


def sets_an_attribute(size: int) -> list[float]:
    setattr(Counter, "last", random.random())  # noqa: B010 - a write that has no opcode
    return items_of(np.random.rand(size))


def draws_from_a_global_generator(size: int) -> list[float]:
    return items_of(GENERATOR.random(size))


def draws_by_a_method_of_a_generator(size: int) -> list[float]:
    return items_of(random_from_generator(size))


def draws_by_pytorch(size: int) -> list[float]:
    return [*items_of(np.random.rand(size)), number_of_pytorch()]


def number_of_pytorch() -> float:
    return float(torch.rand(()))


@pytest.mark.parametrize("draw", [writes_to_its_list, shuffles_its_list])
def test_list_that_a_drawing_function_writes_to_matches_eager(draw: Callable[..., Any]) -> None:
    def program(_: Any, x: Tensor) -> Any:
        items = [1.0, 2.0, 3.0]
        return x * draw(3, items=items)[0], items

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RecompileWarning)
        assert_drawn_as_in_eager(program)


def test_list_in_a_tuple_that_a_drawing_function_writes_to_matches_eager() -> None:
    def program(_: Any, x: Tensor) -> Any:
        items = [1.0, 2.0, 3.0]
        return x * writes_to_a_list_of_its_tuple(3, (items,))[0], items

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RecompileWarning)
        assert_drawn_as_in_eager(program)


@pytest.mark.parametrize(
    "draw",
    [
        appends_to_a_global,
        counts_in_a_global,
        counts_by_a_function,
        counts_in_a_class,
        sets_an_attribute,
        draws_from_a_global_generator,
        draws_by_a_method_of_a_generator,
        draws_by_pytorch,
    ],
)
def test_effects_of_a_drawing_function_happen_once_in_each_call(draw: Callable[[int], list[float]]) -> None:
    def program(x: Tensor) -> Tensor:
        return x * draw(3)[-1]

    def outcomes(function: Callable[[Tensor], Tensor]) -> list[Any]:
        seed_all()
        ROWS.clear()
        COUNTS["calls"], Counter.calls["calls"] = 0, 0
        GENERATOR.bit_generator.state = np.random.default_rng(3).bit_generator.state
        results = [function(X).tolist() for _ in range(3)]
        return [*results, len(ROWS), COUNTS["calls"], Counter.calls["calls"], np.random.rand(), GENERATOR.random()]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RecompileWarning)
        assert outcomes(thunder.jit(program, executors=["torch"])) == outcomes(program)


def test_array_that_the_program_shuffles_matches_eager() -> None:
    def reordered(_: Any, x: Tensor) -> Any:
        order = np.arange(4)
        np.random.shuffle(order)
        return x, order

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RecompileWarning)
        assert_drawn_as_in_eager(reordered)


def test_gradients_of_a_program_with_random_numbers_match_eager() -> None:
    def program(x: Tensor) -> Tensor:
        return (x * random.random()).sin()

    def gradients(function: Callable[[Tensor], Tensor]) -> list[Tensor]:
        seed_all()
        inputs = [torch.ones(3, requires_grad=True) for _ in range(3)]
        for x in inputs:
            function(x).sum().backward()
        return [x.grad for x in inputs if x.grad is not None]

    assert_same(gradients(thunder.jit(program)), gradients(program))


def test_training_step_that_scales_by_a_random_number_is_traced_once() -> None:
    def step(layer: Any, x: Tensor) -> Any:
        layer.zero_grad()
        (layer(x) * random.uniform(0, 1) + np.random.rand()).sum().backward()
        return [parameter.grad.clone() for parameter in layer.parameters()]

    compiled = thunder.jit(lambda layer, x: layer(x) * random.uniform(0, 1) * np.random.rand())

    def gradients(function: Any) -> Any:
        seed_all()
        layer, found = torch.nn.Linear(3, 3), []
        for _ in range(CALLS):
            layer.zero_grad()
            function(layer, X).sum().backward()
            found.append([parameter.grad.clone() for parameter in layer.parameters() if parameter.grad is not None])
        return found

    assert_same(gradients(compiled), gradients(lambda layer, x: layer(x) * random.uniform(0, 1) * np.random.rand()))
    assert thunder.cache_misses(compiled) == 1
    assert_drawn_as_in_eager(step, lambda: torch.nn.Linear(3, 3))


def test_read_of_a_generator_state_after_random_numbers_is_refused() -> None:
    def program(rng: np.random.Generator, x: Tensor) -> tuple[Tensor, str]:
        return x * rng.random(), rng.bit_generator.state["bit_generator"]

    compiled = thunder.jit(program, data_dependent="error")
    with pytest.raises(CannotReplay, match="after a draw"):
        compiled(np.random.default_rng(1), X)


def test_module_with_dropped_layers_trains_as_in_eager() -> None:
    class Layers(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            if self.training and random.random() < 0.5:
                return x
            return self.linear(x) * np.random.rand()

    assert_drawn_as_in_eager(lambda module, x: module(x), Layers)


def test_overridden_method_of_a_generator_is_interpreted() -> None:
    class Constant(random.Random):
        def random(self) -> float:
            return 0.25

    assert_drawn_as_in_eager(lambda rng, x: x * rng.random() * rng.uniform(1, 2), lambda: Constant(1))


@pytest.mark.filterwarnings("ignore::thunder_core.foundation.errors.SharpEdgeWarning")
@pytest.mark.filterwarnings("error::thunder_core.foundation.errors.InternalErrorWarning")
@pytest.mark.parametrize("method", ["choice", "sample", "choices", "shuffle"])
def test_items_that_a_generator_of_the_program_draws_match_eager(method: str) -> None:
    class Constant(random.Random):
        def random(self) -> float:
            return 0.5

        def getrandbits(self, count: int) -> int:
            return 1

    def program(x: Tensor) -> Any:
        items = ["a", "b", "c"]
        drawn = getattr(Constant(), method)(items, **({"k": 2} if method in ("sample", "choices") else {}))
        return x, drawn, items

    compiled, x = thunder.jit(program), torch.ones(2)
    for _ in range(3):
        assert compiled(x)[1:] == program(x)[1:]


FRESH: list[Callable[[], Any]] = [
    lambda: secrets.randbelow(1 << 30),
    lambda: random.SystemRandom().random(),
    lambda: np.random.default_rng().random(),
    lambda: random.Random().random(),
    lambda: int.from_bytes(os.urandom(3), "big"),
    lambda: uuid.uuid4().int % (1 << 30),
]


@pytest.mark.filterwarnings("ignore::thunder_core.foundation.errors.RecompileWarning")
@pytest.mark.parametrize("draw", FRESH)
def test_numbers_of_the_operating_system_differ_at_each_call(draw: Callable[[], Any]) -> None:
    compiled = thunder.jit(lambda x: x.double() * draw())
    assert len({compiled(X)[0].item() for _ in range(4)}) == 4


def test_branch_on_an_unseeded_generator_takes_both_sides() -> None:
    compiled = thunder.jit(lambda x: x if np.random.default_rng().random() < 0.5 else -x)
    assert {compiled(X)[0].item() for _ in range(40)} == {1.0, -1.0}
    assert thunder.cache_misses(compiled) == 2


def test_branch_on_an_unseeded_generator_is_taken_as_often_as_in_eager() -> None:
    compiled = thunder.jit(lambda x: x if np.random.default_rng().random() < 0.25 else -x)
    taken = sum(compiled(X)[0].item() == 1.0 for _ in range(400))
    assert 50 < taken < 150  # 5.8 standard deviations about 100


def test_program_that_raises_advances_the_generator_once() -> None:
    def program(_: Any, x: Tensor) -> Tensor:
        if random.random() < 0.5:
            raise ValueError(f"{random.random()}")
        return x * random.random()

    def texts(function: Callable[..., Any]) -> list[str]:
        seed_all()
        found = []
        for _ in range(CALLS):
            try:
                found.append(str(function(None, X)))
            except ValueError as error:
                found.append(str(error))
        return [*found, str(random.getstate())]

    assert texts(thunder.jit(program)) == texts(program)


def test_random_numbers_written_into_an_array_of_the_program_warn() -> None:
    def program(x: Tensor) -> Any:
        array = np.zeros(3)
        np.random.default_rng(1).random(out=array)
        return x, array

    with pytest.warns(SharpEdgeWarning, match="is not called again by later calls"):
        thunder.jit(program)(X)


def test_random_numbers_are_no_sharp_edge() -> None:
    compiled = thunder.jit(lambda x: x * random.random() + np.random.rand(), sharp_edges="error")
    assert not torch.equal(compiled(X), compiled(X))


# ---- writes to arrays of random numbers -----------------------------------------------------------------------------


def items(x: Tensor) -> Tensor:
    drawn = np.random.rand(3)
    drawn[0] = 5
    drawn[1] *= 2
    drawn[0] += drawn[1]
    return x * torch.from_numpy(drawn)


def masked(x: Tensor) -> Tensor:
    drawn = np.random.randn(3)
    drawn[drawn > 0] = 0
    return x * torch.tensor(drawn)


def in_place(x: Tensor) -> Tensor:
    drawn = np.random.rand(3)
    drawn -= drawn.mean()
    drawn /= drawn.std()
    return x * torch.as_tensor(drawn)


def by_methods(x: Tensor) -> Tensor:
    drawn, filled = np.random.rand(3), np.random.rand(3)
    drawn.sort()
    filled.fill(2.0)
    np.random.shuffle(drawn)
    return x * torch.from_numpy(drawn) + torch.from_numpy(filled)


def copied_before(x: Tensor) -> Tensor:
    drawn = np.random.rand(3)
    kept = drawn.copy()
    drawn[:] = drawn.sum()
    return x * torch.from_numpy(drawn) + torch.from_numpy(kept)


def with_a_drawn_value(x: Tensor) -> Tensor:
    drawn = np.random.rand(3)
    drawn[2] = np.random.rand()
    return x * torch.from_numpy(drawn)


@pytest.mark.parametrize("program", [items, masked, in_place, by_methods, copied_before, with_a_drawn_value])
def test_writes_to_random_arrays_match_eager_in_one_program(program: Callable[[Tensor], Tensor]) -> None:
    compiled, x = thunder.jit(program, sharp_edges="error"), torch.ones(3, dtype=torch.float64)
    np.random.seed(0)
    found = [compiled(x) for _ in range(4)]
    np.random.seed(0)
    assert all(torch.equal(ours, program(x)) for ours in found)
    assert thunder.cache_misses(compiled) == 1


def behind_a_tensor(drawn: Any) -> Tensor:
    made = torch.from_numpy(drawn)
    drawn[0] = 5
    return made


def behind_a_view(drawn: Any) -> Tensor:
    view = drawn[1:]
    drawn[1] = 5
    return torch.tensor(view).sum()


def of_a_row(drawn: Any) -> Tensor:
    rows = drawn.reshape(3, 1)
    rows[0] *= 2
    return torch.tensor(drawn)


def given_to_a_function(drawn: Any) -> Tensor:
    np.clip(drawn, 0.2, 0.5, out=drawn)
    return torch.tensor(drawn)


@pytest.mark.parametrize("write", [behind_a_tensor, behind_a_view, of_a_row, given_to_a_function])
def test_write_to_a_random_array_with_shared_memory_is_refused(write: Callable[[Any], Tensor]) -> None:
    np.random.seed(0)  # so that `given_to_a_function` changes a number
    with pytest.raises(CannotReplay, match="writes to an array of random numbers"):
        thunder.jit(lambda x: x.sum() * write(np.random.rand(3)), data_dependent="error")(torch.ones(3))


@pytest.mark.parametrize("items", [[1, 2, 3], ["a", "b", "c"]])
@pytest.mark.parametrize("draw", [random.choice, lambda items: random.sample(items, 2), random.choices])
def test_items_to_choose_from_may_change_between_calls(draw: Callable[[list[Any]], Any], items: list[Any]) -> None:
    items = items.copy()
    compiled = thunder.jit(lambda x: (x, draw(items)))
    for seed in range(4):
        random.seed(seed)
        drawn = compiled(X)[1]
        random.seed(seed)
        assert drawn == draw(items)
        items += items[:1] if seed else [items.pop(0)] * 5
