"""A torch.autograd.Function whose forward writes is a part of the program, and keeps its own backward."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import ReformerConfig, ReformerModelWithLMHead

import thunder_core as thunder
from thunder_core.foundation.errors import RecompileWarning

Function = torch.autograd.Function


class Collecting(Function):
    """Collects a value in its forward, and a gradient in its backward; the gradient is not that of the value."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, values: list[Tensor], gradients: list[Tensor]) -> Tensor:
        values.append(x.detach() + 1)
        ctx.gradients = gradients
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        ctx.gradients.append(gradient * 2)
        return gradient * 3, None, None


class KeepingItsResult(Function):
    """Returns a tensor that it keeps in a list, too, and saves for its backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, values: list[Tensor]) -> Tensor:
        result = x.sigmoid()
        values.append(result)
        ctx.save_for_backward(result)
        return result

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (result,) = ctx.saved_tensors
        return gradient * result * (1 - result) * 5, None


class Largest(Function):
    """Returns a value, a position without a gradient, no tensor, its input and a view."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, counts: dict[str, int]) -> tuple[Any, ...]:
        counts["calls"] = counts.get("calls", 0) + 1
        value, place = x.max(-1)
        ctx.mark_non_differentiable(place)
        ctx.parts = (place, [x.shape[-1]], {"scale": 2.0})
        return value, place, None, x, (x * 2).unsqueeze(0)

    @staticmethod
    def backward(ctx: Any, value: Tensor, place: Tensor, nothing: None, x: Tensor, view: Tensor) -> Any:
        found, [size], table = ctx.parts
        spread = torch.nn.functional.one_hot(found, size) * value.unsqueeze(-1)
        assert nothing is None
        assert ctx.needs_input_grad == (True, False)
        return spread * table["scale"] + x + view[0], None


class WithoutZeros(Function):
    """Gets None for a result without a gradient, and has a `setup_context`."""

    @staticmethod
    def forward(x: Tensor, factor: float, seen: set[float]) -> tuple[Tensor, Tensor]:
        seen.add(factor)
        return x * factor, x + factor

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.factor = inputs[1]
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, product: Tensor | None, total: Tensor | None) -> Any:
        assert total is None
        assert product is not None
        return product * ctx.factor, None, None


class InPlace(Function):
    """Writes to its input and to a list, and saves its input; the gradient is not that of the value."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, values: list[Tensor], factor: float) -> tuple[Tensor, Tensor]:
        values.append(x.clone())
        x.mul_(factor)
        ctx.mark_dirty(x)
        ctx.save_for_backward(x)
        return x, x * 2

    @staticmethod
    def backward(ctx: Any, of_x: Tensor, of_double: Tensor) -> tuple[Tensor, None, None]:
        (x,) = ctx.saved_tensors
        return of_x * 5 + of_double * x, None, None


class Scaled(Function):
    """Writes to its input and to a list."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, values: list[Tensor], factor: float) -> Tensor:
        values.append(x.clone())
        ctx.mark_dirty(x)
        return x.mul_(factor)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return gradient * 5, None, None


class Reversible(Function):
    """Saves results alone; its backward computes the inputs again, and the gradients of the layers by autograd."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, layers: Any, hidden: list[Tensor]) -> Tensor:
        first, second = x.chunk(2, -1)
        for layer in layers:
            hidden.append(first)
            first = first + layer(second)
            first, second = second, first
        ctx.save_for_backward(first.detach(), second.detach())
        ctx.layers = layers
        return torch.cat([first, second], -1)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        first, second = ctx.saved_tensors
        of_first, of_second = gradient.chunk(2, -1)
        for layer in reversed(ctx.layers):
            first, second = second, first
            of_first, of_second = of_second, of_first
            with torch.enable_grad():
                given = second.detach().requires_grad_()
                added = layer(given)
                torch.autograd.backward(added, of_first)
            first = first - added.detach()
            of_second = of_second + given.grad
        return torch.cat([of_first, of_second], -1), None, None


class Owner:
    """What programs write to."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.values: list[Tensor] = []
        self.gradients: list[Tensor] = []
        self.counts: dict[str, int] = {}
        self.seen: set[float] = set()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(2, 2) for _ in range(3))

    def kept(self) -> Any:
        grads = [parameter.grad.tolist() for parameter in self.layers.parameters() if parameter.grad is not None]
        lists = [[value.tolist() for value in values] for values in (self.values, self.gradients)]
        return lists, [value.requires_grad for value in self.values], dict(self.counts), sorted(self.seen), grads


def collects(owner: Owner, x: Tensor) -> Tensor:
    return Collecting.apply(Collecting.apply(x, owner.values, owner.gradients), owner.values, owner.gradients)


def collects_in_its_own_list(owner: Owner, x: Tensor) -> tuple[Tensor, list[Tensor]]:
    values: list[Tensor] = []
    result = Collecting.apply(x, values, owner.gradients)
    return result * values[0], values


def keeps_its_result(owner: Owner, x: Tensor) -> Any:
    result = KeepingItsResult.apply(x, owner.values)
    return result + owner.values[-1] * 3


def returns_its_list(owner: Owner, x: Tensor) -> Any:
    values: list[Tensor] = []
    KeepingItsResult.apply(x, values)
    return values


def finds_the_largest(owner: Owner, x: Tensor) -> Any:
    value, place, nothing, same, view = Largest.apply(x, owner.counts)
    return value + 1, place, nothing, same * 2, view, same is x


def uses_one_result(owner: Owner, x: Tensor) -> Any:
    return WithoutZeros.apply(x, 1.5, owner.seen)[0]


def writes_to_its_input(owner: Owner, x: Tensor) -> Any:
    y = x * 1
    result, double = InPlace.apply(y, owner.values, 3.0)
    return result, double, y * 2, result is y


def writes_to_its_input_alone(owner: Owner, x: Tensor) -> Any:
    y = x.sin()
    Scaled.apply(y, owner.values, 3.0)
    Scaled.apply(y, owner.values, 2.0)
    return y.cos()


def writes_to_a_view(owner: Owner, x: Tensor) -> Any:
    y = x * 1
    Scaled.apply(y[:1], owner.values, 3.0)
    return y * y


def reverses(owner: Owner, x: Tensor) -> Any:
    hidden: list[Tensor] = []
    return Reversible.apply(x * 2, owner.layers, hidden), hidden


PROGRAMS = (
    collects,
    collects_in_its_own_list,
    keeps_its_result,
    returns_its_list,
    finds_the_largest,
    uses_one_result,
    writes_to_its_input,
    writes_to_its_input_alone,
    writes_to_a_view,
    reverses,
)


def tensors_in(value: Any) -> list[Tensor]:
    if isinstance(value, tuple | list):
        return [tensor for item in value for tensor in tensors_in(item)]
    return [value] if isinstance(value, Tensor) else []


def trained(program: Callable[..., Any], run: Callable[..., Any]) -> list[Any]:
    """The results, the gradients and what the program wrote, after calls with batches of different sizes."""
    owner, found = Owner(), []
    for rows in (2, 3, 4):
        x = (torch.arange(rows * 4.0).reshape(rows, 4) / 7).requires_grad_()
        result = run(owner, x)
        followed = [tensor for tensor in tensors_in(result) if tensor.requires_grad]
        sum(tensor.square().sum() for tensor in followed).backward()  # type: ignore[union-attr]
        words = [(tensor.tolist(), tensor.requires_grad) for tensor in tensors_in(result)]
        assert x.grad is not None
        found.append((words, x.grad.tolist(), owner.kept()))
    return found


@pytest.mark.parametrize("cache", ["constant values", "symbolic values"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_forward_that_writes_equals_eager(program: Callable[..., Any], cache: str) -> None:
    found = trained(program, thunder.jit(program, cache=cache))
    torch.testing.assert_close(found, trained(program, program))


def test_one_program_serves_all_sizes_of_a_function_that_writes() -> None:
    compiled = thunder.jit(collects_in_its_own_list, cache="symbolic values")
    trained(collects_in_its_own_list, compiled)
    assert thunder.cache_misses(compiled) == 1
    assert "runs after the program" in thunder.last_backward_reason(compiled)


class Scaling(Function):
    """Keeps a dict that it is given for its backward, like the functions of reversible networks."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, log: list[int], options: dict[str, Any]) -> Tensor:
        log.append(1)
        ctx.options = options
        return x * options["scale"]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return gradient * ctx.options["scale"] * len(ctx.options), None, None


def test_a_dict_that_the_program_creates_and_a_function_keeps() -> None:
    def program(x: Tensor, log: list[int], scale: float) -> Tensor:
        return Scaling.apply(x, log, {"scale": scale, "inner": {"x": x.detach()}}).sin()

    compiled, found = thunder.jit(program), []
    for run in (program, compiled, compiled):
        x, log = torch.ones(3, requires_grad=True), [0]
        run(x, log, 2.0).sum().backward()
        assert x.grad is not None
        found.append((x.grad.tolist(), log))
    assert found[1:] == found[:1] * 2


def changed_later(x: Tensor, log: list[int]) -> Tensor:
    options = {"scale": 2.0}
    y = Scaling.apply(x, log, options)
    options["scale"] = 3.0
    return y


def returned(x: Tensor, log: list[int]) -> Any:
    options = {"scale": 2.0}
    return Scaling.apply(x, log, options), [options]


def stored(x: Tensor, log: list[Any]) -> Tensor:
    options = {"scale": 2.0}
    log.append(options)
    return Scaling.apply(x, log, options)


def shared(x: Tensor, log: list[int]) -> Tensor:
    options = {"scale": 2.0}
    return Scaling.apply(Scaling.apply(x, log, options), log, options)


def assert_left_to_eager(program: Callable[..., Any], arguments: Callable[[], tuple[Any, ...]], match: str) -> None:
    """Assert that a call is made in eager PyTorch, with a warning, and that its result and its gradient are eager's."""
    compiled, found = thunder.jit(program), []
    for run in (program, compiled, compiled):
        x = torch.ones(2, requires_grad=True)
        warns = not found[1:] and run is compiled
        with pytest.warns(RecompileWarning, match=match) if warns else nullcontext():
            result = run(x, *arguments())
        first = result[0] if isinstance(result, tuple) else result
        first.sum().backward()
        found.append((first, x.grad))
    torch.testing.assert_close(found[1:], found[:1] * 2)


@pytest.mark.parametrize("program", [changed_later, returned, stored, shared])
def test_a_dict_that_a_function_keeps_is_left_to_eager_if_it_is_used_otherwise(program: Callable[..., Any]) -> None:
    assert_left_to_eager(program, lambda: ([],), r"`Scaling`.* keeps an object of class dict .*(used later|keeps too)")


def test_a_list_of_the_program_that_a_backward_would_write_to_is_left_to_eager() -> None:
    def program(x: Tensor) -> tuple[Tensor, list[Tensor]]:
        gradients: list[Tensor] = []
        return Collecting.apply(x, [], gradients), gradients

    assert_left_to_eager(
        program, tuple, r"`Collecting`.* keeps an object of class list that the program creates for its backward"
    )


def test_a_write_to_a_leaf_raises_eagers_error() -> None:
    with pytest.raises(RuntimeError, match="leaf Variable that requires grad"):
        Scaled.apply(torch.ones(2, requires_grad=True), [], 2.0)
    with (
        pytest.warns(RecompileWarning, match=r"`Scaled`.* writes to a leaf"),
        pytest.raises(RuntimeError, match="leaf Variable that requires grad"),
    ):
        thunder.jit(lambda *args: Scaled.apply(*args))(torch.ones(2, requires_grad=True), [], 2.0)


def test_a_written_input_that_is_not_returned_raises_eagers_error() -> None:
    class Forgotten(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, values: list[Tensor]) -> Tensor:
            values.append(x.clone())
            ctx.mark_dirty(x.mul_(2))
            return x * 2

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
            return gradient, None

    def program(x: Tensor, values: list[Tensor]) -> Tensor:
        return Forgotten.apply(x * 1, values)

    with (
        pytest.warns(RecompileWarning, match="marks a tensor as dirty that is not both an input and"),
        pytest.raises(RuntimeError, match="marked as dirty during the forward method were not returned"),
    ):
        thunder.jit(program)(torch.ones(2, requires_grad=True), [])


def test_a_view_that_is_returned_and_kept_is_left_to_eager() -> None:
    class Kept(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, values: list[Tensor]) -> Tensor:
            values.append((x * 2).unsqueeze(0))
            return values[0]

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
            return gradient[0], None

    assert_left_to_eager(lambda x, values: Kept.apply(x, values), lambda: ([],), "returns a view and also keeps it")


class Slots:
    """An object whose attributes are in slots."""

    __slots__ = ("found",)

    def __init__(self) -> None:
        self.found: Any = None


class Keeping(Function):
    """Stores a view that it also returns."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, write: Callable[[Any, Tensor], Any], place: Any) -> Tensor:
        result = (x * 2).unsqueeze(0)
        write(place, result)
        return result

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return gradient[0], None, None


PLACES: dict[str, tuple[Callable[[Any, Tensor], Any], Any]] = {
    "a set": (lambda place, value: place.add(value), set),
    "a deque": (lambda place, value: place.append(value), deque),
    "slots": (lambda place, value: setattr(place, "found", value), Slots),
    "a deque in slots": (lambda place, value: setattr(place, "found", deque([value])), Slots),
    "a closure": (lambda place, value: place.append(lambda: value), list),
    "a list in a tuple": (lambda place, value: place.append((1, [value])), list),
}


@pytest.mark.parametrize("name", PLACES)
def test_a_view_that_is_returned_and_kept_in_any_object_is_left_to_eager(name: str) -> None:
    write, kind = PLACES[name]
    assert_left_to_eager(
        lambda x, place: Keeping.apply(x, write, place), lambda: (kind(),), "returns a view and also keeps it"
    )


def in_two_places(ctx: Any) -> None:
    ctx.first = ctx.second = [1]


def nested_in_two_places(ctx: Any) -> None:
    shared = {"a": 1}
    ctx.first, ctx.second = (shared, 1), [shared]


def in_itself(ctx: Any) -> None:
    ctx.first = [1]
    ctx.first.append(ctx.first)


def dict_in_itself(ctx: Any) -> None:
    ctx.first = {}
    ctx.first["again"] = (ctx.first,)


@pytest.mark.parametrize("keep", [in_two_places, nested_in_two_places, in_itself, dict_in_itself])
def test_a_backward_finds_lists_and_dicts_where_the_forward_put_them(keep: Callable[[Any], None]) -> None:
    class Kept(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, values: list[int]) -> Tensor:
            values.append(1)
            keep(ctx)
            return x * 2

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
            second = getattr(ctx, "second", None)
            inner = (
                ctx.first[0]
                if isinstance(ctx.first, tuple)
                else next(iter(ctx.first.values()))[0]
                if isinstance(ctx.first, dict)
                else ctx.first[-1]
                if second is None
                else ctx.first
            )
            wanted = ctx.first if second is None else second if isinstance(ctx.first, list) else second[0]
            return gradient * (3 if inner is wanted else 5), None

    assert_equal_gradients(lambda x, values: Kept.apply(x, values))


class KeptFunction(Function):
    """A function of the forward reads a tensor of the forward in the backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, values: list[int]) -> Tensor:
        values.append(1)
        y = x.sin()
        ctx.derivative = lambda gradient: gradient * y
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return ctx.derivative(gradient), None


def test_a_backward_calls_a_function_of_the_forward_that_reads_its_tensors() -> None:
    assert_equal_gradients(lambda x, values: KeptFunction.apply(x, values))


def assert_equal_gradients(program: Callable[..., Any]) -> None:
    """Compare two calls of a compiled program with eager PyTorch."""
    compiled = thunder.jit(program)
    for factor in (1.0, 2.0):
        gradients = []
        for run in (program, compiled):
            x = torch.full((2,), factor, requires_grad=True)
            run(x, []).sum().backward()
            gradients.append(x.grad)
        assert torch.equal(*gradients)
    assert thunder.cache_misses(compiled) == 1


def reformer() -> Any:
    """A small Reformer, whose hashes do not depend on the operating system's random numbers."""
    sizes = {"hidden_size": 16, "attention_head_size": 8, "num_attention_heads": 2, "feed_forward_size": 16}
    axes = {"axial_pos_shape": (4, 4), "axial_pos_embds_dim": (8, 8), "max_position_embeddings": 16}
    chunks = {"local_attn_chunk_length": 4, "lsh_attn_chunk_length": 4, "num_buckets": 2, "hash_seed": 7}
    rates = {"hidden_dropout_prob": 0.0, "lsh_attention_probs_dropout_prob": 0.0}
    options = {"attn_layers": ["local", "lsh"], "vocab_size": 20, "is_decoder": True}
    config = ReformerConfig(**sizes, **axes, **chunks, **rates, **options)
    torch.manual_seed(0)
    return ReformerModelWithLMHead(config).train()


def test_reformer_trains_as_in_eager() -> None:
    losses: list[list[float]] = []
    for prepare in (lambda model: model, thunder.jit):
        model = reformer()
        run, optimizer = prepare(model), torch.optim.SGD(model.parameters(), 0.1)
        losses.append([])
        for step in range(3):
            ids = torch.arange(32).reshape(2, 16).add(step) % 19 + 1
            loss = run(ids, labels=ids).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses[-1].append(loss.item())
    torch.testing.assert_close(*losses, rtol=1e-4, atol=1e-4)
    assert len(set(losses[0])) == 3
