"""The recorder: the recorded lines, at both levels, and the refused calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional

from thunder_core.backend.runtime.generate import executable
from thunder_core.foundation.errors import DataDependent, OperationFailed
from thunder_core.tracing.capture.location import Location
from thunder_core.tracing.capture.recorded_program import RecordedProgram
from thunder_core.tracing.capture.recorder import Recorder
from thunder_core.tracing.ir.check import check_trace
from thunder_core.tracing.ir.evaluate import bindings, evaluate_bound_symbol
from thunder_core.tracing.ir.printer import print_trace
from thunder_core.tracing.ir.trace import Trace


class OnTensors(RecordedProgram):
    """A program on some tensors, which are named by their number."""

    def __init__(self, tensors: tuple[torch.Tensor, ...]) -> None:
        self._names = {id(tensor): f"x{index}" for index, tensor in enumerate(tensors)}

    def name_input(self, value: Any) -> str:
        return self._names[id(value)]

    def location(self) -> Location:
        return Location()


def record_natively(function: Callable[..., Any], *tensors: torch.Tensor) -> tuple[Trace, Any]:
    """Run a function natively under the recorder; return its trace and its result."""
    recorder = Recorder(OnTensors(tensors))
    with recorder.recording():
        output = function(*tensors)
    outputs = output if isinstance(output, tuple) else (output,)
    trace = Trace(
        name="computation",
        inputs=tuple(proxy for _, proxy in recorder.inputs.values()),
        bound_symbols=tuple(recorder.bound_symbols),
        output=tuple(recorder.proxy_of(tensor) for tensor in outputs),
    )
    return check_trace(trace), output


def names(trace: Trace, level: str = "torch") -> list[str]:
    """Return the short names of the trace's symbols."""
    return [bsym.symbol.short_name for bsym in trace.at_level(level)]


PROGRAMS: dict[str, Callable[..., Any]] = {
    "operators": lambda x: -(1 - x) * 2 / (x**2 + 1) @ x.T,
    "indexing": lambda x: x[..., None][:, 1:2].squeeze(-1) + x[0, 0],
    "item writes": lambda x: _written(x),
    "in place": lambda x: x.clone().add_(1).mul_(x),
    "views": lambda x: x.view(-1).unbind()[0] + x.reshape(4, 4).transpose(0, 1),
    "several results": lambda x: x.max(-1),
    "functions": lambda x: functional.layer_norm(functional.gelu(x), (4,)),
    "factories": lambda x: torch.arange(4) + torch.tensor([1.0, 2.0, 3.0, 4.0]) + x.new_zeros(4),
    "constants": lambda x: torch.where(x > -0.9, x, float("-inf")).softmax(-1),
    "attention": lambda x: functional.scaled_dot_product_attention(x[None], x[None], x[None]),
    "nested results": lambda x: torch.nn.functional.max_pool1d(x[None], 2, return_indices=True),
    "aten": lambda x: torch.ops.aten.mul.Tensor(x, x),
    "einsum": lambda x: torch.einsum("ij,kj->ik", x, x),
    "lists": lambda x: torch.cat([x, x[:1]], dim=0).split([2, 3]),
}


def _written(x: torch.Tensor) -> torch.Tensor:
    y = torch.zeros_like(x)
    y[1:, 0] = x[1:, 0]
    y[0] = 5
    return y


@pytest.mark.parametrize("level", ["torch", "aten"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_printed_trace_matches_the_program(name: str, level: str) -> None:
    x = torch.linspace(-1, 2, 16).reshape(4, 4)
    trace, _ = record_natively(PROGRAMS[name], x)
    function = executable(print_trace(trace, level=level), "computation")
    expected = PROGRAMS[name](x)
    expected = expected if isinstance(expected, tuple) else (expected,)
    for ours, theirs in zip(function(*[x for _ in trace.inputs]), expected, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_both_levels_are_recorded_in_one_run() -> None:
    trace, _ = record_natively(lambda x: functional.linear(x, x, x[0]), torch.ones(4, 4))
    assert names(trace) == ["__getitem__", "linear"]
    assert names(trace, "aten") == ["int", "default", "default"]
    assert [sub.symbol.name for sub in trace.bound_symbols[1].subsymbols] == [
        "torch.ops.aten.t.default",
        "torch.ops.aten.addmm.default",
    ]


def test_metadata_reads_and_no_ops_leave_no_line() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        assert x.shape[0] == x.size(0) == len(x) == 4
        assert x.dtype is torch.float32
        return functional.dropout(x.to(torch.float32).contiguous(), training=False) + 1

    trace, _ = record_natively(program, torch.ones(4, 4))
    assert names(trace) == ["add"]


def test_real_tensors_are_handles() -> None:
    x = torch.ones(4)
    _, output = record_natively(lambda x: x.add_(1), x)
    assert output is x
    assert torch.equal(x, torch.ones(4)), "tracing must not touch data"


def test_random_and_writing_lines_have_effects() -> None:
    trace, _ = record_natively(lambda x: functional.dropout(x, 0.5) + x.clone().zero_(), torch.ones(4))
    assert {bsym.symbol.short_name: bsym.has_effect for bsym in trace.bound_symbols} == {
        "dropout": True,
        "clone": False,
        "zero_": True,
        "add": False,
    }


def test_autograd_switches_are_lines_only_if_they_change_the_mode() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return x + 1

    assert names(record_natively(program, torch.ones(2))[0]) == ["_set_grad_enabled", "add", "_set_grad_enabled"]
    with torch.no_grad():
        assert names(record_natively(program, torch.ones(2))[0]) == ["add"]


@pytest.mark.parametrize(
    "program",
    [lambda x: bool(x.sum()), lambda x: float(x.sum().item()), lambda x: (x > 0).tolist(), lambda x: x.nonzero()],
)
def test_reading_a_value_is_refused(program: Callable[..., Any]) -> None:
    with pytest.raises(DataDependent, match="reads the value of a tensor"):
        record_natively(program, torch.ones(3))


def test_tensors_in_layouts_of_libraries_are_refused() -> None:
    with pytest.raises(OperationFailed, match=r"layout torch\._mkldnn"):
        record_natively(lambda x: x + 1, torch.ones(3).to_mkldnn())


def test_values_that_the_program_wrote_itself_may_be_read() -> None:
    trace, _ = record_natively(lambda x: x * torch.tensor(3).item(), torch.ones(3))
    assert "* 3" in print_trace(trace).text


def turned(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    y.t_()
    return y.tanh()


def turned_itself(x: torch.Tensor) -> torch.Tensor:
    x.t_()
    return x + 1


def with_other_dimensions(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    y = x.clone().unsqueeze_(0).transpose_(1, 2)
    return y.exp(), y.squeeze_().sum(0)


IN_PLACE = {
    "turned": turned,
    "turned itself": turned_itself,
    "other dimensions": with_other_dimensions,
    "within an operation": lambda x: functional.linear(x[0], x) + 1,
}


@pytest.mark.parametrize("level", ["torch", "aten"])
@pytest.mark.parametrize("name", IN_PLACE)
def test_each_name_has_constant_metadata(name: str, level: str) -> None:
    """Each line gives new names to the results of operations that change shapes and strides in place."""
    trace, _ = record_natively(IN_PLACE[name], torch.arange(9.0).view(3, 3))
    values: dict[str, Any] = {proxy.name: torch.arange(9.0).view(3, 3) for proxy in trace.inputs}
    for line in trace.at_level(level):
        for proxy, value in bindings(line.output, evaluate_bound_symbol(line, values)):
            values[proxy.name] = value
            assert (proxy.shape, proxy.stride) == (value.shape, value.stride())
    assert any(proxy.stride != (3, 1) for line in trace.bound_symbols for proxy in line.outputs)
