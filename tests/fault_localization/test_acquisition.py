"""Traced computations that differ from the program."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import thunder_core as thunder
from tests.fault_localization.examined import activating, examine_call, numbers, program_of, silu
from tests.planted.bound_symbols import changed_lines
from tests.planted.programs import with_transformed_trace
from thunder_core.backend.runtime.program import Program
from thunder_core.workflow.fault_localization.boundary.acquisition import match_calls
from thunder_core.workflow.fault_localization.boundary.eager_calls import RecordCalls, RepeatedRecording
from thunder_core.workflow.fault_localization.examination import examine
from thunder_core.workflow.fault_localization.guard_probes import serves_ranges


def two_calls(x: torch.Tensor) -> torch.Tensor:
    """A few calls of PyTorch, one of them a method."""
    return silu(x * 2).tanh() * 0.5


def dropped_twice(x: torch.Tensor) -> torch.Tensor:
    """Dropout of a product, and of its activation."""
    return F.dropout(silu(F.dropout(x * 2, 0.25)), 0.5) * 0.5


def attention(x: torch.Tensor) -> torch.Tensor:
    """Attention with dropout, and dropout of its result."""
    rows = x[None]
    return F.dropout(F.scaled_dot_product_attention(rows, rows, rows, dropout_p=0.2, scale=0.5), 0.25)


def random_slopes(x: torch.Tensor) -> torch.Tensor:
    """A leaky rectifier with random slopes, between two products."""
    return F.rrelu(x @ x.t(), 0.125, 0.5, training=True) @ x


def noisy(x: torch.Tensor) -> torch.Tensor:
    """Random numbers about a random mean."""
    noise = torch.randn(4, 4) * 0.5
    return torch.normal(torch.tanh(noise - x @ x.t() * 0.3), 0.5) * 3


DRAWING = (dropped_twice, attention, random_slopes, noisy)


def acquired_wrongly(program: Program, number: int) -> tuple[Program, str, str]:
    """The program with a changed computation, the change in words, and the name that the changed line defines."""
    what, name, trace = list(changed_lines(program.traces("computation")[0]))[number]
    wrong = with_transformed_trace(program, trace)
    stages = [stage for stage in wrong.stages if stage.trace is not program.traces("computation")[0]]
    return type(program)(tuple(stages), program.guards), what, name


@pytest.mark.parametrize("subject", [two_calls, *DRAWING])
def test_a_line_that_the_program_does_not_run(subject):
    program = program_of(subject, x=numbers())
    for number in range(len(list(changed_lines(program.traces("computation")[0])))):
        wrong, what, name = acquired_wrongly(program, number)
        (fault,) = examine(wrong, subject, (), {"x": numbers()}).faults
        assert fault.kind == "acquisition"
        assert fault.trace == "computation"
        assert fault.result == name or what == "left out"


@pytest.mark.parametrize("subject", DRAWING)
def test_right_program_that_draws_random_numbers_has_no_fault(subject):
    assert not examine_call(subject, x=numbers()).faults


def test_calls_are_recorded_with_their_results():
    x = numbers()
    with RecordCalls() as recorder:
        two_calls(x)
    assert [call.function.__name__ for call in recorder.calls] == ["mul", "silu", "tanh", "mul"]
    assert torch.equal(recorder.calls[-1].results[0], two_calls(numbers()))


@pytest.mark.parametrize(("room", "runs"), [(0, 5), (200, 5), (300, 3), (10_000, 1)])
def test_dropped_results_are_recorded_again(room, runs):
    x, recorders = numbers(), []  # 128 bytes
    with RecordCalls() as whole:
        two_calls(x)

    def run(recorder: RecordCalls) -> None:
        recorders.append(recorder)
        with recorder:
            two_calls(x)

    calls = RepeatedRecording(two_calls, run, room).calls
    assert [call.name for call in calls] == ["mul", "silu", "tanh", "mul"]
    for call, wanted in zip((*calls, calls[0]), (*whole.calls, whole.calls[0]), strict=True):
        assert torch.equal(call.results[0], wanted.results[0])
    held = [sum(one.nbytes for (one,) in recorder.saved_results.values()) for recorder in recorders]
    assert max(held) <= max(room, x.nbytes)
    assert len(recorders) == runs


def test_program_that_makes_other_calls_each_time_is_refused():
    x, count = numbers(), iter(range(10))

    def run(recorder: RecordCalls) -> None:
        with recorder:
            [x * 2 for _ in range(4 + next(count))]

    calls = RepeatedRecording(None, run, x.nbytes).calls
    assert torch.equal(calls[0].results[0], x * 2)
    with pytest.raises(RuntimeError, match="other calls of PyTorch when it runs again"):
        _ = calls[3].results


def deep(x: torch.Tensor) -> torch.Tensor:
    """Many layers with random numbers between them."""
    for _ in range(12):
        x = torch.sin(silu(x * 2) * 1e3) + torch.rand_like(x)
    return x


@pytest.mark.parametrize("room", [0, 1 << 11])
def test_faults_are_found_with_some_results_held_at_a_time(room, monkeypatch):
    monkeypatch.setattr("thunder_core.workflow.fault_localization.boundary.eager_calls.MIN_ROOM", room)
    monkeypatch.setattr("thunder_core.workflow.fault_localization.boundary.eager_calls.SHARE_OF_WEIGHTS", 0)
    program = program_of(deep, x=numbers())
    assert not examine(program, deep, (), {"x": numbers()}).faults
    count = len(list(changed_lines(program.traces("computation")[0])))
    for number in (0, count // 2, count - 1):
        wrong, what, name = acquired_wrongly(program, number)
        (fault,) = examine(wrong, deep, (), {"x": numbers()}).faults
        assert fault.kind == "acquisition"
        assert fault.result == name or what == "left out"


def amplifying(x: torch.Tensor) -> torch.Tensor:
    """A result whose leading digits are the last digits of an activation."""
    return torch.sin(silu(x * 2) * 1e6) + 1


def rounding_otherwise() -> tuple[thunder.OperatorExecutor, str]:
    """Executors of which the first computes `silu` with different rounding."""
    return activating(lambda x: silu(x.double()).float()), "torch"


def test_a_program_that_amplifies_rounding_is_right():
    compiled, x = thunder.jit(amplifying, executors=rounding_otherwise()), numbers()
    assert (compiled(x) - amplifying(x)).abs().max() > 1e-3
    assert not examine_call(amplifying, rounding_otherwise(), x=x).faults


def test_each_wrong_line_is_named_in_a_program_that_amplifies_rounding():
    program = program_of(amplifying, rounding_otherwise(), x=numbers())
    for number in range(len(list(changed_lines(program.traces("computation")[0])))):
        wrong, what, name = acquired_wrongly(program, number)
        (fault,) = examine(wrong, amplifying, (), {"x": numbers()}).faults
        assert fault.kind == "acquisition"
        assert fault.result == name or what == "left out"


def test_other_sizes_of_a_program_that_amplifies_rounding_are_right():
    options = {"cache": "symbolic values"}
    program = program_of(amplifying, rounding_otherwise(), options, x=numbers())
    assert serves_ranges(program)
    assert not examine_call(amplifying, rounding_otherwise(), options, x=numbers()).faults


class LeavesOut(torch.nn.Module):
    """A model with calls that return their arguments, and a line that makes the same call for several tensors."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(3))
        self.register_buffer("narrow", torch.randn(16, 8).bfloat16())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """A stack of layers, and a product of which one factor has a narrow dtype."""
        for layer in self.layers:
            x = layer(x.contiguous().to(torch.float32)).tanh() + x
        return torch.nn.functional.linear(*(factor.to(torch.bfloat16) for factor in (x, self.narrow)))


def test_calls_that_a_trace_leaves_out():
    assert not examine_call(LeavesOut(), x=numbers()).faults


def test_lines_are_matched_with_the_calls_of_their_module():
    model, x = LeavesOut(), numbers()
    trace = program_of(model, x=x).traces("computation")[0]
    with RecordCalls(model) as recorder:
        model(x)
    matched = match_calls(trace, recorder.calls)
    linears = {
        bsym.module: matched[index][0].location.module
        for index, bsym in enumerate(trace.bound_symbols)
        if bsym.symbol.short_name == "linear"
    }
    assert linears == {name: name for name in ("layers.0", "layers.1", "layers.2", "module")}


def test_an_in_place_write_is_followed():
    def program(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        y.add_(1).mul_(torch.tanh(x))
        return y.view(-1).sigmoid_().view(4, 8) + y

    assert not examine_call(program, x=numbers()).faults
