"""Programs that read the values of tensors are traced for these values, and match eager for all values."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from cProfile import Profile
from dataclasses import replace
from pstats import Stats
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

import thunder_core as thunder
from thunder_core.backend.claiming.executor import OperatorExecutor
from thunder_core.foundation.errors import BadOption, DataDependent, NotDifferentiable, RecompileWarning, SharpEdgeError
from thunder_core.frontend.acquire import assembly
from thunder_core.frontend.acquire.codegen.ahead import move_checks_ahead
from thunder_core.tracing.extension.transform import Transform
from thunder_core.tracing.ir.trace import Trace

X = torch.tensor([1.0, -2.0, 3.0])
CALLS = (X, -X, X, X + 1, -X)


def after_a_write(x: Tensor) -> Tensor:
    y = x * 2
    y.add_(1)
    return y if y.sum() > 8 else x


def after_a_seed(x: Tensor) -> Tensor:
    before = torch.get_rng_state()
    torch.manual_seed(7)
    drawn = torch.rand(8)
    torch.set_rng_state(before)
    return drawn[drawn > torch.rand(())].sum() * x


def counted(x: Tensor) -> Tensor:
    total = x
    while total.sum() < 10:
        total = total + 1
    return total


def after_places(x: Tensor) -> Tensor:
    (places,) = torch.where(x > 0)
    total = x[places].sum()
    return total if total > 2 else x


def after_rows_and_columns(x: Tensor) -> Tensor:
    rows, columns = torch.where(x[None] * x[:, None] > 0)
    return x if rows.sum() > 4 else x[columns]


def after_counts(x: Tensor) -> Tensor:
    counts = torch.unique(x > 0, return_counts=True)[1]
    return x if counts[0] > 1 else -x


def after_new_leaf(x: Tensor) -> Tensor:
    y = x.detach() * 2
    y.requires_grad = True
    y.data = y.data
    return y * 3 if y.sum() > 0 else y


PROGRAMS: dict[str, Callable[[Tensor], Any]] = {
    "a branch": lambda x: x if x.sum() > 0 else -x,
    "a loop": counted,
    "a number": lambda x: x * x.sum().item(),
    "a list": lambda x: x * max(x.tolist()),
    "a comparison": lambda x: x if torch.equal(x, x.abs()) else x.abs(),
    "a size": lambda x: x.nonzero(),
    "a mask": lambda x: x[x > 0].sum() * 2,
    "a mask of random numbers": lambda x: torch.rand(8)[torch.rand(8) > 0.5].sum() * x,
    "several results": lambda x: torch.unique(x > 0, return_counts=True),
    "a start": lambda x: x.narrow(0, (x[0] > 0).long(), 2),
    "sections": lambda x: torch.tensor_split(x, (x > 0).long().sum()),
    "after a write": after_a_write,
    "after a seed": after_a_seed,
    "after a list of one": after_places,
    "after a list": after_rows_and_columns,
    "after several results": after_counts,
    "after a new leaf": after_new_leaf,
    "a value of its own": lambda x: torch.combinations(x, 2),
    "a class of results": lambda x: torch.linalg.lstsq(torch.eye(3) + x, x[:, None]),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_call_matches_eager(name: str) -> None:
    program = PROGRAMS[name]
    compiled = thunder.jit(program)
    for x in CALLS:
        torch.manual_seed(0)
        wanted, state = program(x), torch.get_rng_state()
        torch.manual_seed(0)
        found = compiled(x)
        assert type(found) is type(wanted)
        torch.testing.assert_close(found, wanted)
        assert torch.equal(torch.get_rng_state(), state)
    assert thunder.cache_hits(compiled) >= 2


@pytest.mark.parametrize("name", ["a branch", "a number", "a mask", "a start", "after a write", "a value of its own"])
def test_gradients_match_eager(name: str) -> None:
    program, compiled = PROGRAMS[name], thunder.jit(PROGRAMS[name])
    for x in CALLS:
        one, other = x.clone().requires_grad_(), x.clone().requires_grad_()
        (wanted,) = torch.autograd.grad(program(one).square().sum(), one)
        (found,) = torch.autograd.grad(compiled(other).square().sum(), other)
        torch.testing.assert_close(found, wanted)


def test_result_that_is_a_view_stays_a_view() -> None:
    def doubles(x: Tensor) -> Tensor:
        y = x.clone()
        y.narrow(0, (x[0] > 0).long(), 2).mul_(2)
        return y

    compiled = thunder.jit(doubles)
    assert all(torch.equal(compiled(x), doubles(x)) for x in CALLS)


def test_the_reason_names_the_values() -> None:
    compiled = thunder.jit(PROGRAMS["a branch"])
    compiled(X), compiled(-X), compiled(X)
    (reason,) = thunder.recompile_reasons(compiled)
    message = (
        r"a value that the program reads from a tensor \(.*data_dependent\.py:\d+, in <lambda>\): was True, is False"
    )
    assert re.fullmatch(message, reason)
    assert (thunder.cache_misses(compiled), thunder.cache_hits(compiled)) == (2, 1)


def test_effects_happen_once() -> None:
    seen: list[float] = []

    def program(x: Tensor) -> Tensor:
        seen.append(1.0)
        y = x * 2 if x.sum() > 0 else x
        x.add_(0.5)
        return y

    compiled = thunder.jit(program)
    x, same = X.clone(), X.clone()
    for sign in (1, -1, 1):
        x, same = x * sign, same * sign
        torch.testing.assert_close(compiled(x), program(same), rtol=0, atol=0)
        torch.testing.assert_close(x, same, rtol=0, atol=0)
    assert len(seen) == 6


@pytest.mark.parametrize("change", [lambda x: x.register_hook(lambda g: g * 2), lambda x: x.requires_grad_(False)])
def test_autograd_change_of_an_input_before_a_value_is_left_to_eager(change: Callable[[Tensor], Any]) -> None:
    """The change could not be undone if the value is another."""

    def program(x: Tensor) -> Tensor:
        change(x)
        return x * 2 if x.sum() > 0 else x

    with pytest.warns(RecompileWarning, match=r"which runs before it"):
        found = thunder.jit(program)(X.clone().requires_grad_())
    assert torch.equal(found, program(X.clone().requires_grad_()))


def test_writes_before_a_failed_value_check_are_undone() -> None:
    def program(x: Tensor, generator: torch.Generator) -> Tensor:
        x.add_(torch.rand(3, generator=generator)).mul_(-1)
        return x if x.sum() > 0 else -x + torch.rand(3)

    compiled = thunder.jit(program)
    x, same = X.clone(), X.clone()
    ours, eagers = torch.Generator(), torch.Generator()
    for _ in range(6):
        torch.manual_seed(0)
        wanted = program(same, eagers.manual_seed(1))
        torch.manual_seed(0)
        torch.testing.assert_close(compiled(x, ours.manual_seed(1)), wanted, rtol=0, atol=0)
        torch.testing.assert_close(x, same, rtol=0, atol=0)
    assert (thunder.cache_misses(compiled), thunder.cache_hits(compiled)) == (2, 4)


@pytest.mark.parametrize("shape", [lambda x: x.unsqueeze_(0), lambda x: x.resize_(5), lambda x: x.t_()])
def test_shape_change_before_a_failed_value_check_is_undone(shape: Callable[[Tensor], Any]) -> None:
    def program(x: Tensor) -> Tensor:
        x.mul_(2)
        shape(x)[3:] = 0
        return x + 1 if x.sum() > 0 else x.squeeze(0)

    compiled = thunder.jit(program)
    for sign in (1, -1, 1, -1):
        one, other = X * sign, X * sign
        torch.testing.assert_close(compiled(one), program(other), rtol=0, atol=0)
        torch.testing.assert_close(one, other, rtol=0, atol=0)
    assert thunder.cache_misses(compiled) == 2


def test_numbers_are_stored_where_the_program_stores_them() -> None:
    seen: list[float] = []

    def program(x: Tensor) -> tuple[Any, ...]:
        total, count = x.sum().item(), (x > 0).sum().item()
        seen.append(total)
        y = x.clone()
        y[0], y[1] = total, count
        y.fill_(total) if count > 1 else y.mul_(count)
        made = torch.tensor(total), torch.tensor([total, 1.0]), torch.full((2,), total), torch.tensor(count)
        return *made, torch.where(x > 0, total, x), y, torch.arange(3) * count, {"both": [total, (count,)]}

    compiled = thunder.jit(program)
    for x in MANY:
        torch.testing.assert_close(compiled(x), program(x), rtol=0, atol=0)
    assert seen[::2] == seen[1::2]
    assert thunder.cache_misses(compiled) <= 4


def test_values_under_autocast_match_eager() -> None:
    def program(x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = x[:, None] @ x[None, :]
            return x if (y.sum() - 1 / 256).item() == float(y.sum()) else y

    compiled = thunder.jit(program)
    for x in (*MANY, X * 1.01, X * 40):
        torch.testing.assert_close(compiled(x), program(x), rtol=0, atol=0)


def test_tensor_as_a_factor_of_a_write_is_read() -> None:
    def program(x: Tensor, y: Tensor) -> Tensor:
        return x.add_(y, alpha=y.sum())

    compiled = thunder.jit(program)
    for y in CALLS:
        one, other = X.clone(), X.clone()
        torch.testing.assert_close(compiled(one, y), program(other, y), rtol=0, atol=0)
        torch.testing.assert_close(one, other, rtol=0, atol=0)


def test_checks_after_a_write_cost_linear_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program reads a value in each turn of a loop: twice as many turns cost about twice as much."""
    calls = []

    def counted_calls(*given: Any) -> Any:
        profile = Profile()
        found = profile.runcall(move_checks_ahead, *given)
        calls.append(Stats(profile).total_calls)
        return found

    def looped(count: Tensor, turns: int) -> Tensor:
        count.add_(1)
        total = count
        for _ in range(turns):
            total = total + 1
            if total < 0:
                break
        return total

    monkeypatch.setattr(assembly, "move_checks_ahead", counted_calls)
    for turns in (20, 40, 80):
        assert thunder.jit(looped)(torch.zeros(()), turns) == turns + 1
    assert calls[2] - calls[1] < 2.5 * (calls[1] - calls[0])


def test_cheap_check_after_a_write_moves_ahead_of_the_write() -> None:
    def program(state: Tensor, count: Tensor, spare: Tensor) -> Tensor:
        state.mul_(2)
        count.add_(1)
        spare.add_(1)
        state.add_(1 if count.item() % 3 == 0 else 2)
        return state + count

    compiled = thunder.jit(program)
    ours, eagers = ([torch.zeros(100), torch.tensor(0), torch.zeros(100)] for _ in range(2))
    for _ in range(7):
        torch.testing.assert_close(compiled(*ours), program(*eagers), rtol=0, atol=0)
        torch.testing.assert_close(ours, eagers, rtol=0, atol=0)
    assert thunder.cache_misses(compiled) == 2
    lines = thunder.last_traces(compiled)[-1].bound_symbols
    names = [line.symbol.short_name for line in lines if line.symbol.short_name in ("expect_value", "mul_", "default")]
    assert names == ["default", "expect_value", "mul_"]
    assert thunder.last_program(compiled).written_before_last_check() == ()


def test_check_that_reads_written_memory_stays_after_the_write() -> None:
    def program(state: Tensor) -> Tensor:
        first = state[:1]
        state.mul_(-1)
        return state + 1 if first.item() > 0 else state.sub_(1)

    compiled = thunder.jit(program)
    ours, eagers = torch.ones(100), torch.ones(100)
    for _ in range(5):
        torch.testing.assert_close(compiled(ours), program(eagers), rtol=0, atol=0)
        torch.testing.assert_close(ours, eagers, rtol=0, atol=0)
    assert thunder.last_program(compiled).written_before_last_check() == (0,)


def test_program_that_reads_no_value_saves_nothing() -> None:
    compiled = thunder.jit(lambda x: x.add_(1) * x.sum().item())
    compiled(X.clone())
    assert thunder.last_program(compiled).written_before_last_check() is None


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("layout", ["csr", "csc", "bsr", "bsc", "coo"])
def test_sparse_tensors_are_arguments(layout: str) -> None:
    def program(sparse: Tensor, x: Tensor) -> tuple[Any, ...]:
        values = sparse._values() if sparse.layout is torch.sparse_coo else sparse.values()
        return values * 2, sparse._nnz() if layout in ("csr", "coo") else 0, sparse.to_dense() @ x

    sizes = {"bsr": (2, 2), "bsc": (2, 2)}
    compiled = thunder.jit(program)
    for dense in (torch.eye(4), torch.ones(4, 4), torch.ones(4, 4).tril(), torch.eye(4) * 2):
        sparse = getattr(dense, f"to_sparse_{layout}")(sizes[layout]) if layout in sizes else dense.to_sparse()
        sparse = getattr(dense, f"to_sparse_{layout}")() if layout in ("csr", "csc") else sparse
        torch.testing.assert_close(compiled(sparse, torch.ones(4, 4)), program(sparse, torch.ones(4, 4)))
    assert thunder.cache_hits(compiled) == 1


@pytest.mark.filterwarnings("ignore:Sparse")
def test_dense_tensor_is_not_accepted_for_a_sparse_tensor() -> None:
    def program(x: Tensor) -> Tensor:
        return torch.sparse.sampled_addmm(x, torch.ones(4, 2), torch.ones(2, 4)).to_dense() if x.is_sparse_csr else x

    compiled = thunder.jit(program)
    for x in (torch.eye(4).to_sparse_csr(), torch.eye(4), torch.eye(4).to_sparse_csr()):
        torch.testing.assert_close(compiled(x), program(x))
    assert (thunder.cache_misses(compiled), thunder.cache_hits(compiled)) == (2, 1)


@pytest.mark.parametrize("kind", ["BatchNorm1d", "BatchNorm2d", "BatchNorm3d"])
def test_an_average_over_all_batches_needs_no_second_trace(kind: str) -> None:
    shape = (4, 3) if kind == "BatchNorm1d" else (4, 3, *(2,) * int(kind[-2]))
    ours, eager = (getattr(torch.nn, kind)(3, momentum=None) for _ in range(2))
    compiled = thunder.jit(ours)
    for _ in range(10):
        x = torch.randn(shape)
        for module in (compiled, eager):
            module(x).square().sum().backward()
        torch.testing.assert_close(ours.state_dict(), eager.state_dict(), rtol=0, atol=0)
    torch.testing.assert_close(ours.weight.grad, eager.weight.grad, rtol=0, atol=0)
    assert thunder.cache_misses(compiled) == 1


def test_value_read_after_a_differentiable_write_is_left_to_eager() -> None:
    def program(x: Tensor) -> Tensor:
        y = x * 2
        return y.add_(x, alpha=x.detach().sum())

    with pytest.warns(RecompileWarning, match="writes to its arguments"):
        found = thunder.jit(program)(X.clone().requires_grad_())
    assert torch.equal(found, program(X.clone().requires_grad_()))


def branch(x: Tensor) -> Tensor:
    total = x.sum().item()
    return x / total if total > 1 else x


CONDITIONS: dict[str, Callable[[Tensor], Any]] = {
    "a float": branch,
    "an integer": lambda x: x * 2 if (x > 0).sum().item() > 1 else x,
    "an integer in arithmetic": lambda x: x / n if (n := (x > 0).sum().item()) % 2 == 1 else x * n,
    "arithmetic": lambda x: x * 2 if x.sum().item() * 2 - 1 > -x.max().item() else x,
    "a chain": lambda x: x * 2 if 0 < x.max().item() ** 2 <= 9.0 else x,
    "a conversion": lambda x: x + 1 if float(x.sum()) > 0 else x,
    "a rounded one": lambda x: x + 1 if int(x.sum()) % 2 else x,
    "a function": lambda x: x if math.isfinite(x.sum().item()) and math.floor(x.sum().item()) > 2 else x * 2,
    "truth": lambda x: x + 1 if x.long().sum().item() else x,
    "the smallest": lambda x: x * min(x.sum().item(), 3.0),
    "a difference": lambda x: x if abs(x.sum().item() - x.max().item()) < 1e-6 else x * 2,
    "classes": lambda x: (isinstance(x.sum().item(), float), type((x > 0).sum().item()) is int, x * x.sum().item()),
}
MANY = [X * factor for factor in (1.0, -1.0, 0.5, 2.0, 3.0, -0.25, 0.1, 7.0, 1.5, -2.5, 0.0)]


@pytest.mark.parametrize("name", CONDITIONS)
def test_a_condition_is_guarded_and_not_the_number(name: str) -> None:
    program, compiled = CONDITIONS[name], thunder.jit(CONDITIONS[name])
    for x in MANY:
        torch.testing.assert_close(compiled(x), program(x), rtol=0, atol=0)
    assert thunder.cache_misses(compiled) <= 4


def test_number_after_a_branch_is_an_input_of_later_lines() -> None:
    compiled = thunder.jit(branch)
    for x in MANY:
        one, other = x.clone().requires_grad_(), x.clone().requires_grad_()
        torch.testing.assert_close(compiled(one), branch(other), rtol=0, atol=0)
        (wanted,) = torch.autograd.grad(branch(other).square().sum(), other)
        (found,) = torch.autograd.grad(compiled(one).square().sum(), one)
        torch.testing.assert_close(found, wanted, rtol=0, atol=0)
    assert thunder.cache_misses(compiled) == 2


DIFFERENTIATED: dict[str, tuple[Callable[[Tensor], Tensor], int]] = {
    "a factor": (lambda x: x * x.sum().item(), 1),
    "a whole divisor": (lambda x: x.square() / (x > 0).sum().item(), 1),
    "a number in a number": (lambda x: torch.sin(x * (x.max().item() * 2)) + 1 / x.norm().item(), 1),
    "a bound": (lambda x: x.clamp(max=x.mean().item()), 1),
    "an exponent, of which the backward makes another": (lambda x: x.abs() ** x.max().item(), 3),
    "a factor in place": (lambda x: x.clone().mul_(x.sum().item()), 3),
}


@pytest.mark.parametrize("name", DIFFERENTIATED)
def test_program_that_differentiates_itself_uses_constant_numbers(name: str) -> None:
    function, traces = DIFFERENTIATED[name]

    def program(x: Tensor) -> tuple[Tensor, Tensor]:
        y = function(x)
        (found,) = torch.autograd.grad(y.square().sum(), x)
        return y.detach(), found

    compiled = thunder.jit(program)
    for x in (X, -X, X + 1, X):
        x = x.clone().requires_grad_()
        torch.testing.assert_close(compiled(x), program(x), rtol=0, atol=0)
    assert thunder.cache_misses(compiled) == traces


def test_arithmetic_of_values_matches_python() -> None:
    def program(x: Tensor, y: Tensor) -> tuple[Any, ...]:
        a, n = x.item(), y.item()
        return a + n, a - 1, 2 * a, a / n, a // n, a % n, a**2, n // 3, n % -3, -n, n * 2, a - a // 1, abs(a), 0.1**n

    compiled = thunder.jit(program)
    for a, n in ((0.1, 3), (-7.25, 2), (1e100, -5), (5e-324, 7)):
        given = torch.tensor(a, dtype=torch.float64), torch.tensor(n)
        found, wanted = compiled(*given), program(*given)
        assert list(map(repr, found)) == list(map(repr, wanted))
    assert thunder.cache_misses(compiled) == 1


def test_integer_used_as_a_size_or_an_index_is_guarded() -> None:
    def program(x: Tensor) -> tuple[Tensor, ...]:
        n = (x > 0).sum().item()
        return x[:n], x.split(n + 1)[0], torch.zeros(n), x.chunk(n + 2)[0], *x.roll(n).split(2)

    compiled = thunder.jit(program)
    for x in CALLS:
        torch.testing.assert_close(compiled(x), program(x), rtol=0, atol=0)
    assert thunder.cache_misses(compiled) == 2


def repeated_in_python(x: Tensor) -> Tensor:
    x.mul_(2)
    for _ in range(int(x.sum())):
        x = x + 1
    return x


def test_calls_run_in_eager_if_a_line_of_the_program_reads_too_many_values() -> None:
    compiled = thunder.jit(repeated_in_python)
    for number in range(8):
        assert compiled(torch.tensor([float(number)])).item() == 4 * number
    with pytest.warns(RecompileWarning, match=r"made in eager PyTorch .*traced for 8 values .* 14, .* 16"):
        assert compiled(torch.tensor([8.0])).item() == 32
    misses = thunder.cache_misses(compiled)
    for number in (9, 3, 12):
        assert compiled(torch.tensor([float(number)])).item() == 4 * number
    line = repeated_in_python.__code__.co_firstlineno + 2
    reason = thunder.recompile_reasons(compiled)[-1]
    assert reason.startswith(f"{__file__}:{line}, in repeated_in_python: calls that no program takes are made in eager")
    assert misses == thunder.cache_misses(compiled) == 8
    unlimited_retraces = thunder.jit(repeated_in_python, data_dependent="retrace")
    for number in range(12):
        assert unlimited_retraces(torch.tensor([float(number)])).item() == 4 * number


class Trebled(Transform):
    """A transform that changes the computed value."""

    def __call__(self, trace: Trace) -> Trace:
        """Return the trace with three in place of two."""
        lines = [replace(line, args=tuple(3 if arg == 2 else arg for arg in line.args)) for line in trace.bound_symbols]
        return trace.having(lines, made_by="treble")


def test_a_value_that_transforms_change_is_refused() -> None:
    def program(x: Tensor) -> Tensor:
        x.add_(1)
        return x if (x * 2).sum() == 10 else -x

    x = X.clone()
    with pytest.raises(DataDependent, match="True in eager PyTorch but False in the compiled program"):
        thunder.jit(program, transforms=[Trebled()])(x)
    assert torch.equal(x, X)


def ranking(cost: Tensor) -> list[int]:
    return cost.detach().numpy().argsort().tolist()


def ranked(x: Tensor) -> tuple[Tensor, list[int]]:
    cost = torch.sin(x)
    ranks = ranking(cost)
    return x[ranks] * 2, ranks


def executor_that_rounds_sines() -> OperatorExecutor:
    rounding = OperatorExecutor("rounding")
    rounding.implements(torch.sin)(lambda x: x.sin() * (1 + 2.0**-23))
    return rounding


def test_a_value_that_kernels_round_differently_is_read_in_eager() -> None:
    compiled = thunder.jit(ranked, executors=[executor_that_rounds_sines(), "torch"])
    with pytest.warns(RecompileWarning, match="the function around this line is called in eager PyTorch"):
        result, ranks = compiled(X)
    assert torch.equal(result, ranked(X)[0])
    assert ranks == ranked(X)[1]
    for x in (-X, X, -X):
        assert torch.equal(compiled(x)[0], ranked(x)[0])
    assert thunder.cache_hits(compiled) == 2


def test_a_value_that_kernels_round_differently_is_refused_if_each_value_is_traced() -> None:
    executors = [executor_that_rounds_sines(), "torch"]
    with pytest.raises(DataDependent, match="in eager PyTorch but data"):
        thunder.jit(ranked, executors=executors, data_dependent="retrace")(X)


def test_other_shapes_do_not_count_as_other_values() -> None:
    compiled = thunder.jit(PROGRAMS["a branch"])
    for size in range(1, 13):
        for sign in (1.0, -1.0):
            assert torch.equal(compiled(torch.ones(size) * sign), torch.ones(size))


def test_loop_with_a_new_length_at_each_call_finally_runs_in_eager() -> None:
    compiled = thunder.jit(counted)
    with pytest.warns(RecompileWarning, match="traced for 32 values"):
        for number in range(40):
            x = torch.tensor([10.0 - number])
            assert torch.equal(compiled(x), counted(x))
    assert thunder.cache_misses(compiled) < 40


def test_read_of_a_value_is_a_sharp_edge_and_can_be_refused() -> None:
    for program in (PROGRAMS["a branch"], branch):
        with pytest.raises(SharpEdgeError, match="reads the value of a tensor"):
            thunder.jit(program, sharp_edges="error")(X)
        with pytest.raises(DataDependent):
            thunder.jit(program, data_dependent="error")(X)
    with pytest.raises(BadOption):
        thunder.jit(PROGRAMS["a branch"], data_dependent="perhaps")  # type: ignore[arg-type]


class Chooses(nn.Module):
    """A module that branches on a value, and selects by its buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("signs", torch.tensor([1.0, -2.0, 3.0]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x * self.signs
        return y[self.signs > 0] if y.sum() > 0 else y


def within(x: torch.Tensor) -> Any:
    with torch.inference_mode():
        doubled = x * 2
        return doubled[doubled > 0], doubled.tolist()


def written(x: torch.Tensor) -> torch.Tensor:
    x.add_(1)
    return x + 1 if x.sum() > 0 else x - 1


IN_INFERENCE_MODE: dict[str, Callable[[], Any]] = {
    "a mask": lambda: lambda x: x[x > 0],
    "a mask of what is computed": lambda: lambda x: (x * 2)[x.sin() > 0].sum(),
    "a list": lambda: lambda x: x.tolist(),
    "a branch": lambda: lambda x: x + 1 if x.sum() > 0 else x - 1,
    "places": lambda: lambda x: (x * 2).nonzero(),
    "unique values": lambda: torch.unique,
    "a write before a mask": lambda: lambda x: (x.mul_(2), x[x > 0])[1],
    "a write before a branch": lambda: written,
    "a module": Chooses,
    "a block of the program": lambda: within,
}


@pytest.mark.parametrize("made_in_mode", [False, True])
@pytest.mark.parametrize("name", IN_INFERENCE_MODE)
def test_values_are_read_in_inference_mode(name: str, made_in_mode: bool) -> None:
    def run(called: Any) -> list[Any]:
        results: list[Any] = []
        for values in ([1.0, -2.0, 3.0], [1.0, 2.0, 3.0], [-1.0, -2.0, -3.0], [1.0, -2.0, 3.0]):
            with torch.inference_mode(made_in_mode):
                x = torch.tensor(values)
            with torch.inference_mode():
                results += tree_leaves(called(x))
        return results

    make = IN_INFERENCE_MODE[name]
    wanted, found = run(make()), run(thunder.jit(make()))
    assert len(found) == len(wanted)
    for ours, theirs in zip(found, wanted, strict=True):
        assert torch.equal(ours, theirs) if isinstance(theirs, torch.Tensor) else ours == theirs
        assert not isinstance(theirs, torch.Tensor) or ours.is_inference() == theirs.is_inference()


def test_in_place_call_that_reads_a_value_is_made_at_each_call() -> None:
    """`torch._foreach_lerp_` reads the weight, and returns the list that it writes to."""

    def step(averages: list[Tensor], targets: list[Tensor], weight: Tensor) -> list[Tensor]:
        return torch._foreach_lerp_(averages, targets, weight)

    compiled = thunder.jit(step)
    for weight in (0.5, 0.5, 0.25):
        averages, expected = ([X.clone(), X[:2] * 2] for _ in range(2))
        result = compiled(averages, [X + 1, X[1:]], torch.tensor(weight))
        torch.testing.assert_close(result, step(expected, [X + 1, X[1:]], torch.tensor(weight)))
        assert [*map(id, result)] == [*map(id, averages)]


def test_keyword_arguments_may_be_named_by_words_of_python() -> None:
    def draw(x: Tensor, bounds: dict[str, int]) -> Tensor:
        return x.clone().random_(**bounds) + x.uniform_(**{"from": 0.0, "to": 0.5})

    compiled = thunder.jit(draw)
    for bounds in ({"from": -10, "to": 10}, {"from": 3, "to": 4}):
        torch.manual_seed(0)
        expected = draw(X.clone(), bounds)
        torch.manual_seed(0)
        torch.testing.assert_close(compiled(X.clone(), bounds), expected)


@pytest.mark.parametrize("kind", [torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN])
def test_recurrent_network_of_packed_sequences_of_different_lengths(kind: type[torch.nn.Module]) -> None:
    network = kind(3, 4)
    fast = thunder.jit(network)
    for lengths in ((3, 2), (1, 4), (1, 1, 6), (2, 2)):
        sequences = [torch.rand(length, 3) for length in lengths]
        packed = torch.nn.utils.rnn.pack_sequence(sequences, enforce_sorted=False)
        torch.testing.assert_close(fast(packed)[0].data, network(packed)[0].data)


class PackedNetwork(torch.nn.Module):
    """A recurrent network of packed sequences, with trained layers before and after it."""

    def __init__(self, kind: type[torch.nn.Module]) -> None:
        super().__init__()
        self.first, self.network, self.last = torch.nn.Linear(3, 3), kind(3, 4), torch.nn.Linear(4, 2)

    def forward(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        packed = torch.nn.utils.rnn.pack_padded_sequence(self.first(x), lengths, enforce_sorted=False)
        result, state = self.network(packed)
        padded, _ = torch.nn.utils.rnn.pad_packed_sequence(result)
        return self.last(padded), state[0]

    def train_step(self, x: Tensor, lengths: Tensor) -> Tensor:
        padded, state = self(x, lengths)
        loss = padded.square().sum() + state.sum()
        loss.backward()
        return loss


@pytest.mark.parametrize("kind", [torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN])
def test_gradients_of_packed_sequences(kind: type[torch.nn.Module]) -> None:
    model, x, lengths = PackedNetwork(kind), torch.rand(3, 2, 3), torch.tensor([2, 3])
    found, expected = thunder.jit(model)(x, lengths), model(x, lengths)
    parameters = list(model.parameters())
    for result, wanted in zip(found, expected, strict=True):
        gradients = torch.autograd.grad(result.sum(), parameters, retain_graph=True, allow_unused=True)
        wanted_gradients = torch.autograd.grad(wanted.sum(), parameters, retain_graph=True, allow_unused=True)
        for gradient, wanted_gradient in zip(gradients, wanted_gradients, strict=True):
            torch.testing.assert_close(gradient, wanted_gradient)


def test_program_with_a_backward_through_packed_sequences() -> None:
    model, x, lengths = PackedNetwork(torch.nn.LSTM), torch.rand(3, 2, 3), torch.tensor([2, 3])
    loss = model.train_step(x, lengths)
    expected = [parameter.grad for parameter in model.parameters()]
    model.zero_grad()
    with pytest.warns(RecompileWarning, match="depends on the values of its arguments"):
        torch.testing.assert_close(thunder.jit(model.train_step)(x, lengths), loss)
    torch.testing.assert_close([parameter.grad for parameter in model.parameters()], expected)


def split_by_values(x: Tensor) -> tuple[Tensor, Tensor]:
    first, second = torch.tensor_split(x * 2, torch.tensor([1]))
    return first * second.sum(), x + 1


def test_results_of_an_operation_on_values_require_gradients() -> None:
    x = torch.rand(3, requires_grad=True)
    found, expected = thunder.jit(split_by_values)(x), split_by_values(x)
    (gradient,), (wanted,) = (torch.autograd.grad(result[0].sum(), x) for result in (found, expected))
    torch.testing.assert_close(gradient, wanted)
    with pytest.raises(NotDifferentiable, match="tensor_split"):
        thunder.jvp(split_by_values, (x.detach(),), (torch.ones(3),))


def branch_on_constant(x: Tensor) -> Tensor:
    return x * 2 if (torch.arange(4).diff() == 1).all() else x + 1


def comparison_of_constants(x: Tensor) -> Tensor:
    return x * 2 if torch.equal(torch.arange(3), torch.ones(3, dtype=torch.int64).cumsum(0) - 1) else x + 1


def branch_on_second_operand(x: Tensor) -> Tensor:
    return x * 2 if (torch.zeros(3) + x).sum() > 0 else x + 1


def branch_on_written_constant(x: Tensor) -> Tensor:
    written = torch.zeros(3)
    before = bool(written.sum() == 0)
    written[1:].add_(x[1:])
    return x * 2 if before and written.sum() > 0 else x + 1


def branch_on_random_numbers(x: Tensor) -> Tensor:
    return x * 2 if torch.rand(3).sum() > 0 else x + 1


@pytest.mark.parametrize("function", [branch_on_constant, comparison_of_constants])
@pytest.mark.parametrize("data_dependent", ["guard", "error"])
def test_values_that_depend_on_no_input_are_constants_without_a_check(function: Any, data_dependent: Any) -> None:
    compiled = thunder.jit(function, executors=("torch",), data_dependent=data_dependent)
    x = torch.ones(3)
    torch.testing.assert_close(compiled(x), function(x))
    names = {bsym.symbol.short_name for bsym in thunder.last_traces(compiled)[-1].bound_symbols}
    assert not names - {"mul", "del"}


@pytest.mark.parametrize("function", [branch_on_second_operand, branch_on_written_constant, branch_on_random_numbers])
def test_other_values_are_checked(function: Any) -> None:
    compiled = thunder.jit(function, executors=("torch",))
    for x in (torch.ones(3), -torch.ones(3), torch.ones(3)):
        torch.testing.assert_close(compiled(x), function(x))
    names = {bsym.symbol.short_name for bsym in thunder.last_traces(compiled)[-1].bound_symbols}
    assert "expect_value" in names


def test_node_of_an_operation_on_values_has_its_name() -> None:
    x = torch.rand(3, requires_grad=True)

    def program(x: Tensor) -> tuple[str, bool]:
        first, _ = torch.tensor_split(x, torch.tensor([1]))
        return type(first.grad_fn).__name__, first.is_leaf

    assert thunder.jit(program)(x) == program(x)


def test_class_of_a_node_from_outside() -> None:
    x = torch.rand(3, requires_grad=True).exp()
    with pytest.warns(RecompileWarning, match="reads a node of a graph from outside"):
        assert thunder.jit(lambda x: type(x.grad_fn).__name__)(x) == "ExpBackward0"
