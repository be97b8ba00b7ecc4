"""A compiled function that a compiled function calls gives the same result as alone, whatever their options."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import thunder_core as thunder
from thunder_core import functional
from thunder_core.foundation.errors import (
    CannotReplay,
    DataDependent,
    NotDifferentiable,
    RecompileWarning,
    SharpEdgeError,
    WrongInputs,
)
from thunder_core.passes.transforms.autocast import Autocast
from thunder_core.tracing.ir.symbol import BoundSymbol

SINES = thunder.OperatorExecutor("sines")


@SINES.implements(torch.sin)
def hundredfold(x: Tensor) -> Tensor:
    return x * 100


sines = partial(thunder.jit, executors=[SINES, "torch"])
X = torch.tensor([1.0, 2.0])
W = torch.ones(2, requires_grad=True)


def calls(compiled: Any) -> list[BoundSymbol]:
    """Return the lines of the latest program that call compiled functions."""
    lines = thunder.last_traces(compiled)[-1].bound_symbols
    return [line for line in lines if line.symbol.name == "compiled.call"]


def sine(x: Tensor) -> Tensor:
    return torch.sin(x)


# ---- each function keeps its own settings --------------------------------------------------------------------------


def test_inner_function_keeps_its_executors() -> None:
    inner = sines(sine)
    outer = thunder.jit(lambda x: inner(x) + torch.sin(x))
    for x in (X, X * 2):
        assert torch.equal(outer(x), x * 100 + torch.sin(x))
    assert thunder.cache_misses(inner) == thunder.cache_misses(outer) == 1
    assert [line.symbol.target.__name__ for line in calls(outer)] == ["sine"]
    assert "= sine(x)" in str(thunder.last_traces(outer)[-1])


def test_inner_function_keeps_its_transforms() -> None:
    linear = nn.Linear(2, 2)
    inner = thunder.jit(linear, transforms=[Autocast()])
    outer = thunder.jit(lambda x: (inner(x), linear(x)))
    found, plain = outer(X)
    assert found.dtype == inner(X).dtype == torch.bfloat16
    assert plain.dtype == torch.float32


def test_inner_function_keeps_its_bound_constants() -> None:
    settings = {"offset": 5.0}
    inner = functional.jit(lambda x: x + settings["offset"], sharp_edges="allow")
    inner(X)
    settings["offset"] = 7.0
    for outer in (thunder.jit(lambda x: inner(x) * 1), functional.jit(lambda x: inner(x) * 1)):
        assert torch.equal(outer(X), X + 5)


def test_function_with_equal_options_is_inlined() -> None:
    inner, pure = thunder.jit(sine), functional.jit(sine)
    outer, others = thunder.jit(lambda x: inner(x) + 1), functional.jit(lambda x: pure(x) + 1)
    assert torch.equal(outer(X), others(X))
    assert calls(outer) == calls(others) == []


OPTIONS: dict[str, dict[str, Any]] = {
    "sharp_edges": {"sharp_edges": "warn"},
    "data_dependent": {"data_dependent": "retrace"},
    "memory_budget": {"memory_budget": 0.5},
    "cache": {"cache": "no caching"},
    "functional": {"functional": True},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_inner_function_keeps_every_option(name: str) -> None:
    inner = thunder.jit(sine, **OPTIONS[name])
    outer = thunder.jit(lambda x: inner(x) + 1)
    for _ in range(2):
        assert torch.equal(outer(X), torch.sin(X) + 1)
    assert len(calls(outer)) == 1
    assert thunder.cache_misses(inner) == (2 if name == "cache" else 1)


def test_refusals_of_an_inner_function_apply_inside() -> None:
    same_input = thunder.jit(lambda x: x * 2, cache="same input")
    same_input(X)
    with pytest.raises(WrongInputs, match="same input"):
        thunder.jit(lambda x: same_input(x))(torch.ones(3))
    offset = torch.ones(2)
    with pytest.raises(SharpEdgeError, match="offset"):
        pure = functional.jit(lambda x: x + offset)
        thunder.jit(lambda x: pure(x))(X)
    strict = thunder.jit(lambda x: x if x.sum() > 0 else -x, data_dependent="error")
    with pytest.raises(DataDependent):
        thunder.jit(lambda x: strict(x))(X)


class Scaled:
    """An object with a compiled method."""

    factor = 2

    @sines
    def scaled(self, x: Tensor) -> Tensor:
        return torch.sin(x) * self.factor


def test_compiled_methods_partials_and_callbacks_match_eager() -> None:
    one, inner = Scaled(), sines(sine)
    moved = partial(sines(lambda x, by: torch.sin(x) + by), by=1)
    assert torch.equal(thunder.jit(lambda x: one.scaled(x) + 1)(X), X * 200 + 1)
    assert torch.equal(thunder.jit(lambda x: Scaled.scaled(one, x) + 1)(X), X * 200 + 1)
    assert torch.equal(thunder.jit(lambda x: moved(x) + 1)(X), X * 100 + 2)
    assert torch.equal(thunder.jit(lambda x: [*map(inner, [x, x * 2])][1])(X), X * 200)
    assert torch.equal(thunder.jit(inner)(X), X * 100)


def test_function_from_an_artifact_is_called(tmp_path: Path) -> None:
    linear = nn.Linear(2, 2)
    compiled = thunder.jit(linear, transforms=[Autocast()])
    with torch.no_grad():
        compiled(X)
        for strict in (False, True):
            thunder.save(compiled, tmp_path / str(strict))
            loaded = thunder.load(tmp_path / str(strict), linear, strict=strict)
            outer = thunder.jit(nn.Sequential(loaded))
            assert torch.equal(outer(X), compiled(X))
            assert (thunder.cache_misses(loaded), thunder.cache_hits(loaded)) == (0, 1)
    with pytest.raises(CannotReplay, match="which has its own settings"):
        thunder.save(outer, tmp_path / "outer")


# ---- arguments, results, reads and writes -------------------------------------------------------------------------


def in_place(x: Tensor, parts: list[Any]) -> dict[str, Any]:
    """Return a result of several kinds, one of which is an argument that it writes to."""
    x.add_(parts[0])
    return {"given": x, "made": [parts[0] * 2, 3, None], "shape": x.shape}


def test_trees_of_arguments_and_results_match_eager() -> None:
    inner = sines(in_place)

    def program(x: Tensor) -> tuple[Any, ...]:
        y = x * 1
        found = inner(y, [x, 1])
        return y, found["given"] is y, found, y + 1

    compiled = thunder.jit(program)
    for x in (X, X * 3):
        torch.testing.assert_close(compiled(x.clone()), program(x.clone()), rtol=0, atol=0)
    assert thunder.cache_misses(compiled) == 1


def test_unexpected_result_structure_undoes_its_writes() -> None:
    count = torch.zeros(())

    def counted(x: Tensor) -> Any:
        count.add_(1)
        return x if x.sum() > 0 else (x, x)

    inner = sines(counted)
    outer = thunder.jit(lambda x: inner(x + 0))
    for number, x in enumerate((X, -X, X), start=1):
        outer(x)
        assert count == number


def test_reserved_keyword_argument_is_refused() -> None:
    inner = sines(lambda x, beside: x * beside)
    with pytest.raises(CannotReplay, match="keyword argument `beside`"):
        thunder.jit(lambda x: inner(x, beside=2))(X)


def test_number_from_a_tensor_is_returned() -> None:
    inner = sines(lambda x: x.sum().item())
    outer = thunder.jit(lambda x: x * inner(x))
    for factor in (1, 2, 3):
        assert torch.equal(outer(X * factor), X * factor * 3.0 * factor)
    assert thunder.cache_misses(outer) == 1


def test_result_structure_may_depend_on_values() -> None:
    inner = sines(lambda x: x if x.sum() > 0 else (-x, x))
    outer = thunder.jit(lambda x: [torch.tensor(0.0), inner(x * 2)])
    for x in (X, -X, X):
        found = outer(x)[1]
        assert torch.equal(found[0], x * -2) if isinstance(found, tuple) else torch.equal(found, x * 2)
    assert thunder.cache_misses(outer) == thunder.cache_misses(inner) == 2


def test_branch_on_the_result_of_an_inner_function_matches_eager() -> None:
    inner = sines(sine)
    outer = thunder.jit(lambda x: x if inner(x).sum() > 0 else -x)
    assert torch.equal(outer(X), X)
    assert torch.equal(outer(-X), X)


def test_branch_after_an_effect_of_an_inner_function_is_left_to_eager() -> None:
    before = list(LOG)
    with pytest.warns(RecompileWarning, match="whose effects cannot be undone, is called before"):
        thunder.jit(branches_behind_an_effect)(X)
    assert len(LOG) > len(before)
    LOG[:] = before


def test_branch_after_writes_of_an_inner_function_is_left_to_eager() -> None:
    norm = nn.BatchNorm1d(2)
    inner = sines(norm)
    outer = thunder.jit(lambda x: x if inner(x).sum() > 0 else -x)
    with pytest.warns(RecompileWarning, match="which runs before it"):
        outer(torch.ones(4, 2))
    assert norm.num_batches_tracked == 1


def test_outside_read_of_an_inner_function_is_refused_by_functional_jit() -> None:
    inner, plain = sines(lambda x: x * W), sines(lambda x: torch.relu(x))
    assert torch.equal(functional.jit(lambda x: plain(x))(X), X)
    with pytest.raises(SharpEdgeError, match=r"reads \S+\.W from outside"):
        functional.jit(lambda x: inner(x))(X)


def test_reads_of_an_inner_function_are_guarded() -> None:
    state = {"pair": False}
    inner = sines(lambda x: (x, x * 2) if state["pair"] else x)
    outer = thunder.jit(lambda x: inner(x + 0))
    assert torch.equal(outer(X), X)
    state["pair"] = True
    assert len(outer(X)) == 2
    assert thunder.recompile_reasons(outer)[0].endswith("was False, is True")


MEMBERS = {1}
HOLDER = nn.Module()


def asks_for_members(x: Tensor) -> Tensor:
    return x * 2 if 1 in MEMBERS and 2 in MEMBERS else x


def asks_for_attributes(x: Tensor) -> Tensor:
    return x * 2 if hasattr(HOLDER, "first") or hasattr(HOLDER, "second") else x


def hold_member() -> None:
    MEMBERS.add(2)


def hold_attribute() -> None:
    HOLDER.second = 1  # type: ignore[assignment]


@pytest.mark.parametrize(("asks", "change"), [(asks_for_members, hold_member), (asks_for_attributes, hold_attribute)])
def test_every_read_of_one_object_is_guarded(asks: Callable[..., Tensor], change: Callable[[], None]) -> None:
    inner = sines(asks)
    compiled = thunder.jit(lambda x: inner(x) + 1)
    x = torch.ones(2)
    assert torch.equal(compiled(x), x + 1)
    change()
    assert torch.equal(compiled(x), asks(x) + 1) and torch.equal(asks(x), x * 2)


CONTAINERS: dict[str, tuple[Callable[..., Tensor], Any, Any]] = {
    "a key of a dict": (lambda x, given: x * 2 if "b" in given else x, {"a": 1}, {"a": 1, "b": 2}),
    "a dict that is empty": (lambda x, given: x * 2 if given else x, {}, {"a": 1}),
    "the length of a list": (lambda x, given: x * len(given), [1], [1, 2]),
    "the length of a list in a dict": (lambda x, given: x * len(given["a"]), {"a": [1]}, {"a": [1, 2]}),
    "the length of a list in a tuple": (lambda x, given: x * len(given[0]), ([1],), ([1, 1],)),
    "an item of a list in a list": (lambda x, given: x * given[0][0], [[1]], [[2]]),
}


@pytest.mark.parametrize("name", CONTAINERS)
def test_container_arguments_of_an_inner_function_are_guarded(name: str) -> None:
    asks, first, second = CONTAINERS[name]
    inner = sines(asks)
    compiled = thunder.jit(lambda x, given: inner(x, given) + 1)
    for given in (first, second, first):
        assert torch.equal(compiled(X, given), asks(X, given) + 1)
    assert not torch.equal(asks(X, first), asks(X, second))


def test_writes_of_an_inner_function_happen_once_per_call() -> None:
    log: list[int] = []

    def logged(x: Tensor) -> Tensor:
        log.append(x.shape[0])
        return torch.sin(x)

    inner = sines(logged)
    outer = thunder.jit(lambda x: inner(x) + 1)
    for count in (1, 2, 3):
        outer(X)
        assert log == [2] * count


def test_call_with_an_unused_result_is_made(capsys: pytest.CaptureFixture[str]) -> None:
    inner = sines(lambda x: print("called", x.sum()))

    def program(x: Tensor) -> Tensor:
        inner(x)
        return x + 1

    compiled = thunder.jit(program)
    compiled(X)
    compiled(X)
    assert capsys.readouterr().out == "called tensor(3.)\n" * 2


def test_buffers_parameters_and_gradients_of_an_inner_module_match_eager() -> None:
    torch.manual_seed(0)
    body = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    head = nn.Linear(2, 2)
    inner = sines(body)
    outer = thunder.jit(nn.Sequential(head, inner, nn.Tanh()))
    twin = copy.deepcopy(nn.Sequential(head, body, nn.Tanh()))
    x = torch.randn(4, 2)
    for _ in range(2):
        found, wanted = outer(x), twin(x)
        torch.testing.assert_close(found, wanted)
        found.pow(2).sum().backward()
        wanted.pow(2).sum().backward()
        assert "has its own backward" in thunder.last_backward_reason(outer)
    for ours, theirs in zip((*head.parameters(), *body.parameters()), twin.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)
    torch.testing.assert_close(body[1].running_mean, twin[1][1].running_mean)


def test_random_numbers_keep_their_order() -> None:
    inner = sines(lambda x: torch.nn.functional.dropout(x, 0.5))

    def program(x: Tensor) -> tuple[Tensor, ...]:
        return inner(x), torch.rand(3), inner(x)

    compiled, found = thunder.jit(program), []
    for function in (program, compiled, compiled):
        torch.manual_seed(0)
        found.append(function(torch.ones(16)))
    for result in found[1:]:
        torch.testing.assert_close(result, found[0], rtol=0, atol=0)


def test_writes_before_and_after_keep_their_order() -> None:
    weight = torch.ones(2)
    inner = sines(lambda x: x * weight)

    def program(x: Tensor) -> Tensor:
        weight.mul_(3)
        y = inner(x)
        weight.mul_(5)
        return y + inner(x)

    compiled = thunder.jit(program)
    for times in (15, 225):
        assert torch.equal(compiled(X), X * (times / 5 + times))
        assert torch.equal(weight, torch.full((2,), float(times)))


def test_error_of_an_inner_function_can_be_caught() -> None:
    table = {"key": 1}
    inner = sines(lambda x: x * table["key"])

    def careful(x: Tensor) -> Tensor:
        try:
            return inner(x)
        except KeyError:
            return -x

    compiled = thunder.jit(careful)
    assert torch.equal(compiled(X), X)
    del table["key"]
    assert torch.equal(compiled(X), -X)
    table["key"] = 2
    assert torch.equal(compiled(X), X * 2)


# ---- calls that cannot be kept as a line ----------------------------------------------------------------------------

LOG: list[int] = []
BOX = {"factor": 1.0}


def appended(x: Tensor) -> Tensor:
    LOG.append(1)
    return torch.sin(x)


APPENDED = sines(appended)
BOXED = sines(lambda x: x * BOX["factor"])
VALUED = sines(lambda x: x if x.sum() > 0 else -x)
WEIGHTED = sines(lambda x: x * W)
PRINTED = sines(lambda x: print("inner"))


def writes_before(x: Tensor) -> Tensor:
    LOG.append(0)
    return APPENDED(x)  # here


def reads_behind(x: Tensor) -> Tensor:
    y = APPENDED(x)  # here
    return y + len(LOG)


def writes_what_it_reads(x: Tensor) -> Tensor:
    BOX["factor"] = 2.0
    return BOXED(x)  # here


def prints_before(x: Tensor) -> Tensor:
    print("outer")
    PRINTED(x)  # here
    return x


def compiles_inside(x: Tensor) -> Tensor:
    inner = sines(lambda y: y * x)
    return inner(x)  # here


def differentiates_itself(x: Tensor) -> None:
    loss = WEIGHTED(x).sum()
    loss.backward()  # here


def gives_what_it_makes(x: Tensor) -> Tensor:
    return sines_of_a_scaled(Scaled(), x)  # here


def branches_behind_an_effect(x: Tensor) -> Tensor:
    y = APPENDED(x)
    return y if x.sum() > 0 else x  # here


sines_of_a_scaled = sines(lambda one, x: x * one.factor)


@pytest.mark.parametrize(
    "program",
    [
        writes_before,
        reads_behind,
        writes_what_it_reads,
        prints_before,
        compiles_inside,
        differentiates_itself,
        gives_what_it_makes,
    ],
)
def test_call_that_cannot_be_a_line_is_refused_with_its_location(program: Callable[..., Any]) -> None:
    before = (list(LOG), dict(BOX))
    with pytest.raises((CannotReplay, NotDifferentiable, DataDependent)) as caught:
        thunder.jit(program)(X)
    line = Path(__file__).read_text(encoding="utf-8").splitlines()[caught.value.where.lineno - 1]
    assert line.endswith("# here")
    assert before == (LOG, BOX)


def test_a_refusal_cannot_be_swallowed() -> None:
    def careful(x: Tensor) -> Tensor:
        try:
            return reads_behind(x)
        except Exception:
            return x

    with pytest.raises(CannotReplay):
        thunder.jit(careful)(X)


# ---- derivatives ---------------------------------------------------------------------------------------------------


def test_derivative_of_a_compiled_function_keeps_its_options() -> None:
    linear = nn.Linear(2, 2)
    inner = thunder.jit(lambda x: linear(x).float().sum(), transforms=[Autocast()], memory_budget=0.5)
    derivative = thunder.grad(inner)
    derivative(X)
    settings = derivative._thunder.compiler
    assert settings == inner._thunder.compiler
    assert thunder.last_traces(derivative)
    outer = thunder.jit(lambda x: derivative(x) + thunder.grad(inner)(x))
    torch.testing.assert_close(outer(X), derivative(X) * 2)
    assert len(calls(outer)) == 2


def test_the_derivative_of_a_plain_function_is_part_of_the_program() -> None:
    outer = sines(lambda x: thunder.grad(lambda y: (y**3).sum())(x))
    torch.testing.assert_close(outer(X), 3 * X**2)
    assert calls(outer) == []


def test_a_derivative_through_a_call_is_refused_with_the_line() -> None:
    outer = thunder.jit(lambda x: thunder.grad(lambda y: WEIGHTED(y).sum())(x))
    with pytest.raises(NotDifferentiable, match="has its own backward") as caught:
        outer(X)
    assert caught.value.where is not None


def test_wrapper_of_a_compiled_function_is_another_function() -> None:
    """`functools.wraps` copies the attributes of the compiled function to the wrapper, as `torch.vmap` does."""
    compiled = thunder.jit(lambda x: x.sum())

    @functools.wraps(compiled)
    def wrapper(x: torch.Tensor) -> torch.Tensor:
        return compiled(x) * 2

    x = torch.ones(2, 3)
    assert thunder.jit(lambda x: wrapper(x) + 1)(x) == 13
    assert torch.equal(thunder.jit(lambda x: torch.vmap(compiled)(x))(x), x.sum(1))
    assert torch.equal(thunder.grad(wrapper)(x), x * 2)
    doubled = torch.compile(lambda x: x * 2, backend="eager")
    wrapped = functools.wraps(doubled)(lambda x: doubled(x) + 1)
    assert torch.equal(thunder.jit(lambda x: wrapped(x))(x), x * 3)
