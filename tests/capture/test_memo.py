"""Cached results of calls must equal the results of running the calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import thunder_core as thunder
from tests.capture.test_recorder import record_natively
from thunder_core.backend.runtime.generate import executable
from thunder_core.passes.transforms.cse import ShareCommonExpressions
from thunder_core.passes.transforms.dce import DropDeadCode
from thunder_core.tracing.capture import recorder
from thunder_core.tracing.ir.printer import print_trace


def writes_through_views(x: Tensor) -> Tensor:
    total = torch.zeros_like(x[0])
    for step in range(3):
        y = x.clone()
        row = y[1]
        row.add_(step)
        total = total + y.sum(0)
    return total


def reads_metadata(x: Tensor) -> Tensor:
    for _ in range(2):
        x = x.transpose(0, 1)
        x = x.reshape(x.shape[0] * x.stride(0) // x.stride(0), -1)
    return x


def changes_metadata_in_place(x: Tensor) -> Tensor:
    y = x.clone()
    first = y.sum(-1)
    y.unsqueeze_(0)
    return y.sum(-1) + first


def mixes_operands(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x + 1
    return x * y, x * x


def keeps_constants_apart(x: Tensor) -> Tensor:
    return torch.stack([x * 1, x * 1.0, x * -0.0, x * 0.0, (x > 0) * True]).to(torch.float32)


def unbinds(x: Tensor) -> Tensor:
    out = x
    for _ in range(2):
        first, second, *_ = out.unbind()
        out = torch.stack([second, first, *_])
    return out


def switches_autograd(x: Tensor) -> Tensor:
    y = x * 2
    with torch.no_grad():
        z = x * 2
    return y + z


def drops_out(x: Tensor) -> Tensor:
    torch.manual_seed(0)
    return functional.dropout(x, 0.5) - functional.dropout(x, 0.5)


PROGRAMS = [
    writes_through_views,
    reads_metadata,
    changes_metadata_in_place,
    mixes_operands,
    keeps_constants_apart,
    unbinds,
    switches_autograd,
]


@pytest.mark.parametrize("level", ["torch", "aten"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_programs_with_repeated_calls_are_recorded_in_full(program: Callable[[Tensor], Any], level: str) -> None:
    x = torch.linspace(-1, 2, 16).reshape(4, 4)
    trace, _ = record_natively(program, x)
    trace = DropDeadCode()(ShareCommonExpressions()(trace))
    results = executable(print_trace(trace, level=level), "computation")(x.clone())
    expected = program(x.clone())
    for ours, eager in zip(results, expected if isinstance(expected, tuple) else (expected,), strict=True):
        assert torch.equal(ours, eager)
        assert ours.dtype == eager.dtype


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the functions that recordings of the test run on fakes, in order."""
    names: list[str] = []
    run = recorder.Recorder.run

    def record_name(self: Any, function: Any, *rest: Any) -> Any:
        names.append(function.__name__)
        return run(self, function, *rest)

    monkeypatch.setattr(recorder.Recorder, "run", record_name)
    return names


def test_a_repeated_call_is_not_run_again(ran: list[str]) -> None:
    trace, _ = record_natively(lambda x: functional.silu(functional.silu(functional.silu(x))), torch.ones(3))
    assert len(trace) == 3
    assert ran.count("silu") == 1


def test_random_calls_are_each_recorded() -> None:
    trace, _ = record_natively(drops_out, torch.ones(4))
    assert [bsym.symbol.short_name for bsym in trace.bound_symbols].count("dropout") == 2
    assert len(ShareCommonExpressions()(trace)) == len(trace)


def test_cached_call_keeps_the_autograd_state_of_each_tensor() -> None:
    seen: list[object] = []

    def program(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        made = x * weight
        cut = made.detach().requires_grad_()
        seen.extend((cut.is_leaf, made.is_leaf, cut.grad_fn is None, made.grad_fn is None))
        return made

    record_natively(program, torch.ones(3), torch.ones(3, requires_grad=True))
    assert seen == [True, False, True, False]


def test_calls_with_constants_without_elements_are_cached(ran: list[str]) -> None:
    def grown(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(torch.cat([torch.tensor([]), x + number], dim=-1) for number in range(3))

    trace, _ = record_natively(grown, torch.ones(3))
    assert [bsym.symbol.short_name for bsym in trace.bound_symbols].count("cat") == 3
    assert ran.count("cat") == 1


def test_value_of_empty_sum_is_known_after_equal_call_on_unknown_values() -> None:
    known: list[float] = []

    def program(x: torch.Tensor) -> torch.Tensor:
        (x[:0] + 0).sum()
        known.append(torch.tensor([]).sum().item())
        return x

    record_natively(program, torch.ones(3))
    assert known == [0.0]


def test_equal_calls_with_symbolic_sizes_run_once(ran: list[str]) -> None:
    def layers(x: Tensor, weight: Tensor) -> Tensor:
        for _ in range(6):
            rows, length, _ = x.shape
            heads = functional.linear(x, weight).view(rows, length, 2, -1).transpose(1, 2)
            x = heads.transpose(1, 2).reshape(rows, length, -1)
        return x

    compiled, weight = thunder.jit(layers, cache="symbolic values"), torch.randn(4, 4)
    for shape in ((2, 3, 4), (5, 1, 4), (1, 7, 4)):
        x = torch.randn(shape)
        torch.testing.assert_close(compiled(x, weight), layers(x, weight))
    assert thunder.cache_misses(compiled) == 1
    # The last size of the input is a symbol, until the first product shows that it is 4.
    assert [ran.count(name) for name in ("linear", "view", "reshape", "__get__")] == [2, 1, 1, 2]
