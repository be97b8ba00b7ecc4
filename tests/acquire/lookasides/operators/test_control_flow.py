"""`torch.cond`, `while_loop`, `scan` and `map` in compiled programs, compared with eager PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._higher_order_ops import scan, while_loop
from torch._higher_order_ops.map import map as map_slices

import thunder_core as thunder
from thunder_core.foundation.errors import DataDependent, NotDifferentiable, OperationFailed, RecompileWarning
from thunder_core.passes.recipe import Transform
from thunder_core.passes.transforms.autocast import Autocast
from thunder_core.tracing.ir.trace import Trace

# Eager PyTorch compiles the functions that are passed to these operators.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning", "ignore::FutureWarning")

X = torch.tensor([1.0, 2.0, 3.0])
W = torch.tensor([2.0, 3.0, 4.0], requires_grad=True)
LINEAR = nn.Linear(3, 3)
SCALE = [2.0]
ZERO = torch.zeros((), dtype=torch.int64)


def closures(x: Tensor) -> Tensor:
    result: Tensor = torch.cond(x.sum() > 0, lambda x: x * W * SCALE[0], lambda x: LINEAR(x), (x,))
    return result


def of_what_was_made(x: Tensor) -> Tensor:
    y = x * 3
    result: Tensor = torch.cond(y.sum() > 0, lambda x: x * y, lambda x: x - y, (x,))
    return result


def nested(x: Tensor) -> Tensor:
    inner = lambda x: torch.cond(x[0] > 1, lambda x: x * 2, lambda x: x * 3, (x,)) + W  # noqa: E731
    result: Tensor = torch.cond(x.sum() > 0, inner, lambda x: x - 1, (x,))
    return result


def trees(x: Tensor) -> Tensor:
    result = torch.cond(
        x.sum() > 0,
        lambda tree: {"a": tree["x"] * 2, "b": (tree["x"].sum(), 3)},
        lambda tree: {"a": tree["x"] - 2, "b": (tree["x"].prod(), 3)},
        ({"x": x},),
    )
    return result["a"] + result["b"][0] * result["b"][1]


def looped(x: Tensor) -> tuple[Tensor, ...]:
    limit = x.abs().sum() * 4
    result: tuple[Tensor, ...] = while_loop(
        lambda turn, x: (turn < 9) & (x.abs().sum() < limit), lambda turn, x: (turn + 1, x * W.detach()), (ZERO * 1, x)
    )
    return result


def never(x: Tensor) -> Tensor:
    result: tuple[Tensor, ...] = while_loop(lambda turn, x: turn < 0, lambda turn, x: (turn + 1, x * 2), (ZERO * 1, x))
    return result[1]


def scanned(x: Tensor) -> tuple[Tensor, Tensor]:
    rows = torch.stack([x, x * 2], 1)
    result: tuple[Tensor, Tensor] = scan(lambda c, y: (c * 0.5 + y, (c * y * W).sin()), x, rows, dim=1, reverse=True)
    return result


def mapped(x: Tensor) -> Tensor:
    body = lambda row, y: torch.cond(row.sum() > 7, lambda row: row * y, lambda row: row * W, (row,))  # noqa: E731
    result: Tensor = map_slices(body, torch.stack([x, x * 2]), x)
    return result


def written_later(x: Tensor) -> Tensor:
    result: Tensor = torch.cond(x.sum() > 0, lambda x: (x * W).exp(), lambda x: x + W, (x,))
    return result.mul_(2) * x


PROGRAMS: list[Callable[[Tensor], Any]] = [
    closures,
    of_what_was_made,
    nested,
    trees,
    looped,
    never,
    scanned,
    mapped,
    written_later,
]
TRAINED = [written_later, closures, of_what_was_made, nested, scanned, mapped]


def flat(results: Any) -> list[Tensor]:
    return [results] if isinstance(results, Tensor) else list(results)


@pytest.mark.parametrize("cache", ["constant values", "symbolic values"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda function: function.__name__)
def test_one_program_serves_all_values(program: Callable[[Tensor], Any], cache: Any) -> None:
    compiled = thunder.jit(program, cache=cache)
    for x in (X, -X, X / 8):
        torch.testing.assert_close(flat(compiled(x)), flat(program(x)))
    assert thunder.cache_misses(compiled) == 1


@pytest.mark.parametrize("program", TRAINED, ids=lambda function: function.__name__)
def test_gradients_match_eager(program: Callable[[Tensor], Any]) -> None:
    compiled = thunder.jit(program)
    leaves = [W, *LINEAR.parameters()]
    for values in (X, -X):
        gradients = []
        for run in (compiled, program):
            x = values.clone().requires_grad_()
            total = torch.stack([result.sum() for result in flat(run(x))]).sum()
            gradients.append(torch.autograd.grad(total, [x, *leaves], allow_unused=True))
        torch.testing.assert_close(*([g for g in row if g is not None] for row in gradients))
        assert [g is None for g in gradients[0]] == [g is None for g in gradients[1]]
    assert thunder.last_backward_reason(compiled) == ""


def test_a_parameter_may_have_the_name_of_a_branch_of_the_trace() -> None:
    def program(x: Tensor, true_branch_5: Tensor) -> Tensor:
        result: Tensor = torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,))
        return result + true_branch_5

    compiled = thunder.jit(program)
    assert torch.equal(compiled(X, X * 2), program(X, X * 2))
    text = str(thunder.last_traces(compiled)[-1])
    assert "def true_branch_5(" in text and "true_branch_5_2," in text


def test_a_trace_holds_the_functions_and_runs_them() -> None:
    compiled = thunder.jit(closures)
    compiled(X)
    trace = thunder.last_traces(compiled)[-1]
    call = next(bsym for bsym in trace.bound_symbols if bsym.symbol.short_name == "cond")
    assert [proxy.name for proxy in call.args[3]] == [proxy.name for proxy in call.args[1].inputs]
    assert f"    def {call.args[1].name}(" in str(trace)
    assert {bsym.executor for body in call.args[1:3] for bsym in body.bound_symbols} == {"torch"}
    operands = (X, W, LINEAR.weight, LINEAR.bias)
    named = dict(zip(("x", "W", "LINEAR_weight", "LINEAR_bias"), operands, strict=True))
    torch.testing.assert_close(call.args[1](*(named[proxy.name] for proxy in call.args[3])), (X * W * 2,))


def test_branch_on_a_size_is_decided_by_a_constraint() -> None:
    def program(x: Tensor) -> Tensor:
        result: Tensor = torch.cond(x.shape[0] > 4, lambda x: x * 2, lambda x: x - 1, (x,))
        return result

    compiled = thunder.jit(program, cache="symbolic values")
    for length in (3, 4, 5, 9):
        torch.testing.assert_close(compiled(torch.ones(length)), program(torch.ones(length)))
    assert thunder.cache_misses(compiled) == 2


def test_branches_with_different_shapes_or_numbers_are_chosen_by_the_value() -> None:
    shapes = lambda x: torch.cond(x.sum() > 0, lambda x: x[:2] + 1, lambda x: x + 1, (x,))  # noqa: E731
    numbers = lambda x: torch.cond(x.sum() > 0, lambda x: 1, lambda x: 2, (x,)) * x  # noqa: E731
    for program, expected in ((shapes, (X[:2] + 1, 1 - X)), (numbers, (X, -2 * X))):
        compiled = thunder.jit(program)
        torch.testing.assert_close((compiled(X), compiled(-X)), expected)
        assert thunder.cache_misses(compiled) == 2


def test_branches_with_different_number_types_are_chosen_by_the_value() -> None:
    program = lambda x: torch.cond(x.sum() > 0, lambda x: 1, lambda x: True, (x,))  # noqa: E731
    compiled = thunder.jit(program)
    assert (compiled(X), compiled(-X)) == (1, True)
    assert (type(compiled(X)), type(compiled(-X))) == (int, bool)


def test_stacks_of_rows_in_another_layout_are_contiguous() -> None:
    def program(x: Tensor) -> Any:
        return scan(lambda c, y: (c + y, (c * y).contiguous(memory_format=torch.channels_last)), x[0] * 0, x)

    def viewed(x: Tensor) -> Tensor:
        rows: Tensor = program(x)[1]
        return rows.view(-1) * 2

    x = torch.arange(360.0).view(3, 2, 3, 4, 5)
    compiled = thunder.jit(program)
    assert [result.stride() for result in compiled(x)] == [result.stride() for result in program(x)]
    torch.testing.assert_close(thunder.jit(viewed)(x), program(x)[1].reshape(-1) * 2)


def test_numbers_are_carried_by_a_loop_in_python() -> None:
    program = lambda x: while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, x * 2), (0, x))[1]  # noqa: E731
    torch.testing.assert_close(thunder.jit(program)(X), X * 8)


def test_carries_and_results_have_structures() -> None:
    def program(x: Tensor) -> Any:
        def combine(carry: dict[str, Any], row: Tensor) -> Any:
            total, (count,) = carry["total"], carry["counts"]
            return {"total": total + row, "counts": (count + 1,)}, (total * row, [count * 1])

        return scan(combine, {"total": x * 0, "counts": (ZERO * 1,)}, torch.stack([x, x * 2]))

    torch.testing.assert_close(thunder.jit(program)(X), program(X))


def test_sizes_are_symbols_within_the_functions() -> None:
    compiled = thunder.jit(scanned_rows, cache="symbolic values")
    for length in (2, 3, 7):
        rows = torch.arange(2.0 * length).reshape(length, 2)
        torch.testing.assert_close(compiled(rows), scanned_rows(rows))
    assert thunder.cache_misses(compiled) == 1


def scanned_rows(rows: Tensor) -> tuple[Tensor, Tensor]:
    result: tuple[Tensor, Tensor] = scan(lambda c, y: (c + y, c * rows.shape[0]), torch.zeros(2), rows)
    return result


def test_transforms_reach_into_the_functions() -> None:
    program = lambda x: torch.cond(x.sum() > 0, lambda x: (x * 2, x.exp())[0], torch.cos, (x,))  # noqa: E731
    compiled = thunder.jit(program)
    compiled(X)
    before, after = (
        next(bsym for bsym in trace.bound_symbols if bsym.symbol.short_name == "cond").args[1]
        for trace in (thunder.last_traces(compiled)[0], thunder.last_traces(compiled)[-1])
    )
    assert [bsym.symbol.short_name for bsym in before.bound_symbols] == ["mul", "exp"]
    assert [bsym.symbol.short_name for bsym in after.bound_symbols] == ["mul"]  # dead code is dropped


@dataclass(frozen=True)
class Lengthen(Transform):
    """A transform that returns another number of results, which no branch or loop allows for its functions."""

    def __call__(self, trace: Trace) -> Trace:
        first = trace.output[0]
        return trace.having(trace.bound_symbols, made_by="lengthen", output=(*trace.output, first))


def test_transform_that_changes_the_results_of_a_function_is_refused() -> None:
    program = lambda x: torch.cond(x.sum() > 0, lambda x: x @ x, lambda x: x.T @ x, (x,))  # noqa: E731
    with pytest.raises(
        OperationFailed,
        match="lengthen changes the dtypes or shapes of the results of a function that is passed to `cond`",
    ):
        thunder.jit(program, transforms=[Lengthen()])(torch.eye(3))


SQUARE = torch.linspace(-1.0, 1.5, 9).view(3, 3)
CAST: dict[str, Callable[[Tensor], Any]] = {
    "elementwise": lambda x: torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,)) @ x,
    "products": lambda x: torch.cond(x.sum() > 0, lambda x: (x @ W.diag()).sin(), lambda x: x.cos() @ x, (x,)),
    "one product": lambda x: torch.cond(x.sum() > 0, lambda x: x @ x, lambda x: x.cos(), (x,)),
    "cast operand": lambda x: torch.cond(x.sum() > 0, lambda y: y * 2, torch.cos, (x @ x,)),
    "nested": lambda x: map_slices(lambda y: torch.cond(y.sum() > 0, lambda y: y @ x, lambda y: y * 1, (y,)), x * 2),
    "scan": lambda x: scan(lambda c, y: (c @ W.diag() + y, c * y), x[0] * 0, x)[1],
    "loop": lambda x: while_loop(lambda i, c: i < 3, lambda i, c: (i + 1, c @ x), (ZERO * 1, x * 1))[1],
}


@pytest.mark.parametrize("name", CAST)
def test_autocast_reaches_into_the_functions(name: str) -> None:
    """Products are computed in bfloat16, and the inputs and outputs of the function keep their dtypes."""
    program = CAST[name]
    compiled = thunder.jit(program, transforms=[Autocast(torch.bfloat16)])
    for x in (SQUARE, -SQUARE, SQUARE + 1):
        result, expected = compiled(x), program(x)
        torch.testing.assert_close(result.float(), expected, rtol=0.03, atol=0.05)
    assert thunder.cache_misses(compiled) == 1
    assert "bfloat16" in str(thunder.last_traces(compiled)[-1])


def test_gradients_go_through_functions_that_are_cast() -> None:
    compiled = thunder.jit(CAST["products"], transforms=[Autocast(torch.bfloat16)])
    gradients = []
    for run in (compiled, CAST["products"]):
        x = (SQUARE + 1).requires_grad_()
        gradients.append(torch.autograd.grad(run(x).sum(), (x, W)))
    torch.testing.assert_close(*gradients, rtol=0.03, atol=0.05)
    assert thunder.last_backward_reason(compiled) == ""


def test_random_numbers_match_eager() -> None:
    def program(x: Tensor) -> Tensor:
        before = torch.rand(3)
        drawn: Tensor = torch.cond(x.sum() > 0, lambda x: x + torch.rand(3), lambda x: x * 2, (x,))
        return before + drawn + torch.rand(3)

    compiled = thunder.jit(program)
    for x in (X, -X):
        results = []
        for run in (compiled, program):
            torch.manual_seed(3)
            results.append(run(x))
        torch.testing.assert_close(*results)


def test_an_artifact_holds_the_functions(tmp_path: Path) -> None:
    compiled = thunder.jit(closures)
    compiled(X)
    loaded = thunder.load(thunder.save(compiled, tmp_path / "kept"), closures, strict=True)
    for x in (X, -X):
        torch.testing.assert_close(loaded(x), closures(x))


def counts_with_a_variable(x: Tensor) -> Tensor:
    count = 0

    def counted(x: Tensor) -> Tensor:
        nonlocal count
        count += 1
        return x + 1

    result: Tensor = torch.cond(x.sum() > 0, counted, torch.sin, (x,))
    return result * count


def fills_a_list(x: Tensor) -> Tensor:
    rows: list[int] = []
    total: Tensor = map_slices(lambda row: (rows.append(1), row * 2)[1], x[:, None])
    return total * len(rows)


def sets_an_item_again(x: Tensor) -> Tensor:
    COUNTS["rows"] = 0

    def counted(row: Tensor) -> Tensor:
        COUNTS["rows"] += 1
        return row * 2

    total: Tensor = map_slices(counted, x[:, None])
    return total * COUNTS["rows"]


COUNTS: dict[str, int] = {}
LOG: list[int] = []
REFUSED: dict[str, tuple[Callable[[Tensor], Any], str]] = {
    "identity": (lambda x: torch.cond(x.sum() > 0, lambda x: x, torch.sin, (x,)), "returns a tensor from outside"),
    "view": (lambda x: torch.cond(x.sum() > 0, lambda x: x[:], torch.sin, (x,)), "returns tensors that share memory"),
    "write": (lambda x: torch.cond(x.sum() > 0, lambda x: x.add_(1) * 2, torch.sin, (x,)), "writes to a tensor"),
    "write to a view": (
        lambda x: torch.cond(x.sum() > 0, lambda x: x.view(-1).add_(1) * 2, lambda x: x.view(-1) + 1, (x,)),
        "writes to a tensor",
    ),
    "effect": (lambda x: torch.cond(x.sum() > 0, lambda x: (LOG.append(1), x + 1)[1], torch.sin, (x,)), "changes an"),
    "own variable": (counts_with_a_variable, "changes an object"),
    "own list": (fills_a_list, "changes an object"),
    "item again": (sets_an_item_again, "changes an object"),
    "value": (
        lambda x: map_slices(lambda row: row * 2 if row.sum() > 1 else row * 3, x[:, None]),
        "reads the value",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_forbidden_effect_of_a_function_is_refused_at_its_line(name: str) -> None:
    program, message = REFUSED[name]
    with pytest.raises((OperationFailed, DataDependent), match=message) as caught:
        thunder.jit(program, data_dependent="error")(X.clone())
    assert caught.value.where is not None
    assert caught.value.where.filename == __file__
    assert LOG == []


ERRORS: dict[str, tuple[Callable[[Tensor], Any], str]] = {
    "structure": (lambda x: torch.cond(x.sum() > 0, lambda x: (x + 1,), torch.sin, (x,)), "Unmatched output spec"),
    "dtype": (lambda x: torch.cond(x.sum() > 0, lambda x: x.double(), torch.sin, (x,)), "expected same dtype"),
    "predicate": (lambda x: torch.cond(x > 0, torch.sin, torch.cos, (x,)), "single-element tensor"),
    "no function": (lambda x: torch.cond(x.sum() > 0, torch.sin, x, (x,)), "both branches to be callable"),
    "carried": (lambda x: while_loop(lambda x: x.sum() < 3, lambda x: (x.double(),), (x,)), "to have same metadata"),
    "carry of two": (lambda x: scan(lambda c, y: ((c + y, c * 1), y * 1), x[:1], x[:, None]), "same number of outputs"),
    "no carry": (lambda x: scan(lambda c, y: (c + y, c * 1, y * 1), x[:1], x[:, None]), r"return a tuple \(next_carry"),
    "carry": (lambda x: scan(lambda c, y: (torch.cat([c, c]), y * 1), x[:1], x[:, None]), "to have same metadata"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_other_mistakes_raise_pytorchs_messages(name: str) -> None:
    program, message = ERRORS[name]
    with pytest.raises(Exception, match=message):
        thunder.jit(program, data_dependent="error")(X)


def test_eager_makes_a_call_with_a_derivative_through_a_branch() -> None:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.autograd.grad(closures(x).sum(), x)

    x, message = X.clone().requires_grad_(), r"a branch or loop \(torch.cond"
    with pytest.raises(NotDifferentiable, match=message):
        thunder.jit(program, data_dependent="error")(x)
    compiled = thunder.jit(program)
    with pytest.warns(RecompileWarning, match=message):
        assert torch.equal(compiled(x)[0], program(x)[0])
    assert torch.equal(compiled(x)[0], program(x)[0])


REQUIRING: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "cond": lambda x, c: torch.cond(c.sum() > 0, lambda c: (c * 2, x * 1), lambda c: (c * 3, x * 2), (c,)),
    "while_loop": lambda x, c: torch.while_loop(
        lambda n, a, b: n.sum() < 2, lambda n, a, b: (n + 1, a * 2, b + 1), (torch.zeros(()), x * 1, c)
    ),
    "scan": lambda x, c: scan(lambda a, b: (a + b, b * 1), x * 1, c[None].expand(4, 3).contiguous()),
    "constants": lambda x, c: torch.cond(c.sum() > 0, lambda c: (c * 2,), lambda c: (c * 3,), (c,)),
}


@pytest.mark.parametrize("name", REQUIRING)
def test_requires_grad_of_results_matches_eager(name: str) -> None:
    """If one input requires a gradient, all results do, as in eager PyTorch, not only the dependent results."""

    def program(x: torch.Tensor, c: torch.Tensor) -> list[bool]:
        return [item.requires_grad for item in REQUIRING[name](x, c)]

    x, c = torch.ones(3, requires_grad=True), torch.ones(3)
    expected = program(x, c)
    assert thunder.jit(program)(x, c) == expected
    assert set(expected) == {name != "constants"}
    with torch.no_grad():
        assert thunder.jit(program)(x, c) == [False] * len(expected)
